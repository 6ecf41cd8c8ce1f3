"""Small stores of several units, for the tests that delete, damage and swap their files."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import tokenmill
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_JSON, write_parquet
from tokenmill.api.results import PrepareResult

ROWS, ROW_GROUP = 80, 20
UNITS = ROWS // ROW_GROUP


def write_source(path: Path, word: str) -> str:
    """A Parquet file with one unit for each row group. All words of one length give sources of one shape."""
    texts = [f"{word} {row} " + "says little " * (row % 17) for row in range(ROWS)]
    return write_parquet(path, list(texts), row_group_size=ROW_GROUP)


def prepare(source: str | list[str], out: Path, **options: Unpack[PrepareArguments]) -> PrepareResult:
    """A store in units of one row group."""
    given: PrepareArguments = {"tokenizer": SMALL_JSON, "unit_bytes": 1, "workers": 1, **options}
    return tokenmill.prepare(source, out=str(out), **given)
