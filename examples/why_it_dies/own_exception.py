"""Dies: the function raises on one row, and says so at the top of a long traceback."""

import datasets

RANKS = {letter: rank for rank, letter in enumerate("abcdefghijklmnopqrstuvwxyz ")}


def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of one row."""
    return {"ids": [RANKS[letter] for letter in row["text"]]}


if __name__ == "__main__":
    rows = datasets.Dataset.from_dict({"text": ["some text"] * 99 + ["Üç"]})
    print(rows.map(tokenize, num_proc=2))
