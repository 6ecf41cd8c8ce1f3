"""The mixture of a recipe as the trainer's own file, over exports of its sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.errors import IncompleteStore, JobChanged, UsageError
from tokenmill.exports import records
from tokenmill.exports.job import MANIFEST, read_frozen
from tokenmill.exports.write_shard import split_folder
from tokenmill.storage import Folder, folder_at
from tokenmill.store.collection import open_collection


@dataclass(frozen=True, slots=True)
class BlendSource:
    """A source of a recipe: its stores, the tokens that the recipe reads, and how often it may read them."""

    name: str
    stores: tuple[str, ...]
    tokens: int
    repeat: float


@dataclass(frozen=True, slots=True)
class _Exported:
    """The export of a source: its training files, the directory that holds them, and the share of the source."""

    source: BlendSource
    files: list[str]
    folder: str
    share: float


def write_blend(trainer: str, sources: Sequence[BlendSource]) -> str:
    """The file of a trainer. Each source has to be exported to the format of the trainer, in its (last) store."""
    if trainer in REFUSED:
        raise UsageError(f"there is no blend file for {trainer}", REFUSED[trainer])
    if trainer not in WRITERS:
        raise UsageError(f"there is no trainer {trainer!r}", f"Choose from: {', '.join(WRITERS)}.")
    format_name, writer = WRITERS[trainer]
    total = sum(source.tokens for source in sources)
    return writer([_exported(source, format_name, total) for source in sources if source.tokens])


def _exported(source: BlendSource, format_name: str, total: int) -> _Exported:
    """Find the export of a source. Raises if it is missing, not complete, or of other parts than the stores have."""
    folder = folder_at(folder_at(source.stores[-1]).path(format_name))
    command = f"tokenmill export {' '.join(source.stores)} --to {format_name}"
    frozen = read_frozen(folder)
    if frozen is None or not folder.exists(MANIFEST):
        state = "is not exported" if frozen is None else "is not exported completely"
        raise IncompleteStore(f"the source {source.name} {state} to {format_name}", f"Run `{command}`.")
    if frozen.job.store != open_collection(source.stores).digest:
        raise JobChanged(
            f"the export of {source.name} is of other stores", f"export       {folder.root}", f"Run `{command}` again."
        )
    manifest = records.read_manifest(folder, frozen.job.digest())
    rows = zip(manifest["split"].to_pylist(), manifest["files"].to_pylist(), strict=True)
    files = list(dict.fromkeys(folder.path(files[0]["name"]) for split, files in rows if split == "train"))
    if not files:
        raise UsageError(f"the export of {source.name} has no training file", f"export       {folder.root}")
    return _Exported(source, files, _train_folder(folder, split_folder(frozen.job, "train")), source.tokens / total)


def _train_folder(folder: Folder, name: str) -> str:
    return folder.path(name) if name else folder.root


def _megatron(exports: Sequence[_Exported]) -> str:
    """What `--data-args-path` reads: weights and prefixes. Files of one source share its weight by their sizes."""
    lines = []
    for one in exports:
        sizes = [folder_at(file.rpartition("/")[0]).size(file.rpartition("/")[2]) for file in one.files]
        for file, size in zip(one.files, sizes, strict=True):
            if any(character.isspace() for character in file):
                raise UsageError("megatron cannot read a path with white space from a blend", f"file         {file}")
            lines.append(f"{one.share * size / sum(sizes):.12g} {file.removesuffix('.bin')}")
    return "\n".join(lines) + "\n"


def _olmo(exports: Sequence[_Exported]) -> str:
    """The sources of OLMo-core's SourceMixtureDatasetConfig, as JSON, which is YAML, too."""
    shares = [round(one.share, 12) for one in exports]
    shares[-1] = round(1 - sum(shares[:-1]), 12)
    sources = [
        {
            "source_name": one.source.name,
            "target_ratio": share,
            "paths": one.files,
            "max_repetition_ratio": max(one.source.repeat, 1.0),
        }
        for one, share in zip(exports, shares, strict=True)
    ]
    return json.dumps({"sources": sources}, indent=2) + "\n"


def _nanotron(exports: Sequence[_Exported]) -> str:
    """The `dataset` of a data stage in nanotron's YAML."""
    folders = "".join(f"  - {json.dumps(one.folder)}\n" for one in exports)
    weights = "".join(f"  - {one.share:.12g}\n" for one in exports)
    return f"dataset:\n  dataset_folder:\n{_indent(folders)}  dataset_weights:\n{_indent(weights)}"


def _mds(exports: Sequence[_Exported]) -> str:
    """The `streams` of a dataset in llm-foundry's YAML: the arguments of streaming's `Stream`."""
    streams = (
        f"  {json.dumps(one.source.name)}:\n    local: {json.dumps(one.folder)}\n    proportion: {one.share:.12g}\n"
        for one in exports
    )
    return "streams:\n" + "".join(streams)


def _indent(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


# The format of the exports, and the writer, by the name of the trainer.
WRITERS: dict[str, tuple[str, Callable[[Sequence[_Exported]], str]]] = {
    "megatron": ("megatron", _megatron),
    "olmo": ("olmo", _olmo),
    "nanotron": ("datatrove", _nanotron),
    "mds": ("mds", _mds),
}

# Why a trainer has no blend file.
REFUSED = {
    "maxtext": "MaxText mixes ArrayRecord files only, and tokenmill does not write them. Use tokenmill.loader.grain.",
    "energon": "Energon mixes WebDatasets of samples, and tokenmill does not write them. Use the loader.",
}
