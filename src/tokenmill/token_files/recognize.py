"""Recognize files of tokens by their content: the format by magic numbers, the type of raw tokens by their ids."""

from __future__ import annotations

import os.path
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

import numpy as np

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.storage import FileInfo
from tokenmill.token_files import FORMATS, build_nanogpt, litdata, llmc, megatron, olmo
from tokenmill.token_files.token_file import TokenFile, read_bytes, refused

EXTENSIONS = (".bin", ".npy", ".ds", ".mds")
"""The endings of files that may hold tokens."""

START_BYTES = 64
"""How much of the start of a file `recognize` needs."""

RAW = "nanogpt"
"""The format of tokens without anything else."""

# The types that raw tokens may have, the widest first. Tokens of int32 are those of uint32.
CANDIDATES = ("uint64", "uint32", "uint16")
SAMPLES = 8
SAMPLE_BYTES = 1 << 20

# The first bytes of files that end in .bin and hold something else, as text for a message.
OTHERS = {
    b"PK\x03\x04": "a zip archive, or a checkpoint of PyTorch",
    b"GGUF": "a model in GGUF",
    b"\x80\x02": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x1f\x8b": "compressed with gzip",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"PAR1": "a Parquet file",
    b"\x7fELF": "a program",
    b"\x89PNG": "an image",
    b"%PDF": "a PDF file",
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself",
}


class HasTokens(Protocol):
    """A format's module that reads files that anybody wrote."""

    def open_tokens(self, file: FileInfo, dtype: str = "") -> TokenFile:
        """Open a file of tokens."""


@dataclass(frozen=True, slots=True)
class TypeEvidence:
    """What some of the bytes of a file are as tokens of a type: the largest id, and how many are the end token."""

    dtype: str
    tokens: int
    largest: int
    ends: int
    fits: bool = field(default=False)


def open_tokens(file: FileInfo, name: str, dtype: str = "") -> TokenFile:
    """Open a file of tokens of a format."""
    return cast("HasTokens", FORMATS[name]).open_tokens(file, dtype)


def recognize(path: str, start: bytes, has_file: Callable[[str], bool]) -> str | None:
    """The name of the format of a file, given its first START_BYTES, and whether its directory has a file of a name.

    A file of an ending in EXTENSIONS without a magic number or an index is RAW. None for other files.
    """
    name = os.path.basename(path)
    by_start = {
        "build-nanogpt": start.startswith(build_nanogpt.MAGIC),
        "llmc": llmc.is_shard(start),
        "mds": name.endswith(".mds"),
    }
    beside = {
        "megatron": (".bin", megatron.index_name(name), True),
        "datatrove": (".ds", f"{name}.index", True),
        "olmo": (".npy", olmo.table_name(name), True),
        "litdata": (".bin", "index.json", litdata.is_chunk(start)),
    }
    if not name.endswith(EXTENSIONS):
        return None
    for form, is_it in by_start.items():
        if is_it:
            return form
    return next(
        (form for form, (end, index, may) in beside.items() if may and name.endswith(end) and has_file(index)), RAW
    )


def companions(path: str) -> tuple[str, ...]:
    """The files that belong to a file of tokens."""
    stem, ending = os.path.splitext(path)
    index = f"{os.path.dirname(path)}/index.json"
    return {
        ".bin": (f"{stem}.idx", index),
        ".ds": (f"{path}.index", f"{path}.metadata"),
        ".npy": (f"{stem}.csv.gz", f"{stem}_mask.npy"),
        ".mds": (index,),
    }.get(ending, ())


def examine(file: FileInfo, first_byte: int, vocabulary: int, end: int | None) -> list[TypeEvidence]:
    """What the bytes of a file from `first_byte` on would be as tokens of each type. Reads a few MB of it.

    A type fits if all ids are in the vocabulary, and if the type is not too narrow for the vocabulary.
    """
    widest = np.dtype(CANDIDATES[0]).itemsize
    words = max(file.size - first_byte, 0) // widest
    step = max(SAMPLE_BYTES // widest, -(-words // SAMPLES))
    spans = [(start, min(start + SAMPLE_BYTES // widest, words)) for start in range(0, words, step)]
    data = b"".join(read_bytes(file, first_byte + widest * start, first_byte + widest * stop) for start, stop in spans)
    data = data or read_bytes(file, first_byte, file.size)
    return [_evidence(data, dtype, file.size - first_byte, vocabulary, end) for dtype in CANDIDATES]


def _evidence(data: bytes, dtype: str, size: int, vocabulary: int, end: int | None) -> TypeEvidence:
    kind = np.dtype(dtype)
    ids = np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], kind.newbyteorder("<"))
    largest = int(ids.max()) if len(ids) else 0
    ends = 0 if end is None or end > np.iinfo(kind).max else int(np.count_nonzero(ids == end))
    fits = size % kind.itemsize == 0 and largest < vocabulary <= np.iinfo(kind).max + 1
    return TypeEvidence(dtype, len(ids), largest, ends, fits)


def choose_dtype(file: FileInfo, vocabulary: int, end: int | None, first_byte: int = 0) -> TypeEvidence:
    """The type of the tokens of a raw file: the widest one that fits, because a wider one is hardly ever right by luck.

    Raises SourceError if none fits, or if the file is text or something else that is known.
    """
    start = storage.read_start(file, 1 << 12)
    other = next((what for magic, what in OTHERS.items() if start.startswith(magic)), None)
    if other is None and start and not start.translate(None, _TEXT):
        other = "text"
    if other is not None:
        raise SourceError(
            "a source is not a file of tokens", f"file         {file.path}", f"reason       it is {other}"
        )
    found = examine(file, first_byte, vocabulary, end)
    fitting = [evidence for evidence in found if evidence.fits]
    if not fitting or not file.size:
        shown = [f"{evidence.dtype:<13}largest id {evidence.largest}" for evidence in found]
        raise refused(file, f"it holds no tokens of a vocabulary of {vocabulary}", *shown)
    return fitting[0]


# The bytes of ASCII text.
_TEXT = bytes([*range(9, 14), *range(32, 127)])
