"""Make stores, exports and batches of random jobs, and write the digests of their bytes.

    python -m scripts.golden_jobs make --out before.json [--count 50] [--seed 37]   # on one tree
    python -m scripts.golden_jobs make --out after.json                              # on another: the same jobs
    python -m scripts.golden_jobs compare before.json after.json

A job draws its sources (format, documents, columns), the options of `prepare`, one or two exports with options, and a
loader, from a seed. It runs in this process. Files that describe the course of a run are not compared.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor, executors
from tests.support.killing import NOT_COMPARED
from tokenmill.errors import TokenmillError

TOKENIZERS = ("small.json", "small.tiktoken:gpt2")
WORDS = ("the", "mill", "turns text", "into", "tokens", "éöü", "東京", "🙂", "1234", "==", "{}", "\t", "<|x|>", "don't")
LANGUAGES = ("en", "de", "zh")
FORMATS = (
    "nanogpt",
    "build-nanogpt",
    "llmc",
    "megatron",
    "datatrove",
    "olmo",
    "litdata",
    "mds",
    "parquet",
    "text",
    "nanochat",
)

# A fixed name: the paths of sources are part of a store, and so are their times.
PLACE = Path(tempfile.gettempdir(), "tokenmill-golden-jobs")
TIME = 1_700_000_000

Json = dict[str, Any]


def main() -> None:
    """Make the digests of jobs, or compare two files of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make")
    making.add_argument("--out", type=Path, required=True)
    making.add_argument("--count", type=int, default=50)
    making.add_argument("--seed", type=int, default=37)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        sys.exit(compare(json.loads(options.before.read_text()), json.loads(options.after.read_text())))
    digests = {}
    with executors(InlineExecutor):
        for number in range(options.count):
            shutil.rmtree(PLACE, ignore_errors=True)
            digests[f"{options.seed}-{number}"] = one_job(random.Random(f"{options.seed} {number}"), PLACE)
    shutil.rmtree(PLACE, ignore_errors=True)
    options.out.write_text(json.dumps(digests, indent=1))
    print(f"{len(digests)} jobs, {sum('error' in job for job in digests.values())} of them refused")


def compare(before: Json, after: Json) -> str | None:
    """Print the jobs that differ, and how."""
    differing = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    for name in sorted(differing):
        old, new = before.get(name, {}), after.get(name, {})
        files = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
        print(f"{name}: {', '.join(files)}")
    print(f"{len(before)} jobs, {len(differing)} differ")
    return "jobs differ" if differing else None


def one_job(rng: random.Random, place: Path) -> Json:
    """Run one job; returns the digest of each file and batch."""
    place.mkdir(parents=True)
    sources, kind = write_sources(rng, place / "sources")
    store = place / "store"
    for name in ("small.json", "small.tiktoken"):
        shutil.copy(Path(SMALL_JSON).with_name(name), place)
    options = prepare_options(rng, kind)
    digests: Json = {"options": repr(options)}
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            tokenmill.prepare(sources, out=store, **options)
            for name in rng.sample(FORMATS, rng.randint(1, 2)):
                export = {"to": name, "out": place / name, **export_options(rng)}
                digests[f"{name} options"] = repr(export)
                digests |= attempt(f"{name} error", lambda export=export: tokenmill.export(store, **export))
            digests |= attempt("loader error", lambda: batches(rng, store, digests))
    except TokenmillError as error:
        digests["error"] = str(error)
    return digests | files_of(place)


def attempt(key: str, call: Any) -> Json:
    """Call a function; an error of tokenmill is a result."""
    try:
        call()
    except TokenmillError as error:
        return {key: str(error)}
    return {}


