"""A `datasets.Dataset` in, the same rows with their tokens out: what `dataset.map` gives, by tokenmill's own workers.

The Arrow files behind the dataset are read where they are. Rows that are in no file as they are (in memory, renamed, a
small selection of a large file) are written to one first.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.digest import digest_of
from tokenmill.errors import BadDocument, CorruptStore, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import hf_datasets, plan, worker_modules
from tokenmill.pipeline.freeze import FrozenRun, freeze, publish_again
from tokenmill.pipeline.hf_datasets import RowRange
from tokenmill.pipeline.map_rows import ROWS, MapRows, rows_name, rows_schema
from tokenmill.pipeline.messages import span
from tokenmill.pipeline.request import PrepareOptions, PrepareRequest, make_request, total_bytes
from tokenmill.pipeline.resources import plan_resources
from tokenmill.sources import discover, files_between, split_file
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.text_types import is_text
from tokenmill.store import layout
from tokenmill.tokenizers import vocabulary_cache
from tokenmill.tokenizers.resolve import Vocabulary, boundary_token, end_token, resolve
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from datasets import Dataset

MIN_SHARE = 0.25
"""A dataset that selects less than this share of its files' rows is written to a file of its own first."""

MAX_FILES = 512
"""About how many files a large dataset gets: each of them is mapped into memory by whoever opens it."""

SPILLED = "text.arrow"
MAX_ROW_BYTES = 1 << 30
"""The longest row that is tokenized: `map` has no limit, and memory sets one below this."""


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """Where a dataset's tokens are kept, and the files and the rows of them that they belong to; none if spilled."""

    folder: Folder
    extents: tuple[RowRange, ...] = ()
    file_rows: dict[str, int] | None = None


def map_dataset(  # noqa: PLR0913 - the options of the command, by their names
    dataset: Any,
    tokenizer: str,
    num_proc: int | None = None,
    *,
    column: str = "text",
    engine: str = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    memory: str | int | None = None,
    cache_dir: str | None = None,
    reporter: progress.Reporter | None = None,
    executor: LocalExecutor | None = None,
) -> Any:
    """A `Dataset` (or `DatasetDict`) with `ids` and `len` in place of the text, as the usual `map` recipe gives it.

    Call it again after any interruption: only what is missing is done. The tokens stay in `cache_dir`, unless said
    otherwise a folder of the datasets cache. An `executor` that is at hand saves the start of new workers.
    """
    if num_proc is not None and num_proc < 1:
        raise UsageError("num_proc has to be at least 1")
    words = PrepareOptions((), tokenizer, column, None, engine, eot, bos, max_document_bytes=MAX_ROW_BYTES)
    with (
        nullcontext(executor) if executor is not None else LocalExecutor(worker_modules(engine)) as pool,
        reporter if reporter is not None else progress.for_python() as report,
    ):
        cache = cache_dir or hf_datasets.default_cache()
        mapping = _Mapping(words, resolve(tokenizer), num_proc, memory, cache, pool, report)
        return hf_datasets.each_split(dataset, mapping.of)


