"""Lance: a dataset written from the export's Parquet files, row by row."""

import os

import lance
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from expected import Check, Documents


def main() -> None:
    """Compare each row of the Lance dataset of each split."""
    check = Check()
    splits = []
    for split in ("train", "val"):
        paths = check.files(".parquet", beginning=split)
        if not paths:
            continue
        uri = os.path.join(check.scratch, f"{split}.lance")
        lance.write_dataset(ds.dataset(paths).scanner(), uri)
        rows = lance.dataset(uri).to_table()
        column = next(field.name for field in rows.schema if isinstance(field.type, pa.ListType | pa.LargeListType))
        ids = rows[column].combine_chunks()
        ids = ids.chunk(0) if isinstance(ids, pa.ChunkedArray) else ids
        lengths = np.diff(ids.offsets.to_numpy())
        splits.append(Documents(ids.flatten().to_numpy(), np.cumsum(lengths)))
    check.same_documents(splits)
    check.report("pylance", f"each row of {len(splits)} Lance datasets written from the Parquet files")


main()
