"""Estimates of `plan` and of the disk check: ranges that hold what a run then makes."""

from __future__ import annotations

import gzip
import inspect
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from scripts import write_scale
from tests.support import command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.inline_executor import InlineExecutor
from tokenmill.cli import cli
from tokenmill.errors import StoreError, UsageError
from tokenmill.pipeline.planning import sample
from tokenmill.pipeline.planning.cluster import PREFIX_READS, PREFIX_WRITES, Workload
from tokenmill.pipeline.planning.estimate import START_SECONDS, Footprint, Sample, choose_units, make_estimate
from tokenmill.pipeline.unit.plan import LARGEST_UNIT_BYTES
from tokenmill.results import Estimate, PlanResult, PrepareResult
from tokenmill.system import machine
from tokenmill.token_files import FORMATS

PROSE = "the first of the words in this line is the word that the others are the words of "
TOKENS: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "engine": "tiktoken", "workers": 1}
WORDS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--engine", "tiktoken", "-q")


def texts(number: int, seed: int = 1) -> list[str]:
    """Documents of one to forty lines, some of them in digits, which take more tokens."""
    chosen = random.Random(seed)
    return [(f"{row * 7919 % 1000:03}" * 20 if row % 3 else PROSE) * chosen.randint(1, 40) for row in range(number)]


