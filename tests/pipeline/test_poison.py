"""Documents that kill whoever encodes them are found, left out and named; everything else is there."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import dying, poison
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.killing import events, result_files

pytestmark = pytest.mark.timeout(180)

ROWS = 1200
UNIT_ROWS = 100
WAYS = {
    40: ("SEGFAULT", "killed its worker (SIGSEGV)"),
    41: ("ABORT", "killed its worker (SIGABRT)"),
    360: ("EXIT", "ended its worker (exit code 7)"),
    480: ("RAISE", "raised ValueError"),
    1100: ("SEGFAULT", "killed its worker (SIGSEGV)"),
    1199: ("ABORT", "killed its worker (SIGABRT)"),
}
"""Row, poison, and the reason that is given: two next to each other, the first and the last row of a unit."""

Prepare = Callable[..., str]


def texts() -> list[str | None]:
    """Harmless documents of different lengths; one is null."""
    return [None if row == 5 else f"document {row} " + "says little " * (row % 17) for row in range(ROWS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of the poisonous engine."""
    return poison.environment(tmp_path_factory.mktemp("site"))


def words(source: str | Path, out: Path, *options: str) -> tuple[str | Path, ...]:
    """The words of a command that makes a unit of each row group."""
    return ("prepare", source, "--tokenizer", SMALL_JSON, "--out", out, "--unit-bytes", "1", *options)


@pytest.fixture
def prepare(site: dict[str, str]) -> Prepare:
    """`tokenmill prepare` whose workers have the poisonous engine."""

    def call(source: str | Path, out: Path, *options: str, code: int = 0) -> str:
        done = run(*words(source, out, *options), code=code, PYTHONPATH=site["PYTHONPATH"])
        return done.stdout + done.stderr

    return call


def poisoned(path: Path, rows: dict[int, str], marker: str = "POISON") -> str:
    """The documents as Parquet, some of them deadly."""
    documents = texts()
    for row, way in rows.items():
        documents[row] = f"{documents[row]} {marker}:{way} and more"
    return write_parquet(path, documents, row_group_size=UNIT_ROWS)


def quarantined(out: Path) -> list[dict[str, object]]:
    """What the quarantine says."""
    return [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]


def rows_of(out: Path) -> list[int]:
    """The rows that are documents of the store."""
    return [int(row) for part in tokenmill.open(str(out)).parts() for row in part.row]


