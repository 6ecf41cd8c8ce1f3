"""Compare every document of some corpora with the reference tokenizers, called directly.

    TOKENMILL_TEST_DATA=DIR python scripts/check_exactness.py [--files N] [--rows N]

DIR holds `corpus/en`, `corpus/multi`, `vocab` and `vocab/hf`. For each tokenizer, the corpora are prepared by the
installed command, then each document of the sources is encoded again by `tiktoken.encode_ordinary` or by `tokenizers`
(no special tokens added, their spelling is text) and compared with the store: number of documents, rows, tokens.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq

import tokenmill

OPENAI = ("gpt2", "cl100k_base", "o200k_base")
HUGGING_FACE = ("gpt2.json", "gpt-neox-20b.json")

Encode = Callable[[list[str]], list[list[int]]]


def main() -> int:
    """Check all tokenizers; the exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, help="only the first N files of each corpus")
    parser.add_argument("--rows", type=int, help="only the first N rows of each file")
    parser.add_argument("--tokenizer", action="append", help="only this one (may be repeated)")
    options = parser.parse_args()
    data = Path(os.environ["TOKENMILL_TEST_DATA"])
    os.environ["TIKTOKEN_CACHE_DIR"] = str(data / "vocab")
    files = corpora(data, options.files)
    with tempfile.TemporaryDirectory() as directory:
        return check_all(options, data, files if options.rows is None else cut(files, options.rows, directory))


def corpora(data: Path, count: int | None) -> list[str]:
    """The first files of each corpus."""
    return [str(f) for name in ("en", "multi") for f in sorted((data / "corpus" / name).iterdir())[:count]]


def cut(files: list[str], rows: int, directory: str) -> list[str]:
    """The first rows of files, as files."""
    short = [f"{directory}/{number:05}.parquet" for number in range(len(files))]
    for path, out in zip(files, short, strict=True):
        pq.write_table(pq.read_table(path).slice(0, rows), out)
    return short


def check_all(options: argparse.Namespace, data: Path, files: list[str]) -> int:
    """Check the tokenizers that are asked for."""
    wrong = 0
    for name in options.tokenizer or (*OPENAI, *HUGGING_FACE):
        started = time.monotonic()
        documents, tokens, differences = check(data, name, files)
        wrong += differences
        seconds = time.monotonic() - started
        print(
            f"{name:<20} {documents:>8,} documents {tokens:>12,} tokens {differences:>4} differ  {seconds:6.0f} s",
            flush=True,
        )
    return 1 if wrong else 0


def check(data: Path, name: str, files: list[str]) -> tuple[int, int, int]:
    """Prepare with one tokenizer and compare: documents, tokens, and how many documents differ."""
    tokenizer = address(data, name)
    with tempfile.TemporaryDirectory() as out, ProcessPoolExecutor() as pool:
        command = [sys.executable, "-m", "tokenmill", "prepare", *files, "--tokenizer", tokenizer, "--out", out]
        subprocess.run([*command, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        return compare(tokenmill.open(out), files, pool.map(partial(reference, tokenizer), files))


def address(data: Path, name: str) -> str:
    """What `--tokenizer` is given."""
    return str(data / "vocab" / "hf" / name) if name.endswith(".json") else name


def compare(store: tokenmill.Store, files: list[str], expected: Iterable[list[list[int]]]) -> tuple[int, int, int]:
    """Compare a store with the tokens that are expected of each file: documents, tokens, and how many differ."""
    position = differences = 0
    for path, documents in zip(files, expected, strict=True):
        for row, tokens in enumerate(documents):
            found = store.document(position)
            differences += (found.source, found.row, found.tokens.tolist()) != (path, row, tokens)
            position += 1
    assert position == len(store), f"{position} documents expected, {len(store)} in the store"
    return position, store.token_count, differences


def reference(tokenizer: str, path: str) -> list[list[int]]:
    """What the reference gives for each row of a file, the end token appended."""
    encode, end = load(tokenizer)
    return [[*tokens, end] for texts in batches(path) for tokens in encode(texts)]


def load(tokenizer: str) -> tuple[Encode, int]:
    """The reference tokenizer itself, without tokenmill, and its end token."""
    if tokenizer.endswith(".json"):
        import tokenizers

        live = tokenizers.Tokenizer.from_file(tokenizer)
        live.encode_special_tokens = True
        encode = live.encode_batch
        end = live.token_to_id("<|endoftext|>")
        assert end is not None, tokenizer
        return lambda texts: [e.ids for e in encode(texts, add_special_tokens=False)], end
    import tiktoken

    encoding = tiktoken.get_encoding(tokenizer)
    return lambda texts: [encoding.encode_ordinary(text) for text in texts], encoding.eot_token


def batches(path: str) -> Iterator[list[str]]:
    """The texts of a file, some at a time."""
    for batch in pq.ParquetFile(path).iter_batches(256, columns=["text"]):
        yield batch.column(0).to_pylist()


if __name__ == "__main__":
    sys.exit(main())