def write(path: Path, documents: list[str]) -> Path:
    """A file of the kind that its name says, with a long column beside the text."""
    path.parent.mkdir(exist_ok=True)
    rows = [{"url": f"https://example.org/{row}/" + "x" * 500, "text": text} for row, text in enumerate(documents)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    if path.name.endswith(".parquet"):  # equal texts are in a dictionary, so the file declares less than there is
        pq.write_table(pa.Table.from_pylist([{**row, "text": documents[0]} for row in rows]), path, row_group_size=50)
    elif path.name.endswith(".gz"):
        path.write_bytes(gzip.compress(lines))
    elif path.name.endswith(".zst"):
        path.write_bytes(pa.compress(lines, "zstd", asbytes=True))
    elif path.name.endswith(".csv"):
        path.write_text("url,text\n" + "".join(f"{row['url']},{row['text']}\n" for row in rows))
    elif path.name.endswith(".txt"):
        path.write_text("\n\n".join(documents))
    else:
        path.write_bytes(lines)
    return path


def both(tmp_path: Path, *sources: Path, **options: Any) -> tuple[PlanResult, PrepareResult]:
    """The plan of a job, and what its run makes."""
    job = {**TOKENS, **options}
    planned = tokenmill.plan(sources, **job)
    return planned, tokenmill.prepare(sources, out=tmp_path / "out", **job, executor=InlineExecutor())


def holds(estimate: Estimate, value: float) -> bool:
    """Whether a range has the value, and says something."""
    return estimate.low <= value <= estimate.high <= 2 * estimate.low


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.csv", "a.parquet", "a.txt"])
def test_a_plan_counts_text_and_not_what_is_around_it(tmp_path: Path, name: str) -> None:
    """Of a small corpus all text is encoded, and the plan has its exact counts, whatever the files are."""
    options = {"separator": "\n\n"} if name == "a.txt" else {}
    planned, made = both(tmp_path, write(tmp_path / "in" / name, texts(100)), **options)
    assert planned.text_bytes == Estimate(made.text_bytes, made.text_bytes)
    assert planned.tokens == Estimate(made.tokens, made.tokens)
    parts = sum(path.stat().st_size for path in (tmp_path / "out" / "parts").iterdir())
    assert planned.disk_bytes.low <= parts < planned.disk_bytes.low + 5000


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.txt"])
def test_a_part_of_a_unit_stands_for_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """If a unit is read in part, the rest is estimated by rows, or by the place in the file."""
    monkeypatch.setattr(sample, "READ_BYTES", 1 << 17)
    monkeypatch.setattr(sample, "ENCODED_BYTES", 1 << 15)
    options = {"separator": "\n\n"} if name == "a.txt" else {}
    planned, made = both(tmp_path, write(tmp_path / "in" / name, texts(1000)), unit_bytes="100M", **options)
    assert made.units == 1
    assert holds(planned.text_bytes, made.text_bytes)
    assert holds(planned.tokens, made.tokens)
    assert planned.tokens.low < planned.tokens.high


@pytest.mark.parametrize(
    "options", [{"where": "url > 'https://example.org/5'"}, {"min_tokens": 500}, {"template": "{url} {text}"}]
)
def test_options_about_text_count(tmp_path: Path, options: dict[str, Any]) -> None:
    """Rows that are left out, and what a template adds, are in the figures."""
    planned, made = both(tmp_path, write(tmp_path / "in" / "a.jsonl", texts(100)), **options)
    assert planned.tokens == Estimate(made.tokens, made.tokens)


def test_a_plan_takes_what_prepare_takes() -> None:
    """The function has the same keywords, and the command the same options; only `prepare` needs the output.

    A cluster is an option of `plan` only.
    """
    planned, prepared = (inspect.signature(function).parameters for function in (tokenmill.plan, tokenmill.prepare))
    assert {name: planned[name] for name in planned if name not in {"nodes", "cores"}} == dict(prepared)
    options, others = ([each.opts for each in cli.commands[name].params] for name in ("plan", "prepare"))
    assert [each for each in options if each not in (["--nodes"], ["--cores"])] == others
    assert "Missing option '--out'" in command.run("prepare", "a.jsonl", code=2).stderr
    assert "Missing argument 'SOURCE...'" in command.run("prepare", "--out", "out", code=2).stderr
    assert "Missing argument 'SOURCE...'" in command.run("plan", code=2).stderr


def test_options_that_change_no_estimate_are_accepted(tmp_path: Path) -> None:
    """The command of a run, with the word `plan` for `prepare`, is a plan, and writes nothing."""
    source = write(tmp_path / "in" / "a.jsonl", texts(20))
    (tmp_path / "deny.jsonl").write_text('{"column": "url", "value": "x"}\n')
    about_a_run = "--rank 0 --of 2 --repair --retry-quarantine --moved a=b --on ray --force --metrics m.prom"
    bad = "--on-bad fail --max-bad 1% --max-skipped 2% --document-timeout 5 --quarantine-text"
    job = "--keep url --dedup exact --memory 2GB --engine tiktoken --max-document-bytes 1M"
    words = [*f"{about_a_run} {bad} {job}".split(), "--deny", tmp_path / "deny.jsonl", "--out", tmp_path / "out"]
    before = sorted(tmp_path.rglob("*"))
    shown = command.run("plan", source, *WORDS, *words).stdout
    assert "rows that are left out (--deny, --dedup) are not subtracted" in shown
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_has_the_exports_and_all_tokenizers(tmp_path: Path) -> None:
    """The disk of --to is apart; each tokenizer has its own figures."""
    source = write(tmp_path / "in" / "a.jsonl", texts(20))
    words: dict[str, Any] = {"eot": "none", "to": ["nanogpt", "megatron"], "executor": InlineExecutor(), "workers": 1}
    planned = tokenmill.plan(source, tokenizer=[SMALL_TIKTOKEN, SMALL_JSON], **words)
    made = tokenmill.prepare(source, tokenizer=[SMALL_TIKTOKEN, SMALL_JSON], out=tmp_path / "out", **words)
    for one, other in zip([planned, *planned.others], [made, *made.others], strict=True):
        assert (one.tokenizer, one.tokens.low) == (other.tokenizer, other.tokens)
        assert sum(each.bytes for each in other.exports) <= one.export_bytes.high
    shuffled = tokenmill.plan(source, tokenizer=SMALL_TIKTOKEN, shuffle=7, **words)
    assert shuffled.export_bytes.high == 2 * planned.export_bytes.high
    assert " for --to" in command.run("plan", source, *WORDS, "--to", "nanogpt").stdout
    assert " for --to" not in command.run("plan", source, *WORDS).stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "nanogtp"), "nanogtp"),
        (("--val", "0.01"), "--val needs an export"),
        (("--keep", "link"), "link"),
        (("--where", "score >"), "score >"),
        (("--max-bad", "x"), "--max-bad"),
    ],
)
def test_a_plan_refuses_what_prepare_refuses(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """With the same message."""
    source = write(tmp_path / "in" / "a.jsonl", texts(3))
    planned = command.run("plan", source, *WORDS, *words, code=None)
    prepared = command.run("prepare", source, *WORDS, *words, "--out", tmp_path / "out", code=None)
    assert said in planned.stderr
    assert (planned.returncode, planned.stderr) == (prepared.returncode, prepared.stderr)


def test_prepare_needs_an_output() -> None:
    """The parameter that a plan does not need is refused in words."""
    with pytest.raises(UsageError, match=r"no output is given\n.*out="):
        tokenmill.prepare("a.jsonl", tokenizer=SMALL_TIKTOKEN)


def test_each_file_counts_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some units of prose between many of digits do not decide the estimate."""
    monkeypatch.setattr(sample, "READ_BYTES", 1 << 10)
    monkeypatch.setattr(sample, "ENCODED_BYTES", 1 << 10)
    dense, light = "0123456789" * 100, PROSE * 12
    files = [
        write(tmp_path / "in" / f"{number:03}.jsonl", [light if number in {0, 9, 18, 27, 36, 45, 54, 63} else dense])
        for number in range(64)
    ]
    planned, made = both(tmp_path, *files, unit_bytes=2000)
    assert made.units == 64
    assert holds(planned.tokens, made.tokens)


def test_units_lie_in_equal_parts_of_the_bytes() -> None:
    """A unit that is half of the plan gets half of the weight; few units are all taken, with their own sizes."""
    units, weights = choose_units(np.array([10, 1000, *[10] * 100]), 20)
    assert weights.sum() == pytest.approx(2010)
    assert weights[units.tolist().index(1)] == pytest.approx(1000, abs=110)
    assert [each.tolist() for each in choose_units(np.array([5, 7]), 20)] == [[0, 1], [5, 7]]
    assert [len(each) for each in choose_units(np.array([], np.int64), 20)] == [0, 0]


def test_samples_that_differ_make_a_wider_range() -> None:
    """One sample makes a wide range, equal ones a narrow range; without a sample there is no estimate."""

    def tokens(*counts: float) -> Estimate:
        samples = [Sample(1000, 1.0, 1000, 1, count) for count in counts]
        expected = make_estimate(samples, [1.0] * len(samples), 10**6)
        assert expected is not None
        return expected.tokens

    one, equal, different = tokens(250), tokens(*[250] * 16), tokens(*[200, 300] * 8)
    assert equal.high - equal.low < different.high - different.low
    assert equal.high - equal.low < one.high - one.low
    assert all(holds(each, 250_000) for each in (one, equal, different))
    assert make_estimate([Sample()], [1.0], 100) is None


@pytest.mark.parametrize("shuffle", [None, 7])
@pytest.mark.parametrize("name", list(FORMATS))
def test_the_footprint_of_an_export_is_an_upper_end(tmp_path: Path, name: str, shuffle: int | None) -> None:
    """Tiny documents take more in the index of a format than in tokens."""
    source = write(tmp_path / "in" / "a.jsonl", [f"a{row % 7}" for row in range(3000)])
    made = tokenmill.prepare(source, **TOKENS, out=tmp_path / "out", executor=InlineExecutor())
    words: dict[str, Any] = {"shuffle": shuffle, "val": "none", "executor": InlineExecutor(), "workers": 1}
    done = tokenmill.export(made, to=name, **words)
    written = sum(path.stat().st_size for path in Path(done.directory).rglob("*") if path.is_file())
    assert written <= Footprint.of_export(done.dtype, shuffle).bytes(made.tokens, made.documents) + 20_000


@pytest.mark.parametrize("to", [(), ("nanogpt",), ("nanogpt", "megatron")])
def test_a_disk_that_is_too_small_in_the_end_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: tuple[Any, ...]
) -> None:
    """The store and its exports have to fit at the upper end of the estimate, so none of them fails after the work."""
    source = write(tmp_path / "in" / "a.jsonl", texts(300))
    job: dict[str, Any] = {**TOKENS, "unit_bytes": "100k", "to": to, "executor": InlineExecutor()}
    made = tokenmill.prepare(source, out=tmp_path / "large", **job)
    exported = sum(each.bytes for each in made.exports)
    needed = exported + sum(path.stat().st_size for path in (tmp_path / "large" / "parts").iterdir())
    monkeypatch.setattr(machine, "free_disk_bytes", lambda _: needed - 1)
    with pytest.raises(StoreError, match="the disk is too small") as raised:
        tokenmill.prepare(source, out=tmp_path / "small", **job)
    assert ("of it for to=" in str(raised.value)) is bool(to)
    assert not any((tmp_path / "small" / "parts").iterdir())
    monkeypatch.setattr(machine, "free_disk_bytes", lambda _: 2 * needed + 1_000_000)
    assert tokenmill.prepare(source, out=tmp_path / "small", **job).tokens == made.tokens


def test_a_plan_is_shown_as_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A figure that is not known has two ends; one that is known has one."""
    source = write(tmp_path / "in" / "a.jsonl", texts(100))
    shown = command.run("plan", source, *WORDS).stdout
    monkeypatch.setattr(sample, "READ_BYTES", 1 << 14)
    ranged = command.run("plan", source, *WORDS).stdout
    for name in ("text", "tokens", "disk"):
        known, estimated = (re.search(rf"^{name} .*", text, re.MULTILINE) for text in (shown, ranged))
        assert known is not None
        assert estimated is not None
        assert (" to " in known[0], " to " in estimated[0]) == (False, True)


@pytest.mark.parametrize(
    ("files", "units", "seconds", "limit"),
    [
        (1000, 10_000, 1e6, "cores"),
        (1000, 10, 1e3, "units"),
        (1000, 10_000_000, 1e3, "writes"),
        (1_000_000, 10_000_000, 1e3, "reads"),
    ],
)
def test_the_time_on_a_cluster_is_that_of_what_binds(files: int, units: int, seconds: float, limit: str) -> None:
    cluster = Workload(files, units, 10**9, 10**9, Estimate(seconds, 2 * seconds)).on(16, 4)
    assert cluster.limit == limit
    times = {
        "cores": seconds / 64,
        "units": seconds / units,
        "reads": (cluster.reads - units) / PREFIX_READS,  # one read of each unit is of the store
        "writes": units / PREFIX_WRITES,
    }
    assert cluster.seconds.low == pytest.approx(START_SECONDS + times[limit], abs=0.1)


def test_more_nodes_take_less_time_and_the_same_core_hours() -> None:
    work = Workload(100, 100_000, 10**12, 10**12, Estimate(1e6, 1e6))
    one, several = work.on(1, 16), work.on(8, 16)
    assert several.seconds.low == pytest.approx(START_SECONDS + (one.seconds.low - START_SECONDS) / 8, abs=0.1)
    assert several.core_hours == one.core_hours
    assert (several.writes, several.listings) == (one.writes, 8 * one.listings)
    assert several.written_bits == pytest.approx(one.written_bits, rel=0.01)


def test_plan_estimates_the_job_on_nodes(tmp_path: Path) -> None:
    """The command says what a cluster takes, for each tokenizer; without --nodes it says nothing of it."""
    sources = [str(write(tmp_path / f"{number}" / "a.parquet", texts(200))) for number in range(2)]
    result = tokenmill.plan(sources, **TOKENS, nodes=3, cores=2)
    assert result.cluster is not None
    assert (result.cluster.nodes, result.cluster.cores, result.cluster.writes) == (3, 2, result.units)
    shown = command.run("plan", *sources, *WORDS, "--nodes", "3", "--cores", "2").stdout
    assert "cluster      3 nodes of 2 cores" in shown
    assert "limited by" in shown
    alone = command.run("plan", *sources, *WORDS)
    assert "cluster" not in alone.stdout
    with pytest.raises(UsageError, match="cores= has no effect without nodes="):
        tokenmill.plan(sources, **TOKENS, cores=2)


def test_the_page_about_scale_agrees_with_a_plan_of_finewebs_layout(tmp_path: Path) -> None:
    """A file of 730 row groups, each a 14th of a unit: all sizes are those of FineWeb, divided by 400."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema, use_dictionary=False, write_statistics=False) as writer:
        for group in range(730):
            writer.write_table(pa.table({"text": [f"{group:5} " + "word " * 2370]}))
    options = TOKENS | {"unit_bytes": LARGEST_UNIT_BYTES // 400}
    planned = tokenmill.plan(tmp_path, **options, nodes=16, cores=write_scale.CORES)
    assert planned.cluster is not None
    of_page = write_scale.work(write_scale.TEXT)
    assert planned.units * of_page.files == pytest.approx(of_page.units, rel=0.05)
    reads = of_page.on(16, write_scale.CORES).reads
    assert planned.cluster.reads * of_page.files == pytest.approx(reads, rel=0.05)
