"""A manifest that belongs to another run is refused by every reader, and written again by `prepare`."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import part_bytes
from tests.support.small_stores import UNITS, Kept, keep_pair, prepare
from tokenmill import errors
from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.job import require_run
from tokenmill.store.tables import MANIFEST_RUN, read_manifest

pytestmark = pytest.mark.timeout(240)

READERS: dict[str, Callable[[str], object]] = {
    "open": tokenmill.open,
    "status": tokenmill.status,
    "verify": tokenmill.verify,
    "export": lambda out: tokenmill.export(out, to="nanogpt", val="none"),
    "stats": tokenmill.stats,
    "finish": tokenmill.finish,
    "locate": lambda out: tokenmill.locate(out, token=0),
    "report": lambda out: tokenmill.report(out, out=f"{out}.html"),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """The stores."""
    return keep_pair(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def out(pair: Kept) -> Path:
    """A store, beside another one of the same job and of a source of the same shape."""
    return pair.restored() / "out"


def manifest_bytes(out: Path) -> bytes:
    """The manifest's file."""
    return (out / layout.MANIFEST).read_bytes()


def copy_from_other(out: Path, *names: str) -> None:
    """Replace files of the store by those of the other store."""
    for name in names:
        shutil.copyfile(out.parent / "other" / name, out / name)


PARTS = [f"parts/{unit:08d}.arrow" for unit in range(UNITS)]


@pytest.mark.parametrize("names", [[layout.MANIFEST], [layout.MANIFEST, *PARTS]], ids=["manifest", "and parts"])
@pytest.mark.parametrize("reader", READERS)
def test_readers_refuse_the_manifest_of_another_store(out: Path, reader: str, names: list[str]) -> None:
    """A manifest of the same job and of other sources is refused, alone or with the parts that it lists."""
    copy_from_other(out, *names)
    with pytest.raises(errors.CorruptStore, match=r"(?s)manifest\.parquet is damaged.*another run.*tokenmill prepare"):
        READERS[reader](str(out))


def test_verify_ends_with_3_and_prepare_writes_the_manifest_again(out: Path) -> None:
    """The command `verify` ends with exit code 3. `prepare` makes the parts and the manifest of its own sources."""
    sound = part_bytes(out), manifest_bytes(out)
    copy_from_other(out, layout.MANIFEST, *PARTS)
    run("verify", out, code=errors.CORRUPT)
    result = prepare(str(out.parent / "in/out.parquet"), out)
    assert result.units_done_now == UNITS
    assert (part_bytes(out), manifest_bytes(out)) == sound
    tokenmill.verify(str(out), all=True)


def test_a_manifest_without_its_run_is_written_again_by_prepare(out: Path) -> None:
    """A manifest that names no run is refused; `prepare` checks the parts and writes it again."""
    sound = part_bytes(out), manifest_bytes(out)
    pq.write_table(pq.read_table(out / layout.MANIFEST).replace_schema_metadata(None), out / layout.MANIFEST)
    for read in READERS.values():
        with pytest.raises(errors.CorruptStore, match="does not name the run"):
            read(str(out))
    copy_from_other(out, PARTS[2])
    assert prepare(str(out.parent / "in/out.parquet"), out).units_done_now == 1
    assert (part_bytes(out), manifest_bytes(out)) == sound


def test_a_manifest_names_the_run_after_a_source_was_touched(out: Path) -> None:
    """A complete store whose sources were touched gets another run.json, and a manifest that names it."""
    source = out.parent / "in/out.parquet"
    os.utime(source, ns=(1, 1))
    assert prepare(str(source), out).units_done_now == 0
    run = require_run(folder_at(str(out)))
    stated = json.loads(pq.read_schema(out / layout.MANIFEST).metadata[MANIFEST_RUN])
    assert stated == {"job": run.job.digest(), "plan": run.plan_blake3, "sources": run.sources_blake3}
    assert "complete" in (out / "log.jsonl").read_text()
    tokenmill.verify(str(out))


def test_a_touched_source_and_a_manifest_of_another_store(out: Path) -> None:
    """When run.json is written again, a manifest of another run is not given the name of this one."""
    source, sound = out.parent / "in/out.parquet", part_bytes(out)
    copy_from_other(out, layout.MANIFEST, *PARTS)
    os.utime(source, ns=(1, 1))
    assert prepare(str(source), out).units_done_now == UNITS
    assert part_bytes(out) == sound
    tokenmill.verify(str(out), all=True)


def test_parts_of_another_text_that_come_with_their_manifest(tmp_path: Path) -> None:
    """Parts of a source of the same size and beginning are compared with the text when the manifest is another's."""
    paths = [tmp_path / "in" / f"{name}.txt" for name in ("out", "other")]
    paths[0].parent.mkdir()
    for path, word in zip(paths, ("old text", "NEW TEXT"), strict=True):
        path.write_text("x" * 5000 + f"\n\n{word}\n\n" + "y" * 5000)
        prepare(str(path), tmp_path / path.stem, separator="\n\n", unit_bytes=3000)
    out, sound = tmp_path / "out", part_bytes(tmp_path / "out")
    copy_from_other(out, layout.MANIFEST, *(f"parts/{name}" for name in sound))
    assert part_bytes(out) != sound
    result = prepare(str(paths[0]), out, separator="\n\n", unit_bytes=3000)
    assert 0 < result.units_done_now < len(sound)
    assert part_bytes(out) == sound
    tokenmill.verify(str(out), all=True)


def test_a_flipped_bit_in_the_manifest_is_found(out: Path) -> None:
    """No bit of the manifest can change a count unnoticed: a reader refuses it, or reads the same rows."""
    folder = folder_at(str(out))
    run, content = require_run(folder), manifest_bytes(out)
    right = read_manifest(folder, run, skipped=["xxh3"])  # parts are compared by their BLAKE3
    for position in range(0, len(content), 13):  # scripts/fuzz_readers.py tries more
        flipped = bytearray(content)
        flipped[position] ^= 1 << position % 8
        (out / layout.MANIFEST).write_bytes(flipped)
        try:
            found = read_manifest(folder, run, skipped=["xxh3"])
        except errors.CorruptStore:
            continue
        assert found.equals(right), position


def test_wrong_counts_are_written_again(out: Path) -> None:
    """A manifest with other counts is refused by readers, and `prepare` writes it again."""
    content = manifest_bytes(out)
    table = pq.read_table(out / layout.MANIFEST)
    tokens = [table["tokens"][0].as_py() - 5, *table["tokens"].to_pylist()[1:]]
    wrong = table.set_column(table.column_names.index("tokens"), "tokens", [tokens])
    (out / layout.MANIFEST).write_bytes(tables.table_bytes(wrong.replace_schema_metadata(table.schema.metadata)))
    with pytest.raises(errors.CorruptStore, match="manifest"):
        tokenmill.export(str(out), to="nanogpt", val="none")
    prepare(str(out.parent / "in" / "out.parquet"), out)
    assert manifest_bytes(out) == content
