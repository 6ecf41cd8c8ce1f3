"""Runs well: a function with a name, and a guard before what starts processes."""

import multiprocessing


def tokenize(text: str) -> list[int]:
    """The tokens of one text."""
    return list(text.encode())


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens")
