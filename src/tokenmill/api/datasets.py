"""`tokenmill datasets`: the datasets of the catalog, and the disk and time that each version would take here.

The time follows from a second of real work of all workers.
"""

from __future__ import annotations

import os

import msgspec
import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.executors.local import LocalExecutor, this_machine
from tokenmill.humanize import Readable
from tokenmill.options import StrPath
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.bench.library import machine_bytes_per_second
from tokenmill.pipeline.planning.estimate import ROW_BYTES, Estimate, Footprint
from tokenmill.sources import catalog
from tokenmill.system.arguments import checked
from tokenmill.tokenization.resolve import SCHEMES, resolve
from tokenmill.tokenization.tokenizer import choose_engine

# Text bytes per GPT-2 token of FineWeb. The token counts of the catalog are those of GPT-2.
TEXT_BYTES_PER_TOKEN = 4.6


class VersionInfo(Readable, msgspec.Struct, frozen=True):
    """A version of a dataset: its size, and the disk and time it would take. None means unknown."""

    version: str
    example: str | None
    files: int | None
    rows: int | None
    tokens: int | None
    bytes: int | None
    disk_bytes: int | None
    seconds: Estimate | None


class DatasetInfo(Readable, msgspec.Struct, frozen=True):
    """A dataset of the catalog, with its versions."""

    name: str
    about: str
    repository: str
    revision: str
    licence: str
    column: str
    versions: list[VersionInfo]


class DatasetListing(Readable, msgspec.Struct, frozen=True):
    """The datasets, and the tokenizer and speed that their figures are based on."""

    tokenizer: str
    engine: str | None
    token_bytes: int | None
    cores: int
    bytes_per_second: Estimate | None
    datasets: list[DatasetInfo]
    notices: list[str]


@checked
def datasets(name: str | None = None, *, tokenizer: StrPath = "gpt2") -> DatasetListing:
    """The datasets of the catalog, or one of them, with the disk and time that they would take on this machine.

    Args:
        name: The name of a dataset, such as `"fineweb-edu"`. Default: all of them.
        tokenizer: The tokenizer whose tokens are counted.
    """
    tokenizer = os.fspath(tokenizer)
    loaded = catalog.load()
    chosen = loaded.entries if name is None else {name: loaded.dataset(name)}
    notices: list[str] = []
    engine, rate, token_bytes = None, None, _token_bytes(tokenizer)
    cores = this_machine().processors
    try:
        vocabulary = resolve(tokenizer)
    except TokenizerError as error:
        notices.append(f"no time estimate, because the tokenizer cannot be loaded: {error.headline}")
    else:
        token_bytes = np.dtype(vocabulary.spec.dtype).itemsize
        engine = choose_engine(vocabulary, "auto").engine
        with LocalExecutor((*worker_modules(engine), "tokenmill.pipeline.bench.library")) as pool:
            rate = machine_bytes_per_second(vocabulary, engine, pool.start(cores), cores)
        notices += [] if rate else ["no time estimate: this Python has too little text to measure the speed on"]
    listed = [
        DatasetInfo(
            name=dataset_name,
            about=dataset.about,
            repository=dataset.repository,
            revision=dataset.revision,
            licence=dataset.licence,
            column=dataset.column,
            versions=[_version(*version, token_bytes, rate) for version in dataset.versions.items()],
        )
        for dataset_name, dataset in chosen.items()
    ]
    return DatasetListing(tokenizer, engine, token_bytes, cores, rate, listed, notices)


def _version(name: str, version: catalog.Version, token_bytes: int | None, rate: Estimate | None) -> VersionInfo:
    disk = seconds = None
    if version.tokens is not None:
        disk = Footprint(token_bytes, ROW_BYTES).bytes(version.tokens, version.rows or 0) if token_bytes else None
        text_bytes = version.tokens * TEXT_BYTES_PER_TOKEN
        seconds = Estimate(round(text_bytes / rate.high, 1), round(text_bytes / rate.low, 1)) if rate else None
    return VersionInfo(name, version.example, version.files, version.rows, version.tokens, version.bytes, disk, seconds)


def _token_bytes(tokenizer: str) -> int | None:
    """The bytes of a token, if the tokenizer's name determines it. None otherwise."""
    scheme = SCHEMES.get(tokenizer)
    return None if scheme is None else 2 if scheme.end_of_text < 1 << 16 else 4
