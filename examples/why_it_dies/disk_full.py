"""Dies where the disk is small: python disk_full.py DIRECTORY writes 76 MB of cache there."""

import sys

import datasets


def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of one row."""
    return {"ids": list(row["text"].encode())}


if __name__ == "__main__":
    rows = datasets.Dataset.from_dict({"text": ["some text of 32 bytes, no more, "] * 256 * 1000})
    print(rows.map(tokenize, num_proc=2, cache_file_name=f"{sys.argv[1]}/tokens.arrow"))
