"""The contest: every pipeline once a round, beginning with another one each time, timed from process start to exit."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers import outputs
from benchmarks.peers.catalogue import Pipeline
from benchmarks.peers.environments import Environment
from benchmarks.peers.orphans import end_descendants
from benchmarks.peers.works import Work, convert
from benchmarks.process_tree import Watch

HERE = Path(__file__).resolve().parent
HIDDEN = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""Variables of this process that would change how the programs of other environments start."""


class Failed(Exception):
    """A pipeline did not end well; tells how in one line."""


@dataclass(frozen=True)
class Setting:
    """What all runs share: where they write, the workers, the vocabularies by kind, the longest a run may take."""

    scratch: Path
    workers: int
    vocabularies: dict[str, str]
    limit_seconds: float


@dataclass
class Entry:
    """A pipeline with its environment and work, the work tree of its repository, and its results."""

    pipeline: Pipeline
    environment: Environment | None
    work: Work
    failure: str | None = None
    repository: str = ""
    commit: str | None = None
    rounds: list[dict[str, Any]] = field(default_factory=list)
    peak_bytes: int | None = None
    kills: dict[str, Any] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """The entry as it is recorded."""
        pipeline = self.pipeline
        return {
            "name": pipeline.name,
            "title": pipeline.title,
            "bare": pipeline.bare,
            "note": pipeline.note,
            "beside": pipeline.beside,
            "versions": self.environment.names(pipeline.packages[: pipeline.named]) if self.environment else "",
            "installed": self.environment.versions if self.environment else {},
            "repository": pipeline.repository,
            "commit": self.commit,
            "work": self.work.name,
            "text_bytes": self.work.text_bytes,
            "documents": self.work.documents,
            "expected_tokens": self.work.expected.tokens,
            "failure": self.failure,
            "rounds": self.rounds,
            "peak_bytes": self.peak_bytes,
            "kills": self.kills,
        }

    @property
    def best_seconds(self) -> float:
        """The fastest timed round."""
        return float(min(told["seconds"] for told in self.rounds if told["round"]))


def run_rounds(entries: list[Entry], setting: Setting, small: Work, rounds: int) -> None:
    """Warm up, then time; one that fails is not run again."""
    for entry in entries:
        _attempt(entry, setting, small, 0)
    for number in range(1, rounds + 1):
        first = (number - 1) * len(entries) // rounds
        for entry in entries[first:] + entries[:first]:
            _attempt(entry, setting, small, number)


def _attempt(entry: Entry, setting: Setting, small: Work, number: int) -> None:
    """One turn; round 0 is not timed: on little work, or, to see the tokens of those that write none, on all of it."""
    if entry.failure:
        return
    title = (
        f"round {number}  {entry.pipeline.title}, {entry.work.name}" if number else f"warm up  {entry.pipeline.title}"
    )
    try:
        if number:
            told = _run(entry, setting, entry.work, keep=False)
            entry.rounds.append(told | {"round": number, "megabytes_per_second": speed(entry, told["seconds"])})
            print(f"{title}: {told['seconds']:.2f} s, tokens {told['tokens_are']}", file=sys.stderr, flush=True)
        else:
            told = _run(entry, setting, entry.work if entry.pipeline.is_compared_apart else small, keep=True)
            print(f"{title}: tokens {told['tokens_are']}", file=sys.stderr, flush=True)
            if entry.pipeline.is_compared_apart:
                entry.rounds.append(told | {"round": 0})
    except Failed as error:
        entry.failure = str(error)
        print(f"{title}: did not run: {error}", file=sys.stderr, flush=True)


def speed(entry: Entry, seconds: float) -> float:
    """MB of text a second."""
    return entry.work.text_bytes / seconds / 1e6


def measure_memory(entries: list[Entry], setting: Setting) -> None:
    """Run each pipeline once more, not timed, and record the peak memory of its process tree."""
    for entry in entries:
        if not entry.failure:
            command, variables, _ = ready(entry, setting, entry.work)
            with started(command, setting, variables) as process:
                watch = Watch(process.pid)
                watch.start()
                code = process.wait()
                watch.stop()
            entry.peak_bytes = None if code else watch.tree_bytes
            print(f"memory  {entry.pipeline.title}: {watch.tree_bytes / 1e6:,.0f} MB", file=sys.stderr, flush=True)


