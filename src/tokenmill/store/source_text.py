"""The text of a document of a store, read again from its source."""

from __future__ import annotations

import numpy as np

from tokenmill.errors import SourceError
from tokenmill.sources import file_at, read_documents, split_file
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.store.member import Member

# A unit size that no file reaches: a file is split into one slice.
WHOLE_FILE_BYTES = 1 << 62


def read_source_text(member: Member, unit: int, source: int, row: int) -> str:
    """The text of a row of a source of this store. Reads the slice of the unit up to the row.

    Raises SourceError if the source is gone, has changed, or has no such document.
    """
    job = member.run.job
    options = job.read_options(with_marks=False, on_bad="quarantine", document_bytes=job.document_bytes)
    file = file_at(member.sources, source)
    file_slice = member.slice_of(unit) or whole_file(file, options)
    for documents in read_documents(file, file_slice, options) if file_slice is not None else ():
        index = int(np.searchsorted(documents.rows, np.uint64(row)))
        if index < len(documents.rows) and int(documents.rows[index]) == row:
            return str(documents.text[index].as_py())
    raise SourceError(
        "a document is not in its source any more", f"file         {file.path}", f"found at     {place(file.kind, row)}"
    )


def whole_file(file: SourceFile, options: ReadOptions) -> Slice | None:
    """A file as one slice; None if it has no content."""
    slices = split_file(file, options, WHOLE_FILE_BYTES)
    return slices.whole() if len(slices.start) else None
