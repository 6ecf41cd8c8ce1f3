"""What an erasure costs, and whether it is complete: 1, 100 and 10,000 documents of a large store with four exports.

    python -m benchmarks.erase_figures [--tokens 1B] [--memory 2GB] [--workers 2] [--folder DIR]

Makes a store of recombined text and exports it to nanoGPT, Megatron, MDS and Parquet. For each number of documents,
spread evenly over the store, `tokenmill erase` runs under --memory. Then:

- the tokens of every document in the store and in each export are compared with those of before,
- every file below the store is searched for the tokens of erased documents, at every even byte, and in decoded Parquet,
- `tokenmill verify` has to find no problem, and has to fail after one document was put back with right checksums.

Prints a table with time, bytes written, parts and shards touched, and the peak memory of the command with its workers.
Exit code 1 if anything is wrong. A billion tokens need about 20 GB of disk.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from benchmarks.corpora import add_corpus_option, make_text
from benchmarks.memory import measure as measure_memory
from benchmarks.processes import tokenmill_command
from tokenmill.humanize import parse_size
from tokenmill.storage import folder_at
from tokenmill.store.chain import read_head
from tokenmill.store.part import open_part, publish_part, with_checksum
from tokenmill.store.reader import Store
from tokenmill.token_files import find_format

BYTES_PER_TOKEN = 2.2
COUNTS = (1, 100, 10_000)
EXPORTS: dict[str, dict[str, Any]] = {
    "nanogpt": {"val": "none"},
    "megatron": {"val": "none"},
    "mds": {"val": "none", "sequence_tokens": 2048, "tail": "keep"},
    "parquet": {"val": "none"},
}
MIN_TOKENS = 40
"""Shorter documents may be repeated in the text. They are not erased here."""

WINDOW_TOKENS = 32
"""A power of two. Shorter windows are in many documents, because the text exchanges sentences."""

CANDIDATES = 16
FILTER_BITS = 24
CHUNK_TOKENS = 1 << 18
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
Tokens = npt.NDArray[Any]


@dataclass
class Figures:
    """The store, the tokens of its parts before any erasure, and what was found."""

    folder: Path
    tokens: list[Tokens] = field(default_factory=list)
    erased: list[tuple[int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def store(self) -> str:
        """The directory of the store."""
        return str(self.folder / "store")

    def check(self, is_right: bool, what: str) -> None:
        """Note a problem unless all is right."""
        print(f"  {'ok' if is_right else 'WRONG'}: {what}", flush=True)
        if not is_right:
            self.problems.append(what)


def run(*arguments: object) -> tuple[Any, int]:
    """Run a command; return its answer and the peak memory of it with its workers."""
    measured = measure_memory([*tokenmill_command(str(arguments[0])), *map(str, arguments[1:])])
    return measured.answer, measured.tree_bytes


def spread_documents(store: Store, count: int, taken: set[int]) -> list[int]:
    """Documents of the store, evenly spread, long enough, not taken yet, and without a copy in the store."""
    keys = []
    for part in range(len(store.manifest)):
        content = store.part(part)
        lengths = np.diff(content.offsets)
        middle = content.offsets[:-1] + lengths // 2
        tokens = [content.tokens[np.minimum(middle + back, len(content.tokens) - 1)] for back in range(-3, 1)]
        key = sum(column.astype(np.uint64) << np.uint64(16 * number) for number, column in enumerate(tokens))
        keys.append(np.where(lengths >= MIN_TOKENS, key * np.uint64(31) + lengths.astype(np.uint64), 0))
    _, inverse, counts = np.unique(np.concatenate(keys), return_inverse=True, return_counts=True)
    usable = np.setdiff1d(np.flatnonzero(counts[inverse] == 1), sorted(taken))
    return [int(number) for number in usable[np.linspace(0, len(usable) - 1, count).astype(int)]]


def changed_bytes(folder: Path, since: float) -> tuple[int, int]:
    """The number and the bytes of files that were written since then. A file that is changed in place counts whole."""
    files = [path.stat() for path in folder.rglob("*") if path.is_file()]
    sizes = [file.st_size for file in files if file.st_mtime >= since]
    return len(sizes), sum(sizes)


def compare(figures: Figures) -> None:
    """Compare every document of the store with the one before, and the stream of each export with the store."""
    store = Store(figures.store)
    erased = np.array(sorted(number for _, number in figures.erased))
    is_right, first, streams = True, 0, {name: export_tokens(figures.store, name) for name in EXPORTS}
    held = {name: np.empty(0, np.uint16) for name in EXPORTS}
    for part, before in enumerate(figures.tokens):
        content = store.part(part)
        expected, offsets = before.copy(), content.offsets
        for number in erased[(erased >= first) & (erased < first + len(offsets) - 1)] - first:
            expected[offsets[number] : offsets[number + 1]] = store.run.erased_token
        is_right &= np.array_equal(content.tokens, expected)
        first += len(offsets) - 1
        for name, stream in streams.items():
            while len(held[name]) < len(expected) and (more := next(stream, None)) is not None:
                held[name] = np.concatenate([held[name], more])
            part_of, held[name] = held[name][: len(expected)], held[name][len(expected) :]
            is_short = len(part_of) < len(expected) and name != "mds"
            if is_short or not np.array_equal(part_of, expected[: len(part_of)]):
                figures.problems.append(f"{name}: other tokens than the store in part {part}")
    figures.check(is_right, f"all {first:,} documents of the store, {len(erased):,} of them erased")
    figures.check(not figures.problems, f"the tokens of {', '.join(EXPORTS)} are those of the store")


def export_tokens(store: str, name: str) -> Iterator[Tokens]:
    """The tokens of an export in order, some at a time, read without tokenmill where that is simple."""
    root = Path(store, name)
    if name == "nanogpt":
        yield from np.array_split(np.memmap(root / "train.bin", np.uint16), 100)
    elif name == "megatron":
        for path in sorted(root.rglob("*.bin")):
            yield np.memmap(path, np.uint16)
    elif name == "parquet":
        for path in sorted(root.rglob("*.parquet")):
            if ".tokenmill" not in str(path):
                column = pq.read_table(path, columns=["input_ids"])["input_ids"]
                yield from (chunk.flatten().to_numpy() for chunk in column.chunks)
    else:
        folder = folder_at(str(root))
        for path in sorted(root.rglob("*.mds")):
            yield find_format("mds").read(folder, (str(path.relative_to(root)),), "uint16").tokens.astype(np.uint16)


class Search:
    """Finds sequences of tokens in bytes, at every even position, by the hash of one window of each."""

    def __init__(self, sequences: list[Tokens]) -> None:
        self._sequences: dict[int, list[tuple[int, bytes, int]]] = {}
        for number, sequence in enumerate(sequences):
            start = _rare_window(sequence)
            (key,) = _window_hashes(sequence[start : start + WINDOW_TOKENS].astype("<u2")).tolist()
            self._sequences.setdefault(key, []).append((number, sequence.astype("<u2").tobytes(), start))
        self._filter = np.zeros(1 << FILTER_BITS, np.bool_)
        self._filter[np.array(list(self._sequences), np.uint64) >> np.uint64(64 - FILTER_BITS)] = True

    def find(self, data: bytes | memoryview | Tokens) -> Counter[int]:
        """How often each of the sequences is in some bytes, by its number."""
        tokens = np.frombuffer(data, np.uint8)
        tokens = tokens[: len(tokens) // 2 * 2].view("<u2")
        found: Counter[int] = Counter()
        for begin in range(0, len(tokens) - WINDOW_TOKENS + 1, CHUNK_TOKENS):
            hashes = _window_hashes(tokens[begin : begin + CHUNK_TOKENS + WINDOW_TOKENS - 1])
            near = np.flatnonzero(self._filter[hashes >> np.uint64(64 - FILTER_BITS)])
            for at, key in zip((near + begin).tolist(), hashes[near].tolist(), strict=True):
                found.update(
                    number
                    for number, whole, back in self._sequences.get(key, ())
                    if at >= back and tokens[at - back : at - back + len(whole) // 2].tobytes() == whole
                )
        return found


def _rare_window(sequence: Tokens) -> int:
    """The start of a window with many different tokens: one that repeats a token is in many documents."""
    starts = np.linspace(0, len(sequence) - WINDOW_TOKENS, CANDIDATES).astype(int).tolist()
    return max(starts, key=lambda start: len(np.unique(sequence[start : start + WINDOW_TOKENS])))


def _window_hashes(tokens: Tokens) -> npt.NDArray[np.uint64]:
    """The hash of every window of WINDOW_TOKENS tokens: halves of windows are joined until they are long enough."""
    hashes, length = tokens.astype(np.uint64) * MULTIPLIER, 1
    while length < WINDOW_TOKENS:
        hashes = (hashes[:-length] ^ (hashes[:-length] >> np.uint64(29))) * MULTIPLIER + hashes[length:]
        length *= 2
    return hashes * MULTIPLIER


def search(needles: Search, folder: str) -> Counter[int]:
    """How often each erased sequence is in the files below a folder. Tokens of 32 bits are searched as 16 bits, too."""
    found: Counter[int] = Counter()
    for path in sorted(Path(folder).rglob("*")):
        if not path.is_file() or not path.stat().st_size:
            continue
        found += needles.find(np.memmap(path, np.uint8))
        if path.suffix == ".parquet" and "list" in str(_type_of_tokens(path)):
            for batch in pq.ParquetFile(path).iter_batches(columns=["input_ids"]):
                found += needles.find(np.ascontiguousarray(batch[0].flatten().to_numpy().astype("<u2")).view(np.uint8))
        elif path.suffix == ".mds":
            tokens = np.memmap(path, np.uint8)
            wide = tokens[: len(tokens) // 4 * 4].view("<u4")
            found += needles.find(wide.astype("<u2").view(np.uint8))
    return found


def _type_of_tokens(path: Path) -> pa.DataType:
    schema = pq.read_schema(path)
    return schema.field("input_ids").type if "input_ids" in schema.names else pa.null()


def put_back(figures: Figures) -> None:
    """Put the part of before the erasure back beside the one that has taken its place."""
    folder = folder_at(figures.store)
    unit = int(read_head(folder).files["unit"][0].as_py())
    summary, content = open_part(folder, unit, read_head(folder))
    summary = msgspec.structs.replace(summary, erased=(), erased_rows=0)
    content = replace(content, tokens=figures.tokens[unit], erased=None)
    publish_part(folder, with_checksum(summary, content), content)


def main() -> int:
    """Make the store, erase, compare, search, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument("--tokens", default="1B")
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--folder", type=Path, help="where the store is made (default: a temporary directory)")
    options = parser.parse_args()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    figures = Figures(Path(tempfile.mkdtemp(prefix="tokenmill-figures-", dir=options.folder)))
    try:
        measure(figures, options)
    finally:
        shutil.rmtree(figures.folder)
    for problem in figures.problems:
        print(f"WRONG: {problem}")
    return 1 if figures.problems else 0


