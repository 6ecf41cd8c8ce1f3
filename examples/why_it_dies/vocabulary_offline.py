"""Dies: each worker wants to fetch the vocabulary, and there is no network where the workers run."""

import multiprocessing
import os

import tiktoken

# A new node without a vocabulary cache and without a network.
os.environ.update(TIKTOKEN_CACHE_DIR="/nowhere", https_proxy="http://127.0.0.1:9")


def tokenize(text: str) -> list[int]:
    """The tokens of one text."""
    return tiktoken.get_encoding("gpt2").encode_ordinary(text)


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens")
