"""Compare the speed of several checkouts: `prepare` and three exports, interleaved, by wall time and CPU time.

Each command is a process of its own with the checkout's `src` on PYTHONPATH; the libraries are those of this
environment. The first checkout is the baseline. A round in which other processes used more than 5 % of the machine is
repeated, and the number of repeated rounds is printed.

    git worktree add --detach ../before v1.0
    TOKENMILL_TEST_DATA=DIR python -m benchmarks.compare_trees ../before . --megabytes 1600 --rounds 5
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict

from benchmarks.corpora import add_corpus_option, build_corpus, read_originals

FORMATS = ("nanogpt", "megatron", "parquet")
MAX_FOREIGN_SHARE = 0.05
MAX_REPEATED_ROUNDS = 5


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="+", help="checkouts; the first is the baseline")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--megabytes", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=5)
    add_corpus_option(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        corpus = build_corpus(read_originals(options.corpus), os.path.join(work, "corpus"), options.megabytes * 10**6)
        print(f"{corpus.text_bytes / 1e6:.0f} MB of text, {corpus.documents:,} documents, {options.tokenizer}")
        times: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        repeated = done = 0
        while done < options.rounds:
            measured = {}
            before = _machine_ticks(), _own_cpu()
            order = options.trees if done % 2 == 0 else options.trees[::-1]
            for tree in order:
                measured[tree] = measure_tree(tree, corpus.files, options.tokenizer, work)
            foreign = _foreign_share(before)
            if foreign > MAX_FOREIGN_SHARE and repeated < MAX_REPEATED_ROUNDS:
                repeated += 1
                print(f"other processes used {foreign:.0%} of the machine: the round is repeated", flush=True)
                continue
            done += 1
            for tree, steps in measured.items():
                for step, seconds in steps.items():
                    times[step, tree].append(seconds)
            walls = "  ".join(f"{tree} {measured[tree]['prepare'][0]:.2f} s" for tree in options.trees)
            print(f"round {done}: prepare {walls}", flush=True)
    print_table(options.trees, times)
    print(f"repeated rounds: {repeated}")


def measure_tree(tree: str, files: list[str], tokenizer: str, work: str) -> dict[str, tuple[float, float]]:
    """Run `prepare` and the exports of one checkout; return wall and CPU seconds of each step."""
    store = os.path.join(work, "store")
    shutil.rmtree(store, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": os.path.join(os.path.abspath(tree), "src")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has bytecode
    steps = {"prepare": ["prepare", *files, "--tokenizer", tokenizer, "--out", store, "--quiet"]}
    steps |= {name: ["export", store, "--to", name, "--quiet"] for name in FORMATS}
    seconds = {}
    for step, arguments in steps.items():
        os.sync()
        cpu, wall = _own_cpu(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "tokenmill", *arguments],
            check=True,
            env=environment,
            cwd=work,
            stdout=subprocess.DEVNULL,
        )
        seconds[step] = time.perf_counter() - wall, _own_cpu() - cpu
    return seconds


def print_table(trees: list[str], times: dict[tuple[str, str], list[tuple[float, float]]]) -> None:
    """Print each step's seconds and their ratio to the first checkout's."""
    print(f"{'step':10} {'checkout':24} {'wall best':>9} {'median':>9} {'CPU best':>9} {'median':>9}   ratios")
    for step in ("prepare", *FORMATS):
        baseline = _figures(times[step, trees[0]])
        for tree in trees:
            figures = _figures(times[step, tree])
            ratios = " ".join(f"{figure / base:.3f}" for figure, base in zip(figures, baseline, strict=True))
            seconds = " ".join(f"{figure:9.2f}" for figure in figures)
            print(f"{step:10} {tree:24} {seconds}   {ratios}")


def _figures(seconds: list[tuple[float, float]]) -> tuple[float, float, float, float]:
    walls, cpus = zip(*seconds, strict=True)
    return min(walls), statistics.median(walls), min(cpus), statistics.median(cpus)


def _own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime + own.ru_utime + own.ru_stime


def _machine_ticks() -> list[int]:
    with open("/proc/stat") as file:
        return [int(number) for number in file.readline().split()[1:9]]


def _foreign_share(before: tuple[list[int], float]) -> float:
    """The share of the machine's time that neither this process and its children used nor anything left idle."""
    ticks = [now - then for now, then in zip(_machine_ticks(), before[0], strict=True)]
    busy = sum(ticks) - ticks[3] - ticks[4]
    own = (_own_cpu() - before[1]) * os.sysconf("SC_CLK_TCK")
    return max(0.0, busy - own) / sum(ticks)


if __name__ == "__main__":
    main()
