"""How near `tokenmill prepare` comes to its bare engine, and how far ahead of the common recipe it is.

Timed, in turn, round after round, each as a whole process from start to exit on the same warm files:

a   gigatoken alone: a program that builds the tokenizer and calls `encode_files(ParquetFileSource(files))` with
    gigatoken's own threads; tokens stay in memory and nothing is written. The time of that one call is told as well.
b   `tokenmill prepare FILES --tokenizer T --out DIR`, from Parquet to a checksummed, synced store.
b2  `tokenmill verify DIR` on that store, with --verify.
c   the recipe of nanoGPT's data/openwebtext/prepare.py on a subset: `datasets.map(tiktoken, num_proc=N)`, one row a
    call, then a memory map filled in 1,024 batches; its cache is thrown away after each round.

All three must give the same number of tokens, end tokens aside; otherwise the script ends with exit code 1.

The corpus is made by repeating corpus/multi and corpus/en with their rows permuted anew in each repeat (zstd, row
groups of 1,000, files of about 100 MB). Repeated text flatters engines that cache words, a and b alike, and more so the
larger --megabytes is. Every file is read once before the first round and nothing is dropped from the page cache; `sync`
is called before each process, so that none waits for what another wrote.

--profile adds where tokenmill's time goes: the course of one command told by its log, and the steps of one worker run
in this process with its functions wrapped from outside.

    TOKENMILL_TEST_DATA=DIR python benchmarks/engine_ratio.py --profile --json engine_ratio.json
    python benchmarks/engine_ratio.py --corpus DIR/corpus --megabytes 20 --recipe-megabytes 3 --rounds 1
"""

from __future__ import annotations

import argparse
import glob
import importlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import plan, worker_modules
from tokenmill.pipeline.commit import Committed
from tokenmill.pipeline.freeze import FrozenRun, freeze
from tokenmill.pipeline.request import PrepareOptions, find_sources, make_request, versions
from tokenmill.pipeline.resources import plan_resources
from tokenmill.pipeline.tokenize import Tokenize
from tokenmill.pipeline.units import WorkerLimits
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.tokenizers.resolve import resolve

