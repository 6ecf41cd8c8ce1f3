"""The job of an export: every choice that decides its bytes, stored in export.json before the first shard."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Sequence

import msgspec
import numpy as np

from tokenmill.choices import EndTokenPosition, Tail
from tokenmill.errors import CorruptStore, JobChanged, StoreError, UsageError
from tokenmill.humanize import parse_fraction
from tokenmill.storage import Folder, folder_at, publish_new
from tokenmill.storage.digest import differences, digest_of, hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.chain import StoreVersion, require_version
from tokenmill.store.collection import Collection
from tokenmill.store.held_out import split_name
from tokenmill.token_files import FORMATS
from tokenmill.token_files.protocol import LABEL, ExportedColumn, FormatSpec

# The directory of an export's own files. It is hidden, because some trainers read every file that they see.
STATE = layout.EXPORT_STATE

EXPORT = layout.EXPORT
PLAN = layout.EXPORT_PLAN
RECORDS = f"{STATE}/shards"
RUNS = f"{STATE}/runs"
LOCK = f"{STATE}/lock"

# Numbered manifests. The first one completes the export; each erasure adds one. None is ever replaced.
MANIFESTS = f"{STATE}/manifests"

_MANIFEST = re.compile(r"([0-9]{8,18})\.parquet")

# The format of these files. It changes if a reader of before could misread them.
FORMAT = 1

# An export.json is smaller than this.
EXPORT_BYTES = 1 << 20

# Token counts in export.json above this are damage.
MAX_TOKENS = 1 << 62

# More bins in export.json are damage: the memory of a plan grows with them.
MAX_BINS = 1 << 22

# With more stores than this, the proposed name of a directory has only the first.
MAX_STEMS = 3

# The `--val` that makes the first shard the validation split.
FIRST_SHARD = "first-shard"


class SelectedStore(msgspec.Struct, frozen=True, omit_defaults=True):
    """One copy of a store in an export by recipe: the name of its source, and how many sources the store has.

    `limit` is the hash below which documents are taken; None if all are. `where` is a condition on kept columns.
    """

    source: str
    copy: int
    sources: int
    limit: int | None
    where: str | None = None


class Selection(msgspec.Struct, frozen=True):
    """The documents of an export by recipe: `tokens` tokens in all, of the stores in order."""

    seed: int
    tokens: int
    stores: tuple[SelectedStore, ...]


class ExportJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """The options of an export with every default filled in.

    `shard_tokens` is None if each split is one file. `val` is a fraction of the documents, `split:NAME` (a split of
    the sources), `first-shard` or None.
    `val_tokens` is the size of that first shard. `store` is the digest of the exported parts. `with_columns` are kept
    columns of the store. `selection` is that of an export by recipe, which is always shuffled. `mask` is how the files
    tell which tokens are trained on; empty if they do not. `row_tokens` is the size of rows of whole documents.
    """

    format: str
    store: str
    tokenizer: str
    dtype: str
    end: EndTokenPosition
    end_token: int | None
    name: str
    val: str | None
    val_tokens: int | None
    shuffle: int | None
    shard_tokens: int | None
    tail: Tail
    sequence_tokens: int | None
    columns: str = ""
    with_columns: tuple[ExportedColumn, ...] = ()
    selection: Selection | None = None
    mask: str = ""
    row_tokens: int | None = None

    @property
    def holds_out(self) -> bool:
        """Whether documents are held out, by hash or by the split of their source; a first shard is not."""
        return self.val is not None and self.val != FIRST_SHARD

    @property
    def streams(self) -> int:
        """The number of document streams: training documents, and documents that are held out."""
        return 2 if self.holds_out else 1

    def identity(self) -> dict[str, str]:
        """Return the choices that decide the bytes, by the names that users know."""
        chosen = {} if self.selection is None else {"recipe": f"blake3 {digest_of(self.selection)}"}
        if self.mask:
            chosen["--mask"] = self.mask
        if self.row_tokens:
            chosen["--packed"] = f"{self.row_tokens:,}"
        if self.with_columns:
            chosen["--with"] = ", ".join(f"{column.name} ({column.type})" for column in self.with_columns)
        return {
            "--to": self.format,
            "store": f"blake3 {self.store}",
            "tokenizer": self.tokenizer,
            "--dtype": self.dtype,
            "--eot-position": f"{self.end} ({self.end_token})",
            "--name": self.name or "none",
            "--val": f"{self.val or 'none'}" + (f" of {self.val_tokens:,} tokens" if self.val_tokens else ""),
            "--shuffle": "none" if self.shuffle is None else str(self.shuffle),
            "--shard-tokens": "one file" if self.shard_tokens is None else f"{self.shard_tokens:,}",
            "--tail": self.tail,
            "--sequence-tokens": "none" if self.sequence_tokens is None else str(self.sequence_tokens),
            "--columns": self.columns or "none",
            **chosen,
        }

    @property
    def region_token_bytes(self) -> tuple[int, ...]:
        """The bytes of a token in the files that several workers write: that of the tokens, and that of labels."""
        return tuple(np.dtype(dtype).itemsize for dtype in ([self.dtype, LABEL] if self.mask else [self.dtype]))

    @property
    def marked_dtype(self) -> str:
        """The type of the tokens on their way into the files, with the marks of a mask."""
        return "uint32" if self.mask else self.dtype

    def digest(self) -> str:
        """Return the BLAKE3 of the identity in canonical JSON."""
        return digest_of(self.identity())


class ExportedStore(msgspec.Struct, frozen=True):
    """One of the stores of an export. Its sources are numbered after those of the stores before it.

    `directory` is empty if the export is inside the store. `version` is that of the store when the export was begun:
    documents that were erased before are not in the export. Those that are erased later stay in it as end tokens.
    """

    directory: str
    identity: str
    version: StoreVersion
    parts: int
    sources: int


class FrozenExport(msgspec.Struct, frozen=True):
    """The content of export.json: the job, and how its work is divided, which does not change the files.

    `bins` is the number of key ranges of the shuffle, `run_tokens` the number of tokens that are sorted at once.
    `merges` is how many sorted runs are merged at once, for each merge. `checksum` covers all other fields.
    """

    job: ExportJob
    bins: int
    run_tokens: int
    merges: tuple[int, ...] = ()
    stores: tuple[ExportedStore, ...] = ()
    format: int = FORMAT
    checksum: str = ""

    def work_digest(self) -> str:
        """Return the digest of what the plan depends on: the job, and how its work is divided."""
        work = {"bins": self.bins, "run_tokens": self.run_tokens, "merges": self.merges}
        return digest_of({"export": self.job.digest()} | {name: str(value) for name, value in work.items()})

    def directories(self, export: Folder) -> list[str]:
        """Return the directories of the exported stores. Empty if the export was moved out of a store."""
        parent = export.root.rpartition("/")[0]
        if all(store.directory for store in self.stores) or (parent and folder_at(parent).exists(layout.RUN)):
            return [store.directory or parent for store in self.stores]
        return []

    def with_checksum(self) -> FrozenExport:
        """Return a copy with its checksum."""
        fields = msgspec.structs.replace(self, checksum="")
        return msgspec.structs.replace(fields, checksum=hash_of(msgspec.json.encode(fields)))


def read_frozen(folder: Folder) -> FrozenExport | None:
    """Read the export of a directory, or None without an export. Raises CorruptStore if only export.json is missing."""
    if not folder.exists(EXPORT):
        begun = is_begun(folder)
        if not folder.exists(EXPORT):  # checked again: another machine may have just published it, and then its plan
            if begun:
                raise layout.lost_export(folder)
            return None
    try:
        data = folder.read(EXPORT, EXPORT_BYTES)
        layout.refuse_other_format(folder, data, FORMAT, layout.restart_advice(folder))
        frozen = decode(data, FrozenExport)
        _check(frozen)
    except MalformedDataError as damage:
        raise CorruptStore(
            f"{folder.path(EXPORT)} is damaged", f"reason       {damage}", layout.restart_advice(folder)
        ) from damage
    return frozen


def is_begun(folder: Folder) -> bool:
    """Return whether the directory has the plan of an export. Shards are written after the plan."""
    return folder.exists(PLAN) or is_complete(folder)


def is_complete(folder: Folder) -> bool:
    """Return whether the export in a directory was complete once."""
    return bool(manifest_numbers(folder))


def manifest_file(number: int) -> str:
    """Return the name of a manifest."""
    return f"{MANIFESTS}/{number:08d}.parquet"


def manifest_numbers(folder: Folder) -> list[int]:
    """Return the numbers of the manifests of an export, in order. The last one describes its files."""
    names = map(_MANIFEST.fullmatch, folder.names(MANIFESTS))
    return sorted(int(match[1]) for match in names if match is not None)


def left_out_changes(before: FrozenExport | None, stores: Collection) -> list[int]:
    """Return how many changes of each store the export knows: the documents that these erased are not in it.

    A new export knows all of them. Documents that were erased after an export was begun stay in it as end tokens, so
    that no other document moves. Raises CorruptStore if a store does not have the version that the export names.
    """
    heads = [member.head for member in stores.members]
    if before is None or [store.identity for store in before.stores] != [head.identity for head in heads]:
        return [head.number for head in heads]
    for member, store in zip(stores.members, before.stores, strict=True):
        require_version(member.folder, member.head, store.version)
    return [store.version.number for store in before.stores]


def stores_in(export: Folder, stores: Collection, changes: Sequence[int]) -> tuple[ExportedStore, ...]:
    """Return the stores of an export, at these versions. One that contains the export is named by an empty string."""
    parent = export.root.rpartition("/")[0]
    return tuple(
        ExportedStore(
            directory="" if member.directory == parent else member.directory,
            identity=member.head.identity,
            version=member.head.version_at(count),
            parts=len(member.manifest),
            sources=member.run.sources,
        )
        for member, count in zip(stores.members, changes, strict=True)
    )


def stores_digest(stores: Collection, changes: Sequence[int]) -> str:
    """Return the digest of what an export of some stores is made from, at these versions.

    A store's sources are numbered after those of the stores before it, also sources without a document.
    """
    pairs = zip(stores.members, changes, strict=True)
    return digest_of([(one.head.identity, one.head.version_at(count), one.run.sources) for one, count in pairs])


def _check(frozen: FrozenExport) -> None:
    """Raise MalformedDataError for values that no export has, before anything is allocated by them."""
    job = frozen.job
    if job.format not in FORMATS:
        raise StoreError(f"unknown format {job.format[:20]!r}", "If a package adds this format, install it here, too.")
    spec = FORMATS[job.format].SPEC
    if job.dtype not in spec.dtypes or job.mask not in {"", *spec.masks}:
        raise MalformedDataError(f"unknown type {job.dtype[:20]!r} or mask {job.mask[:20]!r}")
    if job.val is not None and job.holds_out and split_name(job.val) is None:
        _check_fraction(job.val)
    counts = (job.val_tokens, job.shard_tokens, job.sequence_tokens, job.row_tokens, frozen.run_tokens)
    if any(count is not None and not 0 < count < MAX_TOKENS for count in counts) or not _is_possible(frozen):
        raise MalformedDataError("it has negative or impossible counts")
    _check_rows(job, spec)
    if bool(job.columns) != bool(spec.defaults.columns):
        raise MalformedDataError(f"invalid column {job.columns[:30]!r}")
    names = [job.columns, *spec.defaults.columns[1:], *spec.masks.get(job.mask, ())]
    names += [each.name for each in job.with_columns]
    if (job.with_columns and not job.columns) or len(set(names)) < len(names):
        raise MalformedDataError("its columns are not those of its format")
    if job.selection is not None and not _is_sound(job.selection, job.shuffle):
        raise MalformedDataError("no recipe gives its selection")
    if frozen.with_checksum() != frozen:
        raise MalformedDataError("it does not have the content that its checksum was taken of")


def _check_rows(job: ExportJob, spec: FormatSpec) -> None:
    if job.row_tokens is not None and (spec.use_packed is None or not job.mask or job.end != "appended"):
        raise MalformedDataError("its format has no packed rows")
    if job.sequence_tokens is not None and (job.shard_tokens is None or job.shard_tokens < job.sequence_tokens):
        raise MalformedDataError("its shards are shorter than a sequence")


def _is_possible(frozen: FrozenExport) -> bool:
    """Whether there may be so many bins, and each merge divides them."""
    if not 0 < frozen.bins <= MAX_BINS:
        return False
    bins = frozen.bins
    for fan_in in frozen.merges:
        if fan_in < 2 or bins % fan_in:
            return False
        bins //= fan_in
    return True


def _check_fraction(val: str) -> None:
    fraction = parse_fraction(val)
    if fraction is None or repr(fraction) != val or not 0 < fraction < 1:
        raise MalformedDataError(f"invalid val {val[:30]!r}")


def _is_sound(selection: Selection, shuffle: int | None) -> bool:
    limits = [store.limit for store in selection.stores if store.limit is not None]
    counts = [selection.tokens, *(count for store in selection.stores for count in (store.copy, store.sources))]
    in_range = all(0 <= count < MAX_TOKENS for count in counts) and all(0 <= limit < 1 << 64 for limit in limits)
    return in_range and shuffle is not None and sum(store.sources for store in selection.stores) < 1 << 32


def exports_in(folder: Folder) -> list[str]:
    """Return the formats of the exports, complete or not, inside the directory of a store."""
    return [name for name in FORMATS if folder.exists(f"{name}/{EXPORT}")]


def freeze(folder: Folder, export: FrozenExport, *, is_shared: bool = False) -> FrozenExport:
    """Return the export in this directory if it has the same job, or publish a new one.

    An export of another job is replaced if it has no plan, because then it has no shard either. If the directory is
    shared, by ranks or in an object store, it is not: another process may be about to write the plan.
    """
    export = export.with_checksum()
    before = read_frozen(folder)
    is_shared = is_shared or folder.is_remote
    if before is None and is_shared:
        folder.locks.check_conditional_create()
        if publish_new(folder, EXPORT, layout.json_bytes(export)):
            return export
        before = read_frozen(folder)  # another process published first
    is_replaceable = not (is_shared or is_begun(folder) or folder.names(RECORDS))
    if before is None or (before.job != export.job and is_replaceable):
        for directory in (RUNS, RECORDS):
            folder.remove(directory)
        layout.publish_json(folder, EXPORT, export)
        return export
    changes = differences(before.job.identity(), export.job.identity())
    if before.job.store != export.job.store and export.job.selection is None:
        _refuse_other_stores(folder, before, export)
    if changes:
        raise JobChanged(
            f"this directory holds an export with another {changes[0][0]}",
            f"export       {folder.root}",
            *(f"{name:<16} was {was}, is now {now}" for name, was, now in changes),
            "The store is not affected. Use the original options, or remove only this export and run the command again,"
            " or keep both: `tokenmill export STORE --out OTHER` writes to another directory.",
        )
    if before.stores != export.stores:  # a store has moved
        before = msgspec.structs.replace(before, stores=export.stores).with_checksum()
        layout.publish_json(folder, EXPORT, before)
    return before


def _refuse_other_stores(folder: Folder, before: FrozenExport, export: FrozenExport) -> None:
    """Raise if the directory holds an export of other stores. By default, an export of several is in the last one."""
    exported, directories = before.directories(folder), export.directories(folder)
    if exported in ([], directories):
        return
    command = f"tokenmill export {shlex.join(directories)} --to {export.job.format}"
    raise UsageError(
        f"{folder.root} holds an export of other stores",
        f"its stores   {', '.join(exported)}",
        f"stores now   {', '.join(directories)}",
        "Keep both, and give this export a directory of its own:",
        f"`{command} --out {shlex.quote(_free_directory(directories, export.job.format))}`",
    )


def _free_directory(stores: Sequence[str], format_name: str) -> str:
    """A directory beside the last store that holds no export, named after the stores and the format."""
    parent, slash, _ = stores[-1].rpartition("/")
    stems = [directory.rpartition("/")[2] for directory in stores]
    shown = "-".join(stems) if len(stems) <= MAX_STEMS else f"{stems[0]}-and-{len(stems) - 1}-more"
    first = f"{parent}{slash}{shown}-{format_name}"
    tried = itertools.chain([first], (f"{first}-{number}" for number in itertools.count(2)))
    return next(directory for directory in tried if not folder_at(directory).exists(EXPORT))
