"""The run directory: which files it holds, and how they are read and written.

`run.json` is published after the plan, the sources and the vocabulary, so its existence means that the run is frozen;
`manifest.parquet` is published last of all, so its existence means that the store is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.digest import canonical
from tokenmill.errors import CorruptStore, IncompleteStore, StoreError, UsageError
from tokenmill.sources import KINDS
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.tables import count_rows, read_parquet
from tokenmill.store.job import Job
from tokenmill.tokenizers.spec import TokenizerSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tokenmill.storage import Folder
    from tokenmill.store.part import PartSummary

RUN = "run.json"
SOURCES = "sources.parquet"
PLAN = "plan.parquet"
MANIFEST = "manifest.parquet"
LOG = "log.jsonl"
LOCK = ".lock"
PARTS = "parts"
TOKENIZER = "tokenizer"
QUARANTINE = "quarantine"
DRIVERS = "drivers"
MISMATCH = "engine-mismatch.json"
RECHECKED = "rechecked"
FOOTER_BYTES = 1 << 20
"""More than the footer of any of our tables has."""

RUN_BYTES = 64 << 20
"""More than any `run.json` has."""

FORMAT = 6
"""2 since sources have an identity, 3 since the manifest counts rows in quarantine, 4 since the plan keeps footers, 5
since it keeps only the numbers of them that differ, 6 since parts name their slices and the job limits documents."""

OLDEST_FORMAT = 5
"""The oldest format that can be read, exported and verified. A run of an older format than FORMAT is not continued."""

MANIFEST_SCHEMA = pa.schema(
    [
        ("unit", pa.int64()),
        ("documents", pa.int64()),
        ("tokens", pa.int64()),
        ("text_bytes", pa.int64()),
        ("skipped", pa.int64()),
        ("quarantined", pa.int64()),  # of those that are skipped
        ("sha256", pa.string()),
        ("xxh3", pa.string()),
        ("bytes", pa.int64()),  # the size of the part's file
    ]
)
MANIFEST_RUN = b"tokenmill.run"
"""The key of the manifest's metadata that names the run whose parts the manifest lists (see `manifest_run`)."""

COUNT_COLUMNS = ("documents", "tokens", "text_bytes", "skipped", "quarantined")
_MANIFEST_COLUMNS = {5: MANIFEST_SCHEMA.names[:-2], 6: MANIFEST_SCHEMA.names}

DETAIL = "detail"
"""It is packed by a codec that cannot shrink it much: that of many files alike would look like a bomb to readers."""

PLAN_GROUP_UNITS = 1 << 15
"""How many units are read at a time: what has been read of them is in memory twice for a moment."""

PLAN_SCHEMA = pa.schema(
    [
        ("source", pa.uint32()),  # the first source of the unit
        ("sources", pa.uint32()),  # how many sources follow each other in it
        ("start", pa.int64()),  # the slice, if the unit is a slice of one source; null if it is whole sources
        ("stop", pa.int64()),
        ("text_bytes", pa.int64()),  # as near as can be told without reading
        ("rows", pa.int64()),  # null where only reading tells
        (DETAIL, pa.large_binary()),  # what reading the slice needs of the file's footer, so that it is read once
    ]
)

_SCHEMAS = {
    PLAN: PLAN_SCHEMA,
    SOURCES: pa.schema(
        [
            ("path", pa.string()),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("size", pa.int64()),
            ("fingerprint", pa.string()),
            ("identity", pa.uint64()),
        ]
    ),
    MANIFEST: MANIFEST_SCHEMA,
}
_OPTIONAL = ("start", "stop", "rows", DETAIL)
"""The columns that may be null: a unit of whole sources has no slice, and rows are not always known."""


class Run(msgspec.Struct, frozen=True):
    """The frozen run: the job, what it was started with, and the hashes of the files beside it."""

    job: Job
    units: int
    sources: int
    source_bytes: int
    text_bytes: int
    sources_sha256: str
    plan_sha256: str
    engine: str
    versions: dict[str, str]
    format: int = FORMAT


