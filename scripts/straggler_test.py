"""Run four ranks on one store, one of them ten times as slow, and compare the end with the ideal.

    python -m scripts.straggler_test [--store disk|s3] [--megabytes 200] [--units 400] [--duty 0.35] [--slow 10]

A rank is slowed by stopping all its processes (SIGSTOP) and letting them go on (SIGCONT), twice a second: they run for
the share --duty of the time, the slow rank for a tenth of that. This slows all that a rank does, its start and its
reading and writing too, as a slow node would; it needs no rights and no kernel that limits CPUs. The shares are such
that two cores are enough for all four, and the ranks take turns, so that what is measured is the sharing of work.

First all ranks run at the same speed. The ideal is computed from that: the same work at the sum of the speeds, that is
4 / 3.1 times as long. The end is when the manifest is there; when the last rank has ended is told as well. Exit code 1
if the end comes later than 1.3 times the ideal, or if a store is not complete or has other bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.remote_runs import differences, local_files
from tests.support.servers.seaweed import start_seaweed

ROOT = Path(__file__).resolve().parents[1]
RANKS = 4
MAX_TIMES_IDEAL = 1.3
MAX_UNLIKE = 0.15
"""By how much the CPU time of the fast ranks may differ between two runs that are compared."""

PERIOD_SECONDS = 0.5
LOOK_SECONDS = 0.05
LONG_SECONDS = 1800.0


@dataclass(frozen=True)
class Place:
    """A store that is to be made: its address, what a client needs to reach it, and what is in it."""

    address: str
    environment: dict[str, str]
    is_complete: Callable[[], bool]
    files: Callable[[], dict[str, bytes]]


@dataclass(frozen=True)
class Ended:
    """How one rank ended: exit code, when (in seconds from the start of all), units it did, CPU time it took."""

    code: int
    seconds: float
    units: int
    cpu_seconds: float
    said: str


@dataclass(frozen=True)
class Race:
    """A run of all ranks: when the store was complete, and how each rank ended."""

    seconds: float
    ranks: list[Ended]


class Throttle:
    """Lets a process group run for a share of the time only, from its start to its end."""

    def __init__(self, process: subprocess.Popen[bytes], duty: float, phase: float) -> None:
        self.process, self.duty, self.phase = process, duty, phase
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Leave the group alone. Call it before the process is collected: its number may then be another's."""
        self.ended.set()
        self.thread.join()

    def _run(self) -> None:
        # All ranks go by one clock, so that their turns do not drift into each other.
        while not self.ended.is_set():
            within = (time.monotonic() / PERIOD_SECONDS - self.phase) % 1
            on = within < self.duty
            self._signal(signal.SIGCONT if on else signal.SIGSTOP)
            self.ended.wait(((self.duty if on else 1) - within) * PERIOD_SECONDS + 0.0005)
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


@dataclass
class Rank:
    """One rank at work, throttled."""

    process: subprocess.Popen[bytes]
    throttle: Throttle
    output: Path

    @staticmethod
    def start(number: int, words: list[str], environment: dict[str, str], duty: float, output: Path) -> Rank:
        """Start `tokenmill prepare` as one of the ranks, in a process group of its own."""
        command = [sys.executable, "-m", "tokenmill", *words, "--rank", str(number), "--of", str(RANKS)]
        with open(output, "wb") as told:
            process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdout=told, stderr=told, start_new_session=True
            )
        return Rank(process, Throttle(process, duty, number / RANKS), output)

    def is_dead(self) -> bool:
        """Whether the process has ended; it is not collected yet."""
        return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def collect(self, seconds: float) -> Ended:
        """How it ended."""
        self.throttle.stop()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # nothing, if it ended by itself
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = code = os.waitstatus_to_exitcode(status)
        said = self.output.read_text()
        told = json.loads(said.strip().splitlines()[-1]) if code == 0 else {}
        cpu_seconds = usage.ru_utime + usage.ru_stime
        return Ended(code, seconds, told.get("units_done_now", 0), cpu_seconds, said)


def race(place: Place, corpus: Path, duties: list[float], folder: Path) -> Race:
    """Run all ranks to their ends, each at its speed."""
    tokenizer = ["--tokenizer", str(ROOT / "tests" / "data" / "small.json"), "--engine", "tokenizers"]
    words = ["prepare", str(corpus), *tokenizer, "--unit-bytes", "1", "--workers", "1", "--memory", "2GB"]
    words += ["--out", place.address, "--json", "--quiet"]
    folder.mkdir()
    begun = time.monotonic()
    running = {
        number: Rank.start(number, words, place.environment, duty, folder / f"{number}.log")
        for number, duty in enumerate(duties)
    }
    ended: dict[int, Ended] = {}
    complete_after: float | None = None
    try:
        while running:
            time.sleep(LOOK_SECONDS)
            now = time.monotonic() - begun
            if complete_after is None and place.is_complete():
                complete_after = now
            for number, rank in list(running.items()):
                if rank.is_dead():
                    ended[number] = running.pop(number).collect(now)
            if now > LONG_SECONDS:
                raise TimeoutError(f"not done after {now:.0f} s")
    finally:
        for rank in running.values():
            rank.collect(0.0)
    return Race(complete_after or LONG_SECONDS, [ended[number] for number in range(RANKS)])


