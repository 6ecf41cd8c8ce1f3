"""Check the global shuffle: same bytes for any number of workers and after kills, every document once, no trace of the
old order, and memory under the budget on a store ten times as large.

    python -m benchmarks.check_shuffle [--memory 1.2GB] [--times 10] [--small-tokens 200M] [--kills 12] [--seed N]
    python -m benchmarks.check_shuffle --most-runs 8 --small-store STORE --times 4 --kills 20 --step 24

On a store of --small-tokens random tokens, or on --small-store, `tokenmill export --to llmc --shuffle 7` runs with 1, 2
and 4 workers, and with 2 workers while its process group is killed --kills times at random moments; all have to give
the same files, in the order of the keys. Then a store of --times the size of --memory is exported within --memory: the
resident memory of all its processes together, mapped files included (PSS from /proc, every 50 ms), has to stay under
it. With --most-runs, a task of the killed export and of the large one reads from at most so many sorted runs, so runs
are merged; the killed one sorts as in 64 MB for each worker. From the records of the shards the order is read back:
each document once; Spearman's rank correlation of old and new positions, of all documents and of those of each source,
within three standard deviations of zero (four for the largest over all sources); every shard draws from
every source, in counts that a chi-squared test does not find odd. Exit code 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from benchmarks.memory import measure
from benchmarks.synthetic import make_store
from tokenmill.humanize import parse_size
from tokenmill.tokenization.document_hash import document_keys

SEED = "7"

# The command, with a limit for the runs that a task reads from, and for the memory in which documents are sorted.
LIMITED = """
import sys
from tokenmill.__main__ import main
from tokenmill.api import export
from tokenmill.exports import shuffle
most_runs, worker_bytes = int(sys.argv.pop(1)), int(sys.argv.pop(1))
shuffle.FEW_RUNS, shuffle.MIN_RANGE_BYTES = most_runs, 1 << 60
plan = shuffle.ShuffleWork.of
shuffle.ShuffleWork.of = lambda store, shard, workers, given: plan(store, shard, workers, worker_bytes or given)
export.batch_bytes = lambda given: shuffle.batch_bytes(worker_bytes or given)
main()
"""
SORTED_BYTES = 64 << 20

FAILED: list[str] = []


def check(what: str, *, holds: bool) -> None:
    """Say what was found, and remember it if it is wrong."""
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    if not holds:
        FAILED.append(what)


def command(store: str, out: str, *options: str, most_runs: int | None = None, worker_bytes: int = 0) -> list[str]:
    """The export as a user would start it, or with limits."""
    program = ["-m", "tokenmill"] if most_runs is None else ["-c", LIMITED, str(most_runs), str(worker_bytes)]
    base = [sys.executable, *program, "export", store, "--to", "llmc", "--out", out, "--shuffle", SEED]
    return [*base, "--val", "none", "--json", "--quiet", *options]


def files(out: str) -> dict[str, str]:
    """The shards, by hash."""
    found = {}
    for path in sorted(Path(out).glob("*.bin")):
        with path.open("rb") as file:
            found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def check_determinism(directory: str, options: argparse.Namespace) -> None:
    """The same bytes for 1, 2 and 4 workers and after kills."""
    store = options.small_store or f"{directory}/small"
    if options.small_store is None:
        make_store(store, parse_size(options.small_tokens))
    shard = ("--shard-tokens", "10M")
    results = []
    for workers in ("1", "2", "4"):
        out = f"{directory}/workers{workers}"
        subprocess.run([*command(store, out, *shard), "--workers", workers], check=True, stdout=subprocess.DEVNULL)
        results.append(files(out))
        shutil.rmtree(out)
    check(f"1, 2 and 4 workers give the same {len(results[0])} shards", holds=results[0] == results[1] == results[2])
    out = f"{directory}/killed"
    tight = command(
        store,
        out,
        *(*shard, "--workers", "2", "--memory", "1GB"),
        most_runs=options.most_runs,
        worker_bytes=SORTED_BYTES,
    )
    states = kill_often(tight, out, options)
    subprocess.run(tight, check=True, stdout=subprocess.DEVNULL)
    check(f"killed {len(states)} times at (runs, shards) {states}: the same bytes", holds=files(out) == results[0])
    left = [path for path in Path(out).rglob("*") if path.name.endswith(".tmp")]
    check("nothing temporary is left", holds=not left and not Path(out, ".tokenmill/runs").exists())
    check_merges(out, options.most_runs, 2)
    check_keys(*read_origins(out)[:2])
    shutil.rmtree(out)
    if options.small_store is None:
        shutil.rmtree(store)


def check_merges(out: str, most_runs: int | None, least: int) -> None:
    """The runs were merged at least so often, if the runs that a task reads from are limited."""
    merges = json.loads(Path(out, ".tokenmill/export.json").read_text()).get("merges", [])
    if most_runs is not None:
        holds = len(merges) >= least and max(merges) <= most_runs
        check(f"the runs were merged {len(merges)} times, {merges} at once", holds=holds)


def kill_often(export: list[str], out: str, options: argparse.Namespace) -> list[tuple[int, int]]:
    """Kill an export again and again, after a few more runs or shards each time; how far it was at each kill."""
    rng, states = random.Random(options.seed), [(0, 0)]
    while len(states) <= options.kills:
        process = subprocess.Popen(export, stdout=subprocess.DEVNULL, start_new_session=True)
        target = sum(states[-1]) + rng.randint(0, options.step)
        while process.poll() is None and sum(progress(out)) < target:
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.2))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            states.append(progress(out))
        else:  # it was done before the kill: start over
            shutil.rmtree(out)
            states[-1] = (0, 0)
        process.wait()
    return states[1:]


def progress(out: str) -> tuple[int, int]:
    """The number of the last run that is there, from one, and how many shards."""
    state = Path(out, ".tokenmill")
    runs = [int(path.stem) + 1 for path in state.glob("runs/*.index")]
    return max(runs, default=0), len(list(state.glob("shards/*.arrow")))


def check_memory(directory: str, options: argparse.Namespace) -> str:
    """Export a store of many times the budget; returns where."""
    store, out = f"{directory}/large", f"{directory}/out"
    budget = parse_size(options.memory)
    tokens = int(budget * options.times) // 2
    make_store(store, tokens)
    size = sum(entry.stat().st_size for entry in os.scandir(f"{store}/parts"))
    shard = ("--shard-tokens", options.shard_tokens)
    resources = ("--workers", str(options.workers), "--memory", options.memory)
    measured = measure(command(store, out, *shard, *resources, most_runs=options.most_runs))
    done = measured.answer
    check_merges(out, options.most_runs, 1)
    check(f"the store is {size / budget:.1f} times the budget", holds=size >= options.times * budget * 0.99)
    check(
        f"peak memory {measured.share_bytes / 1e9:.2f} GB, of at most {budget / 1e9:.2f} GB "
        f"(largest process {measured.process_bytes / 1e9:.2f} GB)",
        holds=measured.share_bytes <= budget,
    )
    print(
        f"     {size / 1e9:.1f} GB in {measured.seconds:.0f} s: {size / 1e6 / measured.seconds:.0f} MB/s, "
        f"{done['splits']['train']['tokens'] / 1e6 / measured.seconds:.0f} M tokens/s"
    )
    check("no token was lost", holds=done["splits"]["train"]["tokens"] == tokenmill.open(store).token_count)
    return out


def read_manifest(out: str) -> pa.Table:
    """The shards of a complete export."""
    return pq.read_table(f"{out}/.tokenmill/manifests/00000000.parquet")


def read_origins(out: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The source, the row and the shard of each document, in order."""
    sources, rows, shards = [], [], []
    manifest = read_manifest(out)
    for shard in range(len(manifest)):
        with pa.memory_map(f"{out}/.tokenmill/shards/{shard:08d}.arrow") as file:
            record = pa.ipc.open_file(file).read_all()
            cut = int(manifest["cut"][shard].as_py() > 0)  # the first one began in the shard before
            sources.append(record["source"].to_numpy()[cut:].copy())
            rows.append(record["row"].to_numpy()[cut:].copy())
            shards.append(np.full(len(rows[-1]), shard))
    return np.concatenate(sources), np.concatenate(rows), np.concatenate(shards)


