"""The work: a corpus of Parquet files repeated to some size, or the first documents of that, and its right tokens."""

from __future__ import annotations

import base64
import glob
import gzip
import itertools
import json
import os
import shutil
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import tiktoken

from benchmarks.peers import outputs

FILE_BYTES = 8_000_000
ROWS_IN_GROUP = 1000
ROWS_PER_BATCH = 500
ONE_FILE = "corpus.jsonl"


@dataclass(frozen=True)
class Work:
    """A directory of Parquet files, what they hold, and the tokens that must come out."""

    directory: str
    text_bytes: int
    documents: int
    expected: outputs.Found

    @property
    def name(self) -> str:
        """Its size, for people."""
        return f"{self.text_bytes / 1e6:,.0f} MB"


class Corpus:
    """The files of a directory, the bytes of each document, and its tokens by tiktoken, which is the reference."""

    def __init__(self, directory: str, threads: int) -> None:
        self.paths = sorted(glob.glob(os.path.join(directory, "*.parquet")))
        if not self.paths:
            raise SystemExit(f"there are no Parquet files in {directory}")
        texts = [pq.read_table(path, columns=["text"])["text"] for path in self.paths]
        self.sizes = np.concatenate([np.asarray(pc.binary_length(text), np.int64) for text in texts])
        self.counts, self.hashes = _encode(texts, threads)

    def link(self, directory: str, target_bytes: int) -> Work:
        """The whole corpus as often as needed, each file under other names."""
        os.makedirs(directory)
        copies = -(-target_bytes // int(self.sizes.sum()))
        for copy in range(copies):
            for number, path in enumerate(self.paths):
                _link(path, os.path.join(directory, f"{copy:03d}-{number:03d}.parquet"))
        return self._work(directory, copies * len(self.sizes))

    def cut(self, directory: str, target_bytes: int, parts: int) -> Work:
        """The first documents of the corpus, repeated if need be, in files of about the same size.

        The number of files is a multiple of `parts`, since some pipelines share out whole files.
        """
        os.makedirs(directory)
        copies, rest = divmod(target_bytes, int(self.sizes.sum()))
        documents = copies * len(self.sizes) + max(int(np.searchsorted(np.cumsum(self.sizes), rest)), 1)
        files = parts * max(round(target_bytes / FILE_BYTES / parts), 1)
        once = pa.concat_tables(pq.read_table(path) for path in self.paths)
        table = pa.concat_tables([once] * (copies + 1))
        edges = np.linspace(0, documents, files + 1).astype(int).tolist()
        for number, (start, stop) in enumerate(itertools.pairwise(edges)):
            path = os.path.join(directory, f"{number:05d}.parquet")
            pq.write_table(table.slice(start, stop - start), path, compression="zstd", row_group_size=ROWS_IN_GROUP)
        return self._work(directory, documents)

    def _work(self, directory: str, documents: int) -> Work:
        taken = np.arange(documents) % len(self.sizes)
        expected = outputs.Found(int(self.counts[taken].sum()), np.sort(self.hashes[taken]))
        return Work(directory, int(self.sizes[taken].sum()), documents, expected)


def _encode(texts: list[pa.ChunkedArray], threads: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The tokens of each document, end token included: their number, and their hash."""
    encoding = tiktoken.get_encoding("gpt2")
    counts, hashes = [], []
    for text in texts:
        for start in range(0, len(text), ROWS_PER_BATCH):
            rows = text.slice(start, ROWS_PER_BATCH).to_pylist()
            for tokens in encoding.encode_ordinary_batch(rows, num_threads=threads):
                counts.append(len(tokens) + 1)
                hashes.append(outputs.hash_document(np.array(tokens, np.uint16)))
    return np.array(counts), np.array(hashes, np.uint64)


def _link(path: str, name: str) -> None:
    try:
        os.link(path, name)
    except OSError:  # another file system, or one without links
        shutil.copyfile(path, name)


def convert(work: Work, kind: str) -> str:
    """The directory of a work as a pipeline wants it: its Parquet files, or made from them, once."""
    if kind == "parquet":
        return work.directory
    directory = f"{work.directory}-{kind}"
    if not os.path.isdir(directory):
        os.makedirs(directory)
        for path in sorted(glob.glob(os.path.join(work.directory, "*.parquet"))):
            stem = os.path.basename(path).removesuffix("parquet")
            name = ONE_FILE if kind == "one.jsonl" else stem + kind
            _write_lines(os.path.join(directory, name), pq.read_table(path, columns=["text"])["text"].to_pylist())
    return directory


def _write_lines(path: str, texts: list[str]) -> None:
    """Append lines to a file."""
    rows = ({"id": str(number), "text": text} for number, text in enumerate(texts))
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    with open(path, "ab") as file:
        file.write(gzip.compress(content, 6) if path.endswith(".gz") else content)


def write_ranks(path: str) -> str:
    """The vocabulary of gpt2 as a .tiktoken file."""
    ranks = tiktoken.get_encoding("gpt2")._mergeable_ranks  # noqa: SLF001 - there is no public way
    with open(path, "wb") as file:
        file.writelines(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
    return path


def write_model(directory: str, tokenizer: str) -> str:
    """What transformers loads: a directory with a tokenizer.json, or the name on the Hub as it is."""
    if not os.path.isfile(tokenizer):
        return tokenizer
    os.makedirs(directory)
    shutil.copyfile(tokenizer, os.path.join(directory, "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    with open(os.path.join(directory, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump(settings, file)
    return directory
