"""`tokenmill formats`: the export formats."""

from __future__ import annotations

from tokenmill.exports.formats import FORMATS
from tokenmill.exports.formats.protocol import FormatSpec

__all__ = ["FormatSpec", "formats"]


def formats() -> list[FormatSpec]:
    """What each export format is: its trainers, its files, its defaults and its limits."""
    return [format_.SPEC for format_ in FORMATS.values()]
