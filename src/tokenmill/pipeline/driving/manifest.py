"""Builds the manifest from what workers report, and from existing parts."""

from __future__ import annotations

from collections import Counter
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import CorruptStore
from tokenmill.executors.fan_out import FanOut
from tokenmill.pipeline.planning.estimate import ROW_BYTES
from tokenmill.pipeline.planning.open_run import check_parts
from tokenmill.pipeline.unit import plan as planning
from tokenmill.pipeline.unit.part_summaries import InvalidPart
from tokenmill.storage import Folder, prefetch_map
from tokenmill.store import event_log, layout, tables
from tokenmill.store.chain import BASE, Head
from tokenmill.store.job import Run
from tokenmill.store.manifest import manifest_columns, manifest_row, publish_manifest
from tokenmill.store.part import INTENDED, WITHOUT_TEXT, PartSummary, read_summary
from tokenmill.store.rank_summaries import REASONS, publish_summaries, read_summaries

# How many rows of the manifest are Python objects before they become a table.
ROWS_PER_TABLE = 1000

COUNTS = ("documents", "skipped", "quarantined")


class ManifestBuilder:
    """Collects one row for each part, as tables, so that a million rows stay small."""

    def __init__(self, folder: Folder, run: Run, plan: pa.Table, sources: pa.Table, head: Head = BASE) -> None:
        self._folder = folder
        self._head = head
        self._run = run
        self._digest = run.job.digest()
        self._slices = planning.SliceDigests(plan, sources)
        self.clear()

    def clear(self) -> None:
        """Forget every part."""
        self.rows = self.quarantined = 0
        self._collected = np.zeros(self._run.units, np.bool_)
        self._tables: list[pa.Table] = []
        self._rows: list[tuple[int | str | None, ...]] = []
        self._reasons: dict[int, Counter[str]] = {}
        self._further: dict[int, int] = {}  # of each unit, the documents that are not the first ones of their rows
        self.skipped_reasons: Counter[str] = Counter()  # how many rows are skipped, for each reason

    def missing(self) -> npt.NDArray[np.int64]:
        """The units whose parts are not collected."""
        return np.flatnonzero(~self._collected)

    def add(self, summary: PartSummary) -> None:
        """Add the summary of one part."""
        unit = summary.unit
        if self._collected[unit]:
            return
        if (summary.job, summary.slice) != (self._digest, self._slices[unit]):
            path = self._folder.path(summary.file)
            raise CorruptStore(f"part {unit} belongs to another run", f"file         {path}")
        self._collected[unit] = True
        self._note_reasons(summary.unit, _reasons(summary))
        self._count(summary.documents, summary.skipped_rows, summary.quarantined_rows)
        self._note_further(summary)
        self._rows.append(manifest_row(summary))
        if len(self._rows) >= ROWS_PER_TABLE:
            self._pack()

    def bad_reasons(self) -> Counter[str]:
        """How many rows are in quarantine, for each reason."""
        return +Counter({reason: rows for reason, rows in self.skipped_reasons.items() if reason not in INTENDED})

    @property
    def bad(self) -> int:
        """The number of rows in quarantine without those that a store that is the source has there, too."""
        store = self._run.job.source_store
        return self.quarantined - (0 if store is None else store.bad)

    @property
    def without_text(self) -> int:
        """The number of rows without text. A store that is the source has been made without them."""
        return 0 if self._run.job.source_store else sum(self.skipped_reasons[reason] for reason in WITHOUT_TEXT)

    def quarantined_units(self) -> list[int]:
        """The units that have rows in quarantine."""
        return [unit for unit, reasons in self._reasons.items() if reasons.keys() - INTENDED]

    def units_without_text(self) -> list[int]:
        """The units that have rows without text, in order."""
        return sorted(unit for unit, reasons in self._reasons.items() if reasons.keys() & WITHOUT_TEXT)

    def add_from_parts(
        self, fan_out: FanOut, units: npt.NDArray[np.int64], *, content_too: bool = False
    ) -> list[InvalidPart]:
        """Add the summaries of existing parts. Returns the parts that cannot be used."""
        invalid: list[InvalidPart] = []
        parts = ((unit, self._slices[unit]) for unit in units.tolist())
        for part in check_parts(
            fan_out, self._folder, self._run.job, parts, self._head.version, content_too=content_too
        ):
            if isinstance(part, InvalidPart):
                invalid.append(part)
            else:
                self.add(part)
        return invalid

    def publish_summaries(self) -> None:
        """Publish what is collected, which this rank has made, for the rank that publishes the manifest."""
        self._pack()
        rows = pa.concat_tables(self._tables)
        reasons = [msgspec.json.encode(self._reasons.get(unit, {})).decode() for unit in rows["unit"].to_pylist()]
        publish_summaries(self._folder, self._run, rows.append_column(REASONS, pa.array(reasons, pa.string())))

    def add_from_summaries(self) -> None:
        """Add what ranks have published of their parts, where the log records the same part for the unit."""
        summaries = list(read_summaries(self._folder, self._run))
        if not summaries or self._run.job.splits_rows:  # they do not have the number of rows
            return
        rows = pa.concat_tables(summaries)
        rows = rows.filter(pc.less(pc.cast(rows["unit"], pa.uint64()), self._run.units))
        is_wanted = ~self._collected
        if self._run.job.keep:
            is_wanted &= layout.numbered_files(self._folder, layout.KEPT, "parquet", self._run.units)
        recorded = event_log.recorded_parts(self._folder, self._run.units, tables.log_run(self._run))
        numbers = rows["unit"].to_numpy()
        places = np.flatnonzero(is_wanted[numbers] & (_prefixes(rows) == recorded[numbers]))
        units, first = np.unique(numbers[places], return_index=True)
        rows = rows.take(pa.array(places[first]))
        self._collected[units] = True
        self._count(*(int(rows[name].to_numpy().sum()) for name in COUNTS))
        skipping = rows.filter(pc.greater(rows["skipped"], 0))
        for unit, reasons in zip(skipping["unit"].to_pylist(), skipping[REASONS.name].to_pylist(), strict=True):
            self._note_reasons(unit, Counter(msgspec.json.decode(reasons, type=dict[str, int])))
        self._tables.append(rows.drop_columns(REASONS.name))

    def unrecorded(self, units: npt.NDArray[np.int64], recorded: event_log.Checksums) -> npt.NDArray[np.int64]:
        """Those of the units that are collected, but whose parts are not the ones that the log of the run records."""
        self._pack()
        table = pa.concat_tables(self._tables)
        table = table.filter(pa.array(np.isin(table["unit"].to_numpy(), units)))
        numbers = table["unit"].to_numpy().astype(np.int64)
        return np.sort(numbers[_prefixes(table) != recorded[numbers]])

    def discard(self, units: list[int]) -> None:
        """Remove the rows of units that are done again."""
        self._pack()
        table = pa.concat_tables(self._tables)
        is_gone = np.isin(table["unit"].to_numpy(), units)
        self._count(*(-int(table[name].to_numpy()[is_gone].sum()) for name in COUNTS))
        self._tables = [table.filter(pa.array(~is_gone))]
        self.rows += sum(self._further.pop(unit, 0) for unit in units)
        self._collected[units] = False
        for unit in units:
            self.skipped_reasons.subtract(self._reasons.pop(unit, {}))

    def adopt(self, manifest: pa.Table) -> None:
        """Use an existing manifest in place of all that was collected."""
        documents, skipped, self.quarantined = (int(np.sum(manifest[name].to_numpy())) for name in COUNTS)
        self.rows = documents + skipped
        self._reasons, self._further, self.skipped_reasons = {}, {}, Counter()
        needed = (manifest["skipped"].to_numpy() > 0) | self._run.job.splits_rows
        units = np.flatnonzero(needed).tolist()
        for summary in prefetch_map(self._folder, partial(read_summary, self._folder, head=self._head), units):
            self._note_reasons(summary.unit, _reasons(summary))
            self._note_further(summary)
        self._collected[:] = True

    def trained(self, *, has_begin: bool) -> tuple[int, int, int]:
        """The documents of the collected parts, how many tokens are trained on, and how many could be.

        No begin token can be.
        """
        self._pack()
        table = pa.concat_tables(self._tables)
        documents, trained, tokens = (pc.sum(table[name]).as_py() or 0 for name in ("documents", "trained", "tokens"))
        return documents, trained, tokens - documents * has_begin

    def publish(self, sizes: npt.NDArray[np.int64]) -> pa.Table:
        """Publish the manifest, with the sizes of the part files: from now on the store is complete."""
        self._pack()
        manifest = pa.concat_tables(self._tables).sort_by("unit")
        if not np.array_equal(manifest["unit"].to_numpy(), np.arange(self._run.units)):
            raise CorruptStore("the parts found are not those of the plan", f"run          {self._folder.root}")
        manifest = manifest.append_column(tables.MANIFEST_SCHEMA.field("bytes"), pa.array(sizes, pa.int64()))
        self._folder.sync_directory(layout.PARTS)
        if self._run.job.keep:
            self._folder.sync_directory(layout.KEPT)
        publish_manifest(self._folder, self._run, manifest)
        event_log.append(self._folder, [event_log.line("complete", units=self._run.units)])
        return manifest

    def truncated(self, sizes: npt.NDArray[np.int64]) -> list[int]:
        """The collected units whose files are missing, or shorter than the columns in their summaries."""
        self._pack()
        table = pa.concat_tables(self._tables)
        units, documents, tokens = (table[name].to_numpy() for name in ("unit", "documents", "tokens"))
        token_bytes = np.dtype(self._run.job.tokenizer.dtype).itemsize
        min_bytes = tokens * token_bytes + documents * ROW_BYTES
        return list(units[sizes[units] < np.maximum(min_bytes, 1)].tolist())

    def _note_reasons(self, unit: int, reasons: Counter[str]) -> None:
        if reasons:
            self._reasons[unit] = reasons
            self.skipped_reasons.update(reasons)

    def _note_further(self, summary: PartSummary) -> None:
        further = summary.documents + summary.skipped_rows - summary.source_rows
        if further:
            self._further[summary.unit] = further
            self.rows -= further

    def _count(self, documents: int, skipped: int, quarantined: int) -> None:
        self.rows += documents + skipped
        self.quarantined += quarantined

    def _pack(self) -> None:
        self._tables.append(manifest_columns(self._rows))
        self._rows = []


def _prefixes(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """The start of each part's checksum, as the log records it."""
    return np.array([event_log.checksum_prefix(blake3) for blake3 in rows["blake3"].to_pylist()], np.uint64)


def _reasons(summary: PartSummary) -> Counter[str]:
    """How many rows of a part were skipped, for each reason."""
    reasons: Counter[str] = Counter()
    for skipped in summary.skipped:
        reasons[skipped.reason] += skipped.rows
    return reasons
