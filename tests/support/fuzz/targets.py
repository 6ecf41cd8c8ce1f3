"""What is fuzzed: each file of a store or an export that somebody else may have written, and how it is read.

A target is a file of a small sound store and a function that reads it. The function may raise a TokenmillError; any
other exception, a crash, a hang or a large allocation is a finding. If it returns, it has looked at every value.
"""

from __future__ import annotations

import contextlib
import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import tokenmill
from tests.support.small_stores import rewrite_run
from tokenmill.api import status
from tokenmill.errors import TokenmillError
from tokenmill.executors.local import LocalExecutor
from tokenmill.exports import PRELOAD, job, records, shards, sorted_runs, verify
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.digest import hash_of
from tokenmill.store import heartbeats, layout, part, quarantine
from tokenmill.token_files import FORMATS
from tokenmill.token_files.protocol import ShardRecord
from tokenmill.tokenization.gigatoken_support import unsupported
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_bytes import token_bytes_lookup

PACKAGE = str(Path(tokenmill.__file__).parent)
END = 1199
TEXTS = ["once upon a time", "", "a\nb", "the quick brown fox", "0123456789" * 9, "é ü 漢", "x"]
SEQUENCE_TOKENS = 16


class WrongResultError(AssertionError):
    """A damaged file was read without an error, and gave something else than was written."""


@dataclass(frozen=True, slots=True)
class Target:
    """A file, relative to the base directory, and what reads it; `kind` tells the fuzzer what the bytes are."""

    file: str
    kind: str
    read: Callable[[Path], None]


def make_base(base: Path, vocabulary: Path) -> None:
    """A small store, exported to every format, with the runs of a shuffle left as an interrupted export leaves them."""
    base.mkdir(parents=True)
    (base / "a.jsonl").write_text("".join(f"{msgspec.json.encode({'text': text}).decode()}\n" for text in TEXTS * 2))
    (base / "b.jsonl").write_text('{"text": "another source"}\n{"text": null}\n')
    sources = [str(base / name) for name in ("a.jsonl", "b.jsonl")]
    tokenizer = f"{vocabulary / 'small.tiktoken'}:gpt2"
    tokenmill.prepare(
        sources,
        tokenizer=tokenizer,
        out=str(base / "store"),
        eot=END,
        engine="tiktoken",
        workers=1,
        unit_bytes=150,
    )
    with LocalExecutor(PRELOAD) as executor:
        for name in FORMATS:
            length = SEQUENCE_TOKENS if name == "mds" else None
            tokenmill.export(
                str(base / "store"), to=name, val="none", sequence_tokens=length, workers=1, executor=executor
            )
    folder = folder_at(str(base / "store/nanogpt"))
    folder.create(job.RUNS)
    _, content = part.open_part(folder_at(str(base / "store")), 0)
    sorted_runs.publish_sorted_run(folder, 0, "0" * 64, content, np.zeros(len(content.row), np.int64), 2)
    row = quarantine.Quarantined(
        unit=0,
        file=sources[0],
        row=7,
        reason="utf-8",
        detail="byte 3",
        blake3="0" * 64,
        text="text",
        base64=b"\xff",
    )
    (base / "store" / quarantine.QUARANTINE_FILE).write_bytes(msgspec.json.Encoder().encode_lines([row, row]))
    next((base / "store/drivers").iterdir()).rename(base / "store/drivers/one.json")
    _shorten(vocabulary, base)
    shutil.copytree(base / "store", base / "sound")


def _shorten(vocabulary: Path, base: Path) -> None:
    """The vocabularies with few of their tokens: what is done to them is then done where it matters."""
    lines = (vocabulary / "small.tiktoken").read_bytes().splitlines(keepends=True)
    (base / "gpt2.tiktoken").write_bytes(b"".join(lines[:260]))
    content = msgspec.json.decode((vocabulary / "small.json").read_bytes())
    tokens = list(content["model"]["vocab"].items())
    content["model"] |= {"vocab": dict(tokens[:20]), "merges": content["model"]["merges"][:5]}
    (base / "tokenizer.json").write_bytes(msgspec.json.encode(content))


def _read_part(base: Path) -> None:
    folder = folder_at(str(base / "store"))
    part.read_summary(folder, 0)
    _, content = part.open_part(folder, 0)
    _touch(content.tokens, content.offsets, content.source, content.row)
    if content.tokens.dtype not in (np.uint16, np.uint32):
        raise WrongResultError(f"tokens of {content.tokens.dtype}")
    for document in range(len(content.row)):
        content.document(document)
    part.check_part(folder, 0)
    expected = part.open_part(folder_at(str(base / "sound")), 0)[1]
    if not np.array_equal(content.tokens, expected.tokens) or not np.array_equal(content.offsets, expected.offsets):
        raise WrongResultError("another part has the same checksum")


