"""The peak memory of `tokenmill prepare`, all processes together: two sizes of corpus, huge documents, a tight budget.

Every 50 ms, /proc tells the memory of the command and of all its workers. `tree` is the largest sum: the anonymous
memory of all of them, where a page that forked processes share counts once (Pss_Anon), plus the mapped files (for the
most part libraries) of the one that maps most, since they map the same ones. `process` is the largest VmHWM of any one
of them, which counts what is shared in full.

    small corpus, large corpus   400 MB and 4 GB, with tokenmill's own budget or --memory
    large, new words             4 GB, of which --new-words are words that appear only once: what the engine's cache,
                                 which grows with every new word, adds at most
    one document, .txt           500 MB in one text file, --memory 4GB
    one document, Parquet        500 MB in one row, --memory 4GB
    tight budget                 400 MB and --tight-new-words, --memory 1.2GB, so that the engine has to drop its cache;
                                 how often it does is counted in a run of one worker with the same share of memory

Corpora are made as in corpora.py, by repeating text in other orders. --scale makes all texts smaller, to try the
script out; what it then says of growth and drops means little.

Ends with exit code 1 if the large corpus needs more than 1.10 times what the small one needs, if new words add more
than the caches may hold, if a run takes more than its budget, or if the tight budget led to no drop, so that nothing
was tested.

    TOKENMILL_TEST_DATA=DIR python -m benchmarks.memory --json memory.json
    python -m benchmarks.memory --corpus DIR/corpus --scale 0.02
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.corpora import add_corpus_option, build_corpus, read_originals
from benchmarks.process_tree import Watch
from benchmarks.processes import tokenmill_command
from benchmarks.worker_profile import freeze_run
from tokenmill.humanize import parse_size
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.tokenize import Tokenize
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.tokenizer import CACHE_BYTES

MAX_GROWTH = 1.10
DOCUMENT_MEMORY = "4GB"
TIGHT_MEMORY = "1.2GB"


@dataclass(frozen=True)
class Measured:
    """A command that has ended: how long it took, what it took, and what it said."""

    exit_code: int
    seconds: float
    tree_bytes: int
    share_bytes: int
    process_bytes: int
    processes: int
    output: str
    errors: str

    def figures(self) -> dict[str, float]:
        """What was measured, without what was said."""
        return {name: value for name, value in asdict(self).items() if name not in ("output", "errors")}

    @property
    def answer(self) -> dict[str, Any]:
        """The JSON it printed; a command that failed ends the benchmark with what it said."""
        if self.exit_code:
            raise SystemExit(f"the command ended with {self.exit_code}:\n{self.errors[-3000:]}")
        answer: dict[str, Any] = json.loads(self.output.splitlines()[-1])
        return answer


def measure(command: list[str]) -> Measured:
    """Run a command and watch the memory of its process tree until it ends."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        watch = Watch(process.pid)
        watch.start()
        exit_code = process.wait()
        seconds = time.perf_counter() - started
        watch.stop()
        output.seek(0)
        errors.seek(0)
        return Measured(
            exit_code=exit_code,
            seconds=seconds,
            tree_bytes=watch.tree_bytes,
            share_bytes=watch.share_bytes,
            process_bytes=watch.process_bytes,
            processes=len(watch.seen),
            output=output.read(),
            errors=errors.read(),
        )


@dataclass(frozen=True)
class Case:
    """One run: which text, with which budget (None: tokenmill's own)."""

    name: str
    make: Callable[[str, pa.Table], tuple[list[str], int]]
    memory: str | None
    counts_drops: bool = False


def cases(options: argparse.Namespace) -> list[Case]:
    """The runs, each with the function that writes its sources."""
    small, large, document = (int(megabytes * 1e6 * options.scale) for megabytes in (400, 4000, 500))

    def corpus(target_bytes: int, new_words: float) -> Callable[[str, pa.Table], tuple[list[str], int]]:
        def make(directory: str, originals: pa.Table) -> tuple[list[str], int]:
            made = build_corpus(originals, directory, target_bytes, new_words=new_words)
            return made.files, made.text_bytes

        return make

    def one_document(write: Callable[[str, list[str]], str]) -> Callable[[str, pa.Table], tuple[list[str], int]]:
        def make(directory: str, originals: pa.Table) -> tuple[list[str], int]:
            made = build_corpus(originals, directory, document, new_words=options.new_words)
            return [write(directory, made.files)], made.text_bytes

        return make

    return [
        Case("small corpus", corpus(small, 0.0), options.memory),
        Case("large corpus", corpus(large, 0.0), options.memory),
        Case("large, new words", corpus(large, options.new_words), options.memory),
        Case("one document, .txt", one_document(_write_text), DOCUMENT_MEMORY),
        Case("one document, Parquet", one_document(_write_parquet), DOCUMENT_MEMORY),
        Case("tight budget", corpus(small, options.tight_new_words), options.tight_memory, counts_drops=True),
    ]


def _write_text(directory: str, files: list[str]) -> str:
    path = os.path.join(directory, "document.txt")
    with open(path, "wb") as file:
        file.writelines(_texts(files))
    return path


def _write_parquet(directory: str, files: list[str]) -> str:
    path = os.path.join(directory, "document.parquet")
    whole = pa.array([b"".join(_texts(files))], pa.large_binary()).cast(pa.large_string())
    pq.write_table(pa.table({"text": whole}), path, compression="zstd")
    return path


def _texts(files: list[str]) -> Iterator[bytes]:
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            for value in batch.column(0).cast(pa.binary()):
                yield value.as_py()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    text_bytes: int
    budget_bytes: int
    measured: Measured
    workers_started: int
    cache_drops: int | None

    @property
    def within(self) -> bool:
        """Whether the budget was kept."""
        return self.measured.tree_bytes <= self.budget_bytes


