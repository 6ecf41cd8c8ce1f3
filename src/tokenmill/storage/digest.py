"""The hash of bytes (BLAKE3), canonical JSON, its digest, and the differences between two records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from blake3 import blake3

if TYPE_CHECKING:
    from typing_extensions import Buffer

Hasher = blake3
"""Hashes bytes that come one after the other, with one thread."""


def hash_of(data: Buffer) -> str:
    """The BLAKE3 of bytes."""
    return Hasher(data).hexdigest()


def canonical(record: Any) -> bytes:
    """A record as canonical JSON: equal records give equal bytes."""
    return msgspec.json.encode(record, order="sorted")


def digest_of(record: Any) -> str:
    """The hash of a record in canonical JSON."""
    return hash_of(canonical(record))


def differences(before: dict[str, str], now: dict[str, str]) -> list[tuple[str, str, str]]:
    """The entries that differ, as (name, before, now). An entry that a record lacks is "none"."""
    values = ((name, before.get(name, "none"), now.get(name, "none")) for name in {**before, **now})
    return [(name, one, other) for name, one, other in values if one != other]
