"""`--min-tokens` and `--max-tokens`: documents with fewer or more tokens are left out, and are listed as such."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes
from tests.support.small_stores import Kept
from tokenmill.errors import CorruptStore, JobChanged, UsageError
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.plan import tasks
from tokenmill.pipeline.unit.verify import Verify
from tokenmill.storage import folder_at
from tokenmill.store.job import require_run
from tokenmill.store.kept import content_hash, publish_kept, read_kept
from tokenmill.store.layout import kept_name, part_name
from tokenmill.store.part import SkippedRow, open_part, publish_part, with_checksum
from tokenmill.store.tables import read_plan, read_sources

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "bos": 1, "workers": 1, "unit_bytes": 600}
LIMITS: dict[str, Any] = {"min_tokens": 12, "max_tokens": 60}


def write(directory: Path, seed: int = 7) -> list[str | None]:
    """Two files with texts of many lengths; some rows have no text."""
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    texts: list[str | None] = ["word ö " * int(count) for count in rng.integers(0, 25, 300)]
    texts[::31] = [None] * len(texts[::31])
    rows = [{"id": number, "text": text} for number, text in enumerate(texts)]
    pq.write_table(pa.Table.from_pylist(rows[:150]), directory / "0.parquet", row_group_size=20)
    (directory / "1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[150:]))
    return texts


def kept_ids(store: Path) -> list[int]:
    """The ids of the documents of a store."""
    return [int(value) for value in tokenmill.open(store).columns("id")["id"].to_pylist()]


def lengths(store: Path) -> list[int]:
    """The number of tokens of each document of a store, with begin and end token."""
    opened = tokenmill.open(store)
    return [len(opened[number]) for number in range(len(opened))]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A store of all documents, and one with limits."""
    folder = tmp_path_factory.mktemp("limits") / "stores"
    write(folder / "in")
    tokenmill.prepare(folder / "in", out=folder / "all", keep="id", **CALL)
    tokenmill.prepare(folder / "in", out=folder / "some", keep="id", **LIMITS, **CALL)
    return Kept.keep(folder)


@pytest.fixture
def folder(kept: Kept) -> Path:
    """The directory of both stores and their sources."""
    return kept.restored()


@pytest.mark.processes
def test_exactly_the_documents_within_the_limits_are_left(folder: Path) -> None:
    """Begin and end token do not count. Workers and units do not change what is left."""
    everything, some = folder / "all", folder / "some"
    counts = lengths(everything)
    expected = [number for number, tokens in zip(kept_ids(everything), counts, strict=True) if 12 <= tokens - 2 <= 60]
    assert kept_ids(some) == expected
    assert 0 < len(expected) < len(counts)
    result = tokenmill.prepare(folder / "in", out=some, keep="id", **LIMITS, **CALL)  # from the manifest
    assert result.skipped_reasons == {"null": 10, "length": len(counts) - len(expected)}
    assert result.quarantined == 0
    texts = write(folder / "again")
    assert result.text_bytes == sum(len((texts[number] or "").encode()) for number in expected)
    other = {**CALL, "workers": 2}
    tokenmill.prepare(folder / "in", out=folder / "two", keep="id", **LIMITS, **other)
    assert part_bytes(folder / "two") == part_bytes(some)
    tokenmill.prepare(folder / "in", out=folder / "one", keep="id", **LIMITS, **CALL | {"unit_bytes": "1MB"})
    assert kept_ids(folder / "one") == expected


def test_the_store_verifies_and_names_the_reason(folder: Path) -> None:
    """Each row of the sources is a document, or has a reason why it is not."""
    some = folder / "some"
    assert tokenmill.verify(some, all=True, workers=1).documents == len(kept_ids(some))
    left = set(kept_ids(some))
    opened = tokenmill.open(some)
    reasons = {opened.why_not(0, row) for row in range(150) if row not in left and row % 31}
    assert reasons == {"length"}
    assert opened.why_not(0, 31) == "null"


@pytest.mark.parametrize("limits", [{"min_tokens": 12}, {"max_tokens": 60}, {"min_tokens": 0}, {"max_tokens": 0}])
def test_one_limit_alone(tmp_path: Path, limits: dict[str, Any]) -> None:
    """Either option works without the other; a limit may be zero."""
    write(tmp_path / "in")
    tokenmill.prepare(tmp_path / "in", out=tmp_path / "out", **limits, **CALL)
    counts = [tokens - 2 for tokens in lengths(tmp_path / "out")]
    assert all(limits.get("min_tokens", 0) <= count <= limits.get("max_tokens", 1000) for count in counts)
    tokenmill.verify(tmp_path / "out", all=True, workers=1)


