"""Several stores, kept columns and denied rows in a bucket: equal to those on a disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.servers.seaweed import Bucket

CALL: dict[str, Any] = {"workers": 1, "unit_bytes": 900, "keep": "id,url"}


def write(path: Path, first: int) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + 40)
    texts = [f"document {n} " + "of words " * (n % 9) for n in numbers]
    urls = [f"https://s{n % 3}.example/{n}" for n in numbers]
    pq.write_table(pa.table({"text": texts, "id": list(numbers), "url": urls}), path, row_group_size=8)
    return str(path)


def test_stores_in_a_bucket_are_read_as_one(s3: Bucket, tmp_path: Path) -> None:
    """A store on a disk and one in a bucket are exported, counted, verified and searched together."""
    for number in range(2):
        write(tmp_path / f"in/{number}.parquet", 100 * number)
    s3.server.upload(tmp_path / "in", f"{s3.url}/in")
    deny = tmp_path / "deny.jsonl"
    deny.write_text(json.dumps({"column": "url", "host": "s1.example"}) + "\n")
    stores = {}
    for place, root in (("disk", str(tmp_path)), ("bucket", s3.url)):
        first, second = f"{root}/first", f"{root}/second"
        tokenmill.prepare(f"{root}/in/0.parquet", tokenizer=SMALL_TIKTOKEN, eot=1199, out=first, **CALL)
        tokenmill.prepare(f"{root}/in/1.parquet", like=first, deny=deny, out=second, **CALL)
        stores[place] = [first, second]
    opened = {place: tokenmill.open(pair) for place, pair in stores.items()}
    assert opened["disk"].columns().equals(opened["bucket"].columns())
    mixed = [stores["disk"][0], stores["bucket"][1]]
    outs = [tmp_path / "from-disk", tmp_path / "from-both"]
    for given, out in zip((stores["disk"], mixed), outs, strict=True):
        tokenmill.export(given, to="datatrove", val=0.2, shuffle=3, out=str(out), workers=1)
    files = [{path.name: path.read_bytes() for path in out.rglob("*.ds*")} for out in outs]
    assert files[0] == files[1]
    export = tokenmill.export(stores["bucket"], to="llmc", workers=1)
    assert export.directory == f"{stores['bucket'][1]}/llmc"
    result = tokenmill.verify(stores["bucket"], all=True, workers=1)
    assert result.documents_compared == len(opened["bucket"]) == len(opened["disk"])
    assert set(result.exports) == {f"{stores['bucket'][1]}/llmc", str(outs[1])}
    by = [tokenmill.stats(pair, by="host:url", workers=1).columns for pair in stores.values()]
    assert by[0] == by[1]
    found = tokenmill.locate(stores["bucket"], opened["bucket"].token_count - 1).documents[0]
    assert (found.store, found.columns["id"]) == (stores["bucket"][1], 138)  # 139 is denied
