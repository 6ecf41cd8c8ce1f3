"""`bench`: what it measures is what a run does, its forecast is exact arithmetic, and it leaves nothing behind."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tokenmill
from tests.support.command import run as run_command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.killing import wait_until
from tests.support.servers.hub import Hub
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import SourceError, UsageError
from tokenmill.pipeline.bench import library, measure
from tokenmill.pipeline.bench import run as bench_run
from tokenmill.pipeline.bench.measure import Speed
from tokenmill.pipeline.bench.result import describe_limit, make_cell, with_forecast
from tokenmill.pipeline.bench.run import default_worker_counts
from tokenmill.results import Corpus, Estimate, Steps
from tokenmill.storage.objects.read import below

QUICK = ("--tokenizer", SMALL_TIKTOKEN, "--workers", "1", "--seconds", "0.4")


def run(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command in this process."""
    return run_command("bench", *arguments, code=code)


def speed(bytes_per_second: float, wall: Steps, cpu: Steps) -> Speed:
    return Speed(text_bytes=400, tokens=100, bytes_per_second=bytes_per_second, wall=wall, cpu=cpu)


BUSY = Steps(read=1, encode=8, write=1)
CORPUS = Corpus(
    sources=3,
    source_bytes=10**12,
    units=100,
    text_bytes=Estimate(36e9, 72e9),
    documents=Estimate(1, 2),
    tokens=Estimate(9e9, 18e9),
    bytes_per_token=4.0,
    disk_bytes=Estimate(18e9, 36e9),
)


def test_a_forecast_is_exact_arithmetic() -> None:
    """The time is from the least text at the best rate to the most at the worst; starting counts once."""
    measured = make_cell("gigatoken", 8, [speed(10e6, BUSY, BUSY), speed(5e6, BUSY, BUSY)], is_default=True, cores=4)
    assert (measured.rounds, measured.noise, measured.tokens_per_second) == (2, 0.5, 2.5e6)
    assert measured.shares == Steps(read=0.1, encode=0.8, write=0.1)
    told = with_forecast(measured, CORPUS, cores=4)
    assert told.seconds == Estimate(3601.5, 14401.5)
    assert told.core_hours == Estimate(4.0017, 16.0017), "no more cores than there are"
    few = with_forecast(measured, msgspec.structs.replace(CORPUS, units=2), cores=4)
    assert few.seconds == Estimate(4 * 3600 + 1.5, 4 * 14400 + 1.5), "two units keep two of eight workers busy"


@pytest.mark.parametrize(
    ("wall", "cpu", "words"),
    [
        (BUSY, BUSY, "encoding takes 80% of the workers' time: more cores help"),
        (BUSY, Steps(read=1, encode=2), "gets 25% of a core"),
        (
            Steps(read=9, encode=1),
            Steps(read=1, encode=1),
            "reading takes 90% .* waits for the disk or the network",
        ),
        (Steps(read=9, encode=1), Steps(read=9, encode=1), "reading takes 90% .*: more cores help"),
        (Steps(write=6, encode=4), Steps(write=1, encode=4), "writing takes 60% .* waits for the disk"),
        (
            Steps(read=9, encode=1),
            Steps(read=2, encode=0.2),
            "reading takes 90% .* gets 20% of a core: other processes",
        ),
        (Steps(read=9, encode=1), Steps(read=1, encode=0.5), "reading takes 90% .* waits for the disk"),
    ],
)
def test_the_limit_is_told(wall: Steps, cpu: Steps, words: str) -> None:
    """The largest step limits; whether it works or waits is told by the processor's time, as encoding gets it."""
    assert re.search(words, describe_limit(speed(1e6, wall, cpu), 1, 4))


@pytest.mark.parametrize(
    ("default", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (64, [1, 2, 4, 8, 16, 32, 64])]
)
def test_worker_counts_double_up_to_the_default(default: int, counts: list[int]) -> None:
    """1, 2, 4, ... and the default, which is always among them."""
    assert default_worker_counts(default) == counts


