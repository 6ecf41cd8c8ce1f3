"""`tokenmill formats`: the export formats."""

from __future__ import annotations

from tokenmill.token_files import FORMATS
from tokenmill.token_files.protocol import FormatSpec

__all__ = ["FormatSpec", "formats"]


def formats() -> list[FormatSpec]:
    """What each export format is: its trainers, its files, its defaults and its limits."""
    return [format_.SPEC for format_ in FORMATS.values()]
