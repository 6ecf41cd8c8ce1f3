"""What an export has to hold, in plain Python. Shared by the tests and scripts/fuzz_exports.py."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from tokenmill.storage import folder_at
from tokenmill.token_files import find_format
from tokenmill.tokenization.engines.protocol import framed
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine

END = 1199
MASK = (1 << 64) - 1


def mixed(value: int) -> int:
    """SplitMix64's finaliser, in plain integers."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def key(seed: int, source: int, row: int) -> int:
    stride = 0x9E3779B97F4A7C15
    base = mixed(mixed(seed + stride & MASK) + source * stride & MASK)
    return mixed(mixed(base + row * stride & MASK) + base & MASK)


def model(store: tokenmill.Store, val: float | None, seed: int | None, end: str) -> dict[str, list[list[int]]]:
    """The documents of each split in order."""
    identity = store.sources["identity"].to_pylist()
    found = [(int(s), int(r)) for part in store.parts() for s, r in zip(part.source, part.row, strict=True)]
    documents = [tokens.tolist() for tokens in store]
    order = list(range(len(found)))
    if seed is not None:
        order.sort(key=lambda place: key(seed, *found[place]))
    splits: dict[str, list[list[int]]] = {"val": [], "train": []}
    for place in order:
        source, row = found[place]
        held = val is not None and (key(2, identity[source], row) >> 11) * 2.0**-53 < val
        document = documents[place]
        if end == "prepended" and store.job.end is not None:
            document = [store.job.end, *document[:-1]]
        splits["val" if held else "train"].append(document)
    return {split: documents for split, documents in splits.items() if documents}


def read_back(out: Path, name: str) -> dict[str, list[tuple[np.ndarray, np.ndarray | None]]]:
    """What the format's reader gives for each shard of each split."""
    folder = folder_at(str(out))
    manifest = pq.read_table(out / ".tokenmill/manifests/00000000.parquet").to_pylist()
    dtype = json.loads((out / ".tokenmill/export.json").read_text())["job"]["dtype"]
    found: dict[str, list] = {}
    seen = set()
    for shard in manifest:
        files = tuple(file["name"] for file in shard["files"])
        if name == "megatron":
            files = (files[0], files[0].removesuffix(".bin") + ".idx")
        if files not in seen:
            read = find_format(name).read(folder, files, dtype)
            tokens, lengths = (read.tokens, read.lengths) if read.text is None else encoded(out, read.text)
            found.setdefault(shard["split"], []).append((tokens, lengths))
        seen.add(files)
    return found


def encoded(out: Path, text: pa.LargeStringArray) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of text that was exported from a store with a .tiktoken vocabulary, and the lengths of documents."""
    (first, *_) = json.loads((out / ".tokenmill/export.json").read_text())["stores"]
    store = tokenmill.open(first["directory"] or str(out.parent))
    encoded = TiktokenEngine(store.job.tokenizer, store.vocabulary()).encode(text)
    encoded = framed(encoded, store.job.begin, store.job.end)
    return encoded.tokens, np.diff(encoded.offsets)


def flat(documents: list[list[int]]) -> list[int]:
    return [token for document in documents for token in document]
