"""Dies: the callable holds a lock, and a lock cannot be sent to another process."""

import multiprocessing
import threading


class Tokenize:
    """Counts the rows it has seen, and guards the count with a lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.rows = 0

    def __call__(self, text: str) -> list[int]:
        """The tokens of one text."""
        with self.lock:
            self.rows += 1
        return list(text.encode())


tokenize = Tokenize()

if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens")
