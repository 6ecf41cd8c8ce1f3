"""How well a loader keeps up with a training that reads from a bucket with latency.

A store is put into SeaweedFS on loopback, behind a proxy that holds each request back. A process of its own takes
batches as a training would: so many tokens a second, and no faster. Local store and bucket take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tokenmill
from benchmarks.synthetic import make_store
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import S3Server, start_seaweed
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.job import require_run

SEQUENCE = 2048
MIN_RATIO = 0.9
LATENCY_SECONDS = 0.02


def paced(store: str, rows: int, seconds: float, demand: float, cache: str, min_tokens: int = 0) -> dict[str, float]:
    """Take batches for some seconds, `demand` tokens a second at most; the rate, and the memory that was used.

    With `min_tokens` it goes on until so many tokens were read.
    """
    begun = time.perf_counter()
    loader = tokenmill.loader(
        store, sequence_tokens=SEQUENCE, batch_sequences=rows, shuffle="window", prefetch=cache, rank=0, world_size=1
    )
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    batches = loader.batches(0, rows << 40)
    next(batches)
    first = time.perf_counter() - begun
    begun, tokens, waited = time.perf_counter(), 0, 0.0
    while time.perf_counter() - begun < seconds or tokens < min_tokens:
        due = begun + tokens / demand
        time.sleep(max(0.0, due - time.perf_counter()))
        asked = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - asked
        tokens += rows * SEQUENCE
    elapsed = max(time.perf_counter() - begun, tokens / demand)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "tokens_per_second": tokens / elapsed,
        "first_batch_seconds": first,
        "waited_seconds": waited,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "grown_bytes": (used.ru_maxrss - before) * 1024.0,
    }


def in_a_process(environment: dict[str, str], *arguments: Any) -> dict[str, float]:
    """`paced` in a process of its own."""
    code = "import json, sys, benchmarks.loader_remote as b; print(json.dumps(b.paced(*json.loads(sys.argv[1]))))"
    ended = subprocess.run(
        [sys.executable, "-c", code, json.dumps(arguments)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(ended.stderr[-2000:])
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def upload(server: S3Server, store: str, url: str) -> None:
    """Put a store into a bucket, where the names of plan and sources have their hashes."""
    run = require_run(folder_at(store))
    names = {layout.PLAN: run.plan_blake3, layout.SOURCES: run.sources_blake3}
    bucket = server.store(url)
    files = [run_file for run_file in os.listdir(store) if os.path.isfile(os.path.join(store, run_file))]
    files += [
        f"{folder}/{name}" for folder in (layout.PARTS, layout.TOKENIZER) for name in os.listdir(f"{store}/{folder}")
    ]
    for name in files:
        bucket.put(layout.hashed_name(name, names[name]) if name in names else name, Path(store, name))


def measure_remote(options: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Let a local store and a bucket with latency feed the same demand, in turn."""
    if not os.path.exists(os.path.join(store, layout.RUN)):
        make_store(store, options.tokens)
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-loader-s3-") as scratch:
        server = start_seaweed(Path(scratch), "benchmark", "not-a-secret")
        try:
            remote = f"{server.bucket('loader')}/store"
            upload(server, store, remote)
            with Proxy(server.port, latency_seconds=LATENCY_SECONDS) as proxy:
                return _race(options, store, remote, server.environment(proxy.endpoint), proxy)
        finally:
            server.stop()


def _race(
    options: argparse.Namespace, store: str, remote: str, environment: dict[str, str], proxy: Proxy
) -> tuple[dict[str, Any], list[str]]:
    wanted = [options.rows, options.seconds, options.demand, options.cache]
    rounds: dict[str, list[dict[str, float]]] = {"disk": [], "bucket": []}
    print("| round | from | M tokens/s | first batch, s | waited, s | CPU, s | memory grown, MB | requests |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for number in range(1, options.rounds + 1):
        for name, where in (("disk", store), ("bucket", remote)):
            proxy.reset()
            figures = in_a_process(environment, where, *wanted) | {"requests": float(len(proxy.exchanges))}
            rounds[name].append(figures)
            print(
                f"| {number} | {name} | {figures['tokens_per_second'] / 1e6:.2f} "
                f"| {figures['first_batch_seconds']:.2f} | {figures['waited_seconds']:.2f} "
                f"| {figures['cpu_seconds']:.2f} "
                f"| {figures['grown_bytes'] / 1e6:.0f} | {figures['requests']:.0f} |",
                flush=True,
            )
    medians = {name: statistics.median(one["tokens_per_second"] for one in found) for name, found in rounds.items()}
    ratio = medians["bucket"] / medians["disk"]
    print(f"\nratio {ratio:.3f} at a demand of {options.demand / 1e6:g} M tokens/s, {LATENCY_SECONDS * 1000:g} ms")
    problems = [] if ratio >= MIN_RATIO else [f"the bucket is below {MIN_RATIO} of the disk"]
    return {"rounds": rounds, "ratio": ratio, "demand": options.demand}, problems
