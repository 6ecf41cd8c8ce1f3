"""Small scripts for the examination: what looks bad and is not, and what dies of a cause that no example has."""

from __future__ import annotations

POOL = """
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(tokenize, ["some text"])
"""
SPAWN = POOL.replace("fork", "spawn")
UNGUARDED = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.map(tokenize, ["some text"])
"""
HEALTHY = {
    "no guard, but forked": ("def tokenize(text):\n    return text.split()", UNGUARDED),
    "a bounded cache": (
        """
        import functools

        @functools.lru_cache(maxsize=10_000)
        def word(text):
            return list(text.encode())

        def tokenize(text):
            return [word(each) for each in text.split()]
        """,
        POOL,
    ),
    "an initializer whose arguments are known later": (
        """
        import sys

        def start(path):
            global table
            table = open(path).read()

        def tokenize(text):
            return table[:1], text

        def main(path):
            multiprocessing.get_context('fork').Pool(2, start, (path,)).map(tokenize, ["some text"])
        """,
        'if __name__ == "__main__":\n    main(sys.argv[1])\n',
    ),
    "a global that the main part sets": (
        """
        encode = None

        def tokenize(text):
            return encode(text)
        """,
        f'if __name__ == "__main__":\n    encode = str.encode\n{POOL}',
    ),
    "a script that wants arguments": (
        "import sys\n\ndef tokenize(text):\n    return text.split()\n\nsys.argv[1]",
        POOL,
    ),
    "output, lost descriptors and other signals": (
        """
        import os, signal, sys
        print("{}" * 100_000)
        os.closerange(3, 64)
        os.chdir("/")
        signal.signal(signal.SIGABRT, signal.SIG_IGN)

        def tokenize(text):
            print(text)
            return text.split()
        """,
        SPAWN,
    ),
    "a service on this machine": (
        """
        import socket

        def tokenize(text):
            with socket.socket() as server, socket.socket() as client:
                server.bind(("127.0.0.1", 0))
                server.listen()
                client.connect(server.getsockname())
            return text.split()
        """,
        POOL,
    ),
    "a look at the network that it can do without": (
        """
        import socket

        def tokenize(text):
            try:
                socket.create_connection(("tokenmill.invalid", 443), 1)
            except OSError:
                pass
            return text.split()
        """,
        POOL,
    ),
}

UNTRIED = {"an initializer whose arguments are known later", "a global that the main part sets"}
"""Those whose function cannot be called here: that is said, and is no finding."""

DEADLY = {
    "a crash": ("import ctypes\ndef tokenize(text):\n    return ctypes.string_at(0)", POOL, "native-crash", "SIGSEGV"),
    "a crash in a spawned worker": (
        "import ctypes\ndef tokenize(text):\n    return ctypes.string_at(0)",
        SPAWN,
        "native-crash",
        "SIGSEGV",
    ),
    "a crash on an odd text": (
        "import ctypes\ndef tokenize(text):\n    return ctypes.string_at(0) if not text else text.split()",
        SPAWN,
        "native-crash",
        "on the text ''",
    ),
    "an exit": (
        "import os\ndef tokenize(text):\n    return text.split() or os._exit(3)",
        POOL,
        "exit",
        "exits with code 3 on the text ''",
    ),
    "an exception": ("def tokenize(text):\n    return {'a': 1}[text]", POOL, "own-exception", "KeyError"),
    "a hang": ("import threading\ndef tokenize(text):\n    threading.Event().wait()", POOL, "hang", "Event().wait()"),
    "a limit of address space": (
        """
        import resource
        resource.setrlimit(resource.RLIMIT_AS, (500 << 20, 500 << 20))
        kept = []

        def tokenize(text):
            kept.append(text * 400_000)
        """,
        POOL,
        "memory",
        "MemoryError in script.py:8: kept.append",
    ),
    "a heavy task": (
        """
        import functools, os

        def work(tables, text):
            return text.split()

        tokenize = functools.partial(work, {"ranks": os.urandom(2_000_000)})
        """,
        POOL,
        "heavy-task",
        "tokenize.args[0]['ranks'] (bytes)",
    ),
    "work at import": (
        "table = b'1' * 320_000_000\ndef tokenize(text):\n    return text.split()",
        SPAWN,
        "work-at-import",
        "script.py:2: table = b'1' * 320_000_000",
    ),
    "an import that fails in a new process": (
        'import sys\nassert __name__ == "__main__"\ndef tokenize(text):\n    return text.split()',
        SPAWN,
        "own-exception",
        'script.py:3: assert __name__ == "__main__"',
    ),
    "another column": (
        "def tokenize(row):\n    return row['content'].split()",
        POOL,
        "own-exception",
        "KeyError: 'content'",
    ),
}
