"""Parse `--val`: which documents an export holds out for validation."""

from __future__ import annotations

from tokenmill.errors import UsageError
from tokenmill.exports.job import FIRST_SHARD
from tokenmill.pipeline.sizes import parse_fraction


def parse_val(given: str | float | None, default: str | None) -> str | None:
    """The `val` of the job: a fraction as its shortest text, `first-shard`, or None if all documents are for training.

    `default` is the format's own, for an option that is not given.
    """
    val = str(given) if given is not None else default
    if val is None or val == "none":
        return None
    if val == FIRST_SHARD:
        return val
    fraction = parse_fraction(val)
    if fraction == 0:
        return None
    if fraction is None or not 0 < fraction < 1:
        raise UsageError(
            f"--val {val} is not a fraction of the documents",
            "Give a fraction between 0 and 1 (0.0005, or 0.05%), first-shard, or none.",
        )
    return repr(fraction)
