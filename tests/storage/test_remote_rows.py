"""Rows that are in no file, copied to a bucket: the store is that of a disk, also after an erasure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.servers.seaweed import Bucket

ROWS = 300
TABLE = pa.table({"id": list(range(ROWS)), "text": [f"row {row} " + "says more " * (row % 7) for row in range(ROWS)]})
CALL: dict[str, Any] = {"tokenizer": SMALL_JSON, "workers": 1}


def test_rows_are_copied_to_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    """The same rows find it complete, and erased rows are empty there, too."""
    stores = [tmp_path / "out", f"{s3.url}/out"]
    for kind in ("arrow", "jsonl"):
        digests = []
        for store in stores:
            out = f"{store}-{kind}"
            for _ in range(2):
                result = tokenmill.prepare(TABLE if kind == "arrow" else iter(TABLE.to_pylist()), out=out, **CALL)
            assert result.units_done_now == 0
            tokenmill.erase(out, column="id", values=["5", "7"], workers=1)
            verified = tokenmill.verify(out, all=True, workers=1)
            assert verified.documents_compared == ROWS - 2
            digests.append([list(document) for document in tokenmill.open(out)])
        assert digests[0] == digests[1]