def measure(figures: Figures, options: argparse.Namespace) -> None:
    """All steps."""
    tokens, started = parse_size(options.tokens), time.monotonic()
    corpus = make_text(options.corpus, "recombined", str(figures.folder / "corpus"), int(tokens * BYTES_PER_TOKEN))
    print(f"text         {corpus.text_bytes / 1e9:.2f} GB, {time.monotonic() - started:.0f} s", flush=True)
    workers = ("--workers", options.workers)
    made = run("prepare", *corpus.files, "--tokenizer", options.tokenizer, "--out", figures.store, *workers)[0]
    print(f"store        {made['tokens']:,} tokens, {made['seconds']:.0f} s", flush=True)
    for name, more in EXPORTS.items():
        result = tokenmill.export(figures.store, to=name, workers=options.workers, **more)
        print(f"export       {name}, {result.bytes / 1e9:.2f} GB, {result.seconds:.0f} s", flush=True)
    shutil.copytree(f"{figures.store}/parts", figures.folder / "before/parts")
    store = Store(figures.store)
    before = folder_at(str(figures.folder / "before"))
    figures.tokens = [open_part(before, part)[1].tokens for part in range(len(store.manifest))]
    total = sum(path.stat().st_size for path in Path(figures.store).rglob("*") if path.is_file())
    print(f"files        {total / 1e9:.2f} GB in the store with its exports")
    sequences, lines = [], []
    for count in COUNTS:
        store = Store(figures.store)
        documents = spread_documents(store, min(count, len(store) // 10), {number for _, number in figures.erased})
        origins = [store.document(number) for number in documents]
        sequences += [store[number][:-1].copy() for number in documents]
        rows = figures.folder / f"rows-{count}.csv"
        rows.write_text("".join(f"{origin.source},{origin.row}\n" for origin in origins))
        figures.erased += [(count, number) for number in documents]
        del store
        since = time.time()
        result, peak = run("erase", figures.store, "--rows", rows, "--memory", options.memory, *workers)
        figures.check(
            result["documents"] == len(documents) and not result["not_found"], f"{len(documents):,} documents erased"
        )
        figures.check(peak <= parse_size(options.memory), f"peak memory {peak / 1e6:.0f} MB of {options.memory}")
        written, size = changed_bytes(Path(figures.store), since)
        shards = sum(result["exports"].values())
        print(f"  {len(documents):,} documents: {result['seconds']:.1f} s", flush=True)
        lines.append((len(documents), result["seconds"], result["parts"], shards, written, size / 1e6, peak / 1e6))
    compare(figures)
    needles = Search(sequences)
    control = search(needles, str(figures.folder / "before"))
    figures.check(
        len(control) == len(sequences), f"the search finds all {len(control):,} sequences in the copy of before"
    )
    # A sequence that is there twice is a part of another document, which nobody named.
    single = {number for number, times in control.items() if times == 1}
    left = [number for number in search(needles, figures.store) if number in single]
    figures.check(
        not left,
        f"it finds {len(left):,} of {len(single):,} below the store, {len(control) - len(single):,} "
        "of the others are parts of other documents",
    )
    run("verify", figures.store, "--sample", "0", *workers)
    figures.check(True, "verify finds no problem")
    put_back(figures)
    command = [*tokenmill_command("verify"), figures.store, "--sample", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    is_found = ended.returncode == 3 and "erased" in ended.stdout + ended.stderr
    figures.check(is_found, "verify fails after a document was put back")
    heading = ("documents", "seconds", "parts", "shards", "files written", "MB written", "peak MB")
    print("".join(f"{name:>15}" for name in heading))
    for line in lines:
        print("".join(f"{value:>15,.1f}" if isinstance(value, float) else f"{value:>15,}" for value in line))
    print(f"took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