def _read_store(base: Path) -> None:
    """Read a store, whatever its hashes say: who writes one can write the hashes too."""
    store = tokenmill.open(_rehashed(base))
    for position in {0, len(store) - 1} if len(store) else ():
        store.document(position)
    for tokens in store:
        _touch(tokens)
    store.tokens(0, store.token_count)
    list(store.skipped())
    status.status(store.directory)


def _read_unfinished(base: Path) -> None:
    directory = Path(_rehashed(base))
    (directory / layout.MANIFEST).unlink(missing_ok=True)
    status.status(str(directory))


def _rehashed(base: Path) -> str:
    """The store's directory, with the hashes of its tables in run.json put right."""
    directory = base / "store"
    with contextlib.suppress(msgspec.MsgspecError, TypeError, AttributeError, RecursionError, UnicodeDecodeError):
        rewrite_run(directory, partial(with_hashes, directory))
    return str(directory)


def with_hashes(directory: Path, run: dict[str, Any]) -> None:
    """Put the hashes of the tables in the content of run.json right."""
    for name in ("sources", "plan"):
        run[f"{name}_blake3"] = hash_of((directory / f"{name}.parquet").read_bytes())


def _read_pulse(base: Path) -> None:
    heartbeats.read(folder_at(str(base / "store")))


def _read_quarantine(base: Path) -> None:
    list(quarantine.read(folder_at(str(base / "store"))))


def _read_export_job(base: Path) -> None:
    frozen = job.read_frozen(folder_at(str(base / "store/nanogpt")))
    if frozen is None:
        return
    frozen.job.digest()
    if frozen.bins > 1 << 24 or frozen.run_tokens < 1 or shards.tokens_per_shard(frozen.job) < 1:
        raise WrongResultError(f"{frozen}")
    if not 1 <= frozen.job.streams <= 2:
        raise WrongResultError(f"{frozen.job.streams} streams")


def _frozen(folder: Folder) -> job.FrozenExport:
    frozen = job.read_frozen(folder)
    assert frozen is not None
    return frozen


def _read_export_plan(base: Path) -> None:
    folder = folder_at(str(base / "store/nanogpt"))
    plan = shards.read_plan(folder, _frozen(folder).work_digest(), tokens=1000, blocks=4)
    for task in shards.tasks(plan, np.arange(len(plan))):
        if task.split not in ("train", "val") or not 0 <= task.tokens <= 1000 or not 0 <= task.file_tokens <= 1000:
            raise WrongResultError(f"{task}")
    shards.skipped_tokens(plan)


def _read_record(base: Path) -> None:
    folder = folder_at(str(base / "store/nanogpt"))
    record = records.read(folder, 0)
    if not isinstance(record, ShardRecord) or record.tokens < 0:
        raise WrongResultError(f"{record}")
    lengths = records.read_lengths(folder, 0)
    _touch(lengths)


def _read_export_manifest(base: Path) -> None:
    folder = folder_at(str(base / "store/nanogpt"))
    for stretch in verify.byte_ranges(records.read_manifest(folder, _frozen(folder).job.digest())):
        verify.CheckByteRange(folder.root)(stretch)


def _read_run(base: Path) -> None:
    folder = folder_at(str(base / "store/nanogpt"))
    documents, tokens = sorted_runs.counts(folder, "0" * 64, 0)
    _touch(documents, tokens)
    stretch = sorted_runs.read_range(folder, 0, 0, 2)
    _touch(stretch.ends, stretch.source, stretch.row)
    _touch(*stretch.tokens(folder, "uint16", 0, len(stretch.ends)))


def _read_shard(name: str, *files: str) -> Callable[[Path], None]:
    def read(base: Path) -> None:
        found = FORMATS[name].read(folder_at(str(base / "store" / name)), files, "uint16")
        _touch(found.tokens)
        if found.lengths is not None and int(found.lengths.sum()) != len(found.tokens):
            raise WrongResultError("the lengths are not those of the tokens")

    return read


def _read_tiktoken(base: Path) -> None:
    vocabulary = resolve(str(base / "gpt2.tiktoken"))
    unsupported(vocabulary)
    _look_up(vocabulary.spec, vocabulary.content)


