"""Parquet: the rows that Hugging Face's datasets gives for the directory."""

import datasets
import numpy as np
from expected import Check, Documents, chain


def main() -> None:
    """Compare each row of each split: tokens, source and row."""
    check = Check()
    found = datasets.load_dataset(check.export)
    splits, origins = [], []
    for split in found.values():
        splits.append(chain([read_chunk(check, chunk) for chunk in split.with_format("arrow").iter(1024)]))
        origins += zip(split["source"], split["row"], strict=True)
    check.same_documents(splits)
    check.same_origins(splits, origins)
    check.report("datasets", f"each row of load_dataset ({', '.join(found)}): tokens, source, row")


def read_chunk(check: Check, chunk: object) -> Documents:
    """The documents of some rows."""
    column = chunk["input_ids"].combine_chunks()
    check.require(str(column.type.value_type) == check.dtype.name, f"tokens are {column.type.value_type}")
    return Documents(column.flatten().to_numpy(), np.cumsum(column.value_lengths().to_numpy()))


main()