def test_changed_text_is_noticed(folder: Path) -> None:
    """A document that was left out and is long enough now changes the sources of a complete store."""
    some = folder / "some"
    path = folder / "in" / "1.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    short = next(row for row in rows if row["text"] is not None and len(row["text"]) < 10)
    short["text"] = "long " * 20
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(JobChanged):
        tokenmill.prepare(folder / "in", out=some, keep="id", **LIMITS, **CALL)


def test_touched_sources_keep_their_parts(folder: Path) -> None:
    """The text is compared, with that of the documents which were left out; nothing is made again."""
    some = folder / "some"
    for path in (folder / "in").iterdir():
        path.write_bytes(path.read_bytes())
    result = tokenmill.prepare(folder / "in", out=some, keep="id", **LIMITS, **CALL)
    assert result.units_done_now == 0


def test_verify_finds_a_document_that_is_missing(folder: Path) -> None:
    """A part that lacks a document within the limits, and lists it as too short, is not accepted."""
    some = folder / "some"
    store, run = folder_at(str(some)), require_run(folder_at(str(some)))
    plan, sources = read_plan(store, run), read_sources(store, run)
    (task,) = tasks(plan, sources, [0])
    check = Verify(store.root, run.job, 1.0, WorkerLimits(1 << 30))
    assert check(task).compared > 2
    summary, content = open_part(store, 0)
    shorter = content.slice(0, summary.documents - 1)
    shorter = replace(shorter, tokens=content.tokens[: shorter.offsets[-1]])
    last, row = next(rows for rows in summary.skipped if rows.reason == "length"), int(content.row[-1])
    extended = SkippedRow(last.source, min(last.first, row), max(last.last, row), last.rows + 1, last.reason)
    skipped = tuple(extended if rows == last else rows for rows in summary.skipped)
    kept = read_kept(store, summary, ()).slice(0, summary.documents - 1)
    planted = msgspec.structs.replace(
        summary, documents=len(shorter.row), tokens=len(shorter.tokens), skipped=skipped, kept=content_hash(kept)
    )
    store.discard(kept_name(0))
    publish_kept(store, kept_name(0), kept)
    store.discard(part_name(0))
    publish_part(store, with_checksum(planted, shorter), shorter)
    with pytest.raises(CorruptStore, match=f"row {row} is missing"):
        check(task)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    """Limits that exclude each other, and several tokenizers, whose stores would hold different documents."""
    write(tmp_path / "in")
    with pytest.raises(UsageError, match="more than"):
        tokenmill.prepare(tmp_path / "in", out=tmp_path / "out", min_tokens=5, max_tokens=4, **CALL)
    with pytest.raises(UsageError, match="not a number of tokens"):
        tokenmill.prepare(tmp_path / "in", out=tmp_path / "out", min_tokens=-1, **CALL)
    several = {**CALL, "tokenizer": [SMALL_TIKTOKEN, SMALL_JSON]}
    with pytest.raises(UsageError, match="several tokenizers"):
        tokenmill.prepare(tmp_path / "in", out=tmp_path / "out", min_tokens=1, **several)


def test_other_limits_are_another_job(folder: Path) -> None:
    """A store is not continued with other limits; `like` takes them."""
    some = folder / "some"
    with pytest.raises(JobChanged) as caught:
        tokenmill.prepare(folder / "in", out=some, keep="id", min_tokens=13, max_tokens=60, **CALL)
    assert "min_tokens" in str(caught.value)
    tokenmill.prepare(folder / "in", out=folder / "like", like=some, workers=1, unit_bytes=600)
    assert kept_ids(folder / "like") == kept_ids(some)


def test_with_a_filter_and_duplicates(tmp_path: Path) -> None:
    """All options that leave out rows work together, and every row has a reason."""
    texts = write(tmp_path / "in")
    call = {**CALL, "keep": "id"}
    result = tokenmill.prepare(tmp_path / "in", out=tmp_path / "out", where="id > 20", dedup="exact", **LIMITS, **call)
    assert set(result.skipped_reasons) == {"null", "filtered", "duplicate", "length"}
    assert result.documents + sum(result.skipped_reasons.values()) == len(texts)
    tokenmill.verify(tmp_path / "out", all=True, workers=1)
    assert all(number > 20 for number in kept_ids(tmp_path / "out"))
