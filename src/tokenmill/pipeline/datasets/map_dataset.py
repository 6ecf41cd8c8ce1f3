"""Map a `datasets.Dataset` to its tokens with tokenmill's workers.

The workers read the Arrow files behind the dataset in place. Rows that no file holds as they are (in memory, renamed,
a slice or a small selection of a large file) are written to a file first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import BadDocument, CorruptStore, StoreError, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.local import LocalExecutor
from tokenmill.humanize import did_you_mean
from tokenmill.options import JobOptions
from tokenmill.pipeline.datasets import hf_datasets
from tokenmill.pipeline.datasets.map_rows import RECORD, ROWS, MapRows, are_intact, rows_name, rows_schema
from tokenmill.pipeline.planning.freeze import FrozenRun, freeze, load_existing, publish_again
from tokenmill.pipeline.planning.request import PrepareRequest, make_request, total_bytes
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.messages import span
from tokenmill.sources import discover, files_between, split_file
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.named_datasets import DEFAULT_COLUMN
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.arrow_text import is_text
from tokenmill.storage.digest import digest_of
from tokenmill.store import layout
from tokenmill.store.job import STORE_FORMAT, Run, read_run, read_vocabulary
from tokenmill.store.state import MismatchRecord, publish_mismatch, read_mismatch
from tokenmill.store.tables import manifest_run
from tokenmill.tokenization import vocabulary_cache
from tokenmill.tokenization.boundary_tokens import boundary_token, end_token
from tokenmill.tokenization.resolve import Vocabulary
from tokenmill.tokenization.tokenize_fn import refuse_overwriting
from tokenmill.tokenization.tokenizer import REFERENCES

if TYPE_CHECKING:
    from datasets import Dataset

# A dataset that selects a smaller fraction of its files' rows is written to a file of its own first.
MIN_FRACTION = 0.25
# About how many files a large dataset gets. Every process that opens the dataset maps all of them into memory.
MAX_FILES = 512
SPILLED = "text.arrow"
# The longest row that is tokenized. `dataset.map` has no limit, and memory usually sets a lower one.
MAX_ROW_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class CacheLocation:
    """The folder of a dataset's tokens, and the rows of each of its files; None if the rows are spilled to a file."""

    folder: Folder
    file_rows: dict[str, int] | None = None