def run_case(case: Case, options: argparse.Namespace, originals: pa.Table, directory: str) -> Row:
    """Write the sources, run the command, remove both."""
    sources, store = os.path.join(directory, "sources"), os.path.join(directory, "store")
    files, text_bytes = case.make(sources, originals)
    words = ["--tokenizer", options.tokenizer, "--out", store, "--workers", str(options.workers)]
    budget = ["--memory", case.memory] if case.memory else []
    measured = measure([*tokenmill_command("prepare"), *files, *words, *budget])
    measured.answer  # noqa: B018 - raises if the command failed
    with open(os.path.join(store, "log.jsonl"), encoding="utf-8") as log:
        pids = {event["pid"] for event in map(json.loads, log) if event["event"] == "unit"}
    shutil.rmtree(store)
    drops = _drops_apart(files, options, case.memory, store) if case.counts_drops else None
    shutil.rmtree(sources)
    shutil.rmtree(store, ignore_errors=True)
    budget_bytes = parse_size(case.memory) if case.memory else plan_resources(None, None, 1).memory_bytes
    return Row(case.name, text_bytes, budget_bytes, measured, len(pids), drops)


def _drops_apart(files: list[str], options: argparse.Namespace, memory: str | None, store: str) -> int:
    """Count the drops in a process of its own, as small at its start as a worker is."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(count_drops, files, options.tokenizer, options.workers, memory, store).result()


def count_drops(files: list[str], tokenizer: str, workers: int, memory: str | None, store: str) -> int:
    """How often the engine's cache is dropped when one worker does its share of the units, every `workers`-th one."""
    drops = 0
    clear_cache = GigatokenEngine.clear_cache

    def counted(engine: GigatokenEngine) -> None:
        nonlocal drops
        drops += 1
        clear_cache(engine)

    GigatokenEngine.clear_cache = counted  # type: ignore[method-assign,assignment]
    frozen = freeze_run(files, tokenizer, store)
    means = plan_resources(workers, memory, most_workers=frozen.run.units)
    tokenize = Tokenize(store, frozen.run.job, frozen.run.engine, WorkerLimits(means.worker_bytes))
    for task in plan.tasks(frozen.plan, frozen.sources, range(0, frozen.run.units, means.workers)):
        if isinstance(committed := tokenize(task), Future):
            committed.result()
    return drops


def print_row(row: Row) -> None:
    """One line for people."""
    measured = row.measured
    drops = "" if row.cache_drops is None else str(row.cache_drops)
    print(
        f"{row.name:<24}{row.text_bytes / 1e6:>9.0f}{row.budget_bytes / 1e6:>10.0f}{measured.tree_bytes / 1e6:>9.0f}"
        f"{measured.process_bytes / 1e6:>10.0f}{measured.seconds:>9.1f}{row.text_bytes / measured.seconds / 1e6:>8.1f}"
        f"{row.workers_started:>9}{drops:>7}  {'' if row.within else 'OVER BUDGET'}",
        flush=True,
    )


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the size of all texts (default 1)")
    parser.add_argument("--new-words", type=float, default=0.02, help="share of new words added (default 0.02)")
    parser.add_argument("--tight-new-words", type=float, default=0.5, help="the same, tight budget (default 0.5)")
    parser.add_argument("--memory", help="budget of the small and the large corpus (default: tokenmill's own)")
    parser.add_argument("--tight-memory", default=TIGHT_MEMORY, help=f"the tight budget (default {TIGHT_MEMORY})")
    parser.add_argument("--workers", type=int, default=2, help="workers (default 2)")
    parser.add_argument("--tokenizer", default="gpt2", help="tokenizer (default gpt2)")
    parser.add_argument("--only", help="run only the cases whose name contains this")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser.parse_args()


def judge(rows: list[Row]) -> list[str]:
    """What is not as it should be."""
    problems = [
        f"{row.name}: {row.measured.tree_bytes / 1e6:.0f} MB with a budget of {row.budget_bytes / 1e6:.0f} MB"
        for row in rows
        if not row.within
    ]
    problems += [f"{row.name}: the cache was never dropped" for row in rows if row.cache_drops == 0]
    tree = {row.name: row.measured.tree_bytes for row in rows}
    if {"small corpus", "large corpus"} <= tree.keys():
        growth = tree["large corpus"] / tree["small corpus"]
        print(f"\nlarge corpus / small corpus: {growth:.3f} (at most {MAX_GROWTH:.2f})")
        if growth > MAX_GROWTH:
            problems.append(f"the large corpus needs {growth:.2f} times the memory of the small one")
    if {"small corpus", "large, new words"} <= tree.keys():
        allowed = tree["small corpus"] + CACHE_BYTES * max(row.workers_started for row in rows)
        if tree["large, new words"] > allowed:
            problems.append(f"the word caches grew beyond {allowed / 1e6:.0f} MB")
    return problems


def main() -> int:
    """Measure and tell."""
    options = read_options()
    originals = read_originals(options.corpus)
    rows = []
    print(
        f"{'MB':<24}{'text':>9}{'budget':>10}{'tree':>9}{'process':>10}{'seconds':>9}{'MB/s':>8}{'workers':>9}{'drops':>7}"
    )
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-memory-") as directory:
        for case in cases(options):
            if options.only is None or options.only in case.name:
                rows.append(run_case(case, options, originals, directory))
                print_row(rows[-1])
    problems = judge(rows)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            figures = [asdict(row) | {"measured": row.measured.figures()} for row in rows]
            json.dump({"rows": figures, "problems": problems}, file, indent=2)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
