"""Erasure in a bucket: the same files as on a disk, also in exports whose split is one object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.api.test_erase import END, SECRETS, write
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import IncompleteStore
from tokenmill.storage import folder_at
from tokenmill.store.erasing import ErasingMark, publish_mark, remove_mark

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "unit_bytes": 900, "keep": "url"}


def test_an_erasure_in_a_bucket_gives_the_files_of_a_disk(s3: Bucket, tmp_path: Path) -> None:
    """Parts, kept columns and exports are equal, the loader masks, and a mark makes readers refuse."""
    write(tmp_path / "in/a.parquet")
    s3.server.upload(tmp_path / "in", f"{s3.url}/in")
    stores = {}
    for root in (str(tmp_path), s3.url):
        store = stores[root] = f"{root}/out"
        tokenmill.prepare(f"{root}/in/a.parquet", out=store, **CALL)
        for to in ("nanogpt", "litdata"):
            tokenmill.export(store, to=to, workers=1)
        result = tokenmill.erase(store, rows=[("a.parquet", row) for row in SECRETS], request="r", workers=1)
        assert (result.documents, len(result.exports), result.unreached) == (4, 2, {})
        tokenmill.verify(store, workers=1)
    disk, bucket = (folder_at(store) for store in stores.values())
    parts = [f"parts/{name}" for name in disk.names("parts")] + [f"kept/{name}" for name in disk.names("kept")]
    for name in [*parts, "nanogpt/train.bin", "litdata/chunk-0-0.bin", "erasures/r/documents.parquet"]:
        assert disk.read(name) == bucket.read(name)
    options: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 4, "grain": 32}
    loaders = [tokenmill.loader(store, **options) for store in stores.values()]
    for step in range(len(loaders[0])):
        one, other = (loader[step]["labels"] for loader in loaders)
        assert np.array_equal(one == -100, other == -100)
    publish_mark(bucket, ErasingMark("the erasure r", "tokenmill erase", "r"))
    with pytest.raises(IncompleteStore, match="not finished"):
        tokenmill.open(bucket.root)
    remove_mark(bucket)
