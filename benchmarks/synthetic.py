"""Make a complete store of random tokens, as fast as the disk writes, for measurements that need no text."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.storage import folder_at
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.job import Job, Run, run_record
from tokenmill.store.manifest import manifest_columns, manifest_row, publish_manifest
from tokenmill.store.part import PartContent, PartSummary, write_part
from tokenmill.tokenization.engines.tiktoken import format_ranks
from tokenmill.tokenization.spec import TokenizerSpec

END = 50256
PART_TOKENS = 4_000_000
MEAN_DOCUMENT_TOKENS = 700
PARTS_IN_SOURCE = 8


@dataclass(frozen=True)
class Shape:
    """The tokens of a part, the mean tokens of a document, and the seed of all tokens."""

    part_tokens: int = PART_TOKENS
    document_tokens: int = MEAN_DOCUMENT_TOKENS
    seed: int = 0


DEFAULT_SHAPE = Shape()


def make_store(
    directory: str, tokens: int, vocabulary_size: int = END + 1, shape: Shape = DEFAULT_SHAPE, *, processes: bool = True
) -> int:
    """A store of about so many tokens, in documents of about 700; returns how many documents.

    Without `processes` it is made in this process: that is faster for a small store.
    """
    parts = max(1, tokens // shape.part_tokens)
    sources = -(-parts // PARTS_IN_SOURCE)
    vocabulary = format_ranks({b"%d " % token: token for token in range(END)})
    sha256 = hashlib.sha256(vocabulary).hexdigest()
    spec = TokenizerSpec(
        "synthetic", "tiktoken", f"{sha256}.tiktoken", sha256, vocabulary_size, {"<|end|>": END}, end_of_text=END
    )
    job = Job(spec, "text", None, None, END, shape.part_tokens * 4, shape.part_tokens * 4)
    folder = folder_at(directory)
    folder.create(layout.PARTS)
    folder.create(layout.TOKENIZER)
    with folder.publish(f"{layout.TOKENIZER}/{spec.file}") as file:
        file.write(vocabulary)
    make = functools.partial(make_part, directory, msgspec.json.encode(job), shape)
    if processes:
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
            encoded = list(pool.map(make, range(parts)))
    else:
        encoded = [*map(make, range(parts))]
    summaries = [msgspec.json.decode(each, type=PartSummary) for each in encoded]
    paths = [f"/synthetic/{number:05d}.parquet" for number in range(sources)]
    table = pa.table(
        {
            "path": paths,
            "kind": pa.array(["parquet"] * sources).dictionary_encode(),
            "size": pa.array([1] * sources, pa.int64()),
            "fingerprint": ["none"] * sources,
            "identity": pa.array(range(shape.seed, shape.seed + sources), pa.uint64()),
        }
    )
    numbers = np.arange(parts)
    columns = {
        "source": (numbers // PARTS_IN_SOURCE).astype(np.uint32),
        "sources": np.ones(parts, np.uint32),
        "start": numbers % PARTS_IN_SOURCE,
        "stop": numbers % PARTS_IN_SOURCE + 1,
        "text_bytes": np.full(parts, shape.part_tokens * 4),
        "rows": np.full(parts, shape.part_tokens),  # far more than there are, as if all others were null
    }
    plan = pa.table([columns[field.name] for field in tables.PLAN_SCHEMA], schema=tables.PLAN_SCHEMA)
    contents = {layout.SOURCES: tables.table_bytes(table), layout.PLAN: tables.table_bytes(plan)}
    for name, data in contents.items():
        with folder.publish(name) as file:
            file.write(data)
    run = Run(
        job=job,
        units=parts,
        planned_units=parts,
        sources=sources,
        source_bytes=sources,
        text_bytes=parts * shape.part_tokens * 4,
        sources_blake3=hash_of(contents[layout.SOURCES]),
        plan_blake3=hash_of(contents[layout.PLAN]),
        engine="none",
        versions={},
    )
    layout.publish_json(folder, layout.RUN, run_record(run))
    manifest = manifest_columns([*map(manifest_row, summaries)])
    sizes = pa.array(layout.part_sizes(folder, parts))
    publish_manifest(folder, run, manifest.append_column(tables.MANIFEST_SCHEMA.field("bytes"), sizes))
    return sum(summary.documents for summary in summaries)


def make_part(directory: str, encoded_job: bytes, shape: Shape, part: int) -> bytes:
    """One part: documents of log-normal length. The seed is that of the shape and the part's number."""
    job = msgspec.json.decode(encoded_job, type=Job)
    generator = np.random.default_rng([shape.seed, part] if shape.seed else part)
    mean = shape.document_tokens
    lengths = generator.lognormal(np.log(mean) - 0.5, 1.0, shape.part_tokens // mean)
    ends = np.cumsum(lengths.astype(np.int64) + 1)
    tokens = generator.integers(0, END, ends[-1], dtype=job.tokenizer.dtype)
    tokens[ends - 1] = END
    documents = len(ends)
    content = PartContent(
        tokens=tokens,
        offsets=np.concatenate([np.zeros(1, np.int64), ends]),
        source=np.full(documents, part // PARTS_IN_SOURCE, np.uint32),
        row=np.arange(documents, dtype=np.uint64) + np.uint64(part % PARTS_IN_SOURCE * shape.part_tokens),
    )
    summary = PartSummary(part, job.digest(), documents, len(tokens), len(tokens) * 4)
    return msgspec.json.encode(write_part(folder_at(directory), summary, content))
