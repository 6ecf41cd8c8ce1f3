"""The mixture of a recipe as the trainer's own file, over exports of its sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenmill.errors import IncompleteStore, JobChanged, UsageError
from tokenmill.exports import records
from tokenmill.exports.job import is_complete, left_out_changes, read_frozen, stores_digest
from tokenmill.exports.write_shard import split_folder
from tokenmill.storage import folder_at
from tokenmill.store.collection import open_collection


@dataclass(frozen=True, slots=True)
class BlendSource:
    """A source of a recipe: its stores, the tokens that the recipe reads, and how often it may read them.

    `val` is the `--val` of the recipe: which documents it holds out.
    """

    name: str
    stores: tuple[str, ...]
    tokens: int
    repeat: float
    where: str | None = None
    val: str | None = None


@dataclass(frozen=True, slots=True)
class _Exported:
    """The files of a source that a trainer reads, the directory that holds them, and the share of the source.

    `is_remote` is whether the directory is in an object store.
    """

    source: BlendSource
    files: list[str]
    folder: str
    is_remote: bool
    share: float

    @property
    def weight(self) -> str:
        """The share as a decimal number. YAML would read 1e-05 as a text, and 1 as an integer."""
        return np.format_float_positional(self.share, 12, fractional=False, trim="0")


def write_blend(trainer: str, sources: Sequence[BlendSource]) -> str:
    """The file of a trainer. Each source needs files in the format of the trainer, in its (last) store."""
    if trainer not in WRITERS:
        raise UsageError(f"there is no trainer {trainer!r}", f"Choose from: {', '.join(WRITERS)}.")
    filtered = next((source for source in sources if source.where is not None), None)
    if filtered is not None:
        raise UsageError(
            f"the source {filtered.name} has a condition, and its export has all documents of the store",
            f"where        {filtered.where}",
            "Export the recipe itself: `tokenmill export RECIPE --to FORMAT --out DIRECTORY`.",
        )
    format_name, writer = WRITERS[trainer]
    find = _converted if format_name in CONVERTED else _exported
    total = sum(source.tokens for source in sources)
    return writer([find(source, format_name, total) for source in sources if source.tokens])


def _exported(source: BlendSource, format_name: str, total: int) -> _Exported:
    """Find the export of a source. Raises if it is missing, not complete, or of other parts than the stores have."""
    folder = folder_at(folder_at(source.stores[-1]).path(format_name))
    held_out = "" if source.val is None else f" --val {source.val}"
    command = f"tokenmill export {' '.join(source.stores)} --to {format_name}{held_out}"
    frozen = read_frozen(folder)
    if frozen is None or not is_complete(folder):
        state = "is not exported" if frozen is None else "is not exported completely"
        raise IncompleteStore(f"the source {source.name} {state} to {format_name}", f"Run `{command}`.")
    stores = open_collection(source.stores)
    if stores_digest(stores, left_out_changes(frozen, stores)) != frozen.job.store:
        raise JobChanged(
            f"the export of {source.name} is of other stores", f"export       {folder.root}", f"Run `{command}` again."
        )
    if source.val is not None and frozen.job.val != source.val:
        raise JobChanged(
            f"the export of {source.name} does not hold out the documents that the recipe holds out",
            f"export       {folder.root}",
            f"--val        of the export {frozen.job.val or 'none'}, of the recipe {source.val}",
            f"Remove the directory and run `{command}`.",
        )
    manifest = records.read_manifest(folder, frozen.job.digest()).rows
    rows = zip(manifest["split"].to_pylist(), manifest["files"].to_pylist(), strict=True)
    files = list(dict.fromkeys(folder.path(files[0]["name"]) for split, files in rows if split == "train"))
    if not files:
        raise UsageError(f"the export of {source.name} has no training file", f"export       {folder.root}")
    train = split_folder(frozen.job, "train")
    root = folder.path(train) if train else folder.root
    return _Exported(source, files, root, folder.is_remote, source.tokens / total)


def _converted(source: BlendSource, format_name: str, total: int) -> _Exported:
    """Find files that tokenmill does not write. Raises if the directory in the store does not have them."""
    directory, mark = CONVERTED[format_name]
    folder = folder_at(folder_at(source.stores[-1]).path(directory))
    if folder.is_remote:
        raise UsageError(
            f"{format_name} in an object store cannot be in a blend file", f"directory    {folder.root}", REMOTE_ADVICE
        )
    files = [folder.path(name) for name in folder.names(".") if mark in name]
    if not files:
        raise IncompleteStore(
            f"the source {source.name} has no {format_name}",
            f"expected     {folder.path(f'*{mark}*')}",
            f"tokenmill does not write {format_name}. Convert the tokens of the source, or train with the loader.",
        )
    return _Exported(source, files, folder.root, False, source.tokens / total)


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
    folders = "".join(f"    - {json.dumps(one.folder)}\n" for one in exports)
    weights = "".join(f"    - {one.weight}\n" for one in exports)
    return f"dataset:\n  dataset_folder:\n{folders}  dataset_weights:\n{weights}"


def _mds(exports: Sequence[_Exported]) -> str:
    """The `streams` of a dataset in llm-foundry's YAML: the arguments of streaming's `Stream`."""
    streams = (
        f"  {json.dumps(one.source.name)}:\n"
        f"    {'remote' if one.is_remote else 'local'}: {json.dumps(one.folder)}\n"
        f"    proportion: {one.weight}\n"
        for one in exports
    )
    return "streams:\n" + "".join(streams)


def _maxtext(exports: Sequence[_Exported]) -> str:
    """The file of MaxText's `grain_train_mixture_config_path`."""
    mark = CONVERTED["ArrayRecord files"][1]
    sources = {one.source.name: {"path": f"{one.folder}/*{mark}*", "weight": one.share} for one in exports}
    return json.dumps(sources, indent=2) + "\n"


def _energon(exports: Sequence[_Exported]) -> str:
    """A metadataset of Energon, with the blend as its training split."""
    blend = "".join(f"      - path: {json.dumps(one.folder)}\n        weight: {one.weight}\n" for one in exports)
    head = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
    return f"{head}splits:\n  train:\n    blend:\n{blend}"


# The format of the exports, and the writer, by the name of the trainer.
WRITERS: dict[str, tuple[str, Callable[[Sequence[_Exported]], str]]] = {
    "megatron": ("megatron", _megatron),
    "olmo": ("olmo", _olmo),
    "nanotron": ("datatrove", _nanotron),
    "mds": ("mds", _mds),
    "maxtext": ("ArrayRecord files", _maxtext),
    "energon": ("WebDatasets of Energon", _energon),
}

# Files that tokenmill does not write: their directory in a store, and what the name of one contains. `energon prepare`
# writes the directory .nv-meta.
CONVERTED = {
    "ArrayRecord files": ("arrayrecord", ".array_record"),
    "WebDatasets of Energon": ("webdataset", ".nv-meta"),
}

REMOTE_ADVICE = "MaxText reads local paths, gs:// and hf://, Energon local paths and msc://. Mount the store."
