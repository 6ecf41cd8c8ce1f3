"""`bench`: what it measures is what a run does, its forecast is exact arithmetic, and it leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run as run_command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.killing import wait_until
from tests.support.servers.hub import Hub
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import SourceError, UsageError
from tokenmill.pipeline.bench import cells, made_up_text, measurement, readings, sample, scratch
from tokenmill.pipeline.bench import run as bench_run
from tokenmill.pipeline.bench.compression import CompressedPrefix, compression_ratio
from tokenmill.pipeline.bench.forecast import Cell, average_busy_workers, describe_limit, forecast, make_corpus
from tokenmill.pipeline.bench.options import default_worker_counts
from tokenmill.pipeline.bench.timing import Steps, Stop, Timing
from tokenmill.pipeline.unit import plan
from tokenmill.sources import discover, file_at, split_file
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.storage.objects.read import below
from tokenmill.system import machine

QUICK = ("--tokenizer", SMALL_TIKTOKEN, "--workers", "1", "--seconds", "0.4")


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    return run_command("bench", *arguments, code=code)


def cell(workers: int, bytes_per_second: float, wall: Steps, cpu: Steps) -> Cell:
    return Cell(
        "gigatoken", workers, True, 2, 1, bytes_per_second, bytes_per_second / 2, 1, wall, cpu, wall.fractions()
    )


BUSY = Steps(read=1, encode=8, check=0.5, write=0.5)


def test_a_forecast_is_exact_arithmetic() -> None:
    """Hours, core-hours, money, disk and machines follow from text, rate, workers and price; starting counts once."""
    corpus = make_corpus(sources=3, source_bytes=10**12, text_bytes=4e12, documents=1e9, tokens=1e12, token_bytes=2)
    assert (corpus.store_bytes, corpus.export_bytes) == (2 * 10**12 + 20 * 10**9, 2 * 10**12)
    assert corpus.bytes_per_token == 4.0
    told = forecast(cell(8, 10e6, BUSY, BUSY), corpus, start_seconds=20.0, cores=16, price=0.05)
    assert told.seconds == 400_020.0
    assert told.hours == round(400_020 / 3600, 4)
    assert told.core_hours == round(400_020 * 8 / 3600, 4)
    assert told.money == round(400_020 * 8 / 3600 * 0.05, 4)
    assert told.machines_for_a_day == 5
    assert told.source_bytes_per_second == 2_500_000


def test_no_more_cores_are_paid_for_than_there_are() -> None:
    """More workers than cores take the machine's cores, and without a price nothing is said of money."""
    corpus = make_corpus(sources=1, source_bytes=1, text_bytes=3600, documents=1, tokens=900, token_bytes=2)
    told = forecast(cell(8, 1, BUSY, BUSY), corpus, start_seconds=0.0, cores=4, price=None)
    assert (told.core_hours, told.money, told.machines_for_a_day) == (4.0, None, 1)


@pytest.mark.parametrize(
    ("wall", "cpu", "words"),
    [
        (BUSY, BUSY, "encoding limits, 80% of the workers' time: more cores help"),
        (BUSY, Steps(read=1, encode=2), "gets 25% of a core"),
        (
            Steps(read=9, encode=1),
            Steps(read=1, encode=1),
            "reading limits, 90% .* waiting for the disk or the network",
        ),
        (Steps(read=9, encode=1), Steps(read=9, encode=1), "reading limits, 90% .* decompressing"),
        (Steps(write=6, encode=4), Steps(write=1, encode=4), "writing limits, 60% .* waiting for the disk"),
        (
            Steps(read=9, encode=1),
            Steps(read=2, encode=0.2),
            "reading limits, 90% .* gets 20% of a core: other processes",
        ),
        (Steps(read=9, encode=1), Steps(read=1, encode=0.5), "reading limits, 90% .* waiting for the disk"),
        (Steps(write=6, encode=4), Steps(write=6, encode=4), "writing limits, 60% .*: more cores help"),
    ],
)
def test_the_limit_is_told(wall: Steps, cpu: Steps, words: str) -> None:
    """The largest step limits; whether it works or waits is told by the processor's time, as encoding gets it."""
    import re

    assert re.search(words, describe_limit(cell(1, 1e6, wall, cpu), None, 4))


