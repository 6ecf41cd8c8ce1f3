"""What the readers have in common: the documents an export has to hold, the comparison, and its result as JSON.

The readers run in the environments of the trainers' packages, so this needs numpy and nothing of tokenmill.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Documents:
    """Documents as one array of tokens, and where in it each of them ends."""

    tokens: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, position: int) -> np.ndarray:
        return self.tokens[self.ends[position - 1] if position else 0 : self.ends[position]]


def collect(documents: Iterable[np.ndarray]) -> Documents:
    """Documents that a reader gave one by one."""
    arrays = list(documents)
    lengths = np.fromiter((len(array) for array in arrays), np.int64, len(arrays))
    return Documents(np.concatenate(arrays) if arrays else np.empty(0, np.int64), np.cumsum(lengths))


def chain(pieces: Sequence[Documents]) -> Documents:
    """The documents of some files, one file after the other."""
    before = np.cumsum([0, *(len(piece.tokens) for piece in pieces)])
    ends = [piece.ends.astype(np.int64) + start for piece, start in zip(pieces, before, strict=False)]
    return Documents(np.concatenate([piece.tokens for piece in pieces]), np.concatenate(ends))


class Check:
    """The case that this process was started for, as JSON in its only argument, and what was found to be wrong."""

    def __init__(self) -> None:
        case = json.loads(sys.argv[1])
        self.export: str = case["export"]
        self.dtype = np.dtype(case["dtype"])
        self.end: int = case["end"]
        self.vocabulary: int = case["vocabulary"]
        self.prepended: bool = case["prepended"]
        self.sequence_tokens: int = case["sequence_tokens"]
        self.window: int = case["window"]
        self.scratch: str = case["scratch"]
        self.keeps_tail: bool = case["keeps_tail"]
        self.expected = Documents(np.load(case["tokens"], mmap_mode="r"), np.load(case["ends"]))
        with open(case["origins"]) as file:
            self.origins = [(source, row) for source, row in json.load(file)]
        self.differences: list[str] = []
        self.documents = self.tokens = 0

    def folders(self) -> list[str]:
        """The directories of the splits, where a format has one for each; else the export's."""
        splits = [os.path.join(self.export, split) for split in ("train", "val")]
        return [split for split in splits if os.path.isdir(split)] or [self.export]

    def files(self, ending: str, folder: str | None = None, beginning: str = "") -> list[str]:
        """The files of an export with such names, in order."""
        folder = folder or self.export
        names = sorted(name for name in os.listdir(folder) if name.startswith(beginning) and name.endswith(ending))
        return [os.path.join(folder, name) for name in names]

    def require(self, holds: bool, wrong: str) -> None:
        """Note what is wrong if something does not hold."""
        if not holds:
            self.differences.append(wrong)

    def same(self, what: str, found: np.ndarray, expected: np.ndarray) -> None:
        """Note where two arrays differ."""
        if not np.array_equal(found, expected):
            common = min(len(found), len(expected))
            unequal = np.flatnonzero(np.asarray(found[:common]) != np.asarray(expected[:common]))
            place = int(unequal[0]) if len(unequal) else common
            self.require(
                False, f"{what}: {len(found):,} of {len(expected):,} values, the first difference at {place:,}"
            )

    def split_at_ends(self, tokens: np.ndarray) -> Documents:
        """The documents of a stream, which the end token follows (or begins, if it is prepended)."""
        places = np.flatnonzero(tokens == self.end)
        ends = np.append(places[1:], len(tokens)) if self.prepended else places + 1
        self.require(not len(tokens) or int(ends[-1]) == len(tokens), "the stream does not end with a document")
        return Documents(tokens, ends)

    def same_documents(self, splits: Sequence[Documents]) -> None:
        """Every expected document is in one of the splits, once, and each split keeps the order.

        Which split a document went to is not expected: any way of dealing them out will do, and nothing may be left.
        """
        first, second = (*splits, Documents(np.empty(0), np.empty(0, np.int64)))[:2]
        dealt = {0}  # how many of the documents so far may have come from the first split
        for position in range(len(self.expected)):
            document = self.expected[position]
            dealt = {
                count
                for before in dealt
                for split, place, count in ((first, before, before + 1), (second, position - before, before))
                if place < len(split) and np.array_equal(split[place], document)
            }
            if not dealt:
                self.require(False, f"document {position:,} is not the next of any split")
                return
            self.documents += 1
            self.tokens += len(document)
        for split in splits:
            self.require(not len(split) or int(split.ends[-1]) == len(split.tokens), "tokens after the last document")
        held = sum(len(split) for split in splits)
        self.require(held == len(self.expected), f"{held:,} documents, {len(self.expected):,} expected")

    def same_origins(self, splits: Sequence[Documents], origins: Sequence[tuple[str, int]]) -> None:
        """Each document is the one of the source and row that the export names, and all of them are there."""
        places = {origin: place for place, origin in enumerate(self.origins)}
        self.require(sorted(origins) == sorted(places), "the sources and rows are not those of the store")
        documents = (split[position] for split in splits for position in range(len(split)))
        for origin, document in zip(origins, documents, strict=False):
            if origin in places and not np.array_equal(document, self.expected[places[origin]]):
                self.require(False, f"row {origin[1]:,} of {origin[0]} has other tokens")

    def report(self, package: str, read: str) -> None:
        """Print the result: the package that read, what it read, how much was compared, and whether it was equal."""
        result = {
            "package": package,
            "version": importlib.metadata.version(package),
            "read": read,
            "documents": self.documents,
            "tokens": self.tokens,
            "equal": not self.differences,
            "differences": self.differences[:5],
        }
        print(json.dumps(result), flush=True)


def compare_prefixes(check: Check, read_prefix: Callable[[Check, str], Documents]) -> int:
    """Compare the documents of all pairs of files that Megatron's format has; returns the number of pairs."""
    splits, prefixes = [], 0
    for split in ("train", "val"):
        paths = [path.removesuffix(".idx") for path in check.files("_text_document.idx", beginning=split)]
        if paths:
            splits.append(chain([read_prefix(check, path) for path in paths]))
            prefixes += len(paths)
    check.same_documents(splits)
    return prefixes
