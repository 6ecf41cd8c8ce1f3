"""What Ray costs on one machine: `tokenmill prepare` by the local executor and by Ray, with the same two workers.

Rounds are interleaved, and the figure of each side is its best round. The speed is that of the command's own account:
it counts from when units are given out, so joining a cluster is left out; the seconds of the whole command are
told beside it. The parts of both stores are compared. Ends with exit code 1 if Ray reaches less than 0.9.

    ray start --head    # the cluster that --on ray joins
    TOKENMILL_TEST_DATA=DIR python -m benchmarks.ray_ratio [--rounds 3] [--copies 4] [--workers 2] [--tokenizer gpt2]
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import tokenmill_command

MIN_RATIO = 0.9
PLACES = ("local", "ray")


def prepare(corpus: Path, out: Path, on: str, options: argparse.Namespace) -> dict[str, Any]:
    """One run of the command: its own account, with the seconds of the whole of it."""
    command = [*tokenmill_command("prepare"), str(corpus), "--tokenizer", options.tokenizer, "--out", str(out)]
    command += ["--workers", str(options.workers), "--on", on, "--json", "--quiet"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return {**json.loads(done.stdout), "whole_seconds": time.monotonic() - started}


def main() -> int:
    """Measure, print a table, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--copies", type=int, default=4, help="how many times corpus/multi is read: 127 MB of text each"
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", default="gpt2")
    options = parser.parse_args()
    data = Path(os.environ["TOKENMILL_TEST_DATA"])
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(data / "vocab"))
    best = dict.fromkeys(PLACES, 0.0)
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch, "corpus")
        corpus.mkdir()
        for file in sorted((data / "corpus" / "multi").glob("*.parquet")):
            for copy in range(options.copies):
                shutil.copyfile(file, corpus / f"{copy}-{file.name}")
        print("| round | local MB/s | Ray MB/s | ratio | local, s | Ray, s | MB of text |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
        for number in range(1, options.rounds + 1):
            told = {on: prepare(corpus, Path(scratch, on), on, options) for on in PLACES}
            rates = {on: told[on]["bytes_per_second"] / 1e6 for on in PLACES}
            best = {on: max(best[on], rates[on]) for on in PLACES}
            whole = " | ".join(f"{told[on]['whole_seconds']:.1f}" for on in PLACES)
            text = told["ray"]["text_bytes"] / 1e6
            ratio = rates["ray"] / rates["local"]
            print(
                f"| {number} | {rates['local']:.1f} | {rates['ray']:.1f} | {ratio:.2f} | {whole} | {text:.0f} |",
                flush=True,
            )
            names = [f"parts/{path.name}" for path in Path(scratch, "local", "parts").iterdir()] + ["manifest.parquet"]
            _, other, missing = filecmp.cmpfiles(Path(scratch, "local"), Path(scratch, "ray"), names, shallow=False)
            if other or missing:
                sys.exit(f"not the same: {other + missing}")
            for on in PLACES:
                shutil.rmtree(Path(scratch, on))
    ratio = best["ray"] / best["local"]
    print(f"\nbest of each: {best['local']:.1f} and {best['ray']:.1f} MB/s: {ratio:.2f}")
    return 0 if ratio >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
