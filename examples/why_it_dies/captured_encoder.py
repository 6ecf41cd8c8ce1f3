"""Dies: the function holds tiktoken's bare core, which cannot be sent to another process."""

from collections.abc import Callable

import datasets
import tiktoken


class FastEncoder:
    """Skips tiktoken's Python layer, as some recipes do for speed."""

    def __init__(self, encoding: tiktoken.Encoding) -> None:
        self.core = encoding._core_bpe


def make_tokenize(encoder: FastEncoder) -> Callable[[dict[str, str]], dict[str, list[int]]]:
    """A function for `datasets.map` that keeps the encoder in its closure."""

    def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
        return {"ids": encoder.core.encode_ordinary(row["text"])}

    return tokenize


BYTES = {bytes([byte]): byte for byte in range(256)}
tokenize = make_tokenize(FastEncoder(tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=BYTES, special_tokens={})))

if __name__ == "__main__":
    rows = datasets.Dataset.from_dict({"text": ["some text"] * 100})
    print(rows.map(tokenize, num_proc=2))
