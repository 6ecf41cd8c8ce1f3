"""The least that tokenizing Parquet into files takes: read row groups, encode, hash, write, and sync in a thread.

Nothing is validated, framed, compared or recorded, so no `prepare` can do with less. Prints the counts as JSON.

    python -m benchmarks.lean VOCABULARY SCHEME OUT FILE... [--workers 2]

SCHEME is gigatoken's name of a split pattern, or `json` for a tokenizer.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import threading
from dataclasses import dataclass
from typing import Any

GROUPS_PER_SLICE = 2


@dataclass(frozen=True)
class Work:
    """What one process does: slices of files, each with its row groups and the path of its output."""

    vocabulary: str
    scheme: str
    slices: list[tuple[str, list[int], str]]


def load(vocabulary: str, scheme: str) -> Any:
    """The bare engine."""
    import gigatoken  # noqa: PLC0415 - in the processes only

    if scheme == "json":
        with open(vocabulary, encoding="utf-8") as file:
            return gigatoken.Tokenizer.from_json(file.read())
    return gigatoken.Tokenizer.from_tiktoken(vocabulary, pretokenizer=scheme, special_tokens={})


def encode_slices(work: Work) -> tuple[int, int]:
    """Encode each slice into a file of its own. Returns the numbers of documents and tokens."""
    import awkward  # noqa: PLC0415 - in the processes only
    import blake3  # noqa: PLC0415
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    tokenizer = load(work.vocabulary, work.scheme)
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    documents = tokens = 0
    syncing: threading.Thread | None = None
    for path, groups, out in work.slices:
        file = pq.ParquetFile(path, memory_map=True)
        column = file.read_row_groups(groups, columns=["text"], use_threads=False).column(0)
        text = column.cast(pa.large_string()).combine_chunks()
        encoded = tokenizer.encode_batch(awkward.from_arrow(text), parallel=False)
        values = awkward.to_numpy(awkward.flatten(encoded, axis=1)).astype(dtype, copy=False)
        data = memoryview(values).cast("B")
        blake3.blake3(data).hexdigest()
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(descriptor, data)
        if syncing is not None:
            syncing.join()
        syncing = threading.Thread(target=_sync, args=(descriptor,))
        syncing.start()
        documents += len(text)
        tokens += len(values)
    if syncing is not None:
        syncing.join()
    return documents, tokens


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)
    os.close(descriptor)


def main() -> None:
    """Give each process every n-th slice."""
    import pyarrow.parquet as pq  # noqa: PLC0415 - the parent needs footers only

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("vocabulary")
    parser.add_argument("scheme")
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    slices: list[tuple[str, list[int], str]] = []
    for path in options.files:
        groups = range(pq.ParquetFile(path).num_row_groups)
        for first in groups[::GROUPS_PER_SLICE]:
            out = os.path.join(options.out, f"{len(slices):06d}.bin")
            slices.append((path, list(groups[first : first + GROUPS_PER_SLICE]), out))
    work = [Work(options.vocabulary, options.scheme, slices[n :: options.workers]) for n in range(options.workers)]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        counts = pool.map(encode_slices, work)
    documents, tokens = map(sum, zip(*counts, strict=True))
    print(json.dumps({"documents": documents, "tokens": tokens}))


if __name__ == "__main__":
    main()