@dataclass(frozen=True)
class DatasetMapper:
    """Maps datasets with one tokenizer and one set of workers."""

    options: JobOptions
    vocabulary: Vocabulary
    num_proc: int | None
    memory: str | int | None
    cache: str
    pool: LocalExecutor
    report: progress.Reporter
    keep_text: bool = False
    output: str | None = None

    @property
    def column(self) -> str:
        """The column with the text."""
        return self.options.column or DEFAULT_COLUMN

    def map(self, dataset: Dataset) -> Dataset:
        """The dataset with its tokens. They come from the cache if it has them."""
        column = self.column
        if column not in dataset.column_names:
            raise UsageError(
                f"the dataset has no column named {column!r}",
                f"columns      {', '.join(dataset.column_names)}",
                *did_you_mean(column, dataset.column_names),
                "Name the column that holds the text: column=...",
            )
        self._refuse_other_than_text(dataset)
        left_out = () if self.keep_text else (column,)
        refuse_overwriting([name for name in dataset.column_names if name not in left_out], self.output)
        location = self._location(dataset)
        tokens = self._cached(dataset, location)
        if tokens is None:
            location.folder.create()
            with location.folder.locks.exclusive(layout.LOCK, self._wait):
                tokens = self._cached(dataset, location)  # the process that held the lock may have written them
                if tokens is None:
                    self._tokenize(dataset, location)
                    tokens = self._cached(dataset, location)
        if tokens is None:
            raise CorruptStore(f"the tokens in {location.folder.root} cannot be read", "Delete the directory.")
        if self.output is not None:
            tokens = tokens.select(["ids"]).rename_columns([self.output])
        mapped = hf_datasets.with_tokens(
            dataset, column, tokens, location.folder, in_order=location.file_rows is None, keep_text=self.keep_text
        )
        self._refuse_nulls(mapped)
        return mapped

    def _refuse_other_than_text(self, dataset: Dataset) -> None:
        """Raise if the column is not text: how numbers or lists become text is the user's choice."""
        schema, column = dataset.data.schema, self.column
        kind = schema.field(column).type
        if is_text(kind):
            return
        texts = [field.name for field in schema if is_text(field.type)]
        raise UsageError(
            f"the column {column!r} of the dataset does not hold text",
            f"type         {kind}",
            f"text columns {', '.join(texts) or 'none'}",
            "Name the column that holds the text: column=...",
            *_advice(kind, column),
        )

    def _wait(self, process: str) -> None:
        self.report.say(f"waiting for process {process}, which maps the same rows")

    def _cached(self, dataset: Dataset, location: CacheLocation) -> Any:
        """The tokens of all rows, or None if some are missing or cannot be read."""
        folder = location.folder
        run = _sound_run(folder)
        if run is None or not _written(folder, run).all():
            return None
        if not all(are_intact(folder, rows_name(unit), _identity(run), unit) for unit in range(run.units)):
            return None
        rows = len(dataset) if location.file_rows is None else sum(location.file_rows.values())
        paths = [folder.path(rows_name(unit)) for unit in range(run.units)]
        try:
            tokens = hf_datasets.table_of(paths, rows_schema(run.job))
        except (pa.ArrowInvalid, OSError):
            return None
        return tokens if len(tokens) == rows else None

    def _refuse_nulls(self, mapped: Dataset) -> None:
        row = hf_datasets.first_null(mapped, self.output or "ids")
        if row is not None:
            raise BadDocument(
                f"row {row} of the dataset has no text",
                f"Remove such rows first: dataset.filter(lambda row: row[{self.column!r}] is not None)",
            )

    def _location(self, dataset: Dataset) -> CacheLocation:
        paths = hf_datasets.files_of(dataset, self.column)
        if paths:
            file_rows = self._file_rows(paths)
            folder = self._folder([(path, *_file_identity(path)) for path in paths])
            if len(dataset) >= MIN_FRACTION * sum(file_rows.values()) or _is_complete(folder):
                return CacheLocation(folder, file_rows)
        return CacheLocation(self._folder(hf_datasets.fingerprint(dataset)))

    def _file_rows(self, paths: list[str]) -> dict[str, int]:
        """The number of rows of each file."""
        sources = discover(paths, "arrow").table
        options = ReadOptions(self.column)
        files = files_between(sources, 0, len(paths))
        rows = [split_file(file, options, plan.LARGEST_UNIT_BYTES).rows for file in files]
        return {path: 0 if counts is None else int(counts.sum()) for path, counts in zip(paths, rows, strict=True)}

    def _folder(self, sources: object) -> Folder:
        """The folder for these sources and everything else that decides their tokens."""
        spec, options = self.vocabulary.spec, self.options
        frame = boundary_token(spec, "--bos", options.bos, None), end_token(spec, options.eot)
        identity = [STORE_FORMAT, sources, self.column, vocabulary_cache.vocabulary_digest(self.vocabulary), frame]
        return folder_at(os.path.join(self.cache, digest_of(identity)[:32]))

    def _tokenize(self, dataset: Dataset, location: CacheLocation) -> None:
        folder = location.folder
        for directory in (".", layout.TOKENIZER, ROWS):
            folder.remove_temporaries(directory)
        if _sound_run(folder) is None or _is_complete(folder):  # the rows may be of another run, or are damaged
            for directory in (ROWS, layout.TOKENIZER, layout.RECHECKED):
                folder.remove(directory)
            for name in (layout.RUN, layout.PLAN, layout.SOURCES, layout.MISMATCH, SPILLED):
                folder.discard(name)
        if location.file_rows is None:  # also if it exists: nothing proves that the file is as it was written
            hf_datasets.spill(folder, SPILLED, dataset, self.column)
            os.utime(folder.path(SPILLED), (0, 0))  # the same file for a call that goes on with the rows of this one
        request = self._request(list(location.file_rows) if location.file_rows else [folder.path(SPILLED)])
        folder.create(ROWS)
        self.pool.start(1)  # one worker reads the headers; the plan then decides how many there are
        frozen, reference = freeze(folder, request, self.pool), REFERENCES[self.vocabulary.spec.kind].name
        if frozen.files:  # the folder is named by the content, so its rows are of these sources
            publish_again(folder, frozen)
        suspect = read_mismatch(folder) is not None
        mismatch = self._run(folder, frozen, reference if suspect else request.choice.engine)
        if mismatch is not None and not suspect:
            folder.remove(ROWS)  # before the record, because a call that reads the record trusts all rows
            publish_mismatch(folder, MismatchRecord(request.choice.engine, mismatch))
            folder.create(ROWS)
            self._run(folder, frozen, reference)
        folder.sync_directory(ROWS)
        folder.discard(SPILLED)

    def _request(self, paths: list[str]) -> PrepareRequest:
        discovery = discover(paths, "arrow")
        size = total_bytes(discovery)
        unit_bytes = max(plan.default_unit_bytes(size), size // MAX_FILES)
        return make_request(replace(self.options, unit_bytes=unit_bytes), discovery, self.vocabulary)

    def _run(self, folder: Folder, frozen: FrozenRun, engine: str) -> str | None:
        """Write the rows of every unit that has none yet; return the mismatch that an audit found, if any."""
        mismatch = None
        resources = plan_resources(self.num_proc, self.memory, most_workers=frozen.run.units)
        self.pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes)
        written = _written(folder, frozen.run)
        sizes = frozen.plan["text_bytes"].to_numpy()
        self.report.begin("tokenize", int(sizes.sum()), int(sizes[written].sum()), resources.workers)
        tasks = plan.tasks(frozen.plan, frozen.sources, np.flatnonzero(~written))
        function = MapRows(folder.root, frozen.run.job, _identity(frozen.run), engine, resources.limits())
        fan_out = FanOut(self.pool, self.report, resources.workers)
        for done in fan_out.run(function, tasks, lambda task: f"unit {task.unit} ({span(task)})"):
            fan_out.count(done.item.text_bytes, done.value.text_bytes, done.value.tokens)
            mismatch = mismatch or done.value.mismatch
            for notice in done.value.notices:
                self.report.say(f"note: {notice}")
        return mismatch