@dataclass(frozen=True)
class _Mapping:
    words: PrepareOptions
    vocabulary: Vocabulary
    num_proc: int | None
    memory: str | int | None
    cache: str
    pool: LocalExecutor
    report: progress.Reporter

    def of(self, dataset: Dataset) -> Dataset:
        """The dataset with its tokens."""
        column = self.words.column
        if column not in dataset.column_names:
            raise UsageError(
                f"the dataset has no column named {column!r}",
                f"columns      {', '.join(dataset.column_names)}",
                "Name the column that holds the text: column=...",
            )
        self._refuse_other_than_text(dataset)
        place = self._place(dataset)
        tokens = self._kept(dataset, place)
        if tokens is None:
            place.folder.create()
            with place.folder.lock(layout.LOCK, self._wait):
                tokens = self._kept(dataset, place)  # whoever was waited for may have done it
                if tokens is None:
                    self._tokenize(dataset, place)
                    tokens = self._kept(dataset, place)
        if tokens is None:
            raise CorruptStore(f"the tokens in {place.folder.root} cannot be read", "Delete the directory.")
        if place.file_rows is not None:
            tokens = hf_datasets.take_ranges(tokens, place.extents, place.file_rows)
        origin = place.folder.root
        mapped = hf_datasets.with_tokens(dataset, column, tokens, origin, in_order=place.file_rows is None)
        self._refuse_nulls(mapped)
        return mapped

    def _refuse_other_than_text(self, dataset: Dataset) -> None:
        """Numbers, lists and the like are not turned into text: what their text would be is the user's choice."""
        schema, column = dataset.data.schema, self.words.column
        kind = schema.field(column).type
        if is_text(kind):
            return
        texts = [field.name for field in schema if is_text(field.type)]
        raise UsageError(
            f"the column {column!r} of the dataset does not hold text",
            f"type         {kind}",
            f"text columns {', '.join(texts) or 'none'}",
            "Name the column that holds the text: column=...",
            f"Or make it text first: dataset.map(lambda row: {{{column!r}: str(row[{column!r}])}})",
        )

    def _wait(self, process: str) -> None:
        self.report.say(f"waiting for process {process}, which maps the same rows")

    def _kept(self, dataset: Dataset, place: CacheLocation) -> Any:
        """The tokens of all rows, if they are there and whole."""
        folder = place.folder
        run = layout.read_run(folder)
        if run is None or not _written(folder, run).all():
            return None
        rows = len(dataset) if place.file_rows is None else sum(place.file_rows.values())
        paths = [folder.path(rows_name(unit)) for unit in range(run.units)]
        try:
            tokens = hf_datasets.table_of(paths, rows_schema(run.job))
        except (pa.ArrowInvalid, OSError):
            return None
        return tokens if len(tokens) == rows else None

    def _refuse_nulls(self, mapped: Dataset) -> None:
        row = hf_datasets.first_null(mapped, "ids")
        if row is not None:
            raise BadDocument(
                f"row {row} of the dataset has no text",
                f"Leave such rows out first: dataset.filter(lambda row: row[{self.words.column!r}] is not None)",
            )

    def _place(self, dataset: Dataset) -> CacheLocation:
        extents = hf_datasets.row_ranges(dataset, self.words.column)
        if extents:
            file_rows = self._file_rows(list(dict.fromkeys(extent.path for extent in extents)))
            folder = self._folder([(path, *_marks(path)) for path in file_rows])
            if len(dataset) >= MIN_SHARE * sum(file_rows.values()) or _is_complete(folder):
                return CacheLocation(folder, extents, file_rows)
        return CacheLocation(self._folder(hf_datasets.fingerprint(dataset)))

    def _file_rows(self, paths: list[str]) -> dict[str, int]:
        """How many rows each file has."""
        sources = discover(paths, "arrow").table
        options = ReadOptions(self.words.column)
        files = files_between(sources, 0, len(paths))
        rows = [split_file(file, options, plan.LARGEST_UNIT_BYTES).rows for file in files]
        return {path: 0 if counts is None else int(counts.sum()) for path, counts in zip(paths, rows, strict=True)}

    def _folder(self, sources: object) -> Folder:
        """A folder of its own for these sources and everything that decides their tokens."""
        spec, words = self.vocabulary.spec, self.words
        frame = boundary_token(spec, "--bos", words.bos, None), end_token(spec, words.eot)
        identity = [layout.FORMAT, sources, words.column, vocabulary_cache.vocabulary_digest(self.vocabulary), frame]
        return folder_at(os.path.join(self.cache, digest_of(identity)[:32]))

    def _tokenize(self, dataset: Dataset, place: CacheLocation) -> None:
        folder = place.folder
        for directory in (".", layout.TOKENIZER, ROWS):
            folder.remove_temporaries(directory)
        if _is_complete(folder):  # and yet they are not what they should be
            folder.remove(ROWS)
        if place.file_rows is None and not folder.exists(SPILLED):
            hf_datasets.spill(folder, SPILLED, dataset, self.words.column)
        request = self._request(list(place.file_rows) if place.file_rows else [folder.path(SPILLED)])
        folder.create(ROWS)
        self.pool.start(1)  # one is enough for a few headers; how many there will be is known after that
        frozen, reference = freeze(folder, request, self.pool), REFERENCES[self.vocabulary.spec.kind].name
        if frozen.files:  # the rows are kept by the content of the dataset, so they are of this source
            publish_again(folder, frozen)
        suspect = layout.read_mismatch(folder) is not None
        mismatch = self._run(folder, frozen, reference if suspect else request.choice.engine)
        if mismatch is not None and not suspect:
            folder.remove(ROWS)  # before the record: a call that finds it trusts all rows
            layout.publish_mismatch(folder, layout.MismatchRecord(request.choice.engine, mismatch))
            folder.create(ROWS)
            self._run(folder, frozen, reference)
        folder.sync_directory(ROWS)
        folder.discard(SPILLED)

    def _request(self, paths: list[str]) -> PrepareRequest:
        discovery = discover(paths, "arrow")
        size = total_bytes(discovery)
        unit_bytes = max(plan.default_unit_bytes(size), size // MAX_FILES)
        return make_request(replace(self.words, unit_bytes=unit_bytes), discovery, self.vocabulary)

    def _run(self, folder: Folder, frozen: FrozenRun, engine: str) -> str | None:
        """Write the rows of every unit that has none yet; the audit that the fast engine failed, if it did."""
        mismatch = None
        means = plan_resources(self.num_proc, self.memory, most_workers=frozen.run.units)
        self.pool.start(means.workers, means.worker_bytes, means.total_worker_bytes)
        there = _written(folder, frozen.run)
        sizes = frozen.plan["text_bytes"].to_numpy()
        self.report.begin("tokenize", int(sizes.sum()), int(sizes[there].sum()), means.workers)
        tasks = plan.tasks(frozen.plan, frozen.sources, np.flatnonzero(~there))
        function = MapRows(folder.root, frozen.run.job, engine, means.limits())
        crew = FanOut(self.pool, self.report, means.workers)
        for done in crew.each(function, tasks, lambda task: f"unit {task.unit} ({span(task)})"):
            crew.count(done.item.text_bytes, done.value.text_bytes, done.value.tokens)
            mismatch = mismatch or done.value.mismatch
            for notice in done.value.notices:
                self.report.say(f"note: {notice}")
        return mismatch


def _is_complete(folder: Folder) -> bool:
    run = layout.read_run(folder)
    return run is not None and bool(_written(folder, run).all())


def _written(folder: Folder, run: layout.Run) -> npt.NDArray[np.bool_]:
    return layout.numbered_files(folder, ROWS, "arrow", run.units)


def _marks(path: str) -> tuple[int, ...]:
    """What changes when a file is replaced or written to; a time that was set by hand does not hide it."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
