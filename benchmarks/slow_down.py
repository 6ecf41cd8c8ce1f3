"""What of a bucket's limit is used if more is demanded: S3 answers 503 SlowDown above a rate of requests for a prefix.

SeaweedFS runs on loopback behind a proxy that limits each prefix to so many writes and so many reads a second.
Processes write numbered parts and read sources, each request at its time, two and ten times as often as the limit
allows. First they do so without a limit, which shows that the machine can demand that much. After each round every
object is compared, and counted in the proxy. Then `tokenmill prepare` works behind the same proxy, and `verify --all`
and a run on a disk judge its store. Ends with exit code 1 if less than nine tenths of a limit were used, or if a part
was lost or written twice.

    python -m benchmarks.slow_down [--writes 15] [--reads 24] [--seconds 15] [--processes 1 8] [--demand 2 10]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.processes import tokenmill_command
from tests.support.killing import write_corpus
from tests.support.remote_runs import SMALL_UNITS
from tests.support.servers.faults import RateLimit
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import S3Server, start_seaweed
from tokenmill.storage import folder_at
from tokenmill.storage.folder import THREADS

MIN_RATIO = 0.9
START_SECONDS = 0.5  # for the time to reach all processes
SETTLE_SECONDS = 3.0  # after which the rates are measured
SOURCES = 64
UNLIMITED = 1e9  # requests a second
REPEATED = 64  # how often the 64 digits of a hash are in an object


def content(name: str) -> bytes:
    """What the object of this name contains."""
    return hashlib.sha256(name.encode()).hexdigest().encode() * REPEATED


def demand(url: str, process: int, processes: int, rates: list[float], seconds: float) -> dict[str, Any]:
    """Write and read from half of the threads each, at these rates; the times at which requests succeeded.

    It begins at the time that comes through stdin after it has said that it is there.
    """
    folder = folder_at(url)
    print("ready", flush=True)
    begin = float(input())
    done: dict[str, list[float]] = {"writes": [], "reads": [], "waits": []}
    wrong: list[str] = []

    def write(number: int) -> None:
        name = f"parts/{number * processes + process:08d}.arrow"
        if not folder.publish_if_absent(name, pa.py_buffer(content(name))):
            wrong.append(name)

    def read(number: int) -> None:
        name = f"sources/{number % SOURCES:08d}"
        if folder.read(name, len(content(name))) != content(name):
            wrong.append(name)

    def repeat(kind: str, request: Callable[[int], None], rate: float, first: int) -> None:
        for number in range(first, int(rate * seconds), THREADS // 2):
            time.sleep(max(0.0, begin + number / rate - time.time()))
            asked = time.time()
            if asked > begin + seconds:
                return
            try:
                request(number)
            except Exception as error:  # noqa: BLE001 - it is reported
                wrong.append(repr(error))
            done[kind].append(time.time())
            done["waits"].append(time.time() - asked)

    kinds = (("writes", write, rates[0]), ("reads", read, rates[1]))
    threads = [
        threading.Thread(target=repeat, args=(kind, request, rate / processes, first))
        for kind, request, rate in kinds
        for first in range(THREADS // 2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {**done, "wrong": wrong}


def measure(server: S3Server, options: argparse.Namespace, processes: int, factor: float, limit: RateLimit) -> bool:
    """One line of the table; whether the limit was used and every part is there once."""
    url = server.fresh_bucket()
    store = server.store(url)
    for number in range(SOURCES):
        name = f"sources/{number:08d}"
        store.put(name, content(name))
    rates = [options.writes * factor, options.reads * factor]
    is_limited = limit.writes_per_second < UNLIMITED
    with Proxy(server.port, limit=limit) as proxy:
        code = "import json, sys, benchmarks.slow_down as b; print(json.dumps(b.demand(*json.loads(sys.argv[1]))))"
        running = [
            subprocess.Popen(
                [sys.executable, "-c", code, json.dumps([url, each, processes, rates, options.seconds])],
                env={**os.environ, **server.environment(proxy.endpoint)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for each in range(processes)
        ]
        pipes = [(each.stdin, each.stdout) for each in running if each.stdin and each.stdout]
        for _, said in pipes:
            said.readline()
        begin = time.time() + START_SECONDS
        for told, _ in pipes:
            told.write(f"{begin}\n")
            told.close()
        answers = [json.loads(said.read()) for _, said in pipes]
        for each in running:
            each.wait()
    exchanges, doubled = proxy.exchanges, twice(proxy)
    first, last = begin + SETTLE_SECONDS, begin + options.seconds
    per_second = [
        sum(first < at <= last for answer in answers for at in answer[kind]) / (last - first)
        for kind in ("writes", "reads")
    ]
    written = sum(len(answer["writes"]) for answer in answers)
    found = {name: data for name, data in server.objects(url).items() if name.startswith("parts/")}
    lost = written - sum(data == content(name) for name, data in found.items())
    wrong = [each for answer in answers for each in answer["wrong"]]
    refused = sum(each.status == 503 for each in exchanges)
    of_limit = [done / rate * factor for done, rate in zip(per_second, rates, strict=True)]
    longest = max(wait for answer in answers for wait in answer["waits"])
    limits = "yes" if is_limited else "no"
    rates_and_fractions = (per_second[0], of_limit[0], per_second[1], of_limit[1])
    row(processes, factor, limits, *rates_and_fractions, len(exchanges), refused, longest, written, lost, doubled)
    for each in wrong[:5]:
        print(each)
    return min(of_limit) >= MIN_RATIO * (1 if is_limited else factor) and not (lost or doubled or wrong)


def prepare(server: S3Server, options: argparse.Namespace, scratch: Path) -> bool:
    """The second table; whether every store is that of a run on a disk, and the limit was used."""
    corpus = write_corpus(scratch / "corpus", documents=options.units * 5, rows_per_group=5)
    tokenmill("prepare", str(corpus), *SMALL_UNITS, "--out", str(scratch / "local"))
    parts = {file.name: file.read_bytes() for file in (scratch / "local/parts").iterdir()}
    demanded, well = 0.0, True
    for factor in [1.0, *options.demand]:
        writes = demanded / factor if demanded else UNLIMITED
        limit = RateLimit(writes, writes * options.reads / options.writes)
        url = server.fresh_bucket()
        server.upload(corpus, f"{url}/corpus")
        with Proxy(server.port, limit=limit) as proxy:
            environment = server.environment(proxy.endpoint)
            tokenmill("prepare", f"{url}/corpus", *SMALL_UNITS, "--out", f"{url}/run", **environment)
            rates = {kind: rate_of(times) for kind, times in limit.passed.items() if len(times) >= len(parts)}
            refused = sum(each.status == 503 for each in list(proxy.exchanges))
            tokenmill("verify", f"{url}/run", "--all", **environment)
            doubled = twice(proxy)
        used = max(rate / limit.rate(is_read=is_read) for (_, is_read), rate in rates.items())
        written = max(rate for (_, is_read), rate in rates.items() if not is_read)
        is_same = server.objects(f"{url}/run/parts") == parts
        limits = (limit.writes_per_second, limit.reads_per_second, used) if demanded else ("-", "-", "-")
        row(factor, *limits, written, refused, len(parts), "yes" if is_same else "NO", doubled)
        well &= is_same and not doubled and (used >= MIN_RATIO or not demanded)
        demanded = demanded or written
    return well


def row(*cells: object) -> None:
    """Print a line of a table."""
    print("|", " | ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells), "|", flush=True)


def rate_of(times: list[float]) -> float:
    """How many there were a second, without the first and the last fifth.

    A prefix that was idle takes some at once, and few requests are in flight at the end.
    """
    fifth = len(times) // 5
    middle = times[fifth : len(times) - fifth]
    return (len(middle) - 1) / (middle[-1] - middle[0])


def twice(proxy: Proxy) -> int:
    """How many parts were written more than once."""
    puts = Counter(each.path for each in proxy.exchanges if each.method == "PUT" and each.status == 200)
    return sum(count > 1 for path, count in puts.items() if "/parts/" in path)


def tokenmill(name: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The result of a command, which has to succeed."""
    command = [*tokenmill_command(name), *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> int:
    """Measure, print tables, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writes", type=float, default=15)
    parser.add_argument("--reads", type=float, default=24)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--demand", type=float, nargs="+", default=[2, 10], help="times the limit")
    parser.add_argument("--units", type=int, default=300, help="of the run of tokenmill prepare")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        server = start_seaweed(Path(scratch, "s3"), "benchmark", "not-a-secret")
        try:
            names = ("processes", "demand", "limit", "writes/s", "of limit", "reads/s", "of limit", "requests", "503")
            row(*names, "longest, s", "parts", "lost", "doubled")
            row(*["---:"] * 13)
            well = True
            for processes in options.processes:
                well &= measure(server, options, processes, max(options.demand), RateLimit(UNLIMITED, UNLIMITED))
                for factor in options.demand:
                    well &= measure(server, options, processes, factor, RateLimit(options.writes, options.reads))
            print()
            row("demand", "writes/s", "reads/s", "of limit", "parts/s", "503", "parts", "equal", "doubled")
            row(*["---:"] * 9)
            well &= prepare(server, options, Path(scratch))
        finally:
            server.stop()
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
