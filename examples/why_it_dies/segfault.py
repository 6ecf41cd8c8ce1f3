"""Dies: native code reads address 0 on one row, as a library with a bug does."""

import ctypes

import datasets


def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of one row."""
    if row["text"] == "the row that kills":
        ctypes.string_at(0)
    return {"ids": list(row["text"].encode())}


if __name__ == "__main__":
    rows = datasets.Dataset.from_dict({"text": ["some text"] * 99 + ["the row that kills"]})
    print(rows.map(tokenize, num_proc=2))
