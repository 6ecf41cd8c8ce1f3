"""Check the erased documents of a store, and the records of its erasures, for `verify`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.erasure.find import document_xxh3
from tokenmill.erasure.reconcile import ChangedStore, unit_files
from tokenmill.errors import StoreError
from tokenmill.storage import Folder, folder_at
from tokenmill.store.chain import StoreVersion, checked_head, claimed_at, erased_rules, head_at, of_unit, read_chain
from tokenmill.store.job import Run
from tokenmill.store.part import PartContent, corrupt_file
from tokenmill.store.tables import read_manifest


@dataclass(frozen=True, slots=True)
class CheckErased:
    """The function that compares the erased documents of a part with the records. `token` replaced their tokens."""

    directory: str
    version: StoreVersion
    token: int

    def __call__(self, unit: int, content: PartContent) -> int:
        """Return how many other documents have the tokens of an erased one: copies that no request has named."""
        documents = claimed_at(self.directory, self.version)
        own, lengths = of_unit(documents, unit), np.diff(content.offsets)
        erased = np.zeros(len(lengths), np.int64) if content.erased is None else content.erased
        numbers, expected = own["document"].to_numpy(), np.zeros(len(lengths), np.int64)
        if len(numbers) and (
            numbers.max() >= len(lengths)
            or not np.array_equal(lengths[numbers], own["tokens"].to_numpy())
            or not np.array_equal(content.row[numbers], own["row"].to_numpy())
        ):
            raise self._damaged(unit, "its documents are not those that were erased")
        expected[numbers] = own["change"].to_numpy()
        if not np.array_equal(expected, erased):
            raise self._damaged(unit, "it does not mark the documents that were erased from it")
        if (content.tokens[np.repeat(expected > 0, lengths)] != self.token).any():
            raise self._damaged(unit, "it holds tokens of a document that was erased")
        near = np.flatnonzero(np.isin(lengths, documents["tokens"].to_numpy()) & (erased == 0))
        hashes = pa.array([document_xxh3(content.document(index)) for index in near.tolist()], pa.string())
        return int(pc.sum(pc.is_in(hashes, documents["xxh3"].combine_chunks())).as_py() or 0)

    def _damaged(self, unit: int, reason: str) -> StoreError:
        name = head_at(self.directory, self.version).part_file(unit)
        return corrupt_file(folder_at(self.directory), unit, name, reason)


def record_problems(folder: Folder, run: Run) -> list[str]:
    """What is wrong with the records of the erasures of a store, and which files may hold what was erased."""
    try:
        files, base = unit_files(folder, run), read_manifest(folder, run)
        head = checked_head(folder, base)
        if not head.number:
            return []
        read_chain(folder, head)
        erased_rules(folder, head)
    except StoreError as error:
        return [error.text]
    names = ChangedStore(folder, run, head, base, files).leftovers()
    command = f"tokenmill erase {folder.root} --request {head.history[-1].request}"
    return [f"{folder.path(name)} may hold what was erased. This command removes it: {command}" for name in names]