@pytest.mark.processes
def test_exactly_the_deadly_rows_are_left_out(prepare: Prepare, tmp_path: Path) -> None:
    """Whatever a document does to its worker, it and no other ends in quarantine, for the reason that is true."""
    source = poisoned(tmp_path / "a.parquet", {row: way for row, (way, _) in WAYS.items()})
    output = prepare(source, tmp_path / "out", "--max-bad", "1%", "--workers", "2")
    entries = quarantined(tmp_path / "out")
    assert {entry["row"]: entry["reason"] for entry in entries} == {row: reason for row, (_, reason) in WAYS.items()}
    assert [entry["row"] for entry in entries] == sorted(WAYS)
    assert rows_of(tmp_path / "out") == [row for row in range(ROWS) if row != 5 and row not in WAYS]
    assert f"{len(WAYS)} documents, listed in {tmp_path / 'out'}/quarantine.jsonl" in output

    manifest = pq.read_table(tmp_path / "out" / "manifest.parquet")
    assert (pc.sum(manifest["quarantined"]).as_py(), pc.sum(manifest["skipped"]).as_py()) == (len(WAYS), len(WAYS) + 1)
    attempts = Counter(event["unit"] for event in events(tmp_path / "out") if event["event"] in ("death", "failure"))
    poisons = Counter(row // UNIT_ROWS for row in WAYS)
    assert all(attempts[unit] <= count * (2 * math.log2(UNIT_ROWS) + 4) for unit, count in poisons.items())
    assert sum(attempts.values()) <= 4 * len(WAYS)
    assert set(attempts) == set(poisons)

    prepare(source, tmp_path / "again", "--max-bad", "1%", "--workers", "1")
    assert result_files(tmp_path / "again") == result_files(tmp_path / "out")

    documents = ROWS - 1 - len(WAYS)
    verified = run("verify", tmp_path / "out", "--all").stdout
    assert f"{documents:,} of {documents:,} compared documents equal the reference" in verified


@pytest.mark.processes
def test_a_document_that_takes_too_long_is_left_out(prepare: Prepare, tmp_path: Path) -> None:
    """A document that never ends is stopped after --document-timeout, and the others are there."""
    source = write_parquet(tmp_path / "a.parquet", ["short", "POISON:HANG", "short"])
    prepare(source, tmp_path / "out", "--document-timeout", "1", "--max-bad", "50%")
    assert [(entry["row"], entry["reason"]) for entry in quarantined(tmp_path / "out")] == [(1, "took too long")]
    assert rows_of(tmp_path / "out") == [0, 2]


@pytest.mark.processes
def test_what_kills_only_the_fast_engine_is_not_lost(prepare: Prepare, tmp_path: Path) -> None:
    """A document that the reference engine can encode is encoded by it, and the bytes are those of a healthy run."""
    rows = {17: "SEGFAULT", 18: "ABORT", 320: "RAISE", 960: "EXIT"}
    source = poisoned(tmp_path / "a.parquet", rows, marker="FASTPOISON")
    prepare(source, tmp_path / "out")
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(tmp_path / "healthy"), unit_bytes=1)
    assert result_files(tmp_path / "out") == result_files(tmp_path / "healthy")
    assert not (tmp_path / "out" / "quarantine.jsonl").exists()


@pytest.mark.processes
def test_on_bad_fail_names_the_document(prepare: Prepare, tmp_path: Path) -> None:
    """With --on-bad fail the run ends with the file and the row; nothing looks complete."""
    source = poisoned(tmp_path / "a.parquet", {1034: "SEGFAULT"})
    output = prepare(source, tmp_path / "out", "--on-bad", "fail", code=1)
    assert "a document killed its worker (SIGSEGV)" in output
    assert source in output
    assert "row 1,034" in output
    assert not (tmp_path / "out" / "manifest.parquet").exists()


def test_more_bad_documents_than_may_be_fail_the_run(tmp_path: Path) -> None:
    """Too many bad documents end the run with all of them named; with a higher limit nothing is done again."""
    source = poisoned(tmp_path / "a.parquet", dict.fromkeys((3, 700), "RAISE"))
    with poison.infected():
        output = run(*words(source, tmp_path / "out"), code=1).stderr
    assert "2 documents of 1,200 cannot be tokenized: 0.17%, more than --max-bad 0.1%" in output
    assert output.rstrip().endswith("--max-bad 0.2%")
    assert [entry["row"] for entry in quarantined(tmp_path / "out")] == [3, 700]
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    again = run(*words(source, tmp_path / "out", "--max-bad", "0.2%"))
    assert "all units were done already" in again.stdout + again.stderr
    assert len(rows_of(tmp_path / "out")) == ROWS - 3


def test_a_run_in_which_everything_is_bad_ends_early(tmp_path: Path) -> None:
    """Nobody waits for the end of a run that will fail."""
    source = poisoned(tmp_path / "a.parquet", dict.fromkeys(range(0, ROWS, 10), "RAISE"))
    with poison.infected():
        output = run(*words(source, tmp_path / "out", "--workers", "1"), code=1).stderr
    assert "rows read so far cannot be tokenized" in output
    assert 2 < output.count("in quarantine: row") < 20


