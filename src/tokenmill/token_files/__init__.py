"""Formats: the files that trainers read, one module each, loaded when it is used.

A new format of tokenmill needs a module, a line here, and its docs. Another package adds one by an entry point of the
group `tokenmill.formats`, whose name is the name of the format and whose value is the module.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import cast

from tokenmill.errors import UsageError
from tokenmill.token_files.protocol import Format

GROUP = "tokenmill.formats"
OWN = (
    "nanogpt",
    "build-nanogpt",
    "llmc",
    "megatron",
    "datatrove",
    "olmo",
    "litdata",
    "mds",
    "parquet",
    "text",
    "nanochat",
)


class Formats(Mapping[str, Format]):
    """The formats by name: those of tokenmill, then those of other packages, whose names are other names."""

    @functools.cached_property
    def _others(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in sorted(entry_points(group=GROUP)) if point.name not in OWN}

    def __getitem__(self, name: str) -> Format:
        if name in OWN:
            return cast("Format", importlib.import_module(f"{__name__}.{name.replace('-', '_')}"))
        return cast("Format", self._others[name].load())

    def __iter__(self) -> Iterator[str]:
        yield from (*OWN, *self._others)

    def __len__(self) -> int:
        return len(OWN) + len(self._others)

    def __contains__(self, name: object) -> bool:
        return name in OWN or name in self._others


FORMATS = Formats()


def find_format(name: str) -> Format:
    """Return the format of a name in any case. Raises UsageError with the list of formats."""
    if name.lower() not in FORMATS:
        raise UsageError(f"there is no format {name!r}", f"formats      {', '.join(FORMATS)}", *_advice(name.lower()))
    return FORMATS[name.lower()]


def _advice(name: str) -> list[str]:
    """Suggest what was meant: several formats, a misspelled one, or the format of a trainer."""
    if "," in name:
        return ["Give --to once for each format: --to nanogpt --to megatron."]
    names = {key: name for name, item in FORMATS.items() for key in (name, *item.SPEC.trainer.lower().split(", "))}
    return [f"Did you mean {names[match]}?" for match in difflib.get_close_matches(name, names, 1)]


__all__ = ["FORMATS", "OWN", "Format", "find_format"]
