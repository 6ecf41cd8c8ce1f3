"""Canonical JSON, its digest, and the differences between two records."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec


def canonical(record: Any) -> bytes:
    """A record as canonical JSON: equal records give equal bytes."""
    return msgspec.json.encode(record, order="sorted")


def digest_of(record: Any) -> str:
    """SHA-256 of a record in canonical JSON."""
    return hashlib.sha256(canonical(record)).hexdigest()


def differences(before: dict[str, str], now: dict[str, str]) -> list[tuple[str, str, str]]:
    """The entries that differ, as (name, before, now). An entry that a record lacks is "none"."""
    values = ((name, before.get(name, "none"), now.get(name, "none")) for name in {**before, **now})
    return [(name, one, other) for name, one, other in values if one != other]