def json_bytes(record: Any) -> bytes:
    """A record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def publish_json(folder: Folder, name: str, record: Any) -> None:
    """Publish a record as indented JSON."""
    with folder.publish(name) as file:
        file.write(json_bytes(record))


def table_bytes(table: pa.Table) -> bytes:
    """A table as Parquet."""
    sink = pa.BufferOutputStream()
    if table.schema.equals(PLAN_SCHEMA):
        names = [name for name in table.column_names if name != DETAIL]
        codecs = {**dict.fromkeys(names, "zstd"), DETAIL: "snappy"}
        options = {"use_dictionary": names, "write_statistics": names, "row_group_size": PLAN_GROUP_UNITS}
        pq.write_table(table, sink, compression=codecs, **options)
    else:
        pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def publish_table(folder: Folder, name: str, table: pa.Table) -> None:
    """Publish a table as Parquet."""
    with folder.publish(name) as file:
        file.write(table_bytes(table))


def read_table(
    folder: Folder,
    name: str,
    sha256: str | None = None,
    schema: pa.Schema | None = None,
    wanted: Collection[str] | None = None,
) -> pa.Table:
    """Read a table that `publish_table` wrote, checked against its hash where one is known.

    Its columns are those of the schema, if there is one, by default the one that a table of this name has in a store;
    if only some of them are `wanted`, the others are not read.
    """
    try:
        data = folder.buffer(name)
    except StoreError:
        if sha256 is None or folder.exists(name):
            raise
        raise lost(folder, name) from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise damaged(folder, name, f"it is not the file that {RUN} names")
    try:
        return read_parquet(data, schema or _SCHEMAS.get(name), _OPTIONAL, wanted)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage


def hashed_name(name: str, sha256: str) -> str:
    """The name of a table with its hash in it, so that it can be published beside another version of itself."""
    return f"{name.removesuffix('.parquet')}-{sha256[:16]}.parquet"


def table_name(folder: Folder, name: str, sha256: str) -> str:
    """The name of a table of a frozen run.

    It holds the table's hash in an object store, which has no lock, and on a disk once the run was frozen again.
    """
    hashed = hashed_name(name, sha256)
    return hashed if folder.is_remote or folder.exists(hashed) else name


def read_plan(folder: Folder, run: Run) -> pa.Table:
    """The plan of a run, whose units are slices of sources that there are."""
    plan = read_table(folder, table_name(folder, PLAN, run.plan_sha256), run.plan_sha256, PLAN_SCHEMA)
    source, sources = (plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    slices = [plan[name].fill_null(0).to_numpy() for name in ("start", "stop", "text_bytes", "rows")]
    if bool((source + sources > run.sources).any()) or bool((sources < 1).any()):
        raise damaged(folder, PLAN, f"a unit is not of the {run.sources} sources")
    if any(bool((column < 0).any()) for column in slices) or _too_many(plan["text_bytes"]):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    return plan


def read_planned_bytes(folder: Folder, run: Run) -> npt.NDArray[np.int64]:
    """How much text each unit has, by the plan, of which nothing else is read."""
    name = table_name(folder, PLAN, run.plan_sha256)
    column = read_table(folder, name, run.plan_sha256, PLAN_SCHEMA, ["text_bytes"])["text_bytes"]
    if _too_many(column):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    planned: npt.NDArray[np.int64] = column.to_numpy()
    return planned


def read_sources(folder: Folder, run: Run) -> pa.Table:
    """The sources of a run."""
    sources = read_table(folder, table_name(folder, SOURCES, run.sources_sha256), run.sources_sha256, _SCHEMAS[SOURCES])
    kinds = set(sources["kind"].unique().to_pylist())
    if not kinds <= set(KINDS):
        raise damaged(folder, SOURCES, f"a source is of kind {min(kinds - set(KINDS))[:20]!r}")
    return sources


def read_vocabulary(folder: Folder, tokenizer: TokenizerSpec) -> bytes:
    """The vocabulary of a run, which is what its hash says, byte for byte."""
    name = f"{TOKENIZER}/{tokenizer.file}"
    try:
        content = folder.read(name)
    except StoreError:
        if folder.exists(name):
            raise
        raise lost(folder, name) from None
    if hashlib.sha256(content).hexdigest() != tokenizer.sha256:
        raise damaged(folder, name, f"it is not the vocabulary that {RUN} names")
    return content


def read_run(folder: Folder, *, with_tables: bool = True) -> Run | None:
    """The frozen run of a directory, or None if there is none yet.

    Args:
        folder: The directory.
        with_tables: Whether to check that the plan and the sources are there, and have as many rows as the run states.
    """
    if not folder.exists(RUN):
        return None
    try:
        data = folder.read(RUN, RUN_BYTES)
        written = decode(data, _Format).format
        if not OLDEST_FORMAT <= written <= FORMAT:
            readable = f"formats {OLDEST_FORMAT} to {FORMAT}"
            raise StoreError(f"{folder.root} was written in format {written}; this tokenmill reads {readable}")
        run = decode(data, Run)
        _check_counts(run)
        _check_tokenizer(run.job)
    except MalformedDataError as damage:
        raise damaged(folder, RUN, str(damage)) from damage
    if with_tables:
        check_tables(folder, run)
    return run


def check_tables(folder: Folder, run: Run) -> None:
    """Refuse a run whose plan or sources are lost, or do not have as many rows as the run states."""
    _check_rows(folder, table_name(folder, PLAN, run.plan_sha256), run.units)
    _check_rows(folder, table_name(folder, SOURCES, run.sources_sha256), run.sources)


_ENDINGS = {"tiktoken": "tiktoken", "huggingface": "json"}
"""What the vocabulary of each kind of tokenizer is called after its hash."""


class _Format(msgspec.Struct):
    """The one field of `run.json` that every version has."""

    format: int = 1


def _check_counts(run: Run) -> None:
    job = run.job
    counts = (run.units, run.sources, run.source_bytes, run.text_bytes, job.unit_bytes, job.limit_units or 0)
    if not 0 <= min(counts) <= max(*counts, job.document_bytes or 0) < 1 << 62:
        raise MalformedDataError("it has negative or impossible counts")


def _check_tokenizer(job: Job) -> None:
    """Refuse a tokenizer whose file is not named by its hash, or that no vocabulary can be."""
    tokenizer = job.tokenizer
    if tokenizer.kind not in _ENDINGS or not 0 < tokenizer.vocabulary_size <= 1 << 32:
        raise MalformedDataError(
            f"there is no vocabulary of {tokenizer.vocabulary_size} ids and of kind {tokenizer.kind[:20]!r}"
        )
    named = f"{tokenizer.sha256}.{_ENDINGS[tokenizer.kind]}"
    if not re.fullmatch("[0-9a-f]{64}", tokenizer.sha256) or tokenizer.file != named:
        raise MalformedDataError(f"the vocabulary has the name {tokenizer.file[:100]!r}")
    tokens = [*tokenizer.special_tokens.values(), tokenizer.end_of_text, job.begin, job.end]
    if any(token is not None and not 0 <= token < tokenizer.vocabulary_size for token in tokens):
        raise MalformedDataError(f"a token is not among the {tokenizer.vocabulary_size} ids")


def _check_rows(folder: Folder, name: str, expected: int) -> None:
    """Compare a count of `run.json` with the table it counts, before anything is made of that size."""
    try:
        size = folder.size(name)
    except StoreError:
        if folder.exists(name):
            raise
        raise lost(folder, name) from None
    tail = min(size, FOOTER_BYTES)  # a plan may take hundreds of megabytes, and a network may be in between
    try:
        rows = count_rows(pa.py_buffer(folder.read_at(name, size - tail, tail)), size)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage
    if rows != expected:
        raise damaged(folder, RUN, f"it tells of {expected} rows in {name}, which has {rows}")


def damaged(folder: Folder, name: str, reason: str) -> CorruptStore:
    """The error for a file that does not hold what it should, with the command that makes it again."""
    return CorruptStore(f"{folder.path(name)} is damaged", f"reason       {reason}", *_advice(name))


def lost(folder: Folder, name: str) -> CorruptStore:
    """The error for a file that should be there, with the command that makes it again."""
    return CorruptStore(f"{folder.path(name)} is missing", *_advice(name))


_PREPARE = "Run the same `tokenmill prepare` again:"
_ADVICE = {
    "run.": f"Remove {RUN} and run the same `tokenmill prepare` again: it keeps the parts that belong to the sources.",
    "plan": f"{_PREPARE} with the options and sources of before it makes the plan again.",
    "sources": f"{_PREPARE} with the options and sources of before it makes the list of sources again.",
    "manifest.": f"{_PREPARE} it checks the parts and writes the manifest again.",
    f"{PARTS}/": "Run the same `tokenmill prepare` with --repair: it makes the damaged parts again, and no other.",
    f"{TOKENIZER}/": f"{_PREPARE} it writes the vocabulary again.",
}
"""What to do about a damaged file, by the beginning of its name."""


def _advice(name: str) -> list[str]:
    return [advice for beginning, advice in _ADVICE.items() if name.startswith(beginning)]


def require_run(folder: Folder) -> Run:
    """The frozen run of a directory that should have one."""
    run = read_run(folder)
    if run is None:
        raise StoreError(
            f"{folder.root} is not a tokenmill store",
            f"There is no {RUN} in it. `tokenmill prepare SOURCE --tokenizer T --out DIR` makes one.",
        )
    return run


def require_manifest(folder: Folder, run: Run) -> pa.Table:
    """The manifest of a store that should be complete."""
    if folder.exists(MANIFEST):
        refuse_suspect(folder, run)
        return read_manifest(folder, run)
    committed = int(committed_units(folder, run.units).sum())
    raise IncompleteStore(
        f"the store {folder.root} is not complete",
        f"units        {committed:,} of {run.units:,} are committed",
        "Run the same `tokenmill prepare` again to finish it.",
    )


def refuse_suspect(folder: Folder, run: Run) -> None:
    """Refuse a store in which the fast engine failed an audit, until the reference engine has confirmed every part."""
    mismatch = read_mismatch(folder)
    if mismatch is not None and is_suspect(folder, run):
        raise IncompleteStore(
            f"{mismatch.engine} failed an audit in {folder.root}",
            f"found        {mismatch.message}",
            "Run the same `tokenmill prepare` again: it compares every part with the reference engine.",
        )


def manifest_run(run: Run) -> bytes:
    """What a manifest states about its run: the job, and the checksums of the plan and of the sources."""
    return canonical({"job": run.job.digest(), "plan": run.plan_sha256, "sources": run.sources_sha256})


def publish_manifest(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Publish the manifest of this run: from now on the store is complete."""
    publish_table(folder, MANIFEST, manifest.replace_schema_metadata({MANIFEST_RUN: manifest_run(run)}))


