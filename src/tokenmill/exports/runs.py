"""Runs: the scratch files of a shuffle. A run holds the documents of some parts, sorted by stream and key.

Any range of keys is then one stretch of each run, so a shard reads as many stretches as there are runs, however many
parts there are. A run's index tells, for each bin of keys, how many documents and tokens come before it; it is
published after the run, so its existence means that the run is there.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.exports.job import RUNS
from tokenmill.part import PartContent, read_columns, write_columns
from tokenmill.storage import Folder

_INDEX_FILE = re.compile(r"(\d{8,})\.index")


@dataclass(frozen=True, slots=True)
class RunIndex:
    """How many documents and tokens of a run come before each bin; the streams follow each other."""

    documents: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]


def publish_run(folder: Folder, run: int, content: PartContent, places: npt.NDArray[np.int64], bins: int) -> None:
    """Publish documents that are sorted; `places` is the bin of each, counted through the streams."""
    with folder.publish(_run_name(run), settled=False) as file:
        write_columns(file, content, {})
    documents = np.searchsorted(places, np.arange(bins + 1))
    index = np.concatenate([documents, content.offsets[documents]]).astype("<i8")
    with folder.publish(_index_name(run), settled=False) as file:
        file.write(index.data)


def committed(folder: Folder) -> list[int]:
    """The runs that are there, in order."""
    return sorted(int(match[1]) for name in folder.names(RUNS) if (match := _INDEX_FILE.fullmatch(name)))


def read_index(folder: Folder, run: int) -> RunIndex:
    """A run's index, as views of its memory map."""
    documents, tokens = np.frombuffer(folder.map(_index_name(run)).read_buffer(), "<i8").reshape(2, -1)
    return RunIndex(documents, tokens)


@contextlib.contextmanager
def opened(folder: Folder, run: int) -> Iterator[PartContent]:
    """A run's columns as views of its memory map."""
    try:
        with folder.map(_run_name(run)) as file:
            yield read_columns(file)[1]
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptStore(f"{folder.path(_run_name(run))} is damaged", str(error)) from error


def token_bytes(folder: Folder, run: int) -> int:
    """The size of a token in a run."""
    with opened(folder, run) as content:
        return content.tokens.itemsize


def _run_name(run: int) -> str:
    return f"{RUNS}/{run:08d}.arrow"


def _index_name(run: int) -> str:
    return f"{RUNS}/{run:08d}.index"
