"""What a process may remember of files, and what it may not: a trial is many commands in one process."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest

from tokenmill.storage.untrusted import parquet_pages


def forget() -> None:
    """Clear the caches of the package, as the end of a process does: the next command finds another store here."""
    for name, module in list(sys.modules.items()):
        if name.startswith("tokenmill."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def remember_tables(patch: pytest.MonkeyPatch) -> None:
    """Let `read_parquet` remember tables by the bytes of their files: its checks were half of the time of a trial."""
    remembered: dict[tuple[object, ...], pa.Table] = {}
    read = parquet_pages.read_parquet

    def read_parquet(data: pa.Buffer, *args: object, **options: object) -> pa.Table:
        key = (data.to_pybytes(), repr(args), repr(options))
        if key not in remembered:
            remembered[key] = read(data, *args, **options)  # type: ignore[arg-type]
        return remembered[key]

    for name, module in list(sys.modules.items()):
        if name.startswith("tokenmill.") and vars(module).get("read_parquet") is read:
            patch.setattr(module, "read_parquet", read_parquet)
