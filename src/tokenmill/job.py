"""The job: everything that decides the bytes of a store, frozen, with a canonical digest."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tokenmill.errors import UsageError


class TokenizerSpec(msgspec.Struct, frozen=True):
    """A tokenizer as data: a vocabulary file by its hash, and what the file itself does not say.

    `file` is a name inside the run's `tokenizer/` folder. `pattern` is the split regex of a `.tiktoken` vocabulary, and
    `scheme` the name of that regex if it is a known one; a `tokenizer.json` carries its own. `vocabulary_size` is the
    largest id plus one, added tokens included.
    """

    name: str
    kind: str
    file: str
    sha256: str
    vocabulary_size: int
    special_tokens: dict[str, int]
    pattern: str | None = None
    scheme: str | None = None
    end_of_text: int | None = None

    @property
    def dtype(self) -> str:
        """The type that holds every id: uint16 up to 65,536 ids, else uint32."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "uint32"


class Job(msgspec.Struct, frozen=True):
    """What is done to each document. Two runs with equal jobs and equal sources give equal bytes."""

    tokenizer: TokenizerSpec
    column: str
    separator: str | None
    begin: int | None
    end: int | None
    unit_bytes: int
    limit_units: int | None = None
    document_bytes: int | None = None
    """A longer document is not tokenized. None in stores of format 5, whose limit followed from the memory."""

    def identity(self) -> dict[str, str]:
        """The choices that decide the bytes, each under the name that people know it by."""
        tokenizer = self.tokenizer
        limit = {} if self.document_bytes is None else {"--max-document-bytes": str(self.document_bytes)}
        return {
            "tokenizer": f"sha256 {tokenizer.sha256}",
            "split pattern": tokenizer.pattern or "in the vocabulary",
            "--column": self.column,
            "--separator": repr(self.separator) if self.separator is not None else "none",
            "--bos": _token(self.begin),
            "--eot": _token(self.end),
            "--unit-bytes": str(self.unit_bytes),
            "--limit-units": str(self.limit_units) if self.limit_units is not None else "none",
            **limit,
        }

    def digest(self) -> str:
        """SHA-256 of the identity in canonical JSON."""
        return digest_of(self.identity())

    def differences(self, now: Job) -> list[tuple[str, str, str]]:
        """What differs between this job and another: (name, here, there)."""
        return differences(self.identity(), now.identity())


def canonical(record: Any) -> bytes:
    """A record as JSON, the same bytes wherever it is written."""
    return msgspec.json.encode(record, order="sorted")


def digest_of(record: Any) -> str:
    """SHA-256 of a record in canonical JSON."""
    return hashlib.sha256(canonical(record)).hexdigest()


def differences(before: dict[str, str], now: dict[str, str]) -> list[tuple[str, str, str]]:
    """What differs between two identities of one kind: (name, before, now)."""
    return [(name, before[name], now[name]) for name in before if before[name] != now[name]]


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)


_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "b": 10**9}


def parse_size(text: str | int) -> int:
    """A number with an optional suffix: `100M`, `8GB`, `64MiB`, `10B` (billion), `1.5k`."""
    if isinstance(text, int):
        return text
    number = text.strip().lower()
    binary = number.endswith("ib")
    if binary:
        number = number[:-2]
    elif len(number) > 1 and number.endswith("b") and number[-2] in _SUFFIXES:
        number = number[:-1]
    scale = 1
    if number and number[-1] in _SUFFIXES:
        scale = 1 << {"k": 10, "m": 20, "g": 30, "t": 40}.get(number[-1], 0) if binary else _SUFFIXES[number[-1]]
        number = number[:-1]
    try:
        value = float(number) * scale
    except ValueError:
        raise UsageError(f"{text!r} is not a size", "Write a number, or one with k, M, G, T or B: 100M, 8GB.") from None
    if not 0 <= value < float("inf"):
        raise UsageError(f"{text!r} is not a size", "It has to be a finite number that is not negative.")
    return round(value)