def _run(entry: Entry, setting: Setting, work: Work, *, keep: bool) -> dict[str, Any]:
    """Run a pipeline on some work into an empty directory, look at its tokens, and remove them."""
    command, variables, out = ready(entry, setting, work, keep=keep)
    os.sync()
    load = os.getloadavg()[0]
    seconds = _time(command, setting, variables)
    told = {"seconds": seconds, "load_before": load, "tokens": None, "tokens_are": "not written"}
    if entry.pipeline.is_compared_apart and not keep:
        return told
    found = outputs.find(entry.pipeline.layout, out)
    shutil.rmtree(out, ignore_errors=True)
    return told | {"tokens": found.tokens, "tokens_are": found.verdict(work.expected)}


def ready(entry: Entry, setting: Setting, work: Work, *, keep: bool = False) -> tuple[list[str], dict[str, str], str]:
    """The command of a pipeline on some work, its variables, and the directory that it writes, which is empty."""
    out, cache = setting.scratch / "out", setting.scratch / "cache"
    for directory in (out, cache):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    command = command_of(entry, setting, convert(work, entry.pipeline.reads), str(out), keep=keep)
    return command, {"HF_DATASETS_CACHE": str(cache), "TMPDIR": str(cache)}, str(out)


def command_of(entry: Entry, setting: Setting, source: str, out: str, *, keep: bool) -> list[str]:
    """The command of a pipeline: that of tokenmill, or a recipe with its arguments."""
    assert entry.environment is not None  # a pipeline without one has failed before
    pipeline, programs = entry.pipeline, entry.environment.programs
    if not pipeline.recipe:
        words = ["prepare", source, "--tokenizer", "gpt2", "--out", out, "--workers", str(setting.workers), "--quiet"]
        return [str(programs / "tokenmill"), *words, *pipeline.options]
    vocabulary = setting.vocabularies.get(pipeline.vocabulary, "gpt2")
    workers = str(pipeline.threads or setting.workers)
    words = [str(HERE / "recipes" / pipeline.recipe), source, out, workers, vocabulary]
    more = [entry.repository] if entry.repository else []
    return [str(programs / "python"), *words, *more, *(["keep"] if pipeline.is_compared_apart and keep else [])]


@contextlib.contextmanager
def started(command: list[str], setting: Setting, variables: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs; at the end of the block, all that it started is ended."""
    environment = {name: value for name, value in os.environ.items() if name not in HIDDEN} | variables
    with open(log_of(setting), "wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # so that all it started can be ended with it
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            end_descendants()


def _time(command: list[str], setting: Setting, variables: dict[str, str]) -> float:
    """The seconds of a command from its start to its exit; Failed if that is not a good one."""
    began = time.perf_counter()
    with started(command, setting, variables) as process:
        try:
            code = process.wait(setting.limit_seconds)
            seconds = time.perf_counter() - began
        except subprocess.TimeoutExpired as error:
            raise Failed(f"took more than {setting.limit_seconds:,.0f} seconds") from error
    if code:
        raise Failed(f"ended with {code}: {last_line(log_of(setting))}")
    return seconds


def log_of(setting: Setting) -> str:
    """The file that takes what a command prints."""
    return str(setting.scratch / "log.txt")


def last_line(log: str) -> str:
    """The end of what a command said, without the directories of this machine."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file.read().splitlines() if line.strip()] or ["nothing was said"]
    words = (os.path.basename(word) if word.strip("'\"").startswith("/") else word for word in lines[-1].split())
    return " ".join(words)[:200]


def failures(entries: Iterable[Entry]) -> list[str]:
    """What is wrong with tokenmill's own rows; nothing if all is well."""
    problems = []
    for entry in entries:
        if not entry.pipeline.recipe:
            wrong = {told["tokens_are"] for told in entry.rounds} - {"equal"}
            problems += [f"{entry.pipeline.title}: {problem}" for problem in [*wrong, *filter(None, [entry.failure])]]
    return problems
