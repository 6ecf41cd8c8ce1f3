"""Parse `--val`: which documents an export holds out for validation."""

from __future__ import annotations

from tokenmill.exports.job import FIRST_SHARD
from tokenmill.store.held_out import parse_held_out


def parse_val(given: str | float | None, default: str | None) -> str | None:
    """The `val` of the job: a fraction as its shortest text, `split:NAME`, `first-shard`, or None.

    None means that all documents are for training. `default` is the format's own, for an option that is not given.
    """
    val = str(given) if given is not None else default
    if val is None or val == FIRST_SHARD:
        return val
    return parse_held_out(val, others=f"{FIRST_SHARD}, ")
