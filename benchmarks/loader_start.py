"""The first batch of a store with very many parts: a made-up manifest, and only the parts that the batch needs."""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import tokenmill
from benchmarks.loader_contenders import in_a_fresh_process
from benchmarks.loader_worker import SEQUENCE
from benchmarks.synthetic import make_store
from tokenmill.storage import folder_at
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.job import require_run, run_record
from tokenmill.store.manifest import publish_manifest
from tokenmill.store.part import PartContent, PartSummary, publish_part

MAX_FIRST_SECONDS = 1.0
MAX_FIRST_BYTES = 1e9
# A part of FineWeb's size: 15 trillion tokens in 1.1 million parts.
WIDE_PART_TOKENS = 13_636_364


def make_wide_store(store: str, parts: int, rows: int) -> None:
    """A store whose manifest lists so many parts, of which only those exist that the first batch needs."""
    small = os.path.join(store, "small")
    make_store(small, 1)
    for name in (layout.TOKENIZER, layout.SOURCES):
        (shutil.copytree if name == layout.TOKENIZER else shutil.copyfile)(
            os.path.join(small, name), os.path.join(store, name)
        )
    run = require_run(folder_at(small))
    shutil.rmtree(small)
    folder = folder_at(store)
    folder.create(layout.PARTS)
    columns: dict[str, Any] = {"source": np.zeros(parts, np.uint32), "sources": np.ones(parts, np.uint32)}
    columns |= {"start": np.arange(parts), "stop": np.arange(1, parts + 1)}
    columns |= {"text_bytes": np.full(parts, 64 << 20), "rows": np.full(parts, 20_000)}
    plan = tables.table_bytes(pa.table(columns, schema=tables.PLAN_SCHEMA))
    with folder.publish(layout.PLAN) as file:
        file.write(plan)
    run = msgspec.structs.replace(run, units=parts, planned_units=parts, plan_blake3=hash_of(plan))
    layout.publish_json(folder, layout.RUN, run_record(run))
    hashes = [hashlib.sha256(b"%d" % part).hexdigest() for part in range(parts)]
    length = WIDE_PART_TOKENS
    counts: dict[str, Any] = {
        "unit": np.arange(parts),
        "documents": 1,
        "tokens": length,
        "text_bytes": 4 * length,
        "skipped": 0,
        "spelled": 0,
    }
    counts |= {"quarantined": 0, "bytes": 2 * length + 4096}
    manifest = {name: np.broadcast_to(value, parts) for name, value in counts.items()}
    columns = {name: pa.array(values) for name, values in manifest.items()}
    columns |= {"blake3": pa.array(hashes), "xxh3": pa.array([text[:32] for text in hashes])}
    columns["trained"] = pa.nulls(parts, pa.int64())
    arrays = [columns[name] for name in tables.MANIFEST_SCHEMA.names]
    publish_manifest(folder, run, pa.table(arrays, schema=tables.MANIFEST_SCHEMA))
    loader = tokenmill.loader(store, sequence_tokens=SEQUENCE, batch_sequences=rows, rank=0, world_size=1)
    needed = {
        some.part for span in loader.reader.spans(0, rows) for some in span.stream.ranges(span.start, span.stop + 1)
    }
    for part in needed:
        content = PartContent(
            np.zeros(length, np.uint16), np.array([0, length]), np.zeros(1, np.uint32), np.full(1, part, np.uint64)
        )
        summary = PartSummary(part, run.job.digest(), 1, length, 4 * length, hashes[part], xxh3=hashes[part][:32])
        publish_part(folder, summary, content)


def measure_wide(options: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Time a fresh process to the first batch of a store with many parts."""
    make_wide_store(store, options.parts, options.rows)
    before = sorted(os.listdir(store))
    figures = [in_a_fresh_process("tokenmill", store, options.rows) for _ in range(options.rounds)]
    best = {name: min(each[name] for each in figures) for name in ("seconds", "cpu_seconds", "bytes")}
    print(
        f"{options.parts:,} parts: first batch after {best['seconds']:.2f} s ({best['cpu_seconds']:.2f} s of processor "
        f"time) with {best['bytes'] / 1e6:.0f} MB"
    )
    problems = [] if best["seconds"] < MAX_FIRST_SECONDS else ["the first batch takes a second or more"]
    problems += [] if best["bytes"] < MAX_FIRST_BYTES else ["the first batch takes a gigabyte or more"]
    problems += [] if sorted(os.listdir(store)) == before else ["a file was written to the store"]
    return {"parts": options.parts, "rounds": figures}, problems
