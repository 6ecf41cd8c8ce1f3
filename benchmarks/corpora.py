"""Corpora for benchmarks, made from corpus/en and corpus/multi: repeated, or recombined into text that is not repeated.

Repeated text flatters engines that cache words. In recombined text the first pass over the originals is as it is. In
each later pass, documents exchange their sentences, and one word in `SPLICED` is put together from the halves of two
others. So new words keep coming as in text that is read for the first time: after 60 MB of English web text 5 % of the
words are new, of text in 25 languages 9 % after 100 MB.

    python -m benchmarks.corpora DIR --text recombined --megabytes 1000
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS_IN_GROUP = 1000
FILE_BYTES = 100_000_000
NEW_WORD_LETTERS = 8
# One word in so many is new in recombined text.
SPLICED = 16
TEXTS = {"en": ("en",), "multi": ("multi",), "mixed": ("multi", "en"), "recombined": ("multi", "en")}
"""The texts by name, and the folders they are made from."""

_SENTENCE = re.compile(r"(?<=[.!?\u3002\n]) ")


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


def read_originals(corpus: str, folders: tuple[str, ...] = ("multi", "en")) -> pa.Table:
    """Every row of some folders of the corpus."""
    paths = [path for part in folders for path in sorted(glob.glob(os.path.join(corpus, part, "*.parquet")))]
    if not paths:
        raise SystemExit(f"no Parquet files in {corpus}/{' or '.join(folders)}")
    return pa.concat_tables(pq.ParquetFile(path).read() for path in paths).combine_chunks()


def make_text(corpus: str, text: str, directory: str, target_bytes: int) -> Corpus:
    """Make one of TEXTS in a new directory."""
    return build_corpus(read_originals(corpus, TEXTS[text]), directory, target_bytes, recombine=text == "recombined")


def build_corpus(
    originals: pa.Table, directory: str, target_bytes: int, *, new_words: float = 0.0, recombine: bool = False
) -> Corpus:
    """Repeat the originals, permuted anew each time, into files of about 100 MB until they hold enough text.

    `new_words` is a share of the text: so many bytes, in words that appear nowhere else, are added to each document.
    With `recombine`, documents of later passes are recombined.
    """
    os.makedirs(directory)
    generator = np.random.default_rng(1)
    groups = _row_groups(originals, generator, recombine=recombine)
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


def _row_groups(originals: pa.Table, generator: np.random.Generator, *, recombine: bool) -> Iterator[pa.Table]:
    held = np.empty(0, np.int64)
    rows_given = 0
    while True:
        while len(held) < ROWS_IN_GROUP:
            held = np.concatenate([held, generator.permutation(len(originals))])
        rows = originals.take(pa.array(held[:ROWS_IN_GROUP])).combine_chunks()
        is_repeated = rows_given + ROWS_IN_GROUP > len(originals)
        yield recombined(rows, random.Random(rows_given)) if recombine and is_repeated else rows
        held = held[ROWS_IN_GROUP:]
        rows_given += ROWS_IN_GROUP


def recombined(rows: pa.Table, generator: random.Random) -> pa.Table:
    """The same rows: documents of one language have exchanged their sentences, and some words are new."""
    languages = rows["language"].to_pylist()
    sentences = [_SENTENCE.split(text) for text in rows["text"].to_pylist()]
    pools: dict[str, list[str]] = {}
    for language, parts in zip(languages, sentences, strict=True):
        pools.setdefault(language, []).extend(parts)
    for pool in pools.values():
        generator.shuffle(pool)
    taken = {language: iter(pool) for language, pool in pools.items()}
    texts = [
        " ".join(_with_splices(next(taken[language]), generator) for _ in parts)
        for language, parts in zip(languages, sentences, strict=True)
    ]
    return rows.set_column(rows.schema.get_field_index("text"), rows.schema.field("text"), pa.array(texts))


def _with_splices(sentence: str, generator: random.Random) -> str:
    words = sentence.split(" ")
    for at in range(generator.randrange(SPLICED), len(words), SPLICED):
        other = generator.choice(words)
        words[at] = words[at][: len(words[at]) // 2] + other[len(other) // 2 :]
    return " ".join(words)


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


def write_inputs(corpus: Corpus, kind: str, directory: str) -> list[str]:
    """The files of a corpus as another kind of input: JSON Lines, also compressed, or one document in a text file."""
    if kind == "parquet":
        return corpus.files
    os.makedirs(directory)
    if kind == "document":
        path = os.path.join(directory, "one.txt")
        with open(path, "wb") as file:
            file.writelines(
                text.encode() + b"\n\n" for text in (text for source in corpus.files for text in _texts(source))
            )
        return [path]
    files = []
    for number, source in enumerate(corpus.files):
        files.append(os.path.join(directory, f"{number:05d}.{kind}"))
        codec = {"zst": "zstd", "gz": "gzip"}.get(kind.rpartition(".")[2])
        with pa.output_stream(files[-1], compression=codec) as stream:
            for text in _texts(source):
                stream.write(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n")
    return files


def _texts(path: str) -> Iterator[str]:
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["text"]):
            yield from batch["text"].to_pylist()


def main() -> None:
    """Make a corpus."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument("directory", help="a new directory")
    parser.add_argument("--text", choices=list(TEXTS), default="recombined")
    parser.add_argument("--megabytes", type=float, default=1000)
    options = parser.parse_args()
    made = make_text(options.corpus, options.text, options.directory, int(options.megabytes * 1e6))
    print(f"{made.text_bytes / 1e6:.0f} MB of text, {made.documents:,} documents, {len(made.files)} files")


if __name__ == "__main__":
    main()
