"""Runs: the scratch files of a shuffle. A run holds the documents of some parts, sorted by stream and key.

Any range of keys is then one stretch of each run, so a shard reads as many stretches as there are runs, however many
parts there are. Stretches are read, not mapped: of a map the kernel brings in more than is touched, and with hundreds
of runs that is memory nobody has budgeted.

    00000003.run     the tokens of all documents, then a record for each of them: where it ends, its row, its source
    00000003.index   documents, tokens, bytes of a token; then, for each bin and for the end, the documents before it;
                     then the tokens before it. Published after the run, so its existence means that the run is there
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import RUNS
from tokenmill.part import PartContent, TokenArray
from tokenmill.storage import Folder

Places = npt.NDArray[np.int64]

_INDEX_FILE = re.compile(r"(\d{8,})\.index")
_RECORD = np.dtype([("end", "<i8"), ("row", "<u8"), ("source", "<u4")])
_HEAD = 3


def publish_run(folder: Folder, run: int, content: PartContent, places: Places, bins: int) -> None:
    """Publish documents that are sorted; `places` is the bin of each, counted through the streams."""
    records = np.empty(len(content.row), _RECORD)
    records["end"], records["row"], records["source"] = content.offsets[1:], content.row, content.source
    with folder.publish(_run_name(run), settled=False) as file:
        file.write(np.ascontiguousarray(content.tokens).data)
        file.write(records.data)
    before = np.searchsorted(places, np.arange(bins + 1))
    head = [len(records), len(content.tokens), content.tokens.itemsize]
    index = np.concatenate([head, before, content.offsets[before]]).astype("<i8")
    with folder.publish(_index_name(run), settled=False) as file:
        file.write(index.data)


def committed(folder: Folder) -> list[int]:
    """The runs that are there, in order."""
    return sorted(int(match[1]) for name in folder.names(RUNS) if (match := _INDEX_FILE.fullmatch(name)))


def counts(folder: Folder, run: int) -> tuple[Places, Places]:
    """The documents and the tokens of a run in each bin."""
    index = np.frombuffer(folder.read(_index_name(run)), "<i8")[_HEAD:]
    documents, tokens = np.diff(index.reshape(2, -1))
    return documents, tokens


@dataclass(frozen=True, slots=True)
class Stretch:
    """Documents that follow each other in a run: where each ends, counted from the first, and where it is from."""

    name: str
    first_token: int
    dtype: str
    ends: Places
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def tokens(self, folder: Folder, start: int, stop: int) -> tuple[TokenArray, Places]:
        """The tokens of documents [start, stop) of the stretch, and the offsets of these documents in them."""
        before = int(self.ends[start - 1]) if start else 0
        offsets = np.concatenate([np.zeros(1, np.int64), self.ends[start:stop] - before])
        size = np.dtype(self.dtype).itemsize
        data = folder.read_at(self.name, (self.first_token + before) * size, int(offsets[-1]) * size)
        return np.frombuffer(data, self.dtype), offsets


def read_stretch(folder: Folder, run: int, low: int, high: int) -> Stretch:
    """The documents of bins [low, high), without their tokens."""
    count, tokens, size = np.frombuffer(folder.read(_index_name(run), _HEAD * 8), "<i8").tolist()
    edges = [np.frombuffer(folder.read_at(_index_name(run), (_HEAD + bin_) * 8, 8), "<i8")[0] for bin_ in (low, high)]
    start, stop = int(edges[0]), int(edges[1])
    before = min(start, 1)  # one record more, if there is one, tells where the first document starts
    data = folder.read_at(
        _run_name(run), tokens * size + (start - before) * _RECORD.itemsize, (stop - start + before) * _RECORD.itemsize
    )
    records = np.frombuffer(data, _RECORD)
    first_token = int(records["end"][0]) if before and count else 0
    records = records[before:]
    ends = records["end"] - first_token
    return Stretch(_run_name(run), first_token, f"<u{size}", ends, records["source"].copy(), records["row"].copy())


def _run_name(run: int) -> str:
    return f"{RUNS}/{run:08d}.run"


def _index_name(run: int) -> str:
    return f"{RUNS}/{run:08d}.index"