def make_corpus(folder: Path, megabytes: int, units: int) -> Path:
    """A Parquet file of made-up text with a row group for each unit."""
    rng = random.Random(7)
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=rng.randint(1, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=megabytes * 1_000_000 // units // 6 // 4)) for _ in range(units * 4)]
    folder.mkdir()
    pq.write_table(pa.table({"text": texts}), folder / "corpus.parquet", row_group_size=4)
    return folder


def on_disk(out: Path) -> Place:
    """A store on a file system."""
    return Place(str(out), {}, (out / "manifest.parquet").exists, lambda: local_files(out))


@contextmanager
def on_s3(folder: Path) -> Iterator[Callable[[str], Place]]:
    """Stores by name, in a bucket of a SeaweedFS that is there for as long as the block."""
    server = start_seaweed(folder, f"ACCESS{secrets.token_hex(8)}", secrets.token_hex(20))

    def place(name: str) -> Place:
        url = f"{bucket}/{name}"
        store = server.store(url)

        def complete() -> bool:
            with suppress(FileNotFoundError):
                return bool(store.head("manifest.parquet"))
            return False

        return Place(url, server.environment(), complete, lambda: server.objects(url))

    try:
        bucket = server.bucket("bucket")
        yield place
    finally:
        server.stop()


def tell(name: str, run: Race) -> None:
    """One line for each rank, and one for the whole."""
    last = max(rank.seconds for rank in run.ranks)
    print(f"\n{name}: complete after {run.seconds:.1f} s, last rank ended after {last:.1f} s")
    print("rank  units  CPU seconds  CPU share  ended after  exit code")
    for number, rank in enumerate(run.ranks):
        row = (number, rank.units, rank.cpu_seconds, rank.cpu_seconds / rank.seconds, rank.seconds, rank.code)
        print("{:>4}  {:>5}  {:>11.1f}  {:>9.1%}  {:>9.1f} s  {:>9}".format(*row), flush=True)
        if rank.code != 0:
            print(rank.said)


def _fast_share(run: Race) -> float:
    """The share of a core that the ranks at full speed had."""
    return sum(rank.cpu_seconds / rank.seconds for rank in run.ranks[:-1])


def judge(equal: Race, uneven: Race, slow: float, places: tuple[Place, Place]) -> bool:
    """Print the ideal and the ratio; whether all is as it should be."""
    ideal = equal.seconds * RANKS / (RANKS - 1 + 1 / slow)
    ratio = uneven.seconds / ideal
    last = max(rank.seconds for rank in uneven.ranks) / ideal
    print(f"\nideal {ideal:.1f} s = {equal.seconds:.1f} s x {RANKS} / {RANKS - 1 + 1 / slow:.1f}")
    print(f"without help for the slow rank it would be about {equal.seconds * slow:.0f} s")
    print(f"ratio {ratio:.2f} (at most {MAX_TIMES_IDEAL}); the last rank ended at {last:.2f}")
    if abs(_fast_share(uneven) / _fast_share(equal) - 1) > MAX_UNLIKE:
        print("note: the machine was busier with other things in one of the runs; the ratio is not reliable")
    codes = [rank.code for run in (equal, uneven) for rank in run.ranks]
    wrong = differences(*(place.files() for place in places)) if codes == [0] * len(codes) else ["exit codes"]
    print(f"same bytes in both stores: {'NO: ' + ', '.join(wrong[:5]) if wrong else 'yes'}")
    return ratio <= MAX_TIMES_IDEAL and not wrong


def main() -> int:
    """Read the options, run twice, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["disk", "s3"], default="disk")
    parser.add_argument("--megabytes", type=int, default=200, help="of text")
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--duty", type=float, default=0.35, help="share of the time in which a rank runs")
    parser.add_argument("--slow", type=float, default=10.0, help="how many times slower the last rank is")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-straggler-"))
    corpus = make_corpus(folder / "corpus", options.megabytes, options.units)
    equal, uneven = [options.duty] * RANKS, [options.duty] * (RANKS - 1) + [options.duty / options.slow]

    def run(place: Callable[[str], Place]) -> bool:
        places = (place("equal"), place("uneven"))
        first = race(places[0], corpus, equal, folder / "equal-logs")
        tell(f"{RANKS} equal ranks", first)
        second = race(places[1], corpus, uneven, folder / "uneven-logs")
        tell(f"the last rank {options.slow:g} times slower", second)
        return judge(first, second, options.slow, places)

    if options.store == "disk":
        well = run(lambda name: on_disk(folder / name))
    else:
        with on_s3(folder / "seaweed") as place:
            well = run(place)
    if well:
        shutil.rmtree(folder)
    else:
        print(f"all of it is kept in {folder}")
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
