"""`tokenmill prepare` with random options: started, signalled, waited for, and what it leaves."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.killing import without_sources
from tests.support.soaking.corpora import Corpus
from tests.support.soaking.models import SMALL

HANG_SECONDS = 120.0
GONE_SECONDS = 5.0
NOT_COMPARED = r"(log\.jsonl|\.lock|\.tokenmill/lock)$|^drivers/"
"""Files that tell of a run's course, not of its result."""

FORMATS = (
    "nanogpt",
    "build-nanogpt",
    "llmc",
    "megatron",
    "datatrove",
    "olmo",
    "litdata",
    "mds",
    "parquet",
    "text",
    "nanochat",
)


@dataclass(frozen=True)
class Job:
    """A command but for its output directory."""

    corpus: Corpus
    tokenizer: str
    options: tuple[str, ...]

    def command(self, out: Path) -> list[str]:
        """The command that writes to a directory."""
        start = [sys.executable, "-m", "tokenmill", "prepare", str(self.corpus.directory), "--out", str(out)]
        return [*start, "--tokenizer", self.tokenizer, *self.options]

    @property
    def exports(self) -> bool:
        """Whether it exports as well."""
        return "--to" in self.options

    def start(self, out: Path, environment: Mapping[str, str] | None = None, cgroup: Path | None = None) -> Running:
        """Start it as the leader of its own process group."""
        descriptor, stderr = tempfile.mkstemp(prefix="tokenmill-soak-")
        inside = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(cgroup / "cgroup.procs")] if cgroup else []
        with open(descriptor, "wb") as told:
            process = subprocess.Popen(
                [*inside, *self.command(out)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                start_new_session=True,
                env={**_own_environment(), **(environment or {})},
                preexec_fn=_hear_hangups,  # noqa: PLW1509 - there are no threads here
            )
        return Running(process, Path(stderr))

    def finish(self, out: Path, environment: Mapping[str, str] | None = None) -> Ending:
        """Run it undisturbed to its end."""
        run = self.start(out, environment)
        try:
            return run.end()
        finally:
            run.stop()


def a_job(rng: random.Random, corpus: Corpus, *more: str) -> Job:
    """Random options for a corpus; `--memory` is always given, since an export keeps what it decided by it."""
    options = ["--unit-bytes", str(rng.choice([2_000, 20_000, 200_000])), "--workers", str(rng.randint(1, 3))]
    options += ["--memory", rng.choice(["2GB", "1.2GB"]), "--max-skipped", "1", *more]
    tokenizer = "gpt2" if rng.random() < 0.1 and "TIKTOKEN_CACHE_DIR" in os.environ else SMALL
    options += ["--engine", rng.choice(["auto", "auto", "tiktoken" if tokenizer == "gpt2" else "tokenizers"])]
    if corpus.bad("POISON:"):
        options += ["--max-bad", "1"]
    if corpus.separator and any(".txt" in name for name in corpus.rows):
        options += ["--separator", corpus.separator]
    if rng.random() < 0.6:
        for format_name in rng.sample(FORMATS, rng.choice([1, 1, 2])):
            options += ["--to", format_name]
        if rng.random() < 0.7:
            options += ["--shuffle", str(rng.randrange(1000))]
        if rng.random() < 0.4:
            options += ["--val", "0.1"]
    return Job(corpus, tokenizer, tuple(options))


@dataclass(frozen=True)
class Ending:
    """How a command ended (None: it hung and was killed), what it said, and which processes it left behind."""

    exit_code: int | None
    stderr: str
    left_behind: list[int]


@dataclass
class Running:
    """A command at work."""

    process: subprocess.Popen[bytes]
    stderr: Path
    started: float = field(default_factory=time.monotonic)

    @property
    def going(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def until(self, seconds: float) -> bool:
        """Wait until it has run for so long; whether it still goes on then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, self.started + seconds - time.monotonic()))
        return self.going

    def targets(self, kind: str) -> list[int]:
        """The processes of a kind: the driver, its forkserver, its workers."""
        if kind == "driver":
            return [self.process.pid]
        processes = list(_processes())
        nurseries = [pid for pid, parent, _ in processes if parent == self.process.pid]
        if kind == "forkserver":
            return nurseries
        return sorted(pid for pid, parent, _ in processes if parent in nurseries)

    def signal(self, pid: int | None, number: int) -> bool:
        """Send a signal to one process, or to all of them; whether there was one."""
        with contextlib.suppress(ProcessLookupError):
            if self.going:
                os.killpg(self.process.pid, number) if pid is None else os.kill(pid, number)
                return True
        return False

    def stop(self) -> None:
        """Kill what is left of it."""
        if self.going:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.stderr.unlink(missing_ok=True)

    def end(self, seconds: float = HANG_SECONDS) -> Ending:
        """Wait for the end; whatever is left behind is told, and ended."""
        code: int | None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        end = time.monotonic() + GONE_SECONDS
        while (left := self._group()) and time.monotonic() < end:
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        told = self.stderr.read_text(errors="replace")
        self.stderr.unlink(missing_ok=True)
        return Ending(code, told, left)

    def _group(self) -> list[int]:
        return [pid for pid, _, group in _processes() if group == self.process.pid]


def _hear_hangups() -> None:
    """Whoever runs us under nohup does not mean the commands that we hang up on."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _own_environment() -> dict[str, str]:
    """Ours, but for the variable that makes Python's own writing to stderr stop after a short write."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def _processes() -> Iterator[tuple[int, int, int]]:
    """Pid, parent and process group of everything alive."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                state, parent, group = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[:3]
                if state not in "ZX":
                    yield int(entry), int(parent), int(group)


def result_files(out: Path) -> dict[str, bytes]:
    """Everything that a run gives, by name."""
    names = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    kept = {name: path for name, path in names.items() if not re.search(NOT_COMPARED, name)}
    return {name: path.read_bytes() for name, path in kept.items()}


FROZEN = re.compile(r"^(run\.json|(sources|plan)(-[0-9a-f]+)?\.parquet|engine-mismatch\.json|rechecked/.*)$")
"""What a store knows of its sources and its run: it may differ where the tokens are the same."""


def tokens_in(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files among those of a store that hold its result."""
    found = {name: data for name, data in files.items() if not FROZEN.match(name)}
    if "manifest.parquet" in found:
        found["manifest.parquet"] = without_sources(found["manifest.parquet"])
    return found


def tokens_of(out: Path) -> dict[str, bytes]:
    """The files of a store that hold its result."""
    return tokens_in(result_files(out))


def leftovers(out: Path) -> list[str]:
    """Files that only exist while something is being written."""
    names = (str(path.relative_to(out)) for path in out.rglob("*") if path.is_file())
    return [name for name in names if name.endswith((".tmp", ".unsealed")) or ".tokenmill/runs" in name]
