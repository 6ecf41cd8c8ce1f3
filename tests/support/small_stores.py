"""Small stores of several units, for the tests that delete, damage and swap their files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self, Unpack

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


@dataclass(frozen=True)
class Kept:
    """A directory of sources and stores that is restored for each test, at the same address."""

    work: Path

    @classmethod
    def keep(cls, work: Path) -> Self:
        """Keep a directory as it is now."""
        shutil.copytree(work, f"{work}-kept")
        return cls(work)

    def restored(self) -> Path:
        """The directory as it was, times of files included."""
        shutil.rmtree(self.work)
        return Path(shutil.copytree(f"{self.work}-kept", self.work))


def keep_pair(folder: Path) -> Kept:
    """Two stores of one job, `out` and `other`, and their sources, which have one shape."""
    for name, word in (("out", "documents"), ("other", "sentences")):
        prepare(write_source(folder / "pair/in" / f"{name}.parquet", word), folder / "pair" / name)
    return Kept.keep(folder / "pair")
