"""Small stores of several units, for the tests that delete, damage and swap their files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

import msgspec
import pyarrow as pa

import tokenmill
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_JSON, write_parquet
from tokenmill.results import PrepareResult
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.digest import digest_of
from tokenmill.store import layout, tables
from tokenmill.store.job import require_run
from tokenmill.store.layout import part_name
from tokenmill.store.manifest import manifest_columns, manifest_row, publish_manifest
from tokenmill.store.part import PartContent, PartSummary, open_part, write_part

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


def rewrite_run(directory: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change `run.json`, and give it the checksum of its content."""
    path = directory / layout.RUN
    run = msgspec.json.decode(path.read_bytes())
    run.pop("checksum", None)
    change(run)
    path.write_bytes(msgspec.json.encode({**run, "checksum": digest_of(run)}))


def write_again(folder: Folder, summary: PartSummary, content: PartContent) -> PartSummary:
    """Write a part in the place of the one that is there, as nobody does with good intentions."""
    folder.discard(part_name(summary.unit))
    written = write_part(folder, summary, content)
    Path(folder.path(written.file)).rename(folder.path(part_name(summary.unit)))
    return written


def rewrite_part(directory: Path, change: Callable[[PartContent], PartContent]) -> None:
    """Another part 0, with the checksum and the row of the manifest that belong to it."""
    folder = folder_at(str(directory))
    summary, content = open_part(folder, 0)
    written = write_again(folder, summary, change(content))
    list_part(folder, written)


def list_part(folder: Folder, written: PartSummary) -> None:
    """The manifest with another row for part 0."""
    before = tables.read_table(folder, "manifest.parquet")
    row = manifest_columns([manifest_row(written)])
    row = row.append_column("bytes", pa.array([folder.size(part_name(0))], pa.int64())).cast(tables.MANIFEST_SCHEMA)
    publish_manifest(folder, require_run(folder), pa.concat_tables([row, before.slice(1)]))
