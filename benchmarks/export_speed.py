"""How fast a store is exported to each format, beside a plain copy of the same bytes, in the same run.

A store of random tokens is made (--tokens, default a billion: 2 GB). Then, round by round, every format is exported by
the command with --workers, and before each of them `cp -r` copies the store: once as it is, once with a `sync` of the
copies, since an export is on the disk when it says it is done and a plain copy is not. Everything is read from the page
cache, and output is removed between. The figure of each is its best round; that of an export is taken from its own
account and leaves out the start of the command, which is in the last column. Ends with exit code 1 if a raw format
(nanogpt, build-nanogpt, llmc, megatron, datatrove, olmo) is slower than half of the copy that is on the disk too. The
other copy, which is a copy in memory when `cp` ends, is in the table to compare with.

    python -m benchmarks.export_speed [--tokens 1B] [--rounds 3] [--workers 2] [--shuffle] [--json FILE]
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
from typing import Any

from benchmarks.processes import tokenmill_command
from benchmarks.synthetic import make_store
from tokenmill.humanize import parse_size
from tokenmill.token_files import FORMATS

RAW = ("nanogpt", "build-nanogpt", "llmc", "megatron", "datatrove", "olmo")
MIN_RATIO = 0.5


def copy(store: str, out: str, *, sync: bool) -> float:
    """Copy a store as anyone would; the seconds it took."""
    started = time.perf_counter()
    subprocess.run(["cp", "-r", store, out], check=True)
    if sync:
        subprocess.run(["sync", *(f"{out}/parts/{name}" for name in os.listdir(f"{out}/parts"))], check=True)
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
    parser.add_argument("--tokens", default="1B")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shuffle", action="store_true")
    parser.add_argument("--formats", nargs="+", default=[name for name in FORMATS if not FORMATS[name].SPEC.is_text])
    parser.add_argument("--directory", help="where to work; the system's temporary directory if not given")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"cp": [], "cp and sync": []}
    command_seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        store, out = f"{directory}/store", f"{directory}/out"
        make_store(store, parse_size(options.tokens))
        store_bytes = sum(entry.stat().st_size for entry in os.scandir(f"{store}/parts"))
        for round_ in range(options.rounds):
            for name in options.formats:
                for label, sync in (("cp", False), ("cp and sync", True)):
                    seconds[label].append(copy(store, out, sync=sync))
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
    print("| | M tokens/s | seconds | of cp | of cp and sync | whole command, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name, taken in best.items():
        ratio, synced = best["cp"] / taken, best["cp and sync"] / taken
        whole = f"{min(command_seconds[name]):.2f}" if name in command_seconds else ""
        print(f"| {name} | {tokens / taken / 1e6:.0f} | {taken:.2f} | {ratio:.2f} | {synced:.2f} | {whole} |")
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"seconds": seconds, "command_seconds": command_seconds, "tokens": tokens}, file, indent=2)
    slow = [name for name in RAW if name in best and best["cp and sync"] / best[name] < MIN_RATIO]
    if slow and not options.shuffle:
        print(f"\nslower than half of a copy: {', '.join(slow)}")
    return 1 if slow and not options.shuffle else 0


if __name__ == "__main__":
    sys.exit(main())
