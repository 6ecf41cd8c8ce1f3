"""A library that starts a thread while it is loaded, as some do."""

import threading

threading.Thread(target=threading.Event().wait, daemon=True).start()
