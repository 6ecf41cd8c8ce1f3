"""Compares a call with the run that its directory holds: sources, options, versions, duplicates and denied rows.

Sources whose path or time changed are compared by content.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import JobChanged, UsageError
from tokenmill.humanize import count
from tokenmill.pipeline.planning.request import PrepareRequest, versions
from tokenmill.pipeline.planning.token_sources import with_frame_of
from tokenmill.sources import splits_of, with_identities
from tokenmill.sources.token_source import StoreInput
from tokenmill.storage import Folder, scheme
from tokenmill.store.deny import read_rules
from tokenmill.store.job import Job, Run
from tokenmill.tokenization.tokenizer import REFERENCES

# How many sources of each kind of change a message names.
NAMED_SOURCES = 3

USE_THE_ORIGINAL = "Use the original sources, another --out, or remove the directory."


@dataclass(frozen=True, slots=True)
class SourceChanges:
    """The sources as they are now, in the order of the run.

    `unproved` sources have the same size and first bytes as before, so they may hold the same text: their parts have to
    be compared with them. `changed` sources hold other text.
    """

    table: pa.Table
    unproved: npt.NDArray[np.bool_]
    changed: npt.NDArray[np.bool_]

    def paths(self, which: npt.NDArray[np.bool_]) -> list[str]:
        """The paths of some of them."""
        return list(self.table["path"].filter(pa.array(which)).to_pylist())


def parse_moved(moved: Sequence[str]) -> list[tuple[str, str]]:
    """Parse `OLD=NEW` pairs: a path, or the beginning of paths, and its new value."""
    pairs = [tuple(pair.split("=", 1)) for pair in moved]
    for pair in pairs:
        if len(pair) != 2 or not all(pair):
            raise UsageError(f"--moved {'='.join(pair)} is not OLD=NEW", "Write --moved OLD_PATH=NEW_PATH.")
    return [(old, new) for old, new in pairs]


def compare_request(
    folder: Folder, run: Run, before: pa.Table, request: PrepareRequest, moved: Sequence[str]
) -> SourceChanges:
    """Compare the sources of a run with those of a request. Those of a store are the same if its parts are."""
    if request.source is None:
        return compare_sources(folder, before, request.discovery.table, moved)
    _refuse_other_source(folder, run, request.source.input)
    nothing = np.zeros(len(before), np.bool_)
    return SourceChanges(before, nothing, nothing)


def _refuse_other_source(folder: Folder, run: Run, now: StoreInput) -> None:
    """Refuse a store as source that has other parts than when the run was started."""
    old = None if run.job.tokens is None else run.job.tokens.store
    if old is None or old.digest == now.digest:
        return
    is_erased = now.changes > old.changes
    reason = "documents were erased in it" if is_erased else "it has other parts"
    if now.units != old.units:
        reason = f"it has {count(now.units, 'unit')} now, and had {old.units:,}"
    erase = f"If {folder.root} is complete, erase them there: `tokenmill erase {folder.root} --rows {now.directory}`"
    raise JobChanged(
        "the store that is the source changed since this run was started",
        f"run          {folder.root}",
        f"source       {now.directory}",
        f"changed      {reason}",
        *([erase] if is_erased else []),
        "Use another --out.",
    )


def compare_sources(folder: Folder, before: pa.Table, now: pa.Table, moved: Sequence[str]) -> SourceChanges:
    """Compare each source of a run with what it is now; raise JobChanged if these are other sources."""
    now = _aligned(folder, before, now, parse_moved(moved))
    same_path, same_size, same_fingerprint = (
        _equal(before[name], now[name]) for name in ("path", "size", "fingerprint")
    )
    is_remote = np.array([bool(scheme(path)) for path in now["path"].to_pylist()], np.bool_)
    # The fingerprint of a remote file is the hash of its content.
    proved = same_size & same_fingerprint & (same_path | is_remote)
    identity = before["identity"].to_numpy().copy()
    if not proved.all():
        doubtful = pa.array(~proved)
        identity[~proved] = with_identities(now.filter(doubtful))["identity"].to_numpy()
    same = same_size & (identity == before["identity"].to_numpy())
    table = now.append_column("identity", pa.array(identity, pa.uint64()))
    if "head" in before.column_names:  # changed sources are planned again
        table = table.append_column("head", before["head"])
    return SourceChanges(table, same & ~proved, ~same)


def refuse_changed(folder: Folder, before: pa.Table, changes: SourceChanges, *, strictly: bool = False) -> None:
    """Refuse sources whose content changed; `strictly`, also those with another path or modification time."""
    if changes.changed.any() or (strictly and not changes.table.equals(before)):
        raise _refused(folder, before, changes.table.drop_columns("identity"))


def _aligned(folder: Folder, before: pa.Table, now: pa.Table, moved: list[tuple[str, str]]) -> pa.Table:
    """The current sources in the order of the run: by their paths, or by content if all of them were copied."""
    old_paths, new_paths = before["path"].to_pylist(), now["path"].to_pylist()
    if old_paths == new_paths:
        aligned = now
    elif moved:
        positions = {path: position for position, path in enumerate(new_paths)}
        wanted = [_renamed(path, moved) for path in old_paths]
        if set(wanted) != set(positions) or len(wanted) != len(positions):
            raise _refused(folder, before, now, wanted)
        aligned = now.take(pa.array([positions[path] for path in wanted]))
    elif set(old_paths) != set(new_paths) and len(before) == len(now) and _is_copy(before, now):
        aligned = now
    else:
        raise _refused(folder, before, now)
    if aligned["kind"].cast(pa.string()).to_pylist() != before["kind"].cast(pa.string()).to_pylist():
        raise _refused(folder, before, now)
    if splits_of(aligned) != splits_of(before):
        raise _other_splits(folder, before, aligned)
    return aligned


def _other_splits(folder: Folder, before: pa.Table, now: pa.Table) -> JobChanged:
    pairs = zip(now["path"].to_pylist(), splits_of(before), splits_of(now), strict=True)
    changed = [
        f"split        was {old or 'none'}, is now {new or 'none'}: {path}" for path, old, new in pairs if old != new
    ]
    return JobChanged(
        "the sources belong to other splits than those that this run was started with",
        f"run          {folder.root}",
        *changed[:NAMED_SOURCES],
        "Name the sources as before, and use the original --split and --config. Or use another --out.",
    )


def _renamed(path: str, moved: list[tuple[str, str]]) -> str:
    for old, new in moved:
        if path == old or path.startswith(old if old.endswith("/") else f"{old}/"):
            return new + path[len(old) :]
    return path


def _is_copy(before: pa.Table, now: pa.Table) -> bool:
    """Whether every source has the size and the first bytes of the one at its position."""
    if not _equal(before["size"], now["size"]).all():
        return False
    if _equal(before["fingerprint"], now["fingerprint"]).all() and all(map(scheme, now["path"].to_pylist())):
        return True
    return bool(_equal(before["identity"], with_identities(now)["identity"]).all())


def _equal(one: pa.ChunkedArray, other: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.array(one.to_numpy() == other.to_numpy(), np.bool_)


def _refused(folder: Folder, before: pa.Table, now: pa.Table, paths: list[str] | None = None) -> JobChanged:
    """The error for other sources; `paths` are those of before if they were renamed."""
    old = dict(zip(paths or before["path"].to_pylist(), before["fingerprint"].to_pylist(), strict=True))
    new = dict(zip(now["path"].to_pylist(), now["fingerprint"].to_pylist(), strict=True))
    kinds = {
        "changed": [path for path in old if path in new and old[path] != new[path]],
        "not given": [path for path in old if path not in new],
        "new": [path for path in new if path not in old],
    }
    details = []
    for kind, some in kinds.items():
        details += [f"{kind:<12} {path}" for path in some[:NAMED_SOURCES]]
        if len(some) > NAMED_SOURCES:
            details.append(f"{kind:<12} and {len(some) - NAMED_SOURCES:,} more")
    renamed = kinds["not given"] and kinds["new"]
    return JobChanged(
        "the sources changed since this run was started"
        if kinds["changed"]
        else "these are not the sources that this run was started with",
        f"run          {folder.root}",
        *(details or ["order        the same files come in another order"]),
        *(["If the files were moved or renamed, add --moved OLD=NEW."] if renamed else []),
        USE_THE_ORIGINAL,
    )


def with_defaults(request: PrepareRequest, run: Run) -> PrepareRequest:
    """The request with what the run has found or chosen, where the call does not give it."""
    unit_bytes = request.job.unit_bytes if request.unit_bytes_given else run.job.unit_bytes
    is_known = None not in (request.job.dedup, run.job.dedup)
    dedup = run.job.dedup if is_known else request.job.dedup
    tokens = with_frame_of(request.job.tokens, run.job.tokens)
    job = msgspec.structs.replace(request.job, unit_bytes=unit_bytes, dedup=dedup, tokens=tokens)
    return replace(request, job=job)


def refuse_other_duplicates(folder: Folder, run: Run, now: Run) -> None:
    """Refuse sources with other duplicates: a changed source decides which rows of other sources are left out."""
    if now.job.dedup != run.job.dedup:
        raise JobChanged(
            "the sources changed since the run was started, and have other duplicates now",
            f"run          {folder.root}",
            USE_THE_ORIGINAL,
        )


def compare_versions(folder: Folder, run: Run, request: PrepareRequest) -> tuple[str, ...]:
    """Refuse another version of the library that defines the tokens; return notes about other packages."""
    now, reference = versions(), REFERENCES[request.job.tokenizer.kind].name
    changed = [name for name, before in run.versions.items() if now.get(name, before) != before]
    if reference in changed:
        raise JobChanged(
            f"{reference} is {now[reference]} now, and this run was started with {run.versions[reference]}",
            f"run          {folder.root}",
            f"{reference} defines the tokens. Two versions of it must not be mixed in one store.",
            f"Install {reference}=={run.versions[reference]}, or use another --out.",
        )
    return tuple(f"{name} is {now[name]}, the run was started with {run.versions[name]}" for name in changed)


def refuse_fewer_units(folder: Folder, run: Run, units: int) -> None:
    """Refuse a smaller --limit-units than that of the run: units that are done stay done."""
    if units < run.units:
        raise JobChanged(
            "this directory holds a run with another --limit-units",
            f"run           {folder.root}",
            f"--limit-units was {run.units if run.trial else 'none'}, is now {units}",
            "A trial may go on with a larger limit, or with none. Use another --out for a smaller one.",
        )


def refuse_other_job(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Refuse a request whose options decide other bytes than those of the run."""
    changes = run.job.differences(request.job)
    if not changes:
        return
    if changes[0][0] == "tokenizer":
        old, new = run.job.tokenizer, request.job.tokenizer
        raise JobChanged(
            "this directory holds a run with another tokenizer",
            f"run          {folder.root}   ({old.name}, sha256 {old.sha256[:8]}...)",
            f"now          {new.name}   (sha256 {new.sha256[:8]}...)",
            "Use the original tokenizer, another --out, or remove the directory.",
        )
    lines = [("run", folder.root), *((name, f"was {before}, is now {now}") for name, before, now in changes)]
    width = max(12, *(len(name) for name, _ in lines))
    raise JobChanged(
        f"this directory holds a run with another {changes[0][0]}",
        *(f"{name:<{width}} {value}" for name, value in lines),
        "Use the original options, another --out, or remove the directory.",
    )


def refuse_denied_paths(folder: Folder, job: Job, before: pa.Table, now: pa.Table) -> None:
    """Refuse sources whose paths changed so that the deny list names other rows of them by number."""
    if not job.deny:
        return
    rules = read_rules(folder, job.deny)
    if not rules.rows or len(before) != len(now):
        return
    for old, new in zip(before["path"].to_pylist(), now["path"].to_pylist(), strict=True):
        if rules.rows_of(old).tolist() != rules.rows_of(new).tolist():
            raise JobChanged(
                "the deny list names rows of a source by its path, and the path changed",
                f"before       {old}",
                f"now          {new}",
                "Move the source back, or make a new store with a list that has the new path.",
            )
