"""Two stores of one job, their exports, and what is erased in them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.inline_executor import InlineExecutor
from tests.support.restores.places import Files, Place
from tests.support.restores.remembering import forget
from tests.support.restores.stage import Actor, Stage

ROWS = {"one": 18, "two": 6}
"""The documents of each store."""

STORED = ("one/", "two/")
END = 1199
NEEDLE_TOKENS = 6
"""So many tokens of a document in a row are text of it, if no other document has them."""

Export = tuple[str, dict[str, Any]]
LAYOUTS: list[dict[str, Export]] = [
    {"one/nanogpt": ("nanogpt", {}), "apart": ("build-nanogpt", {"shard_tokens": 500}), "joint": ("megatron", {})},
    {
        "one/mds": ("mds", {"sequence_tokens": 32, "shard_tokens": 480}),
        "apart": ("litdata", {"shard_tokens": 480}),
        "joint": ("parquet", {"with_columns": "url", "shard_tokens": 500}),
    },
    {
        "one/nanogpt": ("nanogpt", {"val": 0.1, "shuffle": 7}),
        "apart": ("llmc", {"shard_tokens": 500}),
        "joint": ("datatrove", {}),
    },
]
"""The exports of a trial by their directories: in the store `one`, of it and elsewhere, and of both stores."""

LATE: Export = ("olmo", {})
LATE_EXPORT = "late"
"""An export that is made while a document is erased."""


def url(store: str, row: int) -> str:
    """The kept column of a document."""
    return f"https://{store}{row}.host{row % 8}.example/{row}"


@dataclass(frozen=True)
class Request:
    """Documents of a store that are erased, and how they are named."""

    store: str
    rows: tuple[int, ...]
    selector: dict[str, Any]


REQUESTS = {
    "a": Request("one", (9,), {"rows": [("one.parquet", 9)]}),
    "b": Request("one", (14, 15), {"column": "url", "values": [url("one", 14), url("one", 15)]}),
    "c": Request("one", (1, 9, 17), {"column": "url", "hosts": ["host1.example"]}),
    "d": Request("two", (4,), {"rows": [("two.parquet", 4)]}),
}


@dataclass
class World:
    """The stores of a layout, as they were made and after the first requests.

    `versions` are all files after each of these requests. `changes` is how many changes an erasure makes.
    """

    place: Place
    sources: Path
    layout: dict[str, Export]
    documents: dict[str, list[np.ndarray]] = field(default_factory=dict)
    needles: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    versions: list[Files] = field(default_factory=list)
    changes: int = 0

    def build(self, stage: Stage) -> None:
        """Make the stores and exports, and erase the first requests."""
        forget()
        self.place.remove(self.place.read().keys())
        for store in ROWS:
            self.write_source(store)
            self.prepare(store)
            self.documents[store] = [tokens.copy() for tokens in tokenmill.open(self.place.address(store))]
        for directory in self.layout:
            self.export(directory)
        self.needles = self._needles()
        self.versions.append(self.place.read())
        for name in "ab":
            actor = stage.call(Actor(name, partial(self.erase, name)))
            if actor.error is not None:
                raise actor.error
            self.changes = max(self.changes, actor.changes)
            self.versions.append(self.place.read())

    def write_source(self, store: str) -> None:
        """The documents of a store, each with words of its own. Stores of all layouts have the same file."""
        if (path := self.sources / f"{store}.parquet").exists():
            return
        rows = range(ROWS[store])
        texts = [f"{store} document {row} tells {f'{store}word{row} and more ' * (row % 5 + 1)}" for row in rows]
        table = pa.table({"text": texts, "url": [url(store, row) for row in rows]})
        self.sources.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, row_group_size=6)

    def prepare(self, store: str, *, repair: bool = False) -> None:
        """Make a store, complete it, or make its damaged parts again."""
        tokenmill.prepare(
            str(self.sources / f"{store}.parquet"),
            out=self.place.address(store),
            tokenizer=SMALL_TIKTOKEN,
            eot=END,
            keep="url",
            unit_bytes=300,
            repair=repair,
            workers=1,
            executor=InlineExecutor(),
        )

    def export(self, directory: str) -> None:
        """Make an export, or complete it."""
        to, options = self.layout.get(directory, LATE)
        stores = [self.place.address(store) for store in (ROWS if directory == "joint" else ["one"])]
        out: dict[str, Any] = {} if "/" in directory else {"out": self.place.address(directory)}
        tokenmill.export(stores, to=to, **out, **options, workers=1, executor=InlineExecutor())

    def erase(self, name: str, root: str = "", **more: Any) -> Any:
        """The call of a request, always the same. With `root`, in a copy of the store."""
        request = REQUESTS[name]
        store = self.place.address(root or request.store)
        executor = InlineExecutor()
        return tokenmill.erase(store, **request.selector, request=name, workers=1, executor=executor, **more)

    def is_export(self, name: str) -> bool:
        """Whether a file is one of an export."""
        return not name.startswith(STORED) or any(name.startswith(f"{directory}/") for directory in self.layout)

    def leftovers(self, files: Files, requests: set[str]) -> dict[str, list[int]]:
        """The files of stores and exports that have text of erased documents, with the rows."""
        secrets = [(REQUESTS[name].store, row) for name in sorted(requests) for row in REQUESTS[name].rows]
        found = dict[str, list[int]]()
        for name, data in files.items():
            if name.startswith("copy/"):
                continue
            urls = _urls(data) if name.endswith(".parquet") else set()
            content = _ids(data) if name.endswith(".parquet") else data
            for store, row in dict.fromkeys(secrets):
                if url(store, row) in urls or any(needle in content for needle in self.needles[store, row]):
                    found.setdefault(name, []).append(row)
        return found

    def _needles(self) -> dict[tuple[str, int], list[bytes]]:
        """The tokens that only one document has, as each file may hold them, for the documents of the requests."""
        windows = {
            (store, row): {tuple(tokens[start : start + NEEDLE_TOKENS]) for start in range(len(tokens) - NEEDLE_TOKENS)}
            for store, documents in self.documents.items()
            for row, tokens in enumerate(documents)
        }
        counts = Counter(itertools.chain.from_iterable(windows.values()))
        secrets = {(request.store, row) for request in REQUESTS.values() for row in request.rows}
        needles = {
            key: [
                np.array(window, kind).tobytes()
                for window in sorted(windows[key])
                if counts[window] == 1
                for kind in ("<u2", "<u4")
            ]
            for key in secrets
        }
        assert all(needles.values())
        return needles


def _urls(data: bytes) -> set[str]:
    """The kept values of a Parquet file."""
    table = pq.read_table(pa.BufferReader(data))
    return set(table["url"].to_pylist()) if "url" in table.column_names else set()


def _ids(data: bytes) -> bytes:
    """The tokens of a Parquet file."""
    table = pq.read_table(pa.BufferReader(data))
    lists = [column for column in table.columns if pa.types.is_list(column.type) or pa.types.is_large_list(column.type)]
    return b"".join(
        chunk.flatten().to_numpy(zero_copy_only=False).astype("<u4").tobytes()
        for column in lists
        if pa.types.is_integer(column.type.value_type)
        for chunk in column.chunks
    )
