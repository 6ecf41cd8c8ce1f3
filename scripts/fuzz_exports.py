"""Export random stores with random options, and compare every token with a model in plain Python.

    python -m scripts.fuzz_exports [--minutes 5] [--seed N]

Stores with and without begin and end tokens, of one document, of empty ones, of none; any format, split, shuffle, shard
size, tail, end token, type and sequence length that is not refused as a usage error; runs, bins, batches and pieces so
small that every edge is met. A difference, or an error that is no usage error, ends it with the options that led to it
and exit code 1; the seed repeats it.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.export_model import flat, model, read_back
from tokenmill.api import export
from tokenmill.errors import UsageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.exports import PRELOAD, shards
from tokenmill.token_files import FORMATS, find_format

LENGTHS = {"many": [0, 3, 40, 200, 900], "long": [5, 20_000], "one": [300], "empty": [0]}
DOCUMENTS = {"many": 400, "long": 40, "one": 1, "empty": 9}
ENDS: dict[str, dict[str, Any]] = {
    "end": {"eot": 1199},
    "no end": {"eot": "none"},
    "begin and end": {"eot": 1199, "bos": 7},
}


def make_stores(directory: Path, rng: random.Random) -> list[tokenmill.Store]:
    """A store of each kind of corpus with each kind of begin and end token."""
    stores = []
    for kind, lengths in LENGTHS.items():
        texts = ["".join(rng.choices("etaoin shrdlu\n", k=rng.choice(lengths))) for _ in range(DOCUMENTS[kind])]
        half = len(texts) // 2
        sources = [
            write_parquet(directory / kind / f"{part}.parquet", some, 20)
            for part, some in (("a", texts[:half]), ("b", texts[half:]))
            if some
        ]
        for number, tokens in enumerate(ENDS.values()):
            out = str(directory / f"{kind}-{number}")
            tokenmill.prepare(sources, tokenizer=SMALL_TIKTOKEN, out=out, unit_bytes=3000, **tokens)
            stores.append(tokenmill.open(out))
    return stores


def random_options(rng: random.Random, name: str, tokens: int) -> dict[str, Any]:
    """Some of the options, with values at which things change, and at most a few hundred shards."""
    choices: dict[str, list[Any]] = {
        "val": ["none", "first-shard", 0.1, 0.5, 0.001, 0.99],
        "shuffle": [0, 1, 7, 1 << 63],
        "shard_tokens": [n for n in (1, 3, 100, 700, 1000, 5000, 20_000, 100_000) if tokens // n < 300],
        "tail": ["keep", "drop", "merge"],
        "eot_position": ["appended", "prepended"],
        "dtype": ["uint16", "int32", "uint32"],
        "sequence_tokens": [1, 2, 16, 255, 256, 1000] if name == "mds" else [],
    }
    return {option: rng.choice(values) for option, values in choices.items() if values and rng.random() < 0.5}


def shrink_work(rng: random.Random) -> None:
    """Runs, bins, batches and pieces of a few documents, so that small stores have many of them."""
    frozen = export._freeze_work  # noqa: SLF001 - the sizes are no options, on purpose

    def small(*arguments: Any) -> Any:
        whole = frozen(*arguments)
        bins, merges = rng.choice([(2, ()), (2, (2,)), (8, (2, 4)), (64, ()), (1024, (2, 2, 2))])
        return type(whole)(whole.job, bins=bins, run_tokens=rng.choice([500, 5000, 30_000]), merges=merges)

    export._freeze_work = small  # type: ignore[assignment]  # noqa: SLF001
    export.batch_bytes = lambda _: rng.choice([200, 3000, 1 << 20])  # type: ignore[assignment, attr-defined]
    shards.REGION_TOKENS = 9000


def difference(store: tokenmill.Store, out: Path, name: str, options: dict[str, Any], done: Any) -> str | None:
    """What is wrong with an export, if anything."""
    traits = find_format(name).SPEC
    val = options.get("val", traits.defaults.val)
    share = float(val) if val not in {None, "none", "first-shard"} else None
    end = options.get("eot_position", traits.defaults.end)
    expected = {split: flat(documents) for split, documents in model(store, share, options.get("shuffle"), end).items()}
    found = read_back(out, name) if done.files else {}
    tokens = {split: np.concatenate([each for each, _ in of]).tolist() for split, of in found.items()}
    left = {split: done.splits[split].tokens_left_out for split in done.splits}
    if val == "first-shard":
        whole = [*tokens.get("val", []), *tokens.get("train", [])]
        if not sum(left.values()) and whole != expected.get("train", []):
            return "the stream is another one"
        return None
    for split, stream in expected.items():
        held = tokens.get(split, [])
        if held != stream[: len(held)] or len(held) + left.get(split, 0) != len(stream):
            return f"{split} holds {len(held)} tokens and leaves out {left.get(split, 0)} of {len(stream)}, or others"
    return None


def main() -> int:
    """Fuzz until the time is up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    rng, counts = random.Random(options.seed), {"equal": 0, "refused": 0}
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory() as directory, LocalExecutor(PRELOAD) as executor:
        stores = make_stores(Path(directory), rng)
        shrink_work(rng)
        end = time.monotonic() + options.minutes * 60
        while time.monotonic() < end:
            store, name, out = rng.choice(stores), rng.choice(list(FORMATS)), Path(directory, "out")
            words = random_options(rng, name, store.token_count)
            shutil.rmtree(out, ignore_errors=True)
            try:
                done = tokenmill.export(store.directory, to=name, out=str(out), executor=executor, workers=2, **words)
            except UsageError:
                counts["refused"] += 1
                continue
            wrong = difference(store, out, name, words, done)
            if wrong is not None:
                print(f"{store} to {name} with {words}: {wrong}")
                return 1
            counts["equal"] += 1
    print(f"{counts['equal']:,} exports equal the model, {counts['refused']:,} were refused as usage errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
