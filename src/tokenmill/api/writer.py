"""`tokenmill.writer`: a store of documents whose tokens a program makes itself."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.api.parameters import output_text
from tokenmill.api.prepare import prepare
from tokenmill.api.prepare_rows import Spooled
from tokenmill.api.prepare_targets import PrepareResult
from tokenmill.errors import UsageError
from tokenmill.options import StrPath
from tokenmill.pipeline.planning.open_run import hold_store
from tokenmill.pipeline.rows.spool import spool_file, write_rows
from tokenmill.storage import folder_at
from tokenmill.store.job import read_run
from tokenmill.store.layout import SPOOL
from tokenmill.store.spool import ARROW, Spool, SpoolFile, publish_spool, read_arrow, read_spool, spool_name
from tokenmill.tokenization.objects import TokenizerObject

IDS = "ids"
"""The column of the ids. Kept columns have other names."""

FILE_TOKENS = 4 << 20
FILE_DOCUMENTS = 1 << 16
"""A file of documents is written with the one that gives it so many tokens, or so many documents."""

Ids = npt.NDArray[np.uint32]


class Writer:
    """Takes documents one after the other. At the end of its `with` block they are a store.

    Attributes:
        committed: How many documents are on disk. After a kill, adding goes on with the document of this number.
        result: The result of `prepare`, after the block.
    """

    def __init__(self, out: str, options: dict[str, Any]) -> None:
        self.committed = 0
        self.result: PrepareResult | None = None
        self._folder = folder_at(out)
        self._options = {**options, "out": out}
        self._files: list[SpoolFile] = []
        self._ids: list[Ids] = []
        self._kept: dict[str, list[Any]] = {}
        self._tokens = 0
        self._held = ExitStack()
        self._is_complete = False

    def __enter__(self) -> Self:
        self._held.enter_context(hold_store(self._folder, None))
        spool = read_spool(self._folder)
        self._is_complete = spool is not None
        if spool is not None:
            self._files = list(spool.files)
        else:
            self._folder.create(SPOOL)
            names = self._folder.names(SPOOL)
            while (name := spool_name(len(self._files), ARROW)).rpartition("/")[2] in names:
                file = spool_file(len(self._files), None, ARROW, read_arrow(self._folder, name))
                self._files.append(file.record)
        run = read_run(self._folder)
        if run is not None:
            self._kept = {column: [] for column in run.job.keep}
        elif self._files:
            columns = read_arrow(self._folder, self._files[0].name)[0].schema.names
            self._kept = {column: [] for column in columns if column != IDS}
        self.committed = sum(file.rows for file in self._files)
        return self

    def add(self, ids: npt.ArrayLike, **kept: Any) -> None:
        """Add a document: its token ids, without begin and end token, and the values of its kept columns."""
        if self._is_complete:
            raise UsageError(f"the store {self._folder.root} is complete", "Write more documents into another one.")
        document = np.asarray(ids)
        if document.ndim != 1 or (document.size and not np.issubdtype(document.dtype, np.integer)):
            raise UsageError(f"ids has to be a list of whole numbers, not {type(ids).__name__}")
        if document.size and not 0 <= int(document.min()) <= int(document.max()) < 1 << 32:
            raise UsageError("a document has an id that is negative or has more than 32 bits")
        if self.committed or self._ids:
            if kept.keys() != self._kept.keys():
                names = ", ".join(self._kept) or "none"
                raise UsageError(f"the document has the columns {', '.join(kept) or 'none'}", f"others have   {names}")
        else:
            self._kept = {name: [] for name in kept}
        self._ids.append(document.astype(np.uint32))
        for name, value in kept.items():
            self._kept[name].append(value)
        self._tokens += len(document)
        if self._tokens >= FILE_TOKENS or len(self._ids) >= FILE_DOCUMENTS:
            self._commit()

    def _commit(self) -> None:
        """Write the documents that are held to a file. They are on disk then."""
        lengths = [len(ids) for ids in self._ids]
        offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int64())
        documents = pa.LargeListArray.from_arrays(offsets, pa.array(np.concatenate(self._ids)))
        batch = pa.record_batch({IDS: documents, **{name: pa.array(values) for name, values in self._kept.items()}})
        file = spool_file(len(self._files), None, ARROW, [batch])
        with self._folder.publish(file.record.name) as output:
            write_rows(output, file)
        self._files.append(file.record)
        self.committed += len(self._ids)
        self._ids, self._tokens = [], 0
        self._kept = {name: [] for name in self._kept}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make the store of all documents. If the block ends with an error, what is on disk stays for the next call."""
        with self._held:
            if kind is not None:
                return
            if not self._is_complete:
                if self._ids:
                    self._commit()
                if not self._files:
                    raise UsageError("no document was added", "A store has at least one.")
                publish_spool(self._folder, Spool(ARROW, tuple(self._files)))
        options = {"keep": tuple(self._kept) or None, "rows": "documents", "source_bos": "none", "source_eot": "none"}
        self.result = prepare(Spooled(), tokens_column=IDS, **{**options, **self._options})


def writer(out: StrPath, *, tokenizer: StrPath | TokenizerObject, **options: Any) -> Writer:
    """A store of documents whose tokens a program makes itself, for a `with` block.

    The documents are written to files of the store in their order, and `prepare` makes the store of them at the end, so
    equal documents give equal bytes. After a kill, `committed` says how many documents are there, and adding goes on
    with the next one.

    Args:
        out: The directory of the store.
        tokenizer: The tokenizer of the ids, as for `prepare`.
        options: More options of `prepare`, such as `eot`, `bos`, `to` and `workers`.

    >>> with tokenmill.writer("tokens", tokenizer="gpt2") as w:  # doctest: +SKIP
    ...     for number, ids in enumerate(documents[w.committed :], w.committed):
    ...         w.add(ids, number=number)
    """
    return Writer(output_text(out), {**options, "tokenizer": tokenizer})
