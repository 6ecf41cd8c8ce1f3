"""Formats: the files that trainers read, one module each. A new format needs a module, a line here, and its docs."""

from __future__ import annotations

import difflib

from tokenmill.errors import UsageError
from tokenmill.exports.formats import build_nanogpt, datatrove, litdata, llmc, mds, megatron, nanogpt, olmo, parquet
from tokenmill.exports.formats.protocol import Format

FORMATS: dict[str, Format] = {
    "nanogpt": nanogpt,
    "build-nanogpt": build_nanogpt,
    "llmc": llmc,
    "megatron": megatron,
    "datatrove": datatrove,
    "olmo": olmo,
    "litdata": litdata,
    "mds": mds,
    "parquet": parquet,
}


def find_format(name: str) -> Format:
    """Return the format of a name in any case. Raises UsageError with the list of formats."""
    format_ = FORMATS.get(name.lower())
    if format_ is None:
        raise UsageError(f"there is no format {name!r}", f"formats      {', '.join(FORMATS)}", *_advice(name.lower()))
    return format_


def _advice(name: str) -> list[str]:
    """Suggest what was meant: several formats, a misspelled one, or the format of a trainer."""
    if "," in name:
        return ["Give --to once for each format: --to nanogpt --to megatron."]
    names = {key: name for name, item in FORMATS.items() for key in (name, *item.SPEC.trainer.lower().split(", "))}
    return [f"Did you mean {names[match]}?" for match in difflib.get_close_matches(name, names, 1)]


__all__ = ["FORMATS", "Format", "find_format"]
