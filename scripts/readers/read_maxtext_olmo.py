"""MaxText: the Grain data source for OLMo's files. It gives windows; the documents are cut at end tokens."""

import os
from functools import partial

import numpy as np
from expected import Check
from maxtext.input_pipeline.olmo_data import build_index, read_raw_metadata_from_path
from maxtext.input_pipeline.olmo_data_grain import OlmoNpyDataSource


def main() -> None:
    """Compare each file as one window with the documents, and windows of the usual length with the same stream."""
    check = Check()
    splits, windows = [], 0
    for folder in check.folders():
        streams = []
        for path in check.files(".npy", folder):
            whole = read(check, path, os.path.getsize(path) // check.dtype.itemsize)
            found = read(check, path, check.window)
            check.same(f"windows of {path}", found, whole[: len(found)])
            windows += len(found) // check.window
            streams.append(whole)
        splits.append(check.split_at_ends(np.concatenate(streams)))
    check.same_documents(splits)
    check.report("maxtext", f"each token; {windows:,} windows of {check.window:,} (OlmoNpyDataSource)")


def read(check: Check, path: str, window: int) -> np.ndarray:
    """The windows of a file, one after the other."""
    reader = partial(read_raw_metadata_from_path, dtype=check.dtype.str)
    source = OlmoNpyDataSource(build_index([(path, "tokens")], window, tokenizer="any", header_reader=reader))
    return np.concatenate([source[position]["tokens"] for position in range(len(source))])


main()
