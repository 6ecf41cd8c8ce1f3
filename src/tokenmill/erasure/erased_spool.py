"""Erase rows from the spool of a store: they become rows without values, so that all rows keep their numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.executors.fan_out import FanOut
from tokenmill.storage import Folder, folder_at
from tokenmill.store.chain import Head, claimed_documents, read_chain
from tokenmill.store.job import Run
from tokenmill.store.spool import JSONL, spool_of, write_arrow, write_lines
from tokenmill.store.tables import read_sources

EMPTY = b"{}"


@dataclass(frozen=True, slots=True)
class SpoolRows:
    """The rows of a spool file that are erased, by all changes."""

    name: str
    kind: str
    rows: npt.NDArray[np.uint64]


def erase_spool(folder: Folder, run: Run, head: Head, fan_out: FanOut) -> None:
    """Write the spool files with rows of the last change again, without these rows and those erased before."""
    sources = read_sources(folder, run)
    spool = spool_of(folder, sources)
    if spool is None or spool.dropped:
        return
    index_of = {path: index for index, path in enumerate(sources["path"].to_pylist())}
    documents = claimed_documents(folder, head)
    origins = [*zip(*(documents[name].to_pylist() for name in ("change", "source", "row")), strict=True)]
    for claim in read_chain(folder, head):
        origins += [(claim.number, index_of[row.file], row.row) for row in claim.quarantined if row.file in index_of]
    rows = np.array(origins, np.uint64).reshape(-1, 3)
    items = [
        SpoolRows(spool.files[source].name, spool.kind, np.unique(rows[rows[:, 1] == source, 2]))
        for source in np.unique(rows[rows[:, 0] == head.number, 1]).tolist()
    ]
    for _ in fan_out.run(EraseRows(folder.root), items, lambda item: item.name):
        pass


@dataclass(frozen=True, slots=True)
class EraseRows:
    """The function that writes a spool file again without the values of some rows. Runs in a worker."""

    directory: str

    def __call__(self, item: SpoolRows) -> None:
        """Replace the file. Rows that are empty already stay so."""
        folder = folder_at(self.directory)
        data = folder.buffer(item.name)
        if item.kind == JSONL:
            with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
                content = bytearray(stream.read())
            for start in item.rows.tolist():
                stop = content.index(b"\n", start)
                content[start:stop] = EMPTY.ljust(stop - start)[: stop - start]
            with folder.publish(item.name) as file:
                write_lines(file, pa.py_buffer(content))
            return
        with pa.ipc.open_file(pa.BufferReader(data)) as reader:
            batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        first, written = 0, []
        for batch in batches:
            numbers = np.arange(len(batch))
            is_erased = np.isin(numbers + first, item.rows)
            written.append(batch.take(pa.array(numbers, mask=is_erased)) if is_erased.any() else batch)
            first += len(batch)
        with folder.publish(item.name) as file:
            write_arrow(file, written)
