"""Formats: the files that trainers read, one module each. Adding one touches its module, this list and its docs."""

from __future__ import annotations

from tokenmill.errors import UsageError
from tokenmill.formats import build_nanogpt, datatrove, litdata, llmc, mds, megatron, nanogpt, olmo, parquet
from tokenmill.formats.format import Format

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
    """The format of a name, or an error that lists those there are."""
    if name not in FORMATS:
        raise UsageError(f"there is no format {name!r}", f"formats      {', '.join(FORMATS)}")
    return FORMATS[name]


__all__ = ["FORMATS", "Format", "find_format"]