def write_sources(rng: random.Random, directory: Path) -> tuple[list[Path], str]:
    """Write one to three files of one kind."""
    directory.mkdir()
    kind = rng.choice(("parquet", "parquet", "jsonl", "jsonl.gz", "arrow", "txt"))
    files = []
    for number in range(rng.randint(1, 3)):
        path = directory / f"{number}.{kind}"
        rows = [row(rng, number * 1000 + index) for index in range(rng.randint(1, 120))]
        if kind == "txt":
            path.write_text("\n\n".join(each["text"] or "" for each in rows))
        elif kind == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=rng.randint(5, 60))
        elif kind == "arrow":
            feather.write_feather(pa.Table.from_pylist(rows), path, compression="uncompressed")
        else:
            lines = "".join(f"{json.dumps(each, ensure_ascii=rng.random() < 0.5)}\n" for each in rows).encode()
            path.write_bytes(pa.compress(lines, "gzip", asbytes=True) if kind.endswith("gz") else lines)
        os.utime(path, (TIME, TIME))
        files.append(path)
    return files, kind


def row(rng: random.Random, number: int) -> Json:
    """A document with columns. Few documents are empty or null, and some are equal."""
    text = " ".join(rng.choices(WORDS, k=rng.choice((0, 1, 5, 30, 200))))
    return {
        "text": None if rng.random() < 0.005 else rng.choice(("the same text", text, text, text)),
        "title": rng.choice(WORDS),
        "id": number,
        "language": rng.choice(LANGUAGES),
        "score": rng.random(),
    }


def prepare_options(rng: random.Random, kind: str) -> Json:
    """The options of `prepare`."""
    options: Json = {
        "tokenizer": str(PLACE / rng.choice(TOKENIZERS)),
        "unit_bytes": rng.choice((None, "1k", "4k", "64k")),
        "max_skipped": 1.0,
        "workers": 1,
        "eot": rng.choice(("none", 0, 5)),
    }
    for name, value in (("min_tokens", 3), ("max_tokens", 150), ("dedup", "exact"), ("bos", 1)):
        if rng.random() < 0.2:
            options[name] = value
    if kind == "txt":
        return options | rng.choice(({}, {"separator": r"\n\n"}))
    if rng.random() < 0.3:
        options["template"] = r"{title}\n\n{text}"
    if rng.random() < 0.5:
        options["keep"] = rng.choice(("id", "id,language", "score,language"))
    if rng.random() < 0.3:
        options["where"] = rng.choice(("language = 'en'", "score > 0.5", "language != 'de' and score < 0.9"))
    return options


def export_options(rng: random.Random) -> Json:
    """The options of `export`."""
    choices: Json = {
        "val": ("none", 0.1, 0.3),
        "shuffle": (None, 1337, 7),
        "shard_tokens": (None, 500, 5000),
        "tail": (None, "keep"),
    }
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < 0.6} | {"workers": 1}


def batches(rng: random.Random, store: Path, digests: Json) -> None:
    """Add the digests of a loader's first batches and its state."""
    loader = tokenmill.loader(
        store,
        sequence_tokens=rng.choice((8, 32)),
        batch_sequences=rng.choice((1, 3)),
        grain=rng.choice((32, 64)),
        seed=rng.randint(0, 9),
        val=rng.choice(("none", 0.2)),
        shuffle=rng.choice(("full", "window", "none")),
        packing=rng.choice(("concat", "concat", "best-fit")),
        fields=("input_ids", "labels", "position_ids", "document_ids"),
    )
    for step in range(min(len(loader), 4)):
        content = b"".join(name.encode() + value.tobytes() for name, value in sorted(loader[step].items()))
        digests[f"batch {step}"] = hashlib.sha256(content).hexdigest()
    digests["state"] = loader.state_dict()


def files_of(place: Path) -> Json:
    """The digests of the files of a place, by their names."""
    files = (
        path for path in sorted(place.rglob("*")) if path.is_file() and not (NOT_COMPARED | {"lock"}) & set(path.parts)
    )
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


if __name__ == "__main__":
    started = time.monotonic()
    main()
    print(f"took {time.monotonic() - started:.1f} s", file=sys.stderr)
