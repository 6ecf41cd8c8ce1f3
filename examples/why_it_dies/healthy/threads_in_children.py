"""Runs well: threads and the lock they share are made in each worker, after the fork."""

import functools
import multiprocessing
from concurrent.futures import ThreadPoolExecutor


@functools.cache
def threads() -> ThreadPoolExecutor:
    """The threads of this process."""
    return ThreadPoolExecutor(2)


def tokenize(text: str) -> list[int]:
    """The tokens of one text, a word to a thread."""
    return [token for word in threads().map(str.encode, text.split()) for token in word]


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens")
