"""How fast a store is exported to each format, beside a plain copy of the same bytes, in the same run.

A store of random tokens is made (--tokens, default 400 million: 800 MB). Then, round by round, every format is exported
by the command with --workers, and before each the store's parts are copied, as `cp` does it, by as many processes, with
and without an fsync of each copy at the end. Everything is read from the page cache in both, and output is removed
between. A format's figure is its best round; the copy's as well. Ends with exit code 1 if a raw format (nanogpt,
build-nanogpt, llmc, megatron, datatrove, olmo) is slower than half of the plain copy.

    python benchmarks/export_speed.py [--tokens 400M] [--rounds 3] [--workers 2] [--shuffle] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from engine_ratio import tokenmill_command
from synthetic import make_store

from tokenmill.formats import FORMATS
from tokenmill.job import parse_size

RAW = ("nanogpt", "build-nanogpt", "llmc", "megatron", "datatrove", "olmo")
LEAST_RATIO = 0.5


def copy(store: str, out: str, workers: int, *, sync: bool) -> float:
    """Copy the parts of a store; the seconds it took."""
    os.mkdir(out)
    names = sorted(os.listdir(f"{store}/parts"))

    def copy_one(name: str) -> None:
        shutil.copyfile(f"{store}/parts/{name}", f"{out}/{name}")
        if sync:
            with open(f"{out}/{name}", "rb") as file:
                os.fsync(file.fileno())

    started = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:  # copying releases the interpreter
        list(pool.map(copy_one, names))
    return time.perf_counter() - started


def export(store: str, out: str, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Export by the command; its own account, and the seconds from start to exit."""
    command = [*tokenmill_command("export"), store, "--to", name, "--out", out, "--val", "none", "--json", "--quiet"]
    command += ["--workers", str(options.workers), *(["--shuffle", "7"] if options.shuffle else [])]
    started = time.perf_counter()
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {**json.loads(answer), "command_seconds": time.perf_counter() - started}


def main() -> int:
    """Measure, print a table, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", default="400M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS))
    parser.add_argument("--directory", help="where to work; the system's temporary directory if not given")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"copy": [], "copy, synced": []}
    command_seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        store, out = f"{directory}/store", f"{directory}/out"
        make_store(store, parse_size(options.tokens))
        store_bytes = sum(entry.stat().st_size for entry in os.scandir(f"{store}/parts"))
        for round_ in range(options.rounds):
            for name in options.formats:
                for label, sync in (("copy", False), ("copy, synced", True)):
                    seconds[label].append(copy(store, out, options.workers, sync=sync))
                    shutil.rmtree(out)
                done = export(store, out, name, options)
                tokens = sum(split["tokens"] for split in done["splits"].values())
                seconds.setdefault(name, []).append(tokens / done["tokens_per_second"])
                command_seconds.setdefault(name, []).append(done["command_seconds"])
                shutil.rmtree(out)
                print(f"round {round_ + 1} {name}: {seconds[name][-1]:.2f} s", file=sys.stderr)
    tokens = parse_size(options.tokens)
    best = {name: min(times) for name, times in seconds.items()}
    print(f"\n{tokens / 1e6:.0f} M tokens, {store_bytes / 1e6:.0f} MB, {options.workers} workers")
    print(f"best of {options.rounds} rounds\n")
    print("| | M tokens/s | seconds | of the plain copy | of the synced copy | whole command, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, taken in best.items():
        ratio, synced = best["copy"] / taken, best["copy, synced"] / taken
        whole = f"{min(command_seconds[name]):.2f}" if name in command_seconds else ""
        print(f"| {name} | {tokens / taken / 1e6:.0f} | {taken:.2f} | {ratio:.2f} | {synced:.2f} | {whole} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": seconds, "command_seconds": command_seconds, "tokens": tokens}, file, indent=2)
    slow = [name for name in RAW if name in best and best["copy"] / best[name] < LEAST_RATIO]
    if slow and not options.shuffle:
        print(f"\nslower than half of a plain copy: {', '.join(slow)}")
    return 1 if slow and not options.shuffle else 0


if __name__ == "__main__":
    sys.exit(main())
