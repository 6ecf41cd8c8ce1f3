"""Hangs: a thread holds a lock when the process is forked; the child gets the held lock, but not the thread."""

import multiprocessing
import threading
import time

lock = threading.Lock()


def report() -> None:
    """Hold the lock most of the time, as a logger on a slow disk or a prefetcher does."""
    while True:
        with lock:
            time.sleep(0.1)
        time.sleep(0.001)


def tokenize(text: str) -> list[int]:
    """The tokens of one text."""
    with lock:
        return list(text.encode())


threading.Thread(target=report, daemon=True).start()

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100, chunksize=1))), "tokens")
