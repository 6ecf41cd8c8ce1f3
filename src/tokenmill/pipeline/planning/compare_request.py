"""Compares a request with the run that its directory holds: options, duplicates, format and versions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import JobChanged
from tokenmill.pipeline.planning.compare_sources import USE_THE_ORIGINAL
from tokenmill.pipeline.planning.request import PrepareRequest, versions
from tokenmill.store.job import Run
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from tokenmill.storage import Folder


def with_defaults(request: PrepareRequest, run: Run) -> PrepareRequest:
    """The request with the run's size of units, unless one is given, and its duplicates if it asks for them."""
    unit_bytes = request.job.unit_bytes if request.unit_bytes_given else run.job.unit_bytes
    is_asked = not isinstance(request.job.dedup, msgspec.UnsetType)
    dedup = run.job.dedup if is_asked and not isinstance(run.job.dedup, msgspec.UnsetType) else request.job.dedup
    job = msgspec.structs.replace(request.job, unit_bytes=unit_bytes, dedup=dedup)
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
