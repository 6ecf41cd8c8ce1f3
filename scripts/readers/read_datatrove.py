"""datatrove: documents as its merger reads them, windows as its DatatroveFolderDataset gives them to nanotron."""

import os

import numpy as np
from datatrove.pipeline.tokens.merger import get_data_reader, load_doc_ends
from datatrove.utils.dataset import DatatroveFolderDataset
from expected import Check, Documents, chain, collect


def main() -> None:
    """Compare each document by the index, then every window with its positions."""
    check = Check()
    splits, windows, dropped = [], 0, 0
    for folder in check.folders():
        files = [read_file(check, path) for path in check.files(".ds", folder)]
        splits.append(chain(files))
        windows += compare_windows(check, folder, files)
        dropped += sum(len(file.tokens) % (check.window + 1) for file in files)
    check.same_documents(splits)
    check.report(
        "datatrove",
        f"each document (load_doc_ends, get_data_reader); {windows:,} windows of {check.window + 1:,} with positions "
        f"(DatatroveFolderDataset drops {dropped:,} tokens at ends of files)",
    )


def read_file(check: Check, path: str) -> Documents:
    """The documents of a file, and what its metadata says of it."""
    with open(f"{path}.metadata") as file:
        first, count, *_ = file.read().splitlines()
    size = int(first.split("|")[1])
    check.require(size == check.dtype.itemsize, f"{path}.metadata tells of {size} bytes a token")
    ends = load_doc_ends(open(f"{path}.index", "rb"))  # noqa: SIM115 - closed by the reader
    pieces = get_data_reader(open(path, "rb"), ends, size)  # noqa: SIM115 - closed by the reader
    documents = collect(np.frombuffer(piece, check.dtype) for piece in pieces)
    check.require(len(documents.tokens) == int(count), f"{path}.metadata counts {count} tokens")
    check.require(len(documents.tokens) * size == os.path.getsize(path), f"{path} goes on after its last document")
    return documents


def compare_windows(check: Check, folder: str, files: list[Documents]) -> int:
    """Compare the windows of a folder with its documents; how many there were."""
    dataset = DatatroveFolderDataset(
        folder, seq_len=check.window, filename_pattern="*.ds", token_size=check.dtype.itemsize, return_positions=True
    )
    length, position = check.window + 1, 0
    for file in files:
        starts = np.zeros(len(file.tokens), np.int64)
        starts[file.ends[:-1]] = file.ends[:-1]
        starts = np.maximum.accumulate(starts)
        for start in range(0, len(file.tokens) - check.window, length):
            item = dataset[position]
            place = np.arange(start, start + length)
            check.same(f"window {position:,}", item["input_ids"].numpy(), file.tokens[start : start + length])
            check.same(
                f"positions of window {position:,}", item["positions"].numpy(), place - np.maximum(starts[place], start)
            )
            position += 1
    check.require(position == len(dataset), f"{len(dataset):,} windows, {position:,} expected")
    return position


main()
