"""Several tokenizers in one read: each store is that of a run of its own, whatever happens on the way."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support import poison
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.killing import events, part_files, result_files, wait_until, write_corpus
from tests.support.remote_runs import kill, running
from tests.support.remote_runs import tokenmill as run_command
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket

TOKENIZERS = {"small": SMALL_JSON, "small.tiktoken": SMALL_TIKTOKEN}
BOTH = tuple(part for tokenizer in TOKENIZERS.values() for part in ("--tokenizer", tokenizer))
OPTIONS = ("--unit-bytes", "1", "--eot", "1199", "--workers", "2")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of twenty row groups together."""
    return write_corpus(tmp_path_factory.mktemp("several") / "corpus", 200, 10)


@pytest.fixture(scope="module")
def separate(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of the stores that separate runs make."""
    directory = tmp_path_factory.mktemp("separate")
    return {name: _separate(corpus, directory / name, tokenizer) for name, tokenizer in TOKENIZERS.items()}


def _separate(source: Path, out: Path, tokenizer: str, **options: Any) -> dict[str, bytes]:
    ended = run_command("prepare", source, "--tokenizer", tokenizer, *OPTIONS, "--out", out, **options)
    assert ended.code == 0, ended.err
    return result_files(out)


def stores(out: Path) -> dict[str, dict[str, bytes]]:
    """The files of both stores."""
    return {name: result_files(out / name) for name in TOKENIZERS}


def test_stores_are_those_of_separate_runs(corpus: Path, separate: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """One read gives the bytes of separate runs. The second store's own run finds all units done, and logged."""
    out = tmp_path / "out"
    tokenizers = list(TOKENIZERS.values())
    result = tokenmill.prepare(corpus, tokenizer=tokenizers, out=out, unit_bytes=1, eot="1199", workers=2)
    assert stores(out) == separate
    assert [Path(each.directory).name for each in (result, *result.others)] == list(TOKENIZERS)
    assert result.documents == result.others[0].documents
    for name in TOKENIZERS:
        log = events(out / name)
        assert sum(event["event"] == "unit" for event in log) == result.units
    assert [event["missing"] for event in log if event["event"] == "start"] == [0]
    again = tokenmill.prepare(corpus, tokenizer=tokenizers, out=out, unit_bytes=1, eot="1199", workers=2)
    assert [each.units_done_now for each in (again, *again.others)] == [0, 0]


def kill_after_parts(command: tuple[object, ...], out: Path, parts: int, seconds: float) -> None:
    """Start a command, and kill it when both stores have so many parts more, and some seconds later."""

    def committed() -> int:
        return sum(len(part_files(out / name)) for name in TOKENIZERS)

    wanted = committed() + parts
    with running(*command) as process:
        assert wait_until(lambda: committed() >= wanted)
        time.sleep(seconds)
        kill(process)


def test_killed_runs_are_resumed(corpus: Path, separate: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """A run that is killed at random moments ends with the same stores."""
    rng, out = random.Random(3), tmp_path / "out"
    command = ("prepare", corpus, *BOTH, *OPTIONS, "--out", out)
    for _ in range(3):
        kill_after_parts(command, out, rng.randint(1, 8), rng.uniform(0, 0.02))
    assert run_command(*command).code == 0
    assert stores(out) == separate


def test_lost_parts_are_made_again(corpus: Path, separate: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    """Parts that either store has lost are made again, in whichever run comes to them."""
    out = tmp_path / "out"
    command = ("prepare", corpus, *BOTH, *OPTIONS, "--out", out)
    assert run_command(*command).code == 0
    for name, unit in (("small", 3), ("small", 4), ("small.tiktoken", 4), ("small.tiktoken", 9)):
        sorted((out / name / "parts").iterdir())[unit].unlink()
    ended = run_command(*command)
    assert ended.code == 0, ended.err
    assert stores(out) == separate


@pytest.mark.processes
def test_documents_that_kill_a_worker(tmp_path: Path) -> None:
    """Documents that kill or fail workers are excluded from each store as in a run of its own."""
    poisons = {7: "POISON:SEGFAULT", 27: "FASTPOISON:ABORT", 50: "POISON:RAISE"}
    texts = [f"document {row} says little {poisons.get(row, '')}" for row in range(60)]
    source = write_parquet(tmp_path / "a.parquet", texts, row_group_size=20)
    path = poison.environment(tmp_path / "site")["PYTHONPATH"]
    words = ("prepare", source, *OPTIONS, "--max-bad", "10%")
    for name, tokenizer in TOKENIZERS.items():
        run(*words, "--tokenizer", tokenizer, "--out", tmp_path / "alone" / name, PYTHONPATH=path)
    run(*words, *BOTH, "--out", tmp_path / "out", PYTHONPATH=path)
    assert stores(tmp_path / "out") == stores(tmp_path / "alone")


def test_an_engine_that_fails_an_audit(tmp_path: Path) -> None:
    """A wrong token of the fast engine in either tokenizer makes no store wrong."""
    texts = [f"document {row} says little" + " WRONGTOKEN" * (row in (13, 44)) for row in range(60)]
    source = write_parquet(tmp_path / "a.parquet", texts, row_group_size=10)
    with poison.infected():
        run("prepare", source, *BOTH, *OPTIONS, "--out", tmp_path / "out")
    for name, tokenizer in TOKENIZERS.items():
        engine = "tokenizers" if name == "small" else "tiktoken"
        alone = tmp_path / "alone" / name
        run("prepare", source, "--tokenizer", tokenizer, "--engine", engine, *OPTIONS, "--out", alone)
        assert (tmp_path / "out" / name / "engine-mismatch.json").exists()
        parts = {name for name in result_files(alone) if name.startswith("parts/")}
        assert parts
        assert all(result_files(tmp_path / "out" / name)[part] == result_files(alone)[part] for part in parts)


@pytest.mark.processes
def test_sources_in_a_bucket_are_read_once(corpus: Path, s3: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    """Two tokenizers take no more bytes from the network than one, but for the footers."""
    for file in corpus.iterdir():
        s3.server.store(s3.url).put(file.name, file.read_bytes())

    def download(*tokenizers: str) -> int:
        proxy.reset()
        out = tmp_path / str(len(tokenizers))
        assert run_command("prepare", s3.url, *tokenizers, *OPTIONS, "--out", out).code == 0
        return sum(exchange.bytes_down for exchange in proxy.exchanges)

    assert download(*BOTH) < 1.1 * download(*BOTH[:2])


def test_names_of_stores(corpus: Path, tmp_path: Path) -> None:
    """Two tokenizers that would share a directory are refused before anything is written."""
    copy = tmp_path / "copy" / "small.json"
    copy.parent.mkdir()
    copy.write_bytes(Path(SMALL_JSON).read_bytes())
    with pytest.raises(tokenmill.TokenmillError, match="two tokenizers would have the same store"):
        tokenmill.prepare(corpus, tokenizer=[SMALL_JSON, copy], out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_store_with_other_units_is_made_by_its_own_run(corpus: Path, tmp_path: Path) -> None:
    """A store that was started with larger units gets no part of the units of the other one."""
    out = tmp_path / "out"
    name, other = TOKENIZERS
    limited: dict[str, Any] = {"eot": "1199", "workers": 1}
    tokenmill.prepare(corpus, tokenizer=TOKENIZERS[other], out=out / other, unit_bytes=20_000, **limited)
    for part in (out / other / "parts").iterdir():
        part.unlink()
    tokenmill.prepare(corpus, tokenizer=[*TOKENIZERS.values()], out=out, **limited)
    units = {each: len(list((out / each / "parts").iterdir())) for each in TOKENIZERS}
    assert units[name] != units[other] == tokenmill.status(out / other).units
    tokenmill.verify(out / other, sample=1.0)
