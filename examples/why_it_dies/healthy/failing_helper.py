"""Runs well: a command that it starts fails, and the script has an answer to that."""

import multiprocessing
import subprocess


def tokenize(text: str) -> list[int]:
    """The tokens of one text."""
    return list(text.encode())


def has_gpu() -> bool:
    """Whether there is a GPU: here, a command always says no."""
    return subprocess.run(["false"], check=False).returncode == 0


if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens, GPU:", has_gpu())
