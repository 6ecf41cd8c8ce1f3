"""Documents of segments, and the masks that they have to get, computed token by token."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tokenmill.store.reader import Store

Segments = list[dict[str, Any]]
TYPE = pa.list_(pa.struct([("text", pa.string()), ("train", pa.bool_())]))
WORDS = [
    "hello",
    "wörld",
    "日本語",
    "👩‍👩‍👧‍👦",
    " the ",
    "\n\n",
    "code();",
    "naïve",
    "x" * 40,
    "  ",
    "1234",
    '"\\',
    "?\n",
    "0 1\n",
]


def random_documents(count: int, seed: int, longest: int = 12) -> list[Segments | None]:
    """Documents of no to eight segments, some of them empty, and some rows without a document."""
    rng = random.Random(seed)

    def text() -> str:
        return "".join(rng.choice(WORDS) for _ in range(rng.randint(0, longest)))

    made: list[Segments | None] = [
        [{"text": text(), "train": rng.random() < 0.5} for _ in range(rng.choice([0, 1, 2, 3, 5, 8]))]
        for _ in range(count)
    ]
    made[count // 3] = None
    return made


def write(path: Path, documents: list[Any], row_group_size: int = 20) -> str:
    """A file with the column `segments`, of the kind that its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"segments": each, "id": 1}) + "\n" for each in documents))
        return str(path)
    table = pa.table({"id": range(len(documents)), "segments": pa.array(documents, TYPE)})
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=row_group_size)
        return str(path)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, row_group_size)
    return str(path)


def prepare_store(work: Path, documents: int = 200) -> Path:
    """A store with segments, in several parts."""
    source = write(work / "a.parquet", random_documents(documents, 13))
    options: dict[str, Any] = {"unit_bytes": 1500, "keep": "id", "executor": InlineExecutor()}
    tokenmill.prepare(source, tokenizer=SMALL_JSON, segments="segments", out=str(work / "store"), **options)
    return work / "store"


def expected_mask(store: Store, position: int, segments: Segments) -> list[bool]:
    """Whether each token of a document is trained on: its bytes overlap those of a segment that is."""
    job = store.job
    marks = b"".join(bytes([each["train"]]) * len(each["text"].encode()) for each in segments)
    tokens = store[position].tolist()
    own = tokens[job.begin is not None : len(tokens) - (job.end is not None)]
    mask, start = [False] * (job.begin is not None), 0
    for token in own:
        stop = start + len(store.token_bytes(token))
        mask.append(any(marks[start:stop]))
        start = stop
    assert start == len(marks)
    return [*mask, *([bool(own) and mask[-1]] if job.end is not None else [])]


def stored_mask(store: Store, position: int) -> list[bool]:
    """Whether each token of a document is trained on, as the store says."""
    mask = [False] * len(store[position])
    trained = store.trained(position)
    assert trained is not None
    for begin, end in trained:
        mask[begin:end] = [True] * (end - begin)
    return mask
