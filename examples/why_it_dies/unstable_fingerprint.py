"""Does the work twice: datasets cannot hash the tokenizer that the function uses, so it never finds its own cache."""

import tempfile

import datasets
import gigatoken
import tokenizers

small = tokenizers.ByteLevelBPETokenizer()
small.train_from_iterator(["some text"], vocab_size=300, show_progress=False)
tokenizer = gigatoken.Tokenizer.from_json(small.to_str())


def tokenize(row: dict[str, str]) -> dict[str, list[int]]:
    """The tokens of one row."""
    return {"ids": tokenizer.encode(row["text"]).tolist()}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        datasets.Dataset.from_dict({"text": ["some text"] * 100}).save_to_disk(folder)
        rows = datasets.load_from_disk(folder)
        first, second = rows.map(tokenize), rows.map(tokenize)
        print("from the cache" if first.cache_files == second.cache_files else "computed again")
