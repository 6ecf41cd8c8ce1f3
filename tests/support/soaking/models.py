"""What a store has to hold, told by the reference libraries alone, and what it does hold, told by pyarrow alone."""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import DATA
from tests.support.soaking.corpora import Rows

SMALL = str(DATA / "small.json")
END = {SMALL: 1201, "gpt2": 50256}

Place = tuple[str, int]
"""A file's name and a row of it."""


@functools.cache
def _reference(tokenizer: str):
    if tokenizer == "gpt2":
        import tiktoken

        return tiktoken.get_encoding("gpt2").encode_ordinary_batch
    import tokenizers

    loaded = tokenizers.Tokenizer.from_file(tokenizer)
    loaded.encode_special_tokens = True  # what looks like a special token is text
    return lambda texts: [each.ids for each in loaded.encode_batch(texts, add_special_tokens=False)]


def encode(tokenizer: str, texts: Sequence[str]) -> list[list[int]]:
    """The tokens of each text, with the end token."""
    return [[*tokens, END[tokenizer]] for tokens in _reference(tokenizer)(list(texts))]


def expected(files: Mapping[str, Rows], tokenizer: str) -> dict[Place, list[int]]:
    """The tokens of every document, by its place."""
    places = [((name, row), text) for name, rows in files.items() for row, text in rows if isinstance(text, str)]
    tokens = encode(tokenizer, [text for _, text in places])
    return dict(zip((place for place, _ in places), tokens, strict=True))


def found(store: Path) -> list[tuple[Place, list[int]]]:
    """The documents of a store's parts, with their places."""
    names = [os.path.basename(path) for path in pq.read_table(store / "sources.parquet")["path"].to_pylist()]
    documents = []
    for part in sorted((store / "parts").glob("[0-9]*.arrow")):
        table = pa.ipc.open_file(pa.BufferReader(part.read_bytes())).read_all()
        columns = (table[name].to_pylist() for name in ("source", "row", "tokens"))
        documents += [((names[source], row), tokens) for source, row, tokens in zip(*columns, strict=True)]
    return documents


def quarantined(store: Path) -> dict[str, list[int | None]]:
    """The quarantined rows of each file; None for something of it that has no row."""
    found: dict[str, list[int | None]] = {}
    file = store / "quarantine.jsonl"
    for line in file.read_text().splitlines() if file.exists() else []:
        record = json.loads(line)
        found.setdefault(os.path.basename(record["file"]), []).append(record.get("row"))
    return found


def differences(wanted: Mapping[Place, list[int]], store: Path) -> list[tuple[str, str]]:
    """What is wrong with a store: a verdict and a sentence for each kind of difference."""
    documents = found(store)
    counts = Counter(place for place, _ in documents)
    there = dict(documents)
    kinds = {
        "DUPLICATED": [place for place, count in counts.items() if count > 1],
        "LOST": [place for place in wanted if place not in there],
        "INVENTED": [place for place in there if place not in wanted],
        "DIFFERENT": [place for place, tokens in there.items() if place in wanted and wanted[place] != tokens],
    }
    return [(kind, f"{len(places)} documents, such as {places[0]}") for kind, places in kinds.items() if places]
