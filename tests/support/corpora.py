"""The small vocabularies of the tests, small corpora, and the parts of a store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import DATA

SMALL_TIKTOKEN = f"{DATA / 'small.tiktoken'}:gpt2"
SMALL_JSON = str(DATA / "small.json")


def write_parquet(path: Path, texts: Sequence[str | None], row_group_size: int = 100) -> str:
    """Write texts as a Parquet file with a text and an id column."""
    table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def part_bytes(directory: str | Path) -> dict[str, bytes]:
    """The parts of a store, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory, "parts").iterdir())}