@pytest.mark.parametrize("cells", [1, 4, 14])
@pytest.mark.parametrize("seconds", [0.3, 6.0, 30.0])
def test_the_time_is_kept(seconds: float, cells: int) -> None:
    """All rounds take no more than the time there is, and a measurement is repeated if there is time for that."""
    rounds, cell_seconds = bench_run.schedule(seconds, cells)
    assert rounds * cells * cell_seconds <= seconds + 1e-9
    assert rounds >= 2 or seconds < 10


def test_a_sample_comes_from_all_over_a_large_corpus() -> None:
    """Of many files some are taken, from the first to the last tenth, and no file twice."""
    sizes = [1000 + 7 * (n % 13) for n in range(10_000)]
    table = pa.table({"path": [str(n) for n in range(10_000)], "size": sizes})
    chosen = [int(path) for path in bench_run.spread_files(table, 5000)["path"].to_pylist()]
    assert len(set(chosen)) == len(chosen) == sum(1 for _ in chosen)
    assert {n // 1000 for n in chosen} == set(range(10))
    assert 32 * 4 <= len(chosen) <= 32 * 7
    assert bench_run.spread_files(table.slice(0, 20), 5000).equals(table.slice(0, 20))


@pytest.mark.processes
def test_bench_tells_all_in_json(tmp_path: Path, documents: list[str]) -> None:
    """Every engine is measured, shares are of all time, and the corpus is estimated as `plan` does."""
    source = write_parquet(tmp_path / "corpus.parquet", documents * 3)
    out = tmp_path / "disk" / "store"
    told = json.loads(run(source, *QUICK, "--workers", "2,1", "--out", out, "--json").stdout)
    cells = [(each["engine"], each["workers"], each["is_default"]) for each in told["cells"]]
    assert cells[:2] == [("gigatoken", 1, True), ("gigatoken", 2, False)]
    assert cells[2:] == [("tiktoken", 1, False), ("tiktoken", 2, False)]
    for each in told["cells"]:
        assert sum(each["shares"].values()) == pytest.approx(1, abs=0.001)
        assert all(share > 0 for share in each["shares"].values())
        assert each["bytes_per_second"] >= each["slowest_bytes_per_second"] > 0
    planned = tokenmill.plan(source, tokenizer=SMALL_TIKTOKEN, eot=0, executor=InlineExecutor())
    for name in ("text_bytes", "tokens", "disk_bytes", "bytes_per_token"):
        assert told["corpus"][name] == msgspec.to_builtins(getattr(planned, name))
    real = tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, eot=0, out=str(tmp_path / "real"))
    assert told["corpus"]["tokens"] == {"low": real.tokens, "high": real.tokens}
    assert told["corpus"]["documents"]["low"] == real.documents
    assert told["written_to"] == str(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["corpus.parquet", "real"]


def test_a_tiny_file_works_and_says_that_it_is_too_small(tmp_path: Path) -> None:
    """A kilobyte of text gives figures, and a note that they mean nothing."""
    (tmp_path / "tiny.txt").write_text("A short text. " * 70)
    (tmp_path / "other.xyz").touch()
    shown = run(tmp_path, *QUICK, "--out", tmp_path).stdout
    flat = " ".join(shown.split())
    assert "980 B of text, too little for reliable figures" in flat
    assert "not read: 1 file with other endings (1 .xyz)" in flat
    assert "1*" in shown
    assert "text 980 B" in flat
    assert sorted(os.listdir(tmp_path)) == ["other.xyz", "tiny.txt"]


def test_without_a_source_the_speed_of_the_machine_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text is that of Python's library, which says nothing of a corpus; a Python without it is refused."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(library, "MAX_BYTES", 1 << 20)
    shown = run("--tokenizer", SMALL_JSON, "--workers", "1", "--seconds", "0.2").stdout
    assert re.search(r"^tokenizers +1 +\d", shown, re.MULTILINE)
    assert "Python's standard library; name your sources" in shown
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(library, "_library_texts", lambda: iter(()))
    with pytest.raises(SourceError, match="too little text"):
        tokenmill.bench(tokenizer=SMALL_JSON, workers=1, seconds=0.2)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--seconds", "0", "is not a time"),
        ("--seconds", "nan", "is not a time"),
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
    with pytest.raises(SourceError, match="there is no text in the sources"):
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


def test_a_unit_is_stopped_where_an_engine_is_slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One large unit does not hold up a measurement: some of its text is encoded. Units without text do no harm."""
    measured: list[Speed] = []
    plus = Speed.plus

    def counted(self: Speed, other: Speed) -> Speed:
        measured.append(other)
        return plus(self, other)

    monkeypatch.setattr(Speed, "plus", counted)
    random, texts = Random(1), [f"document {n} {'lorem ipsum ' * 100}" for n in range(2000)]
    texts = [text + random.randbytes(600).hex() for text in texts]  # shrinks less than text does
    with gzip.open(tmp_path / "large.jsonl.gz", "wt", compresslevel=1) as file:
        file.writelines(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(texts))
    (tmp_path / "nulls.jsonl").write_text('{"text": null}\n' * 1000)
    told = tokenmill.bench(str(tmp_path), tokenizer=SMALL_JSON, workers=3, seconds=0.4)
    size = sum(map(len, texts))
    assert min(each.text_bytes for each in measured) < size / 2
    assert told.corpus
    assert told.corpus.text_bytes.low < size < told.corpus.text_bytes.high
    assert any(note.startswith("2 units for 3 workers: a compressed file or a row") for note in told.notices)


@pytest.mark.processes
def test_a_measurement_in_which_a_worker_dies_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the dead worker did does not count, and a note says that it died."""
    source = write_parquet(tmp_path / "a.parquet", [f"document {n} " * 50 for n in range(20_000)], row_group_size=2000)
    marker = tmp_path / "killed"
    monkeypatch.setattr(bench_run, "MeasureSpeed", partial(KillsOnce, str(marker)))
    told = tokenmill.bench(source, tokenizer=SMALL_TIKTOKEN, workers=1, seconds=2, out=str(tmp_path))
    assert marker.exists()
    notes = [note for note in told.notices if "was killed (SIGKILL) on a measurement of gigatoken" in note]
    assert len(notes) == 1
    assert notes[0].endswith("; the measurement was done again")
    assert all(cell.bytes_per_second > 0 for cell in told.cells)


class KillsOnce:
    """Measures, and kills its process at the first call of all."""

    def __init__(self, marker: str, *arguments: Any) -> None:
        self.marker, self.measure = marker, measure.MeasureSpeed(*arguments)
        self.engine = self.measure.engine

    def __call__(self, tasks: Any) -> Speed:
        """Measure, but for the first call."""
        with suppress(FileExistsError):
            Path(self.marker).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.measure(tasks)


def test_a_remote_source_is_measured_where_it_is(tmp_path: Path, hub: Hub, documents: list[str]) -> None:
    """A dataset of the Hub is read from there."""
    hub.add("org/text", {"data/a.parquet": Path(write_parquet(tmp_path / "a.parquet", documents * 5))})
    told = json.loads(run("hf://datasets/org/text/data/a.parquet", *QUICK, "--json", "--out", tmp_path).stdout)
    assert told["corpus"]["documents"]["low"] == 5 * len(documents)
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
    assert told.corpus
    assert told.corpus.documents.low == 5 * len(documents)
    assert all(each.shares.write > 0 for each in told.cells)
    assert [file.path for file in below(s3.url)] == [f"{s3.url}/text/a.parquet"]


def test_parts_go_to_the_disk_of_a_directory_that_does_not_exist_yet(tmp_path: Path) -> None:
    """A directory that does not exist yet is measured on the disk it will be on."""
    with bench_run.scratch(str(tmp_path / "not" / "yet")) as folder:
        assert os.path.dirname(folder.root) == str(tmp_path)
    assert os.listdir(tmp_path) == []