ROWS_IN_GROUP = 1000
FILE_BYTES = 100_000_000
NEW_WORD_LETTERS = 8
SCHEMES = {"gpt2": "gpt2", "r50k_base": "gpt2", "p50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}
"""The encodings that all three programs know, and what gigatoken calls their split pattern."""

BARE = """
import json, sys, time
started = time.perf_counter()
import awkward, gigatoken  # encode_files would import awkward
vocabulary, scheme, *files = sys.argv[1:]
tokenizer = gigatoken.Tokenizer.from_tiktoken(vocabulary, pretokenizer=scheme, special_tokens={})
ready = time.perf_counter()
result = tokenizer.encode_files(gigatoken.ParquetFileSource(files), parallel=True)
encoded = time.perf_counter()
print(json.dumps({
    "documents": len(result),
    "tokens": len(result.layout.content.data),
    "load_seconds": ready - started,
    "encode_seconds": encoded - ready,
}))
"""

RECIPE = """
import json, sys, time
import numpy as np
import tiktoken
from datasets import load_dataset

num_proc, name, out, *files = sys.argv[1:]
num_proc = int(num_proc)
enc = tiktoken.get_encoding(name)

def process(example):
    ids = enc.encode_ordinary(example["text"])
    ids.append(enc.eot_token)
    return {"ids": ids, "len": len(ids)}

if __name__ == "__main__":
    started = time.perf_counter()
    dset = load_dataset("parquet", data_files=files, split="train", num_proc=num_proc)
    loaded = time.perf_counter()
    tokenized = dset.map(process, remove_columns=dset.column_names, desc="tokenizing", num_proc=num_proc)
    mapped = time.perf_counter()
    arr_len = np.sum(tokenized["len"], dtype=np.uint64)
    dtype = np.uint16 if enc.max_token_value < 2**16 else np.uint32
    arr = np.memmap(out, dtype=dtype, mode="w+", shape=(int(arr_len),))
    total_batches = min(1024, len(tokenized))
    idx = 0
    for batch_idx in range(total_batches):
        batch = tokenized.shard(num_shards=total_batches, index=batch_idx, contiguous=True).with_format("numpy")
        arr_batch = np.concatenate(batch["ids"])
        arr[idx : idx + len(arr_batch)] = arr_batch
        idx += len(arr_batch)
    arr.flush()
    print(json.dumps({
        "documents": len(tokenized),
        "tokens": idx,
        "load_seconds": loaded - started,
        "map_seconds": mapped - loaded,
        "write_seconds": time.perf_counter() - mapped,
    }))
"""


@dataclass(frozen=True)
class Corpus:
    """Parquet files made for a benchmark, in order, and what they hold."""

    files: list[str]
    text_bytes: int
    documents: int


def add_corpus_option(parser: argparse.ArgumentParser) -> None:
    """The option that tells where the text comes from."""
    data = os.environ.get("TOKENMILL_TEST_DATA")
    parser.add_argument(
        "--corpus",
        default=os.path.join(data, "corpus") if data else None,
        required=data is None,
        help="directory with multi/*.parquet and en/*.parquet (default: $TOKENMILL_TEST_DATA/corpus)",
    )
    if data and "TIKTOKEN_CACHE_DIR" not in os.environ and os.path.isdir(os.path.join(data, "vocab")):
        os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(data, "vocab")


def read_originals(corpus: str) -> pa.Table:
    """Every row of corpus/multi and corpus/en."""
    paths = [path for part in ("multi", "en") for path in sorted(glob.glob(os.path.join(corpus, part, "*.parquet")))]
    if not paths:
        raise SystemExit(f"no Parquet files in {corpus}/multi and {corpus}/en")
    return pa.concat_tables(pq.ParquetFile(path).read() for path in paths).combine_chunks()


def build_corpus(originals: pa.Table, directory: str, target_bytes: int, *, new_words: float = 0.0) -> Corpus:
    """Repeat the originals, permuted anew each time, into files of about 100 MB until they hold enough text.

    `new_words` is a share of the text: so many bytes, in words that appear nowhere else, are added to each document.
    """
    os.makedirs(directory)
    generator = np.random.default_rng(1)
    groups = _row_groups(originals, generator)
    files: list[str] = []
    text_bytes = documents = 0
    while text_bytes < target_bytes:
        files.append(os.path.join(directory, f"{len(files):05d}.parquet"))
        with open(files[-1], "wb") as file, pq.ParquetWriter(file, originals.schema, compression="zstd") as writer:
            while text_bytes < target_bytes and file.tell() < FILE_BYTES:
                rows = next(groups)
                rows = with_new_words(rows, generator, new_words) if new_words else rows
                writer.write_table(rows)
                text_bytes += count_bytes(rows)
                documents += len(rows)
    return Corpus(files, text_bytes, documents)


def _row_groups(originals: pa.Table, generator: np.random.Generator) -> Iterator[pa.Table]:
    held = np.empty(0, np.int64)
    while True:
        while len(held) < ROWS_IN_GROUP:
            held = np.concatenate([held, generator.permutation(len(originals))])
        yield originals.take(pa.array(held[:ROWS_IN_GROUP])).combine_chunks()
        held = held[ROWS_IN_GROUP:]


def count_bytes(rows: pa.Table) -> int:
    """The bytes of text in some rows."""
    return int(pc.sum(pc.binary_length(rows["text"])).as_py() or 0)


def with_new_words(rows: pa.Table, generator: np.random.Generator, share: float) -> pa.Table:
    """The same rows, with words that were never seen before after each document's text."""
    texts = rows["text"].to_pylist()
    counts = [int(len(text.encode()) * share / (NEW_WORD_LETTERS + 1)) for text in texts]
    letters = generator.integers(ord("a"), ord("z") + 1, (sum(counts), NEW_WORD_LETTERS + 1), np.uint8)
    letters[:, 0] = ord(" ")
    words = letters.tobytes().decode("ascii")
    ends = (np.cumsum(counts) * (NEW_WORD_LETTERS + 1)).tolist()
    starts = [0, *ends[:-1]]
    mixed = [text + words[start:stop] for text, start, stop in zip(texts, starts, ends, strict=True)]
    return rows.set_column(rows.schema.get_field_index("text"), rows.schema.field("text"), pa.array(mixed))


def take_subset(corpus: Corpus, directory: str, target_bytes: int, file_count: int) -> Corpus:
    """The first documents of a corpus, dealt in order to a few files."""
    os.makedirs(directory)
    rows: list[pa.Table] = []
    text_bytes = 0
    for group in (g for path in corpus.files for g in _groups_of(path)):
        rows.append(group)
        text_bytes += count_bytes(group)
        if text_bytes >= target_bytes:
            break
    table = pa.concat_tables(rows)
    files = [os.path.join(directory, f"{number:05d}.parquet") for number in range(file_count)]
    edges = np.linspace(0, len(table), file_count + 1).astype(int)
    for path, start, stop in zip(files, edges[:-1], edges[1:], strict=True):
        pq.write_table(table.slice(start, stop - start), path, compression="zstd", row_group_size=ROWS_IN_GROUP)
    return Corpus(files, text_bytes, len(table))


def _groups_of(path: str) -> Iterator[pa.Table]:
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield file.read_row_group(number)


@dataclass(frozen=True)
class Timed:
    """One process: when it was started, how long it took to its exit, and the JSON it printed."""

    began: float
    seconds: float
    answer: dict[str, Any]


def time_process(command: list[str], **environment: str) -> Timed:
    """Run a process to its end; one that fails ends the benchmark with what it said."""
    os.sync()
    began, started = time.time(), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ... ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return Timed(began, seconds, json.loads(done.stdout.splitlines()[-1]))


@dataclass
class Contest:
    """The programs that are compared, over one corpus and a subset of it, in a directory of their own."""

    directory: str
    corpus: Corpus
    subset: Corpus
    tokenizer: str
    workers: int
    rounds: dict[str, list[Timed]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.store = os.path.join(self.directory, "store")
        vocabulary = resolve(self.tokenizer)
        self._vocabulary = os.path.join(self.directory, vocabulary.spec.file)
        self._scheme = SCHEMES[self.tokenizer]
        for name, content in ((self._vocabulary, vocabulary.content), (self._path("recipe.py"), RECIPE.encode())):
            with open(name, "wb") as file:
                file.write(content)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def bare(self) -> Timed:
        """(a) gigatoken alone."""
        command = [sys.executable, "-c", BARE, self._vocabulary, self._scheme, *self.corpus.files]
        return time_process(command, RAYON_NUM_THREADS=str(self.workers))

    def prepare(self) -> Timed:
        """(b) The whole command; its store is kept until the next time."""
        shutil.rmtree(self.store, ignore_errors=True)
        options = ["--tokenizer", self.tokenizer, "--out", self.store, "--workers", str(self.workers)]
        return time_process([*tokenmill_command("prepare"), *self.corpus.files, *options])

    def verify(self) -> Timed:
        """(b2) All checksums of the store."""
        return time_process([*tokenmill_command("verify"), self.store, "--workers", str(self.workers)])

    def recipe(self) -> Timed:
        """(c) The common recipe on the subset."""
        program, out, cache = self._path("recipe.py"), self._path("recipe.bin"), self._path("cache")
        command = [sys.executable, program, str(self.workers), self.tokenizer, out, *self.subset.files]
        try:
            return time_process(command, HF_HOME=cache, HF_DATASETS_CACHE=cache, HF_HUB_OFFLINE="1")
        finally:
            shutil.rmtree(cache, ignore_errors=True)

    def check(self) -> list[str]:
        """What does not fit together in the last round's counts; nothing if all is well."""
        last = {name: timed[-1].answer for name, timed in self.rounds.items()}
        bare, prepared = last["a"], last["b"]
        ends = prepared["documents"] if prepared["end_token"] is not None else 0
        counted = {
            "documents, made": self.corpus.documents,
            "documents, gigatoken": bare["documents"],
            "documents, tokenmill": prepared["documents"],
        }
        problems = [] if len(set(counted.values())) == 1 else [f"other documents: {counted}"]
        if bare["tokens"] != prepared["tokens"] - ends:
            problems.append(f"tokens without ends: gigatoken {bare['tokens']}, tokenmill {prepared['tokens'] - ends}")
        if "c" in last:
            expected = count_first_tokens(self.store, self.subset.documents)
            if last["c"]["tokens"] != expected:
                problems.append(f"tokens of the subset: the recipe {last['c']['tokens']}, tokenmill {expected}")
        return problems


def tokenmill_command(name: str) -> list[str]:
    """The command as a user would run it, with its result as JSON."""
    return [sys.executable, "-m", "tokenmill", name, "--json", "--quiet"]


def count_first_tokens(directory: str, documents: int) -> int:
    """How many tokens the first documents of a store have."""
    from tokenmill.store.reader import Store  # noqa: PLC0415 - after the timing

    total = 0
    for part in Store(directory).parts():
        count = min(documents, len(part.row))
        total += int(part.offsets[count])
        documents -= count
        if not documents:
            break
    return total


def run_rounds(contest: Contest, names: list[str], rounds: int) -> None:
    """Every program once a round, beginning with another one each time; verify follows prepare."""
    programs = {"a": contest.bare, "b": contest.prepare, "b2": contest.verify, "c": contest.recipe}
    turns = [name for name in names if name != "b2"]
    for number in range(rounds):
        first = number % len(turns)
        for name in turns[first:] + turns[:first]:
            for each in [name, "b2"] if name == "b" and "b2" in names else [name]:
                timed = programs[each]()
                contest.rounds[each].append(timed)
                print(f"round {number + 1}  {each:<3} {timed.seconds:8.2f} s", file=sys.stderr, flush=True)


def summarise(contest: Contest) -> dict[str, Any]:
    """Seconds, speeds and ratios."""
    seconds = {name: [timed.seconds for timed in rounds] for name, rounds in contest.rounds.items()}
    megabytes = {name: (contest.subset if name == "c" else contest.corpus).text_bytes / 1e6 for name in seconds}
    speed = {name: megabytes[name] / min(seconds[name]) for name in seconds}
    inner = [timed.answer["encode_seconds"] for timed in contest.rounds["a"]]
    ratios = {
        "b/a best": speed["b"] / speed["a"],
        "b/a median of rounds": statistics.median(a / b for a, b in zip(seconds["a"], seconds["b"], strict=True)),
        "b/a best, a's encode_files call alone": min(inner) / min(seconds["b"]),
    }
    if "c" in speed:
        pairs = zip(seconds["b"], seconds["c"], strict=True)
        ratios["b/c best"] = speed["b"] / speed["c"]
        ratios["b/c median of rounds"] = statistics.median(
            (megabytes["b"] / b) / (megabytes["c"] / c) for b, c in pairs
        )
    return {
        "megabytes": megabytes,
        "seconds": seconds,
        "bare_encode_seconds": inner,
        "megabytes_per_second_best": speed,
        "ratios": ratios,
        "tokens": {name: rounds[-1].answer["tokens"] for name, rounds in contest.rounds.items()},
    }


TITLES = {
    "a": "gigatoken bare",
    "b": "tokenmill prepare",
    "b2": "tokenmill verify",
    "c": "datasets.map + memmap",
}


def print_table(summary: dict[str, Any], workers: int) -> None:
    """The comparison for people."""
    print(f"\n{'program':<28}{'MB of text':>11}{'MB/s best':>11}   seconds of each round")
    for name, rounds in summary["seconds"].items():
        each = "  ".join(f"{value:.2f}" for value in rounds)
        speed = summary["megabytes_per_second_best"][name]
        print(f"{name:<4}{TITLES[name]:<24}{summary['megabytes'][name]:>11.1f}{speed:>11.1f}   {each}")
    inner = summary["bare_encode_seconds"]
    speed = summary["megabytes"]["a"] / min(inner)
    each = "  ".join(f"{value:.2f}" for value in inner)
    print(f"{'':<4}{'(its encode_files call)':<24}{summary['megabytes']['a']:>11.1f}{speed:>11.1f}   {each}\n")
    for name, value in summary["ratios"].items():
        print(f"{name:<42}{value:8.3f}")
    print(
        f"\n{workers} threads or workers. The corpus repeats its text, which flatters engines that cache words (a, b)."
    )


@dataclass
class Stopwatch:
    """Time by label, that of a wrapped function inside another one taken from the outer."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inside: list[float] = field(default_factory=list)

    def call(self, label: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the clock."""
        started = time.perf_counter()
        self._inside.append(0.0)
        try:
            return function(*args, **kwargs)
        finally:
            spent = time.perf_counter() - started
            self.seconds[label] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Put a function of a module or class on the clock."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.call(label, function, *args, **kwargs)

        setattr(owner, name, timed)

    def wrap_generator(self, owner: Any, name: str, label: str) -> None:
        """Put the steps of a generator on the clock."""
        function = getattr(owner, name)

        def generate(*args: Any) -> Iterator[Any]:
            items = function(*args)
            end = object()
            while (item := self.call(label, next, items, end)) is not end:
                yield item

        setattr(owner, name, generate)


STEPS = {
    "load engine, probe": [("tokenmill.pipeline.tokenize", "loaded_tokenizer")],
    "UTF-8 validation": [
        ("tokenmill.sources.columnar", "split_valid"),
        ("tokenmill.sources.text", "split_valid"),
        ("tokenmill.sources.jsonl", "split_valid"),
    ],
    "gap scan": [("tokenmill.tokenizers.tokenizer", "documents_with_gap")],
    "encode": [("tokenmill.tokenizers.engines.gigatoken:GigatokenEngine", "encode")],
    "encode gap documents": [("tokenmill.tokenizers.tokenizer:Tokenizer", "_replace")],
    "white space scan": [("tokenmill.tokenizers.tokenizer", "documents_with_long_white_space")],
    "audit": [("tokenmill.tokenizers.audit:Audit", "check")],
    "bound (begin, end)": [("tokenmill.pipeline.units", "framed")],
    "hash text, collect columns": [("tokenmill.pipeline.part_builder:PartBuilder", "add")],
    "join columns": [("tokenmill.pipeline.part_builder:PartBuilder", "finish")],
    "checksums": [("tokenmill.pipeline.part_builder", "with_checksum")],
    "write": [("tokenmill.pipeline.part_builder", "publish_part")],
    "fsync": [("os", "fsync")],
}
"""The functions of one worker, by what they do; a name after a colon is a class."""

READING = ("tokenmill.pipeline.units", "unit_documents")
"""The generator that reads the documents of a unit."""


def profile_worker(contest: Contest, target_bytes: int) -> dict[str, Any]:
    """Do units in this process until they hold enough text; the seconds of each step."""
    frozen = freeze_run(contest.corpus.files, contest.tokenizer, contest.directory + "/profiled")
    for module in worker_modules("auto"):  # as a worker does before its first unit
        importlib.import_module(str(module))
    watch = Stopwatch()
    for label, functions in STEPS.items():
        for owner, name in functions:
            watch.wrap(named(owner), name, label)
    watch.wrap_generator(named(READING[0]), READING[1], "read, decode")
    limits = WorkerLimits(plan_resources(contest.workers, None, contest.workers).worker_bytes)
    tokenize = Tokenize(contest.directory + "/profiled", frozen.run.job, frozen.run.engine, limits)
    text_bytes = 0
    started = time.perf_counter()
    for task in plan.tasks(frozen.plan, frozen.sources, range(frozen.run.units)):
        committed = tokenize(task)
        assert isinstance(committed, Committed)  # a store on disk is written at once
        text_bytes += committed.summary.text_bytes
        if text_bytes >= target_bytes:
            break
    seconds = time.perf_counter() - started
    steps = dict(watch.seconds) | {"other": seconds - sum(watch.seconds.values())}
    return {"megabytes": text_bytes / 1e6, "seconds": seconds, "engine": frozen.run.engine, "steps": steps}


def freeze_run(sources: list[str], tokenizer: str, directory: str) -> FrozenRun:
    """A run that is ready to be worked on."""
    words = PrepareOptions(sources, tokenizer)
    request = make_request(words, find_sources(words))
    folder = folder_at(directory)
    folder.create()
    with LocalExecutor() as executor:
        return freeze(folder, request, executor.start(1))


def named(owner: str) -> Any:
    """The module or class with this name."""
    module, _, name = owner.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def profile_command(contest: Contest) -> dict[str, float]:
    """The course of one command, in seconds since its process was started, and how busy its workers were."""
    timed = contest.prepare()
    with open(os.path.join(contest.store, layout.LOG), encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    units = [event for event in events if event["event"] == "unit"]
    first = min(event["time"] - event["seconds"] for event in units)
    last = max(event["time"] for event in units)
    given_out = next(event["time"] for event in events if event["event"] == "start")
    complete = next(event["time"] for event in events if event["event"] == "complete")
    busy = sum(event["seconds"] for event in units)
    return {
        "plan frozen, units given out": given_out - timed.began,
        "first unit starts": first - timed.began,
        "last unit ends": last - timed.began,
        "manifest written": complete - timed.began,
        "process ends": timed.seconds,
        "workers busy between first and last": busy / contest.workers / (last - first),
    }


def print_profile(command: dict[str, float], worker: dict[str, Any]) -> None:
    """Both profiles for people."""
    print("\none command, seconds since its process was started")
    for name, value in command.items():
        print(f"  {name:<38}{value:8.2f}" if "busy" not in name else f"  {name:<38}{value:8.1%}")
    megabytes, seconds = worker["megabytes"], worker["seconds"]
    print(f"\none worker in this process: {megabytes:.0f} MB in {seconds:.2f} s, {megabytes / seconds:.1f} MB/s")
    for name, value in sorted(worker["steps"].items(), key=lambda step: -step[1]):
        print(f"  {name:<26}{value:8.3f} s{value / seconds:8.1%}")


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument(
        "--megabytes",
        type=float,
        default=1600,
        help="text of the corpus (default 1600); a needs six times that in memory",
    )
    parser.add_argument("--recipe-megabytes", type=float, default=100, help="text of the subset for c (default 100)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3); 0 to profile only")
    parser.add_argument("--workers", "--threads", type=int, default=2, help="threads of a, workers of b and c")
    parser.add_argument("--tokenizer", default="gpt2", choices=list(SCHEMES), help="the encoding (default gpt2)")
    parser.add_argument("--no-recipe", action="store_true", help="leave out c")
    parser.add_argument("--verify", action="store_true", help="also time `tokenmill verify` (b2)")
    parser.add_argument("--profile", action="store_true", help="also tell where tokenmill's time goes")
    parser.add_argument("--profile-megabytes", type=float, default=300, help="text for the one worker (default 300)")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser.parse_args()


def set_up(options: argparse.Namespace, directory: str) -> Contest:
    """Make the corpus and its subset, and read them once."""
    originals = read_originals(options.corpus)
    corpus = build_corpus(originals, os.path.join(directory, "corpus"), int(options.megabytes * 1e6))
    del originals
    target_bytes = int(min(options.recipe_megabytes, options.megabytes) * 1e6)
    subset = take_subset(corpus, os.path.join(directory, "subset"), target_bytes, options.workers)
    for path in corpus.files + subset.files:
        with open(path, "rb") as file:
            while file.read(1 << 24):
                pass
    print(
        f"corpus: {corpus.text_bytes / 1e6:.0f} MB of text, {corpus.documents:,} documents, {len(corpus.files)} files; "
        f"subset for c: {subset.text_bytes / 1e6:.0f} MB",
        file=sys.stderr,
    )
    return Contest(directory, corpus, subset, options.tokenizer, options.workers)


def main() -> int:
    """Measure and tell."""
    options = read_options()
    report: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": versions(),
        "options": {name: value for name, value in vars(options).items() if name not in ("corpus", "tmp", "json")},
    }
    problems: list[str] = []
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-ratio-") as directory:
        contest = set_up(options, directory)
        report["corpus"] = {name: value for name, value in asdict(contest.corpus).items() if name != "files"}
        if options.rounds:
            names = ["a", "b", *(["b2"] if options.verify else []), *([] if options.no_recipe else ["c"])]
            run_rounds(contest, names, options.rounds)
            report |= summarise(contest)
            print_table(report, options.workers)
            problems = report["problems"] = contest.check()
        if options.profile:
            report["command"] = profile_command(contest)
            report["worker"] = profile_worker(contest, int(options.profile_megabytes * 1e6))
            print_profile(report["command"], report["worker"])
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
