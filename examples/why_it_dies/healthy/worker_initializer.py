"""Runs well: each worker builds its own encoder, when it starts or on first use. No encoder is sent."""

import functools
import multiprocessing

import tiktoken

BYTES = {bytes([byte]): byte for byte in range(256)}


@functools.cache
def encoder() -> tiktoken.Encoding:
    """The encoder of this process."""
    return tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=BYTES, special_tokens={})


def tokenize(text: str) -> list[int]:
    """The tokens of one text."""
    return encoder().encode_ordinary(text)


if __name__ == "__main__":
    with multiprocessing.Pool(2, initializer=encoder) as pool:
        print(sum(map(len, pool.map(tokenize, ["some text"] * 100))), "tokens")