def _read_tokenizer_json(base: Path) -> None:
    vocabulary = resolve(str(base / "tokenizer.json"))
    unsupported(vocabulary)
    _look_up(vocabulary.spec, vocabulary.content)


def _look_up(spec: TokenizerSpec, content: bytes) -> None:
    lookup = token_bytes_lookup(spec, content)
    for token in (0, 1, 255, END, 65535, (1 << 32) - 1):
        if not isinstance(lookup(token), bytes):
            raise WrongResultError(f"token {token} is {lookup(token)!r}")


def _touch(*arrays: np.ndarray) -> None:
    """Look at every value, so that one outside of the file shows."""
    for values in arrays:
        values.sum()


_SHARDS = {
    "nanogpt": [("train.bin", "raw")],
    "build-nanogpt": [("edufineweb_train_000001.npy", "raw")],
    "llmc": [("fineweb_train_000001.bin", "raw")],
    "megatron": [("train_text_document.bin", "raw"), ("train_text_document.idx", "raw")],
    "datatrove": [
        ("00000_00000_unshuffled.ds", "raw"),
        ("00000_00000_unshuffled.ds.index", "raw"),
        ("00000_00000_unshuffled.ds.metadata", "raw"),
    ],
    "olmo": [("part-0-00000.npy", "raw"), ("part-0-00000.csv.gz", "gzip")],
    "litdata": [("chunk-0-0.bin", "raw")],
    "mds": [("shard.00000.mds", "raw")],
    "parquet": [("train-00000-of-00001.parquet", "parquet")],
}

TARGETS: dict[str, Target] = {
    "part": Target("store/parts/00000000.arrow", "arrow", _read_part),
    "manifest": Target("store/manifest.parquet", "parquet", _read_store),
    "plan": Target("store/plan.parquet", "parquet", _read_store),
    "sources": Target("store/sources.parquet", "parquet", _read_store),
    "run": Target("store/run.json", "json", _read_store),
    "run-unfinished": Target("store/run.json", "json", _read_unfinished),
    "pulse": Target("store/drivers/one.json", "json", _read_pulse),
    "quarantine": Target(f"store/{quarantine.QUARANTINE_FILE}", "json", _read_quarantine),
    "export-job": Target("store/nanogpt/.tokenmill/export.json", "json", _read_export_job),
    "export-plan": Target("store/nanogpt/.tokenmill/plan.parquet", "parquet", _read_export_plan),
    "export-record": Target("store/nanogpt/.tokenmill/shards/00000000.arrow", "arrow", _read_record),
    "export-manifest": Target("store/nanogpt/.tokenmill/manifests/00000000.parquet", "parquet", _read_export_manifest),
    "shuffle-index": Target("store/nanogpt/.tokenmill/runs/00000000.index", "raw", _read_run),
    "shuffle-documents": Target("store/nanogpt/.tokenmill/runs/00000000.documents", "raw", _read_run),
    "vocabulary-tiktoken": Target("gpt2.tiktoken", "raw", _read_tiktoken),
    "vocabulary-json": Target("tokenizer.json", "json", _read_tokenizer_json),
    **{
        f"{name}{Path(file).suffix}": Target(
            f"store/{name}/{file}", kind, _read_shard(name, *(each for each, _ in files))
        )
        for name, files in _SHARDS.items()
        for file, kind in files
    },
}
"""Every reader. A new file of a store gets a line here, and the fuzzer and the tests take it from there."""


def fate(base: Path, name: str, data: bytes) -> str | None:
    """Read one input; None if it ends as it may, else what came of it."""
    target = TARGETS[name]
    for file in ("run.json", "manifest.parquet"):  # what readers of a whole store change
        shutil.copyfile(base / "sound" / file, base / "store" / file)
    sound = (base / target.file).read_bytes()
    replace(base / target.file, data)
    try:
        target.read(base)
    except TokenmillError as error:
        str(error).encode()
    except Exception as error:  # noqa: BLE001 - whatever else is raised is what is looked for
        return describe(error)
    finally:
        replace(base / target.file, sound)
    return None


def replace(path: Path, data: bytes) -> None:
    """Put a new file in the place of one that may still be mapped into memory."""
    path.unlink()
    path.write_bytes(data)


def describe(error: Exception) -> str:
    """The kind of the error and the last line of tokenmill that it passed: what makes two findings one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    place = f"{Path(frames[-1].filename).relative_to(PACKAGE)}:{frames[-1].name}" if frames else "outside"
    return f"{type(error).__name__} in {place}: {str(error)[:100]!r}"
