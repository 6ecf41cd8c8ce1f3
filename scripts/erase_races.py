"""Stop one `tokenmill erase` in a bucket at a request, let another one run, and check what is left.

    python -m scripts.erase_races [--trials 100] [--seed N] [--replay TRIAL] [--folder DIR]

A bucket has no lock. Each trial makes a store with an export on a SeaweedFS of this script. The first erasure stops
before one of its requests to the server. The second one, of the same request or of another one, runs until one of its
own requests, or to its end. It stops there or is killed. Then the first one ends, and then the second. Each of them may
succeed, or report that the other is not finished. Both commands are repeated. Then the documents of both have to be
erased and no other one, and `verify` has to pass. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.remote_runs import Ended, end, kill, start
from tests.support.servers.proxy import Proxy
from tests.support.servers.relay import Exchange
from tests.support.servers.seaweed import S3Server, start_seaweed
from tokenmill.errors import TokenmillError

ROWS = 60
MOST_REQUESTS = 145
"""An erasure of one document makes about as many."""

NEVER = 10**9
KILLED = 0.4
REFUSAL = "is not finished"


class StoppingProxy(Proxy):
    """A proxy that holds back all requests from the given one on, until `go` is set."""

    def __init__(self, upstream_port: int, stop_at: int) -> None:
        self.stop_at = stop_at
        self.reached, self.go = threading.Event(), threading.Event()
        super().__init__(upstream_port)

    def _pause(self, exchange: Exchange) -> bool:
        if len(self.exchanges) >= self.stop_at and not self.go.is_set():
            self.reached.set()
            while not self.go.wait(0.05):
                if self._stopped.is_set():
                    return True
        return super()._pause(exchange)


@dataclass(frozen=True)
class Trial:
    """Where the two erasures stop, and what the second one is."""

    first_stop: int
    second_stop: int
    request: str
    rows: tuple[int, ...]
    is_killed: bool


def choose(seed: int, number: int) -> Trial:
    """A trial that follows from the seed and its number, so that it can be repeated alone."""
    rng = random.Random(f"{seed}/{number}")
    first, second = rng.randrange(1, MOST_REQUESTS), rng.choice([NEVER, rng.randrange(1, MOST_REQUESTS)])
    request, rows = rng.choice([("r", (17,)), ("s", (18,)), ("s", (17, 18)), ("s", (3, 41))])
    return Trial(first, second, request, rows, second != NEVER and rng.random() < KILLED)


def run_trial(trial: Trial, server: S3Server, store: str, folder: Path) -> list[str]:
    """Make a store, run the two erasures, and return what is wrong."""
    source = folder / "in.jsonl"
    source.write_text(
        "".join(f'{{"text": "document {row} tells {f"words{row} " * (row % 9)}"}}\n' for row in range(ROWS))
    )
    options: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "unit_bytes": 900, "workers": 1}
    tokenmill.prepare(str(source), out=store, **options)
    tokenmill.export(store, to="nanogpt", workers=1)
    before = [tokens.copy() for tokens in tokenmill.open(store)]
    commands = [_command(store, "r", (17,), folder), _command(store, trial.request, trial.rows, folder)]
    problems = [
        f"the {name} erasure: exit code {ended.code}, {ended.err}"
        for name, ended in zip(("first", "second"), _race(trial, server, commands), strict=True)
        if ended is not None and ended.code and REFUSAL not in ended.err
    ]
    for command in [*commands, *commands]:
        ended = end(start(*command))
        if ended.code and (REFUSAL not in ended.err or command is commands[1]):
            problems.append(f"repeated {command[5]}: exit code {ended.code}, {ended.err}")
    try:
        return problems + _check(store, before, {17, *trial.rows}, {"r", trial.request})
    except TokenmillError as error:
        return [*problems, str(error)]


def _command(store: str, request: str, rows: tuple[int, ...], folder: Path) -> tuple[object, ...]:
    path = folder / f"{'-'.join(map(str, rows))}.csv"
    lengths = np.cumsum([0, *map(len, (folder / "in.jsonl").read_bytes().splitlines(keepends=True))])
    path.write_text("".join(f"in.jsonl,{lengths[row]}\n" for row in rows))
    return "erase", store, "--rows", path, "--request", request, "--workers", "1"


def _race(trial: Trial, server: S3Server, commands: list[tuple[object, ...]]) -> list[Ended | None]:
    """Run both erasures, with their stops. A killed one has no end."""
    with StoppingProxy(server.port, trial.first_stop) as first, StoppingProxy(server.port, trial.second_stop) as second:
        proxies = (first, second)
        processes: list[subprocess.Popen[str]] = []
        for proxy, command in zip(proxies, commands, strict=True):
            processes.append(start(*command, **server.environment(proxy.endpoint)))
            while not proxy.reached.wait(0.05) and processes[-1].poll() is None:
                pass
        if trial.is_killed:
            kill(processes[1])
        first.go.set()
        ended: list[Ended | None] = [end(processes[0])]
        second.go.set()
        return [*ended, None if trial.is_killed else end(processes[1])]


def _check(store: str, before: list[Any], rows: set[int], requests: set[str]) -> list[str]:
    """Compare the documents, the history and the checksums of the store at the end."""
    opened, problems = tokenmill.open(store), list[str]()
    for row, tokens in enumerate(opened):
        if np.array_equal(tokens, before[row]) == (row in rows):
            problems.append(f"document {row} {'has its tokens' if row in rows else 'has other tokens'}")
    history = [change.request for change in opened.collection.members[0].head.history]
    if len(set(history)) != len(history) or not set(history) <= requests:
        problems.append(f"the history is {history}")
    tokenmill.verify(store, workers=1)
    return problems


def main() -> int:
    """Run the trials, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--replay", type=int, help="run only this trial of the seed")
    parser.add_argument("--folder", type=Path, help="where the server keeps its data (default: a temporary directory)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-races-", dir=options.folder))
    server = start_seaweed(folder / "seaweed", secrets.token_hex(8), secrets.token_hex(16))
    os.environ.update(server.environment())
    numbers = range(options.trials) if options.replay is None else [options.replay]
    failed, started = 0, time.monotonic()
    try:
        bucket = server.bucket("races")
        for number in numbers:
            trial = choose(options.seed, number)
            problems = run_trial(trial, server, f"{bucket}/{number}", folder)
            failed += bool(problems)
            for problem in problems:
                print(f"trial {number} {trial}: {problem}", flush=True)
    finally:
        server.stop()
        shutil.rmtree(folder)
    print(f"{len(numbers)} trials, seed {options.seed}, {time.monotonic() - started:.0f} s: {failed} with problems")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
