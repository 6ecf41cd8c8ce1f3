"""The rank that writes the manifest reads what the others have summarised, and only the parts that nobody did."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tests.support.small_stores import UNITS, prepare, write_source
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.storage import Folder, folder_at
from tokenmill.store import event_log, layout
from tokenmill.store.job import require_run
from tokenmill.store.part import read_summary
from tokenmill.store.rank_summaries import remove_summaries, summary_names
from tokenmill.store.tables import log_run, read_manifest


def builder_of(folder: Folder) -> ManifestBuilder:
    """An empty builder of the store's manifest."""
    frozen = load_existing(folder, require_run(folder))
    return ManifestBuilder(folder, frozen.run, frozen.plan, frozen.sources)


def summarise(folder: Folder, *ranks: list[int]) -> None:
    """Withdraw the manifest, and publish a summary of the units of each rank."""
    layout.remove_manifest(folder)
    for units in ranks:
        rank = builder_of(folder)
        for unit in units:
            rank.add(read_summary(folder, unit))
        rank.publish_summaries()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A complete store with kept columns."""
    source = write_source(tmp_path / "a.parquet", "apple")
    prepare(source, tmp_path / "out", keep=["text"])
    return folder_at(str(tmp_path / "out"))


def test_finish_reads_only_the_parts_without_a_summary(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifest is that of one process, and the summaries are gone."""
    expected = read_manifest(folder, require_run(folder))
    summarise(folder, [0, 2], [3])
    read = []

    def note(builder: ManifestBuilder, fan_out: object, units: np.ndarray, **options: bool) -> list[object]:
        read.extend(units.tolist())
        return ordinary(builder, fan_out, units, **options)  # type: ignore[arg-type, return-value]

    ordinary = ManifestBuilder.add_from_parts
    monkeypatch.setattr(ManifestBuilder, "add_from_parts", note)
    assert tokenmill.finish(folder.root, workers=1).written_now
    assert read == [1]
    assert read_manifest(folder, require_run(folder)).equals(expected)
    assert summary_names(folder) == []


def test_reasons_of_skipped_rows_are_summarised(tmp_path: Path) -> None:
    """The result of a run and its limits count the skipped rows of every rank."""
    lines = [b'{"text": "one"}', b'{"text": null}', b'{"no": 1}', b"not json", b'{"text": "two"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    prepare(str(tmp_path / "a.jsonl"), tmp_path / "out", max_bad=1.0, max_skipped=1.0, unit_bytes="1MB")
    folder = folder_at(str(tmp_path / "out"))
    summarise(folder, [0])
    found, expected = builder_of(folder), builder_of(folder)
    found.add_from_summaries()
    expected.add(read_summary(folder, 0))
    assert len(expected.skipped_reasons) >= 2
    assert found.skipped_reasons == expected.skipped_reasons
    assert (found.rows, found.quarantined) == (expected.rows, expected.quarantined)
    assert found.quarantined_units() == expected.quarantined_units() == [0]
    assert found.units_without_text() == expected.units_without_text() == [0]


@pytest.mark.parametrize("change", ["flipped", "cut", "renamed", "empty", "another run"])
def test_a_summary_that_is_damaged_or_of_another_run_is_left_out(folder: Folder, tmp_path: Path, change: str) -> None:
    """The parts are read in its place."""
    summarise(folder, [0, 1])
    [name] = summary_names(folder)
    path = Path(folder.path(name))
    data = path.read_bytes()
    if change == "another run":
        prepare(write_source(tmp_path / "b.parquet", "berry"), tmp_path / "other", keep=["text"])
        other = folder_at(str(tmp_path / "other"))
        summarise(other, [0, 1])
        path.unlink()
        [name] = summary_names(other)
        shutil.copy(other.path(name), path.parent)
    elif change == "renamed":
        path.rename(path.with_name("0123456789abcdef.parquet"))
    else:
        path.write_bytes({"flipped": data[:40] + b"\xff" + data[41:], "cut": data[:-20], "empty": b""}[change])
    builder = builder_of(folder)
    builder.add_from_summaries()
    assert builder.missing().tolist() == list(range(UNITS))


@pytest.mark.parametrize("change", ["another part", "no kept columns"])
def test_a_part_that_is_not_the_summarised_one_is_read(folder: Folder, change: str) -> None:
    """The log has recorded a later part of unit 1, or its kept columns are gone."""
    summarise(folder, [0, 1])
    if change == "another part":
        line = event_log.line("unit", unit=1, part="0" * 15 + "1", run=log_run(require_run(folder)))
        event_log.append(folder, [line])
    else:
        folder.discard(layout.kept_name(1))
    builder = builder_of(folder)
    builder.add_from_summaries()
    assert builder.missing().tolist() == [1, 2, 3]


def test_two_ranks_with_one_unit_count_it_once(folder: Folder) -> None:
    """A unit that two ranks have made is listed once."""
    summarise(folder, [0, 1, 2], [2, 3])
    builder = builder_of(folder)
    builder.add_from_summaries()
    assert len(builder.missing()) == 0
    assert builder.publish(layout.part_sizes(folder, UNITS)).num_rows == UNITS


def test_a_run_without_ranks_removes_the_summaries(folder: Folder, tmp_path: Path) -> None:
    """All ranks were killed, and the same command without --rank completes the store."""
    summarise(folder, [0, 1])
    prepare(str(tmp_path / "a.parquet"), tmp_path / "out", keep=["text"])
    assert folder.exists(layout.MANIFEST)
    assert summary_names(folder) == []


def test_a_rank_publishes_while_others_remove(folder: Folder) -> None:
    """Of ranks that end at the same time, one removes the files while another one still writes its own."""
    layout.remove_manifest(folder)
    rank = builder_of(folder)
    rank.add(read_summary(folder, 0))
    is_done = False

    def remove() -> None:
        while not is_done:
            remove_summaries(folder)

    with ThreadPoolExecutor(1) as pool:
        removing = pool.submit(remove)
        try:
            for _ in range(100):
                rank.publish_summaries()
        finally:
            is_done = True
        removing.result()