def _advice(kind: pa.DataType, column: str) -> Iterator[str]:
    """How a column becomes text. The Python spelling of a list or a struct is no text to train on."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        yield f"Or make it text first: dataset.map(lambda row: {{{column!r}: str(row[{column!r}])}})"
    elif pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        yield "Conversations are not supported yet. tokenizer.apply_chat_template turns one into a text."
    else:
        yield "Or make it text first, by dataset.map with a function of yours."


def _sound_run(folder: Folder) -> Run | None:
    """The run of a cache directory; None if `run.json` or a file that it names is lost or damaged."""
    try:
        run = read_run(folder)
        if run is not None:
            load_existing(folder, run)
            read_vocabulary(folder, run.job.tokenizer)
    except StoreError:
        return None
    return run


def _is_complete(folder: Folder) -> bool:
    run = _sound_run(folder)
    return run is not None and bool(_written(folder, run).all())


def _written(folder: Folder, run: Run) -> npt.NDArray[np.bool_]:
    """Which units have rows, with the record that is published after them."""
    return layout.numbered_files(folder, ROWS, RECORD, run.units)


def _identity(run: Run) -> str:
    return digest_of(manifest_run(run).decode())


def _file_identity(path: str) -> tuple[int, ...]:
    """What changes when a file is replaced or written; ctime and inode change even if mtime was set back."""
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