def test_the_text_is_kept_if_asked_for(tmp_path: Path) -> None:
    """--quarantine-text keeps the text of a bad document, as bytes if it is no text; the parts stay the same."""
    path = tmp_path / "a.jsonl"
    lines = [json.dumps({"text": text}).encode() for text in texts()]
    lines[10] = json.dumps({"text": "deadly POISON:RAISE"}).encode()
    lines[20] = b'{"text": "\xff"}'
    path.write_bytes(b"\n".join(lines) + b"\n")
    with poison.infected():
        for name, option in (("out", ()), ("with", ("--quarantine-text",))):
            run(*words(path, tmp_path / name, "--unit-bytes", "20k", "--max-bad", "1%", *option))
    plain, kept = quarantined(tmp_path / "out"), quarantined(tmp_path / "with")
    assert [entry["reason"] for entry in plain] == ["raised ValueError", "not valid UTF-8"]
    assert not any("text" in entry or "base64" in entry for entry in plain)
    assert kept[0]["text"] == "deadly POISON:RAISE"
    assert kept[1]["base64"]
    parts = [
        {name: data for name, data in result_files(tmp_path / each).items() if "quarantine" not in name}
        for each in ("out", "with")
    ]
    assert parts[0] == parts[1]


@pytest.mark.processes
def test_a_document_is_blamed_for_memory_only_if_it_was_alone(prepare: Prepare, tmp_path: Path) -> None:
    """One that takes much, beside one that takes all, is kept; the same for any number of workers."""
    for number, poison_text in enumerate(["FASTPOISON:ABORT SLOWPOISON:HOLD", "POISON:ALLOCATE"]):
        documents = ["hello " * 10] * 20 + [poison_text] + ["hello " * 10] * 300
        write_jsonl(tmp_path / "in" / f"{number}.jsonl", documents)
    options = ("--unit-bytes", "25k", "--memory", "1.5GB", "--max-bad", "50%")  # each file is a unit
    for workers in ("2", "1"):
        prepare(tmp_path / "in", tmp_path / workers, *options, "--workers", workers)
        blamed = [(Path(str(entry["file"])).name, entry["reason"]) for entry in quarantined(tmp_path / workers)]
        assert blamed == [("1.jsonl", "took too much memory")]
    assert result_files(tmp_path / "1") == result_files(tmp_path / "2")


def test_one_long_bad_line_does_not_look_like_many(tmp_path: Path) -> None:
    """A bad line that is most of what was read so far does not end a run that will be good."""
    path = tmp_path / "in" / "a.jsonl"
    write_jsonl(path, ["x"] * 6_000)
    path.write_bytes(b"[" + b"7" * 300_000 + b"\n" + path.read_bytes())
    run(*words(tmp_path / "in", tmp_path / "out", "--unit-bytes", "100k", "--workers", "1"))
    assert len(quarantined(tmp_path / "out")) == 1


def write_jsonl(path: Path, documents: list[str]) -> None:
    """Documents as JSON Lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))


@pytest.mark.parametrize("memory", [(), ("--memory", "8GB")])
def test_workers_that_need_more_than_there_is(site: dict[str, str], tmp_path: Path, memory: tuple[str, ...]) -> None:
    """Four workers of 700 MB each are asked for in 2 GB: the run completes, with fewer, and says so."""
    rng = random.Random(1)
    documents = [rng.randbytes(100_000).hex(" ", 4) + " POISON:HOLD" * (row % 4 == 0) for row in range(16)]
    source = write_parquet(tmp_path / "a.parquet", documents, row_group_size=4)
    command = ("tokenmill", *words(source, tmp_path / "out", "--workers", "4", *memory))
    with dying.memory_cgroup(2 << 30) as cgroup:
        ending = dying.run(*command, environment=site, seconds=120, cgroup=cgroup)
    assert ending.exit_code == 0, ending.output
    assert "going on with" in ending.output
    assert ("ran out of memory: the limit of its cgroup is 2.15 GB" in ending.output) == bool(memory)
    assert rows_of(tmp_path / "out") == list(range(16))