def test_workers_that_hinder_each_other_are_told() -> None:
    """If four workers on four cores give less than three times one, more cores are not what is missing."""
    alone = cell(1, 10e6, BUSY, BUSY)
    assert "4 workers give 1.2 times one" in describe_limit(cell(4, 12e6, BUSY, BUSY), alone, 4)
    assert "more cores help" in describe_limit(cell(4, 39e6, BUSY, BUSY), alone, 4)
    halved = Steps(read=0.5, encode=4, check=0.25, write=0.25)
    assert "more cores help" in describe_limit(cell(8, 39e6, BUSY, halved), alone, 4), "two workers to a core"


@pytest.mark.parametrize(
    ("default", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_worker_counts_double_up_to_the_default(default: int, counts: list[int]) -> None:
    """1, 2, 4, ... and the default, which is always among them."""
    assert default_worker_counts(default) == counts


@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("counts", [1, 2, 7])
@pytest.mark.parametrize("seconds", [0.3, 6.0, 30.0])
def test_the_time_is_kept(seconds: float, counts: int, engines: int) -> None:
    """Rounds, cells and warming up take no more than the time there is, unless that is less than a moment for each."""
    plan = cells.schedule(seconds, engines, counts)
    spent = plan.rounds * engines * (counts * plan.cell_seconds + cells.WARM_SECONDS)
    assert spent <= seconds + 1e-9 or plan.cell_seconds == cells.MIN_CELL_SECONDS / 10
    assert plan.rounds >= 2 or seconds < 10


def test_a_sample_comes_from_all_over_a_large_corpus() -> None:
    """Of many files some are taken, from the first to the last tenth, and no file twice."""
    sizes = [1000 + 7 * (n % 13) for n in range(10_000)]
    table = pa.table({"path": [str(n) for n in range(10_000)], "size": sizes})
    chosen = [int(path) for path in sample.spread_files(table, 5000)["path"].to_pylist()]
    assert len(set(chosen)) == len(chosen) == sum(1 for _ in chosen)
    assert {n // 1000 for n in chosen} == set(range(10))
    assert 32 * 4 <= len(chosen) <= 32 * 7
    assert sample.spread_files(table.slice(0, 20), 5000).equals(table.slice(0, 20))


def test_units_are_drawn_from_all_over_and_numbered_anew(tmp_path: Path) -> None:
    """Every unit comes once before any comes again, neighbours apart; no number comes twice; a limit takes fewer."""
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{n:090}"}}\n' for n in range(1000)))
    sources = discover([str(tmp_path / "a.jsonl")]).table
    units = plan.build_plan([split_file(file_at(sources, 0), ReadOptions(), 1000)], 1000, None)
    taken = sample.BenchSample(sources, units)
    draw = sample.UnitDraw(taken)
    tasks = [draw.next() for _ in range(2 * len(units))]
    starts = [task.file_slice.start for task in tasks if task.file_slice]
    assert len(set(starts[: len(units)])) == len(units)
    assert starts[: len(units)] == starts[len(units) :]
    assert max(starts[:10]) - min(starts[:10]) > 50_000
    assert [task.unit for task in tasks] == list(range(len(tasks)))
    little = sample.UnitDraw(taken, max_bytes=2500)
    drawn = [little.next() for _ in range(20)]
    assert len({task.file_slice for task in drawn}) == 2, "no more than was said"
    assert [units["start"][little.sample_index(task)].as_py() for task in drawn] == [
        task.file_slice and task.file_slice.start for task in drawn
    ]
    assert len({sample.UnitDraw(taken, max_bytes=1).next().file_slice for _ in range(20)}) == 1, "but one in any case"


@pytest.mark.processes
def test_bench_tells_all_in_json(tmp_path: Path, documents: list[str]) -> None:
    """Every engine is measured, shares are of all time, and the corpus is counted as a run counts it."""
    source = write_parquet(tmp_path / "corpus.parquet", documents * 3)
    out = tmp_path / "disk" / "store"
    told = json.loads(
        run(source, *QUICK, "--workers", "2,1", "--price-per-core-hour", "36", "--out", out, "--json").stdout
    )
    cells = [(each["engine"], each["workers"], each["is_default"]) for each in told["cells"]]
    assert cells[:2] == [("gigatoken", 1, True), ("gigatoken", 2, False)]
    assert cells[2:] == [("tiktoken", 1, False), ("tiktoken", 2, False)]
    for each in told["cells"]:
        assert sum(each["shares"].values()) == pytest.approx(1, abs=0.001)
        assert each["bytes_per_second"] >= each["slowest_bytes_per_second"] > 0
        assert all(seconds > 0 for seconds in each["wall_seconds"].values())
    real = tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, eot=0, out=str(tmp_path / "real"))
    assert told["corpus"]["documents"] == real.documents
    assert told["corpus"]["text_bytes"] == pytest.approx(real.text_bytes, abs=1)
    assert told["corpus"]["tokens"] == pytest.approx(real.tokens, abs=1)
    default = told["default"]
    assert default["money"] == pytest.approx(36 * default["core_hours"], abs=0.01)
    assert default["seconds"] > told["start_seconds"] - 0.01 > 0
    assert told["written_to"] == str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["corpus.parquet", "real"]


def test_a_tiny_file_works_and_says_that_it_is_too_small(tmp_path: Path) -> None:
    """A kilobyte of text gives figures, and a note that they mean nothing."""
    (tmp_path / "tiny.txt").write_text("A short text. " * 70)
    (tmp_path / "other.xyz").touch()
    shown = run(tmp_path, *QUICK, "--out", tmp_path, "--price-per-core-hour", "1").stdout
    flat = " ".join(shown.split())
    assert "980 B of text, too little for reliable figures" in flat
    assert "not read: 1 file with other endings (1 .xyz)" in flat
    assert "1*" in shown
    assert "cost less than 0.01" in flat
    assert sorted(os.listdir(tmp_path)) == ["other.xyz", "tiny.txt"]


def test_without_a_source_the_text_is_made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made-up text is always the same, is said to be made up, and is told of by the terabyte."""
    monkeypatch.setattr(made_up_text, "WORDS_IN_FILE", 50_000)
    monkeypatch.setattr(made_up_text, "WORDS", 5_000)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[str] = []

    def write_made_up(to: str) -> list[str]:
        seen.extend(os.listdir(tmp_path))
        return made_up_text.write_made_up(to)

    monkeypatch.setattr(bench_run, "write_made_up", write_made_up)
    told = tokenmill.bench(tokenizer=SMALL_JSON, workers=1, seconds=0.2)
    assert len(seen) == 1, "if it is killed, one directory is left"
    assert seen[0].startswith(".tokenmill-bench-")
    assert told.is_made_up
    assert told.corpus.text_bytes == 10**12
    assert {each.engine for each in told.cells} >= {"tokenizers"}
    assert os.listdir(tmp_path) == []
    both = [made_up_text.write_made_up(str(tmp_path)) and (tmp_path / "3.parquet").read_bytes() for _ in range(2)]
    assert both[0] == both[1]
    words = " ".join(pq.read_table(tmp_path / "0.parquet")["text"].to_pylist()).split()
    assert len(words) == 50_000
    assert 1.5 < words.count("the") / words.count("of") < 2.5, "by Zipf's law"


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--price-per-core-hour", "-1", "is not a price"),
        ("--price-per-core-hour", "nan", "is not a price"),
        ("--seconds", "0", "is not a time"),
        ("--workers", "0,2", "not a list of worker counts"),
        ("--workers", "two", "not a list of worker counts"),
    ],
)
def test_what_cannot_be_meant_is_refused(option: str, value: str, words: str) -> None:
    """Bad options are refused before anything is done, with what would be right."""
    given: dict[str, Any] = {option[2:].replace("-", "_"): value if option == "--workers" else float(value)}
    with pytest.raises(UsageError, match=words):
        tokenmill.bench("nowhere.txt", **given)


def test_a_damaged_source_is_named_and_nothing_is_left(tmp_path: Path, documents: list[str]) -> None:
    """A file that ends in the middle is an error that names it, and the directory of the parts is gone."""
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress("".join(f'{{"text": "{n} {"x" * 50}"}}\n' for n in range(5000)).encode())[:-200])
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.raises(SourceError, match=r"cut\.jsonl\.gz"):
        tokenmill.bench(str(path), tokenizer=SMALL_TIKTOKEN, workers=1, seconds=0.2, out=str(scratch))
    assert os.listdir(scratch) == []


def test_sources_without_text_are_refused(tmp_path: Path) -> None:
    """Rows that are all null are no sample."""
    source = write_parquet(tmp_path / "nulls.parquet", [None] * 50)
    with pytest.raises(SourceError, match="there is no text in the sample"):
        tokenmill.bench(source, tokenizer=SMALL_TIKTOKEN, workers=1, seconds=0.2, out=str(tmp_path))
    assert os.listdir(tmp_path) == ["nulls.parquet"]


def test_an_interrupted_bench_leaves_nothing(tmp_path: Path, documents: list[str]) -> None:
    """SIGINT in the middle of measuring ends it with 130, and the directory of the parts is gone."""
    source = write_parquet(tmp_path / "corpus.parquet", documents * 30)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "tokenmill", "bench", source, "--tokenizer", SMALL_TIKTOKEN]
    options = ["--seconds", "60", "--out", str(scratch), "--quiet"]
    process = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert wait_until(lambda: bool(list(scratch.glob(".tokenmill-bench-*/parts/*")))), "it has begun to write"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert said.strip() == "interrupted: all files of the measurement are removed"
    assert os.listdir(scratch) == []


def test_a_unit_is_broken_off_where_an_engine_is_slow(tmp_path: Path) -> None:
    """One large unit does not hold up a cell: some of its text is measured, all of it is foretold, for one worker.

    Units without text beside it do no harm.
    """
    random, texts = Random(1), [f"document {n} {'lorem ipsum ' * 100}" for n in range(2000)]
    texts = [text + random.randbytes(600).hex() for text in texts]  # shrinks less than text does
    with gzip.open(tmp_path / "large.jsonl.gz", "wt", compresslevel=1) as file:
        file.writelines(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' * 1000)
    started = time.monotonic()
    told = tokenmill.bench(str(tmp_path), tokenizer=SMALL_JSON, workers=2, seconds=0.4)
    assert time.monotonic() - started < 100
    size = sum(map(len, texts))
    slow = next(each for each in told.cells if each.engine == "tokenizers")
    assert slow.text_bytes < size / 2
    assert told.corpus.text_bytes == pytest.approx(size, rel=0.1)
    assert told.corpus.documents == pytest.approx(len(texts), rel=0.1)
    assert told.best.busy_workers == pytest.approx(1, abs=0.01)
    assert any(note.startswith("2 units for 2 workers: 1.0 of them have work") for note in told.notices)


def reading(task: plan.UnitTask, rows: int, stop: Stop | None) -> readings.Reading:
    return readings.Reading(task, Timing(1, 1, 1, rows, stop, 0, BUSY, BUSY))


def test_a_unit_that_was_broken_off_counts_by_what_was_read_of_it() -> None:
    """By its rows if the plan has them, else by bytes: of a range, of several files, or of a file that is unpacked."""
    plain, packed = (SourceFile(n, f"{n}.jsonl{end}", "jsonl", 1000, "") for n, end in enumerate(("", ".gz")))
    piece = plan.UnitTask(0, (plain,), 400, Slice(600, 1000))
    assert reading(piece, 5, None).fraction({}) == 1
    assert reading(piece, 5, Stop(0, 700)).fraction({}) == 0.25
    assert reading(piece, 5, Stop(0, 1200)).fraction({}) == 1, "a line that goes on after the range"
    assert reading(msgspec.structs.replace(piece, rows=50), 5, Stop(0, 5)).fraction({}) == 0.1
    both = reading(plan.UnitTask(0, (plain, packed), 5000), 5, Stop(1, 5000))
    assert both.prefix() == CompressedPrefix(packed, 5000)
    assert both.fraction({packed.path: 0.1}) == 0.75


def test_units_that_were_not_read_are_as_those_that_were() -> None:
    """A unit counts by its size, however little of it was read, and tells only of its kind; one may have no text."""
    sources = pa.table({"path": ["0.jsonl", "1.parquet"], "kind": ["jsonl", "parquet"], "size": [1000, 300]})
    units = pa.table({"text_bytes": [1000, 10, 500, 300], "source": [0, 0, 0, 1]})
    found = readings.Readings()
    file = SourceFile(0, "0.jsonl", "jsonl", 1000, "")
    large, small = (plan.UnitTask(n, (file,), size, Slice(0, size)) for n, size in enumerate((1000, 10)))
    found.add(1, small, Timing(0, 0, 0, 3, None, 0, BUSY, BUSY))
    found.add(0, large, Timing(200, 20, 40, 20, Stop(0, 100), 0, BUSY, BUSY))
    found.add(0, large, Timing(100, 10, 20, 10, Stop(0, 50), 0, BUSY, BUSY))
    held = found.totals(sample.BenchSample(sources, units), InlineExecutor())
    assert found.text_bytes == 200
    assert held.unit_bytes.tolist() == pytest.approx([2000, 0, 2000 / 1010 * 500, 300])
    assert held.tokens == pytest.approx(held.text_bytes / 5)
    assert held.documents == pytest.approx(held.text_bytes / 10)


def test_what_a_file_unpacks_to_is_told_by_its_beginning(tmp_path: Path) -> None:
    """A tenth of it, unpacked, tells how much the file shrinks; a file that is gone is a guess, and said to be one."""
    text = Random(1).randbytes(2 << 20).hex().encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text, 1))
    sources = discover([str(tmp_path / "a.jsonl.gz")]).table
    file = file_at(sources, 0)
    assert compression_ratio(CompressedPrefix(file, 1 << 20)) == pytest.approx(file.size / len(text), rel=0.05)
    assert compression_ratio(CompressedPrefix(file, 1 << 40)) == file.size / len(text)
    gone = msgspec.structs.replace(file, path=str(tmp_path / "gone.jsonl.gz"))
    found = readings.Readings()
    task = plan.UnitTask(0, (gone,), 4 * gone.size, Slice(0, gone.size))
    found.add(0, task, Timing(50, 1, 1, 1, Stop(0, gone.size), 0, BUSY, BUSY))
    units = pa.table({"text_bytes": [4 * gone.size], "source": [0]})
    held = found.totals(sample.BenchSample(sources, units), InlineExecutor())
    assert held.is_guessed
    assert held.text_bytes == pytest.approx(200)


@pytest.mark.parametrize(
    ("units", "workers", "busy"),
    [([5], 2, 1.0), ([1, 1, 1], 2, 1.5), ([1] * 8, 4, 4.0), ([9, 1], 2, 10 / 9), ([], 3, 3)],
)
def test_few_units_leave_workers_idle(units: list[float], workers: int, busy: float) -> None:
    """A unit has one worker, so one large unit takes as long with many workers as with one."""
    assert average_busy_workers(units, workers) == pytest.approx(busy)
    corpus = make_corpus(sources=1, source_bytes=1, text_bytes=3600, documents=1, tokens=900, token_bytes=2)
    told = forecast(cell(workers, workers, BUSY, BUSY), corpus, start_seconds=0.0, cores=8, price=None, busy=busy)
    assert told.seconds == pytest.approx(3600 / busy, abs=0.01)


@pytest.mark.processes
def test_a_turn_in_which_a_worker_dies_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dead worker and the one that came for it are not two: the turn is thrown away, and a note says so."""
    source = write_parquet(tmp_path / "a.parquet", [f"document {n} " * 50 for n in range(20_000)], row_group_size=2000)
    killed: list[measurement.Measurement] = []
    counted: list[measurement.Measurement] = []
    add, summarize_cell = measurement.Measurement.add, measurement.summarize_cell

    def killing(self: measurement.Measurement, timing: Timing, pid: int) -> None:
        add(self, timing, pid)
        if self.worker_seconds[pid] > 0.05 and self.documents > timing.documents and not killed:
            os.kill(pid, signal.SIGKILL)
            killed.append(self)

    def counting(*key: Any, is_default: bool) -> Cell:
        counted.extend(key[2])
        return summarize_cell(*key, is_default=is_default)

    monkeypatch.setattr(measurement.Measurement, "add", killing)
    monkeypatch.setattr(bench_run, "summarize_cell", counting)
    told = tokenmill.bench(source, tokenizer=SMALL_TIKTOKEN, workers=1, seconds=5, out=str(tmp_path))
    assert killed
    assert all(each is not killed[0] for each in counted)
    notes = [note for note in told.notices if note.startswith("a worker was killed (SIGKILL) while gigatoken was")]
    assert len(notes) == 1
    assert "thrown away and done again" in notes[0]


def test_a_worker_that_was_replaced_does_not_count_twice() -> None:
    """Two processes one after the other, as one worker, give what they did together in all the time."""
    taken = measurement.Measurement(1, started=time.monotonic() - 10)
    taken.text_bytes, taken.worker_bytes[1], taken.worker_bytes[2] = 1000, 500, 500
    taken.worker_seconds.update({1: 5.0, 2: 10.0})
    assert taken.bytes_per_second == 100
    two = measurement.Measurement(
        2, text_bytes=1000, worker_bytes=taken.worker_bytes, worker_seconds=taken.worker_seconds
    )
    assert two.bytes_per_second == 150


def test_a_remote_source_is_measured_where_it_is(tmp_path: Path, hub: Hub, documents: list[str]) -> None:
    """A dataset of the Hub is read from there."""
    hub.add("org/text", {"data/a.parquet": Path(write_parquet(tmp_path / "a.parquet", documents * 5))})
    told = json.loads(run("hf://datasets/org/text/data/a.parquet", *QUICK, "--json", "--out", tmp_path).stdout)
    assert told["corpus"]["documents"] == 5 * len(documents)
    assert set(os.listdir(tmp_path)) <= {"a.parquet", "hf_home"}


@pytest.mark.processes
def test_sources_and_parts_may_be_in_an_object_store(tmp_path: Path, documents: list[str], s3: Bucket) -> None:
    """A store that will be in a bucket is measured there, by requests that go on beside the work, and removed.

    Workers read sources ahead of what they are at.
    """
    write_parquet(tmp_path / "text" / "a.parquet", documents * 5)
    s3.server.upload(tmp_path / "text", f"{s3.url}/text")
    told = tokenmill.bench(f"{s3.url}/text", tokenizer=SMALL_TIKTOKEN, workers=1, seconds=0.4, out=f"{s3.url}/later")
    assert told.written_to == f"{s3.url}/later"
    assert told.corpus.documents == 5 * len(documents)
    assert all(each.wall_seconds.write > 0 for each in told.cells)
    assert [file.path for file in below(s3.url)] == [f"{s3.url}/text/a.parquet"]


def test_where_parts_go_is_looked_at(tmp_path: Path) -> None:
    """A directory that does not exist yet is measured on the disk it will be on; memory is told from a disk."""
    with scratch.scratch(str(tmp_path / "not" / "yet")) as folder:
        assert os.path.dirname(folder.root) == str(tmp_path)
    assert os.listdir(tmp_path) == []
    if machine.memory_bytes() and os.path.isdir("/dev/shm"):
        assert scratch.is_in_memory("/dev/shm") or not os.path.ismount("/dev/shm")
    assert not scratch.is_in_memory("/proc/self")