class ForeignManifest(CorruptStore):
    """The manifest names another run than `run.json`."""


def _check_manifest_run(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Refuse a manifest of another run. Manifests of format 5 do not name their run."""
    stated = (manifest.schema.metadata or {}).get(MANIFEST_RUN)
    if run.format < 6 or stated == manifest_run(run):
        return
    if stated is None:
        raise damaged(folder, MANIFEST, "it does not name the run that it belongs to")
    raise ForeignManifest(*damaged(folder, MANIFEST, f"it belongs to another run than {RUN}").args)


def has_foreign_manifest(folder: Folder, run: Run) -> bool:
    """Whether a store has a manifest that names another run."""
    try:
        if folder.exists(MANIFEST):
            read_checksums(folder, run)
    except CorruptStore as error:
        return isinstance(error, ForeignManifest)
    return False


def read_manifest(folder: Folder, run: Run) -> pa.Table:
    """The manifest, if it belongs to this run, has the units of the plan, and counts that can be added up."""
    schema = _manifest_schema(run)
    manifest = read_table(folder, MANIFEST, schema=schema)
    _check_manifest_run(folder, run, manifest)
    if not np.array_equal(manifest["unit"].to_numpy(), np.arange(run.units)):
        raise damaged(folder, MANIFEST, f"its units are not the {run.units} of the plan")
    for field in schema:
        if pa.types.is_integer(field.type) and _too_many(manifest[field.name]):
            raise damaged(folder, MANIFEST, f"its column {field.name} has impossible counts")
    return manifest


def _manifest_schema(run: Run) -> pa.Schema:
    return pa.schema([MANIFEST_SCHEMA.field(name) for name in _MANIFEST_COLUMNS[run.format]])


def read_checksums(folder: Folder, run: Run) -> pa.Table:
    """The checksums of the manifest, of which nothing else is read."""
    checksums = read_table(folder, MANIFEST, schema=_manifest_schema(run), wanted=["sha256"])
    _check_manifest_run(folder, run, checksums)
    return checksums


def _too_many(column: pa.ChunkedArray) -> bool:
    """Whether counts are negative, or their sum is none that 63 bits hold."""
    counts = column.to_numpy()
    return bool((counts < 0).any()) or float(counts.sum(dtype=np.float64)) >= 2.0**62


def committed_units(folder: Folder, units: int) -> npt.NDArray[np.bool_]:
    """Which units have a part, by listing the parts once."""
    return numbered_files(folder, PARTS, "arrow", units)


def part_sizes(folder: Folder, units: int) -> npt.NDArray[np.int64]:
    """The size of each unit's part, by listing the parts once; -1 where the part is missing."""
    sizes = np.full(units, -1, np.int64)
    for files in folder.numbered_sizes(PARTS, units):
        found = [(int(match[1]), size) for name, size in files if (match := _PART.fullmatch(name))]
        numbers, lengths = np.array(found, np.int64).reshape(-1, 2).T
        sizes[numbers[numbers < units]] = lengths[numbers < units]
    return sizes


def numbered_parts(folder: Folder) -> list[int]:
    """The numbers of all parts that are there, also of those that the plan does not have."""
    return sorted(int(match[1]) for name in folder.names(PARTS) if (match := _PART.fullmatch(name)))


_PART = re.compile(r"([0-9]{8,18})\.arrow")


def withdraw_manifest(folder: Folder) -> None:
    """Remove the manifest, durably, before a part is made again: from now on the store is incomplete."""
    folder.discard(MANIFEST)
    folder.sync_directory(".")


class MismatchRecord(msgspec.Struct, frozen=True):
    """An audit that the fast engine failed in this store: `message` names the document."""

    engine: str
    message: str


def publish_mismatch(folder: Folder, mismatch: MismatchRecord) -> None:
    """Record that the fast engine was wrong in this store; the first record stays."""
    folder.publish_new(MISMATCH, json_bytes(mismatch))


def read_mismatch(folder: Folder) -> MismatchRecord | None:
    """The audit that failed in this store, or None."""
    if not folder.exists(MISMATCH):
        return None
    try:
        return decode(folder.read(MISMATCH, RUN_BYTES), MismatchRecord)
    except MalformedDataError:
        return MismatchRecord("the fast engine", f"the record {MISMATCH} is damaged")


def is_suspect(folder: Folder, run: Run) -> bool:
    """Whether the fast engine failed an audit in this store, and some part is not confirmed by the reference yet."""
    return folder.exists(MISMATCH) and not bool(rechecked_units(folder, run.units).all())


def rechecked_name(unit: int) -> str:
    """The file whose existence means that the part of a unit was made, or confirmed, by the reference engine."""
    return f"{RECHECKED}/{unit:08d}.ok"


def rechecked_units(folder: Folder, units: int) -> npt.NDArray[np.bool_]:
    """Which units have a part that the reference engine made or confirmed."""
    return numbered_files(folder, RECHECKED, "ok", units)


def numbered_files(folder: Folder, directory: str, ending: str, count: int) -> npt.NDArray[np.bool_]:
    """Which of so many files are in a directory, where a file is called by its number, by listing it once."""
    pattern = re.compile(rf"([0-9]{{8,18}})\.{ending}")
    there = np.zeros(count, np.bool_)
    for names in folder.numbered_names(directory, count):
        numbers = np.array([int(match[1]) for name in names if (match := pattern.fullmatch(name))], np.int64)
        there[numbers[numbers < count]] = True
    return there


def manifest_row(s: PartSummary) -> tuple[int | str, ...]:
    """The row of a part in the manifest, without the size of its file."""
    return s.unit, s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.quarantined_rows, s.sha256, s.xxh3


def manifest_columns(rows: Sequence[tuple[int | str, ...]]) -> pa.Table:
    """Some rows of the manifest, without the sizes of the files."""
    schema = MANIFEST_SCHEMA.remove(len(MANIFEST_SCHEMA) - 1)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def is_listed(manifest: pa.Table, summary: PartSummary) -> bool:
    """Whether the manifest's row of this unit describes this very part."""
    row = manifest_columns([manifest_row(summary)])
    names = [name for name in row.column_names if name in manifest.column_names]
    return bool(manifest.slice(summary.unit, 1).select(names).equals(row.select(names)))


def remove_temporaries(folder: Folder) -> None:
    """Remove what killed writers left behind; call it only while nobody else writes."""
    for directory in (".", TOKENIZER, PARTS, QUARANTINE, DRIVERS, RECHECKED):
        folder.remove_temporaries(directory)


def remove_stale_temporaries(folder: Folder) -> None:
    """Remove what killed writers left behind, if nobody writes now."""
    with contextlib.suppress(UsageError), folder.lock(LOCK):
        remove_temporaries(folder)
