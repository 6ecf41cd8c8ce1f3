"""Check the erased documents of a part against the records of the erasures. Runs in a worker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.pipeline.erase_units import document_xxh3
from tokenmill.storage import Folder
from tokenmill.store.erasures import erased_documents
from tokenmill.store.job import StoreChange
from tokenmill.store.part import PartContent, corrupt


def check_erased_part(
    folder: Folder, unit: int, content: PartContent, changes: Sequence[StoreChange], token: int
) -> int:
    """Compare the erased documents of a part with the records: which they are, their lengths, and that they are erased.

    Returns how many other documents have the tokens of an erased one: copies that no request has named.
    """
    erased = np.zeros(len(content.row), np.int64) if content.erased is None else content.erased
    lengths = np.diff(content.offsets)
    expected = np.zeros(len(content.row), np.int64)
    copies = 0
    for number, change in enumerate(changes, 1):
        if not change.documents:
            continue
        table = erased_documents(folder.root, change)
        low, high = np.searchsorted(table["unit"].to_numpy(), [unit, unit + 1]).tolist()
        own = table.slice(low, high - low)
        documents = own["document"].to_numpy()
        if len(documents) and (
            documents.max() >= len(lengths)
            or not np.array_equal(lengths[documents], own["tokens"].to_numpy())
            or not np.array_equal(content.row[documents], own["row"].to_numpy())
        ):
            raise corrupt(folder, unit, f"its documents are not those that request {change.request} erased")
        expected[documents] = number
        near = np.flatnonzero(np.isin(lengths, table["tokens"].to_numpy()) & (erased == 0))
        hashes = [document_xxh3(content.document(index)) for index in near.tolist()]
        copies += int(pc.sum(pc.is_in(pa.array(hashes, pa.string()), table["xxh3"].combine_chunks())).as_py() or 0)
    if not np.array_equal(expected, erased):
        raise corrupt(folder, unit, "it does not mark the documents that were erased from it")
    if (content.tokens[np.repeat(expected > 0, lengths)] != token).any():
        raise corrupt(folder, unit, "it holds tokens of a document that was erased")
    return copies
