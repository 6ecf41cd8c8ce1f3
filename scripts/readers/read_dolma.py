"""dolma: the pairs of files as its merging reads them, and byte by byte beside those of its own writer."""

import csv
import gzip
import os
from pathlib import Path

import numpy as np
from dolma.tokenizer.data_types import TokenizerOutput
from dolma.tokenizer.memmap_writer import MemmapWriter
from dolma.tokenizer.reshard import TokensMetadataPaths, merge_group
from expected import Check, Documents


def main() -> None:
    """Compare each document of what dolma merges, and each pair with what dolma writes for its documents."""
    check = Check()
    splits, origins, pairs = [], [], 0
    for number, folder in enumerate(check.folders()):
        paths = check.files(".npy", folder)
        pairs += len(paths)
        merged = os.path.join(check.scratch, f"merged-{number}.npy")
        merge_group([TokensMetadataPaths(path, path.replace(".npy", ".csv.gz")) for path in paths], merged, check.dtype)
        splits.append(read(check, merged))
        origins += [(source, int(place) - 1) for _, _, _, source, place in rows(merged)]
        for path in paths:
            write_again(check, path)
    check.same_documents(splits)
    check.same_origins(splits, origins)
    check.report(
        "dolma", f"each document, source and row (merge_group of {pairs} pairs); MemmapWriter writes equal bytes"
    )


def lines(path: str) -> list[str]:
    """The lines that tell of a file's documents."""
    with gzip.open(path.replace(".npy", ".csv.gz"), "rt", newline="") as file:
        return file.readlines()


def rows(path: str) -> list[list[str]]:
    """What the lines say: start, end, id, source, and the row in the source, counted from 1."""
    return list(csv.reader(lines(path)))


def read(check: Check, path: str) -> Documents:
    """The documents of a pair of files."""
    spans = np.array([[int(start), int(end)] for start, end, *_ in rows(path)])
    check.same(f"starts in {path}", spans[1:, 0], spans[:-1, 1])
    return Documents(np.memmap(path, check.dtype, "r"), spans[:, 1])


def write_again(check: Check, path: str) -> None:
    """Compare a pair of files with what dolma writes for the same documents."""
    documents, name = read(check, path), os.path.basename(path)
    again = os.path.join(check.scratch, f"again-{name}")
    with MemmapWriter(again, check.dtype, max_tokens=len(documents.tokens) + 1) as writer:
        for position, (_, _, identifier, source, place) in enumerate(rows(path)):
            tokens = documents[position].tolist()
            writer.write(TokenizerOutput.from_tokens(identifier, source, int(place), tokens))
    check.require(Path(path).read_bytes() == Path(again).read_bytes(), f"dolma writes other bytes for {name}")
    check.require(lines(path) == lines(again), f"dolma tells otherwise of the documents of {name}")


main()
