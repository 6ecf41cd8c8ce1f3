"""How much a network costs: from a local disk to a local disk, and from S3 to S3 with latency added to every request.

SeaweedFS runs on loopback behind a proxy that holds each request back for --latency-ms, and takes its own share of the
machine: writing what a run writes costs it more than the workers have left on two cores. So both sides run in a cgroup
that gives them the same CPU (--cpu, one core by default) and leaves the rest to the server (as root, cgroup v1 or v2);
with --cpu 0 they compete with it. Rounds are interleaved, and the figure of each side is its best round; the speed is
that of the command's own account, so the start is left out. The store's parts are compared once. Ends with exit code 1
if the network costs more than a tenth.

    python -m benchmarks.network [--rounds 3] [--copies 4] [--latency-ms 20] [--workers 2] [--cpu 1] [--tokenizer gpt2]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.processes import tokenmill_command
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import S3Server, start_seaweed

MIN_RATIO = 0.9
PERIOD = 100_000


@contextlib.contextmanager
def share_of_cpu(cores: float) -> Iterator[str | None]:
    """A cgroup that may use so many cores; its file of processes. None if there is no limit."""
    if not cores:
        yield None
        return
    old = Path("/sys/fs/cgroup/cpu")
    group = (old if old.is_dir() else Path("/sys/fs/cgroup")) / f"tokenmill-{os.getpid()}"
    group.mkdir()
    try:
        quota = round(cores * PERIOD)
        if old.is_dir():
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        else:
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        yield str(group / "cgroup.procs")
    finally:
        group.rmdir()


def prepare(
    source: str, out: str, options: argparse.Namespace, group: str | None, environment: dict[str, str]
) -> dict[str, Any]:
    """One run of the command; its own account."""
    command = [*tokenmill_command("prepare"), source, "--tokenizer", options.tokenizer, "--out", out]
    command += ["--workers", str(options.workers), "--json", "--quiet"]
    if group is not None:
        command = ["sh", "-c", f'echo $$ > {group}; exec "$@"', "sh", *command]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout)


def main() -> int:
    """Measure, print a table, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=4, help="how many times corpus/multi is read")
    parser.add_argument("--latency-ms", type=float, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cpu", type=float, default=1.0, help="cores for either side; 0: no limit")
    parser.add_argument("--tokenizer", default="gpt2")
    options = parser.parse_args()
    data = Path(os.environ["TOKENMILL_TEST_DATA"])
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(data / "vocab"))
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus")
        corpus.mkdir()
        for file in sorted((data / "corpus" / "multi").glob("*.parquet")):
            for copy in range(options.copies):
                shutil.copyfile(file, corpus / f"{copy}-{file.name}")
        server = start_seaweed(Path(scratch, "s3"), "benchmark", "not-a-secret")
        try:
            return measure(options, corpus, server, Path(scratch))
        finally:
            server.stop()


def measure(options: argparse.Namespace, corpus: Path, server: S3Server, scratch: Path) -> int:
    """Run both sides, round by round."""
    server.bucket("network")
    server.upload(corpus, "s3://network/corpus")
    best = {"disk": 0.0, "s3": 0.0}
    with Proxy(server.port, latency_seconds=options.latency_ms / 1000) as proxy, share_of_cpu(options.cpu) as group:
        print(f"| round | disk MB/s | S3 + {options.latency_ms:g} ms MB/s | ratio | requests | bytes read |")
        print("| --- | --- | --- | --- | --- | --- |")
        for number in range(1, options.rounds + 1):
            local, out = str(scratch / f"local-{number}"), f"s3://network/run-{number}"
            near = prepare(str(corpus), local, options, group, {})
            proxy.reset()
            far = prepare("s3://network/corpus", out, options, group, server.environment(proxy.endpoint))
            rates = {"disk": near["bytes_per_second"] / 1e6, "s3": far["bytes_per_second"] / 1e6}
            best = {side: max(best[side], rates[side]) for side in best}
            requests = ", ".join(f"{count} {method}" for method, count in sorted(proxy.requests.items()))
            ratio = rates["s3"] / rates["disk"]
            print(
                f"| {number} | {rates['disk']:.1f} | {rates['s3']:.1f} | {ratio:.2f} | {requests} "
                f"| {proxy.bytes_down:,} |",
                flush=True,
            )
            parts = {file.name: file.read_bytes() for file in Path(local, "parts").iterdir()}
            if server.objects(f"{out}/parts") != parts:
                sys.exit("the parts differ")
            shutil.rmtree(local)
    ratio = best["s3"] / best["disk"]
    print(f"\nbest of each: {best['disk']:.1f} and {best['s3']:.1f} MB/s: {ratio:.2f} ({far['units']} units)")
    return 0 if ratio >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
