"""The tokens that a pipeline left behind, and whether they are those of the reference, document by document.

Documents are found by their end tokens and compared as a bag, since pipelines put them into different orders.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

END = 50256
Tokens = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Found:
    """How many tokens there are, with end tokens, and a hash of each document, in order of the hashes."""

    tokens: int
    hashes: Hashes

    def verdict(self, expected: Found) -> str:
        """What the table says of the tokens."""
        if self.tokens == expected.tokens and np.array_equal(self.hashes, expected.hashes):
            return "equal"
        equal = np.minimum(*_counts(self.hashes, expected.hashes)).sum()
        difference = self.tokens - expected.tokens
        amount = f"{abs(difference):,} {'more' if difference > 0 else 'fewer'}" if difference else "same number"
        return f"{amount}; {equal:,} of {len(expected.hashes):,} documents equal"


def _counts(first: Hashes, second: Hashes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    every = np.union1d(first, second)
    left, right = (np.bincount(np.searchsorted(every, hashes), minlength=len(every)) for hashes in (first, second))
    return left, right


def hash_document(tokens: Tokens) -> int:
    """A number for the tokens of a document, without its end token."""
    return int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest(), "little")


def find(layout: str, directory: str) -> Found:
    """What a pipeline wrote."""
    return count(LAYOUTS[layout](directory))


def count(streams: Iterable[Tokens]) -> Found:
    """The documents of streams, each of which starts or ends every document with an end token."""
    total, hashes = 0, []
    for stream in streams:
        total += len(stream)
        ends = np.flatnonzero(stream == END)
        edges = [-1, *ends.tolist(), len(stream)]
        pieces = [stream[start + 1 : stop] for start, stop in itertools.pairwise(edges)]
        # One piece too many, which is empty: before the first end token, or after the last one.
        spare = 0 if len(stream) and stream[0] == END else len(pieces) - 1
        hashes += [hash_document(piece) for number, piece in enumerate(pieces) if number != spare or len(piece)]
    return Found(total, np.sort(np.array(hashes, np.uint64)))


def _raw(pattern: str) -> Callable[[str], Iterator[Tokens]]:
    def read(directory: str) -> Iterator[Tokens]:
        for path in _matching(directory, pattern):
            yield np.fromfile(path, np.uint16)

    return read


def _matching(directory: str, pattern: str) -> list[str]:
    return sorted(path for path in glob.glob(os.path.join(directory, pattern)) if os.path.getsize(path))


def _npy(directory: str) -> Iterator[Tokens]:
    shards = [np.load(path) for path in _matching(directory, "*.npy")]
    yield np.concatenate([np.empty(0, np.uint16), *shards])


def _litdata(directory: str) -> Iterator[Tokens]:
    """Chunks: the number of items, where each starts and the last ends, the tokens."""
    for path in _matching(directory, "chunk-*.bin"):
        items = int(np.fromfile(path, np.uint32, 1)[0])
        yield np.fromfile(path, np.uint16, offset=4 * (items + 2))


def _mds(directory: str) -> Iterator[Tokens]:
    """Shards: the number of samples, where each starts and the last ends, JSON, samples (size, shape, tokens)."""
    yield np.concatenate(
        [np.empty(0, np.uint16), *(tokens for path in _matching(directory, "*.mds") for tokens in _mds_samples(path))]
    )


def _mds_samples(path: str) -> Iterator[Tokens]:
    with open(path, "rb") as file:
        content = file.read()
    samples = int(np.frombuffer(content, np.uint32, 1)[0])
    edges = np.frombuffer(content, np.uint32, samples + 1, offset=4).tolist()
    for start, stop in itertools.pairwise(edges):
        width = 1 << (content[start + 4] & 3)  # after the size: two bits of this byte tell the bytes of the length
        yield np.frombuffer(content[start + 5 + width : stop], np.uint16)


def _store(directory: str) -> Iterator[Tokens]:
    for path in _matching(directory, "parts/*.arrow"):
        with pa.memory_map(path) as file:
            yield pa.ipc.open_file(file).read_all()["tokens"].combine_chunks().values.to_numpy()


LAYOUTS: dict[str, Callable[[str], Iterator[Tokens]]] = {
    "bin": _raw("*.bin"),
    "npy": _npy,
    "datatrove": _raw("merged/*.ds"),
    "dolma": _raw("*.npy"),
    "litdata": _litdata,
    "mds": _mds,
    "nemotron": _raw("runs/*/datasets/*/*/*.bin"),
    "tokens": _raw("*.tokens"),
    "nanogpt": _raw("nanogpt/*.bin"),
    "megatron": _raw("megatron/*.bin"),
    "store": _store,
}
"""By name: the streams of tokens in a directory."""