def check_keys(source: np.ndarray, row: np.ndarray) -> None:
    """Documents are in the order of their keys, which are computed here for all of them."""
    keys = document_keys(int(SEED), source, row)
    check(f"{len(keys):,} documents in the order of their keys", holds=bool((keys[1:] >= keys[:-1]).all()))


def check_order(store: str, out: str) -> None:
    """Read the order back from the records, and look for traces of the old one."""
    manifest = read_manifest(out)
    source, row, shard_of = read_origins(out)
    check_keys(source, row)
    count = len(row)
    old = np.empty(count, np.int64)
    old[np.lexsort((row, source))] = np.arange(count)
    pairs = np.unique(np.stack([source.astype(np.uint64), row]), axis=1).shape[1]
    check(f"{count:,} documents, each once", holds=pairs == count == len(tokenmill.open(store)))
    overall = correlation(old) * np.sqrt(count - 1)
    check(f"rank correlation of old and new positions: {overall:+.2f} sigma", holds=abs(overall) < 3)
    each = [correlation(old[source == one]) * np.sqrt((source == one).sum() - 1) for one in np.unique(source)]
    largest = max(np.abs(each))
    check(f"within each of {len(each)} sources: {np.min(each):+.2f} to {np.max(each):+.2f} sigma", holds=largest < 4)
    drawn = np.zeros((len(manifest), int(source.max()) + 1), np.int64)
    np.add.at(drawn, (shard_of, source), 1)
    check(f"each of {len(drawn)} shards draws from each source (at least {drawn.min()})", holds=drawn.min() > 0)
    expected = drawn.sum(1, keepdims=True) * drawn.sum(0, keepdims=True) / drawn.sum()
    freedom = (drawn.shape[0] - 1) * (drawn.shape[1] - 1)
    odd = (((drawn - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)
    check(f"chi-squared of shards against sources: {odd:+.2f} sigma", holds=abs(odd) < 4)
    neighbours = np.abs(np.diff(old)) == 1
    check(f"{neighbours.sum()} pairs of old neighbours are still neighbours (2 expected)", holds=neighbours.sum() < 12)


def correlation(old: np.ndarray) -> float:
    """Spearman's rank correlation of the old positions with the new ones, in which they are given."""
    ranks = np.argsort(np.argsort(old)).astype(np.float64)
    return float(np.corrcoef(ranks, np.arange(len(old)))[0, 1])


def main() -> int:
    """Run the checks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="1.2GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--times", type=float, default=10)
    parser.add_argument("--small-tokens", default="200M")
    parser.add_argument("--small-store", help="a store, instead of one of --small-tokens")
    parser.add_argument("--most-runs", type=int, help="the sorted runs that a task reads from, at most")
    parser.add_argument("--shard-tokens", default="100M")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--step", type=int, default=4, help="runs and shards between two kills, at most")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--directory", help="where to work; needs three times the large store")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        check_determinism(directory, options)
        check_order(f"{directory}/large", check_memory(directory, options))
    print(f"{'failed' if FAILED else 'all as it should be'} after {time.monotonic() - started:.0f} s")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
