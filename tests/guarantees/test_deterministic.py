"""Guarantees 2 to 4 on one machine: deterministic, exactly once, nothing silent."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from pathlib import Path
from typing import Unpack

import datasets
import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import xxhash
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenmill
from tests.support import command
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes, write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.inline_executor import InlineExecutor
from tokenmill import errors
from tokenmill.executors.progress import Silent
from tokenmill.options import JobOptions
from tokenmill.pipeline.driving.complete import CompletionOptions, RunCompletion
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.driving.events import RunEvents, RunLog
from tokenmill.pipeline.driving.row_limits import RowLimits
from tokenmill.pipeline.planning.freeze import freeze
from tokenmill.pipeline.planning.request import make_request
from tokenmill.pipeline.planning.resources import Resources
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.pipeline.unit import plan as planning
from tokenmill.pipeline.unit.plan import default_unit_bytes
from tokenmill.results import PrepareResult
from tokenmill.sources import discover, files_between, with_identities
from tokenmill.sources.documents import ReadOptions, Slice
from tokenmill.storage import folder_at, publish_new
from tokenmill.store import layout, tables
from tokenmill.store.job import Run
from tokenmill.store.part import PartContent, PartSummary, SkippedRow, open_part, write_part
from tokenmill.tokenization.engines.gigatoken import PIECE_BYTES, GigatokenEngine
from tokenmill.tokenization.engines.protocol import Encoded

END = 1199


def prepare(sources: str | list[str], out: Path, **words: Unpack[PrepareArguments]) -> PrepareResult:
    """Prepare with the small vocabulary; one worker and the engine that starts fastest, unless said otherwise."""
    given: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "engine": "tiktoken", **words}
    return tokenmill.prepare(sources, out=str(out), **given)


@pytest.fixture
def corpus(tmp_path: Path) -> list[str]:
    """Three files of several units each."""
    texts = DOCUMENTS * 5
    random.Random(7).shuffle(texts)
    return [write_parquet(tmp_path / f"in/{n}.parquet", texts[n * 50 : n * 50 + 50], 7) for n in range(3)]


@pytest.mark.processes
def test_bytes_do_not_depend_on_workers_or_engine(tmp_path: Path, corpus: list[str]) -> None:
    """One, two or four workers and either engine write the same parts."""
    runs: list[PrepareArguments] = [
        {"workers": 1},
        {"workers": 2},
        {"workers": 4},
        {"workers": 2, "engine": "gigatoken"},
    ]
    outputs = []
    for number, words in enumerate(runs):
        given: PrepareArguments = {"unit_bytes": 500, **words}
        prepare(corpus, tmp_path / str(number), **given)
        outputs.append(part_bytes(tmp_path / str(number)))
    assert len(outputs[0]) > 10
    assert all(output == outputs[0] for output in outputs)


def test_a_document_that_threads_share_has_the_same_bytes(tmp_path: Path) -> None:
    """One file that is one document is a single unit: two workers are one with two threads."""
    words = ["The", "quick", "br\u00fcn", "12", "jumps\n\n", "\u4e2d\u6587", "over;", "  a", "lazy", "DOG", "..."]
    source = tmp_path / "one.txt"
    source.write_text(" ".join(random.Random(3).choices(words, k=1 << 21)), encoding="utf-8", newline="")
    assert source.stat().st_size > 2 * PIECE_BYTES
    outputs = []
    for workers in (1, 2):
        out = tmp_path / str(workers)
        result = prepare(str(source), out, engine="gigatoken", workers=workers)
        assert result.documents == 1
        outputs.append(part_bytes(out))
    assert outputs[0] == outputs[1]


def test_resume_does_only_what_is_missing(tmp_path: Path, corpus: list[str]) -> None:
    """Parts that are there are left alone; missing ones come back with the same bytes."""
    out = tmp_path / "out"
    first = prepare(corpus, out, unit_bytes=500)
    before = part_bytes(out)
    gone = sorted(before)[1::3]
    for name in gone:
        os.unlink(out / "parts" / name)
    os.unlink(out / "manifest.parquet")
    (out / "parts" / ".00000001.arrow.0123456789ab.tmp").write_bytes(b"half a part")
    second = prepare(corpus, out, unit_bytes=500)
    assert part_bytes(out) == before
    assert second.units_done_now == len(gone)
    assert (second.documents, second.tokens) == (first.documents, first.tokens)
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    later = events[[event["event"] for event in events].index("complete") :]
    assert sorted(event["unit"] for event in later if event["event"] == "unit") == [int(name[:8]) for name in gone]


def test_a_complete_run_is_left_alone(tmp_path: Path, corpus: list[str]) -> None:
    """Preparing a complete store again does nothing and says so."""
    prepare(corpus, tmp_path / "out")
    manifest = (tmp_path / "out/manifest.parquet").stat().st_mtime_ns
    assert prepare(corpus, tmp_path / "out").units_done_now == 0
    assert (tmp_path / "out/manifest.parquet").stat().st_mtime_ns == manifest


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"tokenizer": SMALL_JSON, "engine": "auto"}, "another tokenizer"),
        ({"eot": 5}, "eot="),
        ({"bos": 5}, "bos="),
        ({"column": "id"}, "column="),
        ({"unit_bytes": 777}, "unit_bytes="),
    ],
)
def test_a_changed_job_is_refused(tmp_path: Path, corpus: list[str], words: PrepareArguments, named: str) -> None:
    """A directory is never shared by two jobs; the message names what changed."""
    prepare(corpus, tmp_path / "out")
    before = part_bytes(tmp_path / "out")
    with pytest.raises(errors.JobChanged, match=rf"(?s){named}.*another out=, or remove the directory"):
        prepare(corpus, tmp_path / "out", **words)
    assert part_bytes(tmp_path / "out") == before


def test_changed_sources_are_refused(tmp_path: Path, corpus: list[str]) -> None:
    """A source that changed, came or went is named; other sources are not called changed ones."""
    prepare(corpus, tmp_path / "out")
    with pytest.raises(errors.JobChanged, match=r"(?s)these are not the sources .*not given +[^\n]*2\.parquet"):
        prepare(corpus[:2], tmp_path / "out")
    more = write_parquet(tmp_path / "in/3.parquet", ["new"])
    with pytest.raises(errors.JobChanged, match=r"(?s)these are not the sources .*new +[^\n]*3\.parquet"):
        prepare([*corpus, more], tmp_path / "out")
    with pytest.raises(errors.JobChanged, match="come in another order"):
        prepare(corpus[::-1], tmp_path / "out")
    write_parquet(Path(corpus[1]), ["other"])
    with pytest.raises(
        errors.JobChanged, match=r"(?s)the sources changed .*changed +[^\n]*1\.parquet.*or remove the dir"
    ):
        prepare(corpus, tmp_path / "out")


def test_other_files_in_the_directory_of_a_run_are_left_alone(
    tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note says that they are there: when the run is new, not when it goes on, and not of what is its own."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    said: list[str] = []
    reporter = Silent()
    monkeypatch.setattr(reporter, "say", said.append)
    prepare(corpus, out, reporter=reporter, limit_units=1)
    assert f"note: {out} holds other files; they are left alone" in said
    assert (out / "notes.txt").read_text() == "mine"
    said.clear()
    prepare(corpus, out, reporter=reporter, limit_units=1)
    assert "holds other files" not in "".join(said)
    assert "resuming     1 of 1 unit is already done" in said
    stopped = tmp_path / "stopped"  # while it was frozen
    for name in ("parts", "tokenizer"):
        (stopped / name).mkdir(parents=True)
    (stopped / "sources.parquet").write_bytes((out / "sources.parquet").read_bytes())
    prepare(corpus, stopped, reporter=reporter, limit_units=1)
    assert "holds other files" not in "".join(said)


@pytest.mark.fast
@pytest.mark.parametrize("out", ["a file", "a file/out"])
def test_a_store_is_not_made_where_a_file_is(tmp_path: Path, corpus: list[str], out: str) -> None:
    """The message says that it is a file."""
    (tmp_path / "a file").write_text("mine")
    with pytest.raises(errors.StoreError, match=rf"(?s)where a file is.*file +{tmp_path}/a file\n"):
        prepare(corpus, tmp_path / out)
    assert (tmp_path / "a file").read_text() == "mine"


@pytest.mark.fast
@pytest.mark.parametrize(
    "words",
    [{"to": "none such"}, {"to": "nanogpt", "val": "2"}, {"to": "llmc", "shard_tokens": "x"}, {"unit_bytes": 0}],
)
def test_words_are_checked_before_anything_is_looked_for(tmp_path: Path, words: PrepareArguments) -> None:
    """What cannot be meant is told first, whether there are sources and a tokenizer or not."""
    given: PrepareArguments = {"tokenizer": "no such", **words}
    with pytest.raises(errors.UsageError):
        prepare(str(tmp_path / "no such.jsonl"), tmp_path / "out", **given)


def test_a_failed_unit_is_named_and_the_rest_is_done(tmp_path: Path, corpus: list[str]) -> None:
    """A damaged file costs its own units; the run ends as failed, names it, and never looks complete."""
    data = bytearray(Path(corpus[1]).read_bytes())
    data[100:160] = bytes(60)
    Path(corpus[1]).write_bytes(data)
    out = tmp_path / "out"
    with pytest.raises(errors.RunFailed, match=r"(?s)units (is|are) not done.*1\.parquet"):
        prepare(corpus, out, unit_bytes=500)
    assert not (out / "manifest.parquet").exists()
    assert part_bytes(out)
    with pytest.raises(errors.IncompleteStore):
        tokenmill.open(str(out))
    assert tokenmill.status(str(out)).state == "stopped"


def test_a_limited_run_holds_the_first_units(tmp_path: Path, corpus: list[str]) -> None:
    """--limit-units makes a complete store of the first units, which says that it is limited."""
    prepare(corpus, tmp_path / "all", unit_bytes=500)
    prepare(corpus, tmp_path / "some", unit_bytes=500, limit_units=3)
    some, every = (tokenmill.open(str(tmp_path / name)) for name in ("some", "all"))
    assert len(some.manifest) == 3
    assert np.array_equal(some.tokens(0, some.token_count), every.tokens(0, some.token_count))


@pytest.mark.fast
def test_a_trial_goes_on_as_the_run_of_all_units(tmp_path: Path, corpus: list[str]) -> None:
    """With a larger limit, and with none: units that are done stay done, and the bytes are those of one run."""
    out, whole = tmp_path / "out", tmp_path / "whole"
    prepare(corpus, whole, unit_bytes=500)
    prepare(corpus, out, unit_bytes=500, limit_units=2)
    first = (out / "parts/00000000.arrow").stat().st_mtime_ns
    assert prepare(corpus, out, unit_bytes=500, limit_units=3).units_done_now == 1
    assert tokenmill.status(out).trial == "the first 3 units (--limit-units)"
    with pytest.raises(errors.JobChanged, match="another limit_units"):
        prepare(corpus, out, unit_bytes=500, limit_units=2)
    (out / "manifest.parquet").unlink()  # as after a kill
    (out / "parts/00000002.arrow").unlink()
    result = prepare(corpus, out, unit_bytes=500)
    assert result.units_done_now == result.units - 2
    assert tokenmill.status(out).trial is None
    assert (out / "parts/00000000.arrow").stat().st_mtime_ns == first
    for name in (
        "run.json",
        "plan.parquet",
        "manifest.parquet",
        *(f"parts/{p.name}" for p in (whole / "parts").iterdir()),
    ):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    tokenmill.verify(out, workers=1)


@pytest.mark.fast
def test_a_store_of_the_first_units_says_everywhere_that_it_is_a_trial(tmp_path: Path, corpus: list[str]) -> None:
    """Summary, state, facts, statistics, exports and card say it; a limit that leaves nothing out is no trial."""
    words = ("prepare", *corpus, "--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--unit-bytes", "500", "-q")
    trial, whole = tmp_path / "trial", tmp_path / "whole"
    assert "this store is a trial: the first 3 units (--limit-units)" in _one_line(
        command.run(*words, "--limit-units", "3", "--out", trial)
    )
    assert "a trial" not in _one_line(command.run(*words, "--limit-units", "1000", "--out", whole))
    for call in (
        ("status",),
        ("inspect",),
        ("stats", "-q"),
        ("export", "--to", "nanogpt", "-q"),
        ("report", "--out", tmp_path / "page.html", "-q"),
    ):
        assert "the first 3 units (--limit-units)" in _one_line(command.run(call[0], trial, *call[1:])), call
        assert "--limit-units" not in _one_line(command.run(call[0], whole, *call[1:])), call
    assert "trial" in repr(tokenmill.open(trial))
    assert tokenmill.status(trial).trial == "the first 3 units (--limit-units)"
    assert tokenmill.status(whole).trial is None
    command.run("report", trial, "--card", tmp_path / "card", "-q")
    assert "> **A trial:** the first 3 units" in (tmp_path / "card" / "README.md").read_text()


def _one_line(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join(done.stdout.split())


@pytest.mark.fast
def test_two_runs_do_not_share_a_directory(tmp_path: Path, corpus: list[str]) -> None:
    """While a run holds the directory, another one is refused with the process that holds it."""
    folder = folder_at(str(tmp_path / "out"))
    folder.create()
    with folder.locks.exclusive(".lock"), pytest.raises(errors.UsageError, match=str(os.getpid())):
        prepare(corpus, tmp_path / "out")


@pytest.mark.fast
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(unit_bytes=st.integers(1, 4000))
def test_any_cut_into_units_covers_every_row_once(tmp_path: Path, corpus: list[str], unit_bytes: int) -> None:
    """Whatever the size of a unit, the plan holds each row of each source exactly once, in order."""
    sources = discover(corpus).table
    plan = plan_units(sources, ReadOptions(), unit_bytes, InlineExecutor())
    assert sum(plan["rows"].to_pylist()) == 150
    place = (0, 0)
    for row in plan.to_pylist():
        assert (row["source"], row["start"] or 0) == place
        place = (row["source"] + row["sources"], 0)
        if row["stop"] is not None and row["stop"] < 8:
            place = (row["source"], row["stop"])
    assert place == (3, 0)


def test_the_stream_does_not_depend_on_the_unit_size(tmp_path: Path, corpus: list[str]) -> None:
    """The same stream of tokens comes out of one unit, of many, and of whole files joined."""
    streams = []
    for unit_bytes in (1, 700, 10**6):
        prepare(corpus, tmp_path / str(unit_bytes), unit_bytes=unit_bytes, workers=2)
        store = tokenmill.open(str(tmp_path / str(unit_bytes)))
        streams.append(
            (store.tokens(0, store.token_count).tolist(), [store.document(n).row for n in range(len(store))])
        )
    assert streams[0] == streams[1] == streams[2]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path, corpus: list[str]) -> None:
    """Slices, whole sources and what is not known come back, in every task."""
    (tmp_path / "in/lines.jsonl").write_text('{"text": "one"}\n' * 100)
    for number in range(4):
        (tmp_path / f"in/small-{number}.txt").write_text("small")
    sources = with_identities(discover([*corpus, str(tmp_path / "in/lines.jsonl"), f"{tmp_path}/in/*.txt"]).table)
    plan = plan_units(sources, ReadOptions(), 300, InlineExecutor())
    data = tables.table_bytes(plan)
    folder = folder_at(str(tmp_path))
    publish_new(folder, layout.PLAN, data)
    run = Run(
        make_request(JobOptions(tokenizer=SMALL_TIKTOKEN, eot=END), discover(corpus)).job,
        units=len(plan),
        planned_units=len(plan),
        sources=len(sources),
        source_bytes=0,
        text_bytes=0,
        sources_blake3="",
        plan_blake3=blake3(data).hexdigest(),
        engine="none",
        versions={},
    )
    found = tables.read_plan(folder, run)
    assert found.equals(plan)
    assert np.array_equal(tables.read_planned_bytes(folder, run), plan["text_bytes"].to_numpy())
    tasks = list(planning.tasks(found, sources, range(len(plan))))
    assert {task.files[0].kind for task in tasks} == {"parquet", "jsonl", "text"}
    for task, row in zip(tasks, plan.to_pylist(), strict=True):
        files = files_between(sources, row["source"], row["source"] + row["sources"])
        piece = None if row["stop"] is None else Slice(row["start"], row["stop"])
        assert task == planning.UnitTask(task.unit, tuple(files), row["text_bytes"], piece, row["rows"], task.slice)
    assert len({task.slice for task in tasks}) == len(tasks)
    assert list(planning.tasks(found, sources, [7, 2, 3])) == [tasks[7], tasks[2], tasks[3]]


@pytest.mark.fast
def test_unit_size_keeps_the_number_of_units_in_bounds() -> None:
    """A small corpus is shared out, a huge one has about a million units."""
    assert default_unit_bytes(10) == 1 << 20
    assert default_unit_bytes(200 << 20) == 200 * (1 << 20) // 64
    assert default_unit_bytes(4 << 30) == default_unit_bytes(300 << 30) == 4 << 20
    assert 500_000 < 70e12 / default_unit_bytes(int(70e12)) < 1_500_000


def test_reading_a_store(tmp_path: Path, corpus: list[str]) -> None:
    """len, indexing, any stretch of tokens and iteration by part agree, and a stretch of one part is no copy."""
    prepare(corpus, tmp_path / "out", unit_bytes=500)
    store = tokenmill.open(str(tmp_path / "out"))
    whole = np.concatenate([part.tokens for part in store.parts()])
    assert len(store) == 150
    assert store.token_count == len(whole)
    assert np.array_equal(np.concatenate([store[n] for n in range(len(store))]), whole)
    assert store[-1].tolist() == store[149].tolist()
    for start, stop in ((0, 0), (0, 10), (5, store.token_count), (17, 400), (-3, 10**9)):
        assert np.array_equal(store.tokens(start, stop), whole[start:stop])
    assert not store.tokens(0, 5).flags.owndata
    assert not store.tokens(0, 5).flags.writeable
    with pytest.raises(IndexError):
        store[150]
    assert store.dtype == np.uint16


def test_the_token_type_follows_the_vocabulary(tmp_path: Path) -> None:
    """Up to 65,536 ids are uint16, one more is uint32, added tokens counted."""
    content = json.loads(Path(SMALL_JSON).read_text())
    for largest, dtype in ((65_535, np.uint16), (65_536, np.uint32)):
        content["added_tokens"][-1]["id"] = largest
        path = tmp_path / f"{largest}.json"
        path.write_text(json.dumps(content))
        source = write_parquet(tmp_path / "a.parquet", ["hello"])
        prepare(source, tmp_path / str(largest), tokenizer=str(path), eot=None, engine="tokenizers")
        store = tokenmill.open(str(tmp_path / str(largest)))
        assert store.dtype == dtype
        assert store[0][-1] == largest


def test_parts_open_elsewhere(tmp_path: Path, corpus: list[str]) -> None:
    """pyarrow, polars, DuckDB and datasets read the parts as they are, with the same tokens."""
    prepare(corpus, tmp_path / "out", unit_bytes=500)
    store = tokenmill.open(str(tmp_path / "out"))
    expected = [tokens.tolist() for tokens in store]
    paths = sorted(str(path) for path in (tmp_path / "out/parts").iterdir())

    tables = [pa.ipc.open_file(pa.memory_map(path)).read_all() for path in paths]
    every = pa.concat_tables(tables)
    assert every["tokens"].to_pylist() == expected
    assert pl.concat([pl.read_ipc(path) for path in paths])["tokens"].to_list() == expected
    assert [row[0] for row in duckdb.execute("select tokens from every").fetchall()] == expected
    dataset = datasets.load_dataset("arrow", data_files=paths, split="train", cache_dir=str(tmp_path / "cache"))
    assert dataset["tokens"][:] == expected


@pytest.mark.fast
def test_a_part_has_these_bytes(tmp_path: Path) -> None:
    """The file of a part is the same everywhere: its content hash is written down here."""
    folder = folder_at(str(tmp_path))
    folder.create("parts")
    content = PartContent(
        np.array([1, 2, 3, 50256, 4, 5, 50256], np.uint16),
        np.array([0, 4, 7], np.int64),
        np.array([0, 0], np.uint32),
        np.array([0, 2], np.uint64),
    )
    skipped = (SkippedRow(0, 1, 1, 1, "null"),)
    summary = write_part(folder, PartSummary(3, "job", 2, 7, 20, skipped=skipped, slice="5", text="6"), content)
    columns = (
        bytes.fromhex("010002000300 50c4 04000500 50c4")
        + np.array([0, 4, 7], np.int64).tobytes()
        + bytes(8)
        + np.array([0, 2], np.uint64).tobytes()
    )
    stated = (
        b'{"unit":3,"job":"job","documents":2,"tokens":7,"text_bytes":20,"skipped":[[0,1,1,1,"null"]],'
        b'"slice":"5","text":"6","xxh3":"%s"}' % summary.xxh3.encode()
    )
    assert summary.xxh3 == xxhash.xxh3_128_hexdigest(columns)
    assert summary.blake3 == blake3(columns + stated).hexdigest()
    assert open_part(folder, 3)[0] == summary


def test_a_run_gives_up_an_engine_that_fails_an_audit(
    tmp_path: Path, corpus: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When an audit fails, the document is named, the unit is done anew, and the rest goes to the reference."""
    prepare(corpus, tmp_path / "right", unit_bytes=500)
    encode = GigatokenEngine.encode
    calls = []

    def wrong_from_the_fourth_batch(self: GigatokenEngine, text: pa.LargeStringArray) -> Encoded:
        calls.append(len(text))
        encoded = encode(self, text)
        return Encoded(encoded.tokens ^ (len(calls) > 4), encoded.offsets)  # the first call is the probe

    monkeypatch.setattr(GigatokenEngine, "encode", wrong_from_the_fourth_batch)
    options = JobOptions(tokenizer=SMALL_TIKTOKEN, eot=END, unit_bytes=500)
    request = make_request(options, discover(corpus))
    folder = folder_at(str(tmp_path / "out"))
    folder.create()
    frozen = freeze(folder, request, InlineExecutor())
    limits = Resources(1, 1 << 40, 1 << 40, 1 << 40, 1 << 40, 1).limits()
    events = RunEvents(RunLog(folder, ""), Silent(), 1)
    run = RunCompletion(
        RunContext(folder, frozen, limits, 1, Silent(), events), "gigatoken", CompletionOptions(RowLimits(0.001, 0.01))
    )
    assert run.attempt(InlineExecutor()) is not None
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "right")
    assert len(calls) == 5
    assert run.driver.engine == "tiktoken"
    assert re.search(r"different tokens for one document \(file .*parquet, row \d+\).*tiktoken", events.notices[0])


def test_empty_sources_take_nothing_from_their_neighbours(tmp_path: Path) -> None:
    """Empty files among small ones, which share a unit, and a corpus of nothing but empty files, are no trouble."""
    lines = {"a": ["one", "two"], "b": [], "c": ["three"], "d": [], "e": ["four"], "f": []}
    for name, texts in lines.items():
        path = tmp_path / "in" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    result = prepare(str(tmp_path / "in"), tmp_path / "out")
    store = tokenmill.open(str(tmp_path / "out"))
    assert (result.units, result.documents) == (1, 4)
    sources = [os.path.basename(store.document(place).source) for place in range(4)]
    assert sources == ["a.jsonl", "a.jsonl", "c.jsonl", "e.jsonl"]
    empty = prepare([str(tmp_path / "in/b.jsonl"), str(tmp_path / "in/d.jsonl")], tmp_path / "empty")
    assert (empty.units, empty.documents, empty.tokens) == (0, 0, 0)
    assert len(tokenmill.open(str(tmp_path / "empty"))) == 0
