"""Random corpora: files of every kind, with what a reader has to find in them."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

Rows = list[tuple[int, str | bool | None]]
"""The rows of a file with their texts: None where there is none, False where there is something that is no text."""

Document = str | bytes | None
"""What is written: bytes are no valid text."""

SEPARATOR = "<|end|>"
MAX_FILES = 12
NO_TEXT = (b"\xff\xfe", b"cut \xe2\x82", b"half \xed\xa0\x80 a pair", b"latin \xe9t\xe9")
SIZES = (2_000, 40_000, 400_000, 400_000, 2_200_000)
LETTERS = "etaoinshrdlucmfwypvbgkqjxz"
PHRASES = (
    *("the quick brown fox ", "jumps over\n\n", "    indented()\r\n", "It's 1,234.50 $ at 10:45! ", "\t", " " * 9),
    *("Größenwahn und Übermut ", "le cœur déçu ", "Съешь же ещё этих мягких булок ", "γαῖα καὶ οὐρανός ", "שלום עולם "),
    *(
        "敏捷的棕色狐狸",
        "いろはにほへと",
        "다람쥐 헌 쳇바퀴 ",
        "नमस्ते दुनिया ",
        "สวัสดีชาวโลก",
        "🙂🏳️‍🌈👩‍👩‍👧‍👦 ",
        "e\u0301\u200d\ufeff",
        "𝔘𝔫𝔦\U00010ffff",
    ),
    *("<|endoftext|>", "<|im_start|>", '{"text": "x"}\n', "\x00\x01\x7f", "\ufffd\u2028\u0085"),
)


@dataclass(frozen=True)
class Corpus:
    """Some files in a directory, and what is in each, by its name."""

    directory: Path
    rows: dict[str, Rows]
    separator: str | None

    @property
    def documents(self) -> int:
        """How many documents there are, nulls and what is no text not counted."""
        return sum(isinstance(text, str) for rows in self.rows.values() for _, text in rows)

    def bad(self, *poisons: str) -> set[tuple[str, int]]:
        """The places of what is no text, and of the documents that hold a poison."""
        places = ((name, row, text) for name, rows in self.rows.items() for row, text in rows)
        return {(name, row) for name, row, text in places if text is False or (text and _holds(text, poisons))}


def _holds(text: str | bool, poisons: Sequence[str]) -> bool:
    return isinstance(text, str) and any(poison in text for poison in poisons)


def make(rng: random.Random, directory: Path, sizes: Sequence[int] = SIZES, poisons: Sequence[str] = ()) -> Corpus:
    """A corpus of one to some files; often small, sometimes large enough for several workers.

    Each of the poisons is in one document, if there is a place for it.
    """
    directory.mkdir(parents=True)
    separator = SEPARATOR if rng.random() < 0.4 else None
    total_bytes = rng.choice(sizes)
    files = rng.randint(1, MAX_FILES)
    spoiled = rng.random() < 0.3
    poisoned = {rng.randrange(files): poison for poison in poisons}
    rows = {}
    for number in range(files):
        ending = rng.choice(list(WRITERS))
        name = f"{rng.choice(['part', 'a b', 'Ünï'])}-{number:02d}{ending}"
        documents = [] if rng.random() < 0.05 else _documents(rng, total_bytes // files)
        for _ in range(rng.randint(0, 3) if spoiled else 0):
            documents.insert(rng.randint(0, len(documents)), rng.choice(NO_TEXT))
        if number in poisoned:
            documents.insert(rng.randint(0, len(documents)), f"some {poisoned[number]} here")
        rows[name] = write(rng, directory / name, documents, separator)
    return Corpus(directory, rows, separator)


def write(rng: random.Random, path: Path, documents: Sequence[Document], separator: str | None) -> Rows:
    """Write documents as a file of the kind that its ending tells; what is in it."""
    ending = next(ending for ending in sorted(WRITERS, key=len, reverse=True) if path.name.endswith(ending))
    return WRITERS[ending](rng, path, documents, separator)


def a_text(rng: random.Random, size: int) -> str:
    """Text of about so many characters, of one script or of many."""
    if rng.random() < 0.5:
        words = ["".join(rng.choices(LETTERS, k=rng.randint(1, 9))) for _ in range(40)]
        return " ".join(rng.choices(words, k=size // 6 + 1))[:size]
    few = rng.sample(PHRASES, rng.randint(1, 6))
    return "".join(rng.choices(few, k=size // 8 + 1))[:size]


def _documents(rng: random.Random, about_bytes: int) -> list[Document]:
    documents: list[Document] = []
    left = about_bytes
    typical = rng.choice([30, 200, 1500])
    while left > 0 and len(documents) < 1500:
        kind = rng.random()
        size = 0 if kind < 0.03 else int(rng.expovariate(1 / typical)) + 1
        if kind > 0.995:
            size = min(left, rng.randint(10_000, 300_000))
        documents.append(None if 0.03 < kind < 0.05 else a_text(rng, size))
        left -= size + 20
    return documents


def _strings(documents: Sequence[Document]) -> tuple[pa.Array, Rows]:
    """A column of strings, not all of which are valid."""
    binary = pa.array([text.encode() if isinstance(text, str) else text for text in documents], pa.binary())
    rows: Rows = [(row, False if isinstance(text, bytes) else text) for row, text in enumerate(documents)]
    return binary.view(pa.string()), rows


def _parquet(rng: random.Random, path: Path, documents: Sequence[Document], _separator: str | None) -> Rows:
    column, rows = _strings(documents)
    table = pa.table({"id": list(range(len(documents))), "text": column})
    compression = rng.choice(["snappy", "zstd", "none", "gzip"])
    pq.write_table(table, path, row_group_size=rng.choice([3, 50, 1000]), compression=compression)
    return rows


def _arrow(rng: random.Random, path: Path, documents: Sequence[Document], _separator: str | None) -> Rows:
    column, rows = _strings(documents)
    table = pa.table({"text": column})
    new = rng.choice([pa.ipc.new_file, pa.ipc.new_stream])
    with new(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=rng.choice([3, 50, 1000]))
    return rows


def _jsonl(rng: random.Random, path: Path, documents: Sequence[Document], _separator: str | None) -> Rows:
    rows: Rows = []
    pieces, place = [], 0
    for number, text in enumerate(documents):
        if isinstance(text, bytes):
            line = rng.choice([b'{"id": 1, "text": "%s"}\n' % text, b'{"text": 5}\n', b'{"text": "cut o\n', b"[1]\n"])
        else:
            line = json.dumps({"id": number, "text": text}, ensure_ascii=rng.random() < 0.5).encode() + b"\n"
        rows.append((place, False if isinstance(text, bytes) else text))
        pieces.append(line)
        place += len(line)
    _write_bytes(path, b"".join(pieces))
    return rows


def _text(rng: random.Random, path: Path, documents: Sequence[Document], separator: str | None) -> Rows:
    if separator is None:
        text = "".join([text for text in documents if isinstance(text, str)][: rng.randint(0, 20)])
        _write_bytes(path, text.encode())
        return [(0, text)]
    rows: Rows = []
    pieces, place = [], 0
    for document in documents:
        piece = document if isinstance(document, bytes) else (document or "").encode()
        if piece and SEPARATOR.encode() not in piece:
            rows.append((place, False if isinstance(document, bytes) else document))
            pieces.append(piece + separator.encode())
            place += len(pieces[-1])
    _write_bytes(path, b"".join(pieces))
    return rows


def _write_bytes(path: Path, data: bytes) -> None:
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    elif path.suffix == ".zst":
        data = zstandard.ZstdCompressor(write_checksum=True).compress(data)
    path.write_bytes(data)


Writer = Callable[[random.Random, Path, Sequence[Document], str | None], Rows]
WRITERS: dict[str, Writer] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".jsonl": _jsonl,
    ".jsonl.gz": _jsonl,
    ".jsonl.zst": _jsonl,
    ".txt": _text,
    ".txt.gz": _text,
}
