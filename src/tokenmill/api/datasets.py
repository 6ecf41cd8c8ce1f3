"""What the catalogue offers, and what each version would take on this machine: disk, and time of its cores.

The time follows from a second of real work in this process: a worker's reading and encoding, on text that every Python
brings along.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.pipeline.sample import ROW_BYTES, bytes_per_second
from tokenmill.sources import catalog
from tokenmill.system import machine
from tokenmill.tokenizers.resolve import SCHEMES, resolve
from tokenmill.tokenizers.tokenizer import choose_engine

TOKEN_TEXT_BYTES = 4.6
"""What a token of the catalogue's, which GPT-2 made, stands for in FineWeb's text."""


class VersionInfo(msgspec.Struct, frozen=True):
    """A version of a dataset: what is known of it, and what it would take; None is unknown."""

    version: str
    example: str | None
    files: int | None
    rows: int | None
    tokens: int | None
    bytes: int | None
    disk_bytes: int | None
    seconds: float | None


class DatasetInfo(msgspec.Struct, frozen=True):
    """A dataset with its versions."""

    name: str
    about: str
    repository: str
    revision: str
    licence: str
    column: str
    versions: list[VersionInfo]


class DatasetListing(msgspec.Struct, frozen=True):
    """The datasets, and what their figures are based on."""

    tokenizer: str
    engine: str | None
    token_bytes: int | None
    cores: int
    bytes_per_second: float | None
    datasets: list[DatasetInfo]
    notices: list[str]


def datasets(name: str | None = None, *, tokenizer: str = "gpt2") -> DatasetListing:
    """Every dataset that has a name, or one of them, with what it would take on this machine."""
    known = catalog.load()
    chosen = known.entries if name is None else {name: known.dataset(name)}
    notices: list[str] = []
    engine, speed, token_bytes = None, None, _known_token_bytes(tokenizer)
    try:
        vocabulary = resolve(tokenizer)
    except TokenizerError as error:
        notices.append(f"no time is told, since the tokenizer cannot be had: {error.headline}")
    else:
        token_bytes = np.dtype(vocabulary.spec.dtype).itemsize
        engine = choose_engine(vocabulary, "auto").engine
        speed = bytes_per_second(vocabulary, engine)
        notices += [] if speed else ["no time is told, since this Python has too little text to measure it on"]
    cores = machine.cores()
    rate = speed * cores if speed else None
    offered = [_dataset(each, entry, token_bytes, rate) for each, entry in chosen.items()]
    return DatasetListing(tokenizer, engine, token_bytes, cores, rate, offered, notices)


def _dataset(name: str, entry: catalog.Dataset, token_bytes: int | None, rate: float | None) -> DatasetInfo:
    versions = [_version(each, known, token_bytes, rate) for each, known in entry.versions.items()]
    return DatasetInfo(name, entry.about, entry.repository, entry.revision, entry.licence, entry.column, versions)


def _version(name: str, known: catalog.Version, token_bytes: int | None, rate: float | None) -> VersionInfo:
    disk = seconds = None
    if known.tokens is not None:
        disk = known.tokens * token_bytes + (known.rows or 0) * ROW_BYTES if token_bytes else None
        seconds = round(known.tokens * TOKEN_TEXT_BYTES / rate, 1) if rate else None
    return VersionInfo(name, known.example, known.files, known.rows, known.tokens, known.bytes, disk, seconds)


def _known_token_bytes(tokenizer: str) -> int | None:
    """The size of a token where the name alone tells it."""
    scheme = SCHEMES.get(tokenizer)
    return None if scheme is None else 2 if scheme.end_of_text < 1 << 16 else 4
