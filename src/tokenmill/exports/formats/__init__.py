"""Formats: the files that trainers read, one module each. Adding one touches its module, this list and its docs."""

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
    """The format of a name, in capitals or not, or an error that lists those there are."""
    found = FORMATS.get(name.lower())
    if found is None:
        raise UsageError(f"there is no format {name!r}", f"formats      {', '.join(FORMATS)}", *_advice(name.lower()))
    return found


def _advice(name: str) -> list[str]:
    """What may have been meant: several formats, one that is spelt otherwise, or the trainer that one is for."""
    if "," in name:
        return ["Give --to once for each format: --to nanogpt --to megatron."]
    known = {word: format_ for format_ in FORMATS for word in (format_, *_trainers(format_))}
    return [f"Did you mean {known[word]}?" for word in difflib.get_close_matches(name, known, 1)]


def _trainers(format_: str) -> list[str]:
    return FORMATS[format_].SPEC.trainer.lower().split(", ")


__all__ = ["FORMATS", "Format", "find_format"]
