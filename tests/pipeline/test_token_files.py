"""Files of tokens as sources: what is exported is imported to the same documents, and exported to the same bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.inline_executor import InlineExecutor
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import SourceError, TokenmillError, UsageError
from tokenmill.results import PrepareResult

BEGIN, END = 1198, 1199
FORMATS: dict[str, dict[str, Any]] = {
    "nanogpt": {},
    "build-nanogpt": {"shard_tokens": 700},
    "llmc": {"shard_tokens": 20},
    "megatron": {"shard_tokens": 900},
    "datatrove": {"shard_tokens": 900},
    "olmo": {"shard_tokens": 900},
    "litdata": {"shard_tokens": 900},
    "mds": {"shard_tokens": 900, "sequence_tokens": 30, "tail": "keep"},
}


def prepare(source: str | Path | list[str], out: Path, **options: Any) -> PrepareResult:
    given = {
        "tokenizer": SMALL_JSON,
        "unit_bytes": 1500,
        "executor": InlineExecutor(),
        "eot": END,
        "trust_tokens": True,
    }
    return tokenmill.prepare(source, out=str(out), **{**given, **options})


def export(store: PrepareResult, out: Path, name: str, **options: Any) -> Path:
    tokenmill.export(
        store, to=name, out=str(out), **{"val": "none", "executor": InlineExecutor(), **FORMATS[name], **options}
    )
    return out


def documents_of(store: PrepareResult) -> list[list[int]]:
    opened = tokenmill.open(store)
    return [opened[position].tolist() for position in range(len(opened))]


def contents(directory: Path) -> dict[str, bytes]:
    """The files of an export for its trainer."""
    paths = [path for path in sorted(directory.rglob("*")) if path.suffix in {".bin", ".idx", ".ds", ".npy", ".mds"}]
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PrepareResult:
    """A store of random documents, some without tokens, each between a begin and an end token."""
    random, path = np.random.default_rng(3), tmp_path_factory.mktemp("store")
    documents = [random.integers(0, 1000, length).tolist() for length in random.integers(0, 40, 250)]
    documents[0], documents[7] = [5, 6], []
    pq.write_table(pa.table({"ids": pa.array(documents, pa.list_(pa.int32()))}), path / "a.parquet")
    return prepare(path / "a.parquet", path / "out", tokens_column="ids", bos=BEGIN)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_exported_is_imported(name: str, store: PrepareResult, tmp_path: Path) -> None:
    """The documents are the same, and so are the bytes of another export; `verify --all` compares every document."""
    files = export(store, tmp_path / "first", name)
    result = prepare(files, tmp_path / "store", bos=BEGIN)
    assert documents_of(result) == documents_of(store)
    assert contents(export(result, tmp_path / "second", name)) == contents(files)
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents
    again = prepare(files, tmp_path / "again", bos=BEGIN, workers=2, executor=None)
    assert part_bytes(again.directory) == part_bytes(result.directory)
    assert prepare(files, tmp_path / "store", bos=BEGIN).documents == result.documents


def test_a_begin_token_that_was_lost_is_added(store: PrepareResult, tmp_path: Path) -> None:
    """The frame of the sources is removed, and that of the job is added."""
    files = export(store, tmp_path / "files", "megatron")
    assert documents_of(prepare(files, tmp_path / "a", source_bos=BEGIN)) == [ids[1:] for ids in documents_of(store)]
    whole = prepare(files, tmp_path / "b", source_bos="none", source_eot="none", eot="none")
    assert documents_of(whole) == documents_of(store)


@pytest.mark.parametrize("name", ["megatron", "datatrove", "olmo", "litdata"])
def test_an_end_token_before_the_begin_token_is_removed(name: str, store: PrepareResult, tmp_path: Path) -> None:
    """An index whose documents begin with the end token and then the begin token gives the same documents."""
    files = export(store, tmp_path / "first", name, eot_position="prepended")
    for limit in (2, None):
        result = prepare(files, tmp_path / "store", bos=BEGIN, limit_units=limit)
    assert documents_of(result) == documents_of(store)
    assert contents(export(result, tmp_path / "second", name, eot_position="prepended")) == contents(files)
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents


def test_a_file_that_ends_inside_a_document_is_divided_by_the_end_token(tmp_path: Path) -> None:
    """Its begin token occurs once more than its end token."""
    ids = [BEGIN, 1, 2, END, BEGIN, 3, END, BEGIN, 4]
    np.array(ids, "<u2").tofile(tmp_path / "train.bin")
    assert documents_of(prepare(tmp_path / "train.bin", tmp_path / "store", bos=BEGIN)) == [
        [BEGIN, 1, 2, END],
        [BEGIN, 3, END],
        [BEGIN, 4, END],
    ]


def test_the_begin_token_is_found_beside_a_document_that_was_cut_off(tmp_path: Path) -> None:
    """One document of a small sample may be without it."""
    documents = [[1, 2], *([BEGIN, number] for number in range(15))]
    np.array([token for ids in documents for token in (*ids, END)], "<u2").tofile(tmp_path / "train.bin")
    result = prepare(tmp_path / "train.bin", tmp_path / "store", bos=BEGIN)
    assert documents_of(result) == [[BEGIN, 1, 2, END], *([*ids, END] for ids in documents[1:])]


def test_the_run_goes_on_with_the_same_bytes(store: PrepareResult, tmp_path: Path) -> None:
    """A run that ended in the middle continues, and one whose next file changed redoes the documents that it joins."""
    files = export(store, tmp_path / "files", "llmc", shard_tokens=690)
    fresh = prepare(files, tmp_path / "fresh", bos=BEGIN)
    prepare(files, tmp_path / "store", bos=BEGIN, limit_units=2)
    assert part_bytes(prepare(files, tmp_path / "store", bos=BEGIN).directory) == part_bytes(fresh.directory)
    second = sorted(files.glob("*.bin"))[1]
    data = bytearray(second.read_bytes())
    prepare(files, tmp_path / "changed", bos=BEGIN, limit_units=4)
    head = np.frombuffer(data[1024:], "<u2").tolist().index(END)
    assert head > 0
    data[1024 : 1024 + 2 * head] = np.full(head, 9, "<u2").tobytes()
    second.write_bytes(data)
    changed = prepare(files, tmp_path / "changed", bos=BEGIN)
    assert part_bytes(changed.directory) == part_bytes(prepare(files, tmp_path / "other", bos=BEGIN).directory)
    assert part_bytes(changed.directory) != part_bytes(fresh.directory)


@pytest.mark.parametrize("name", ["llmc", "megatron", "olmo", "mds"])
def test_files_in_object_storage_are_read(name: str, store: PrepareResult, s3: Bucket, tmp_path: Path) -> None:
    """Ranges of bytes are read, and the parts are those of local files but for their addresses."""
    files = export(store, tmp_path / "files", name)
    s3.server.upload(files, f"{s3.url}/files")
    result = prepare(f"{s3.url}/files", tmp_path / "store", bos=BEGIN)
    assert documents_of(result) == documents_of(store)


def test_a_byte_that_was_flipped_is_found(store: PrepareResult, tmp_path: Path) -> None:
    """`verify --all` compares the store with the file, whose size and time are as before."""
    files = export(store, tmp_path / "files", "llmc", shard_tokens=1000)
    result = prepare(files, tmp_path / "store", bos=BEGIN)
    path = sorted(files.glob("*.bin"))[2]
    data, status = bytearray(path.read_bytes()), path.stat()
    data[1024 + 500] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(TokenmillError, match="has other tokens"):
        tokenmill.verify(result, all=True, executor=InlineExecutor())


def test_documents_are_located(store: PrepareResult, tmp_path: Path) -> None:
    """A document is found by its number in the index, or by the token of the file at which it starts."""
    for name, row in (("megatron", 3), ("llmc", sum(map(len, documents_of(store)[:3])))):
        files = export(store, tmp_path / name, name, shard_tokens=5000)
        result = prepare(files, tmp_path / f"{name}-store", bos=BEGIN)
        document = tokenmill.open(result).document(3)
        assert (document.row, os.path.dirname(document.source)) == (row, str(files))
        found = tokenmill.locate(result, sum(len(ids) for ids in documents_of(result)[:3]))
        assert [(each.source, each.row) for each in found.documents] == [(document.source, row)]


def test_the_index_and_the_end_tokens_may_disagree(store: PrepareResult, tmp_path: Path) -> None:
    """The documents are those of the index; a note says in how many of a sample the end token is elsewhere."""
    files = export(store, tmp_path / "files", "datatrove", shard_tokens=100_000)
    index = next(files.glob("*.index"))
    ends = np.fromfile(index, "<u8")
    np.delete(ends, 20).tofile(index)
    result = prepare(files, tmp_path / "store", bos=BEGIN)
    assert result.documents == store.documents - 1
    assert any("and 1 have it inside" in note for note in result.notices)


def test_a_series_of_files_of_another_split_is_not_joined(store: PrepareResult, tmp_path: Path) -> None:
    """The files for validation and for training are series of their own."""
    files = export(store, tmp_path / "files", "llmc", val="first-shard", shard_tokens=1000)
    result = prepare([f"{files}/fineweb_*.bin"], tmp_path / "store", bos=BEGIN)
    heads = tokenmill.open(result).sources["head"].to_pylist()
    assert heads[0] == 0
    assert result.documents == store.documents + 1  # both have a part of one


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"column": "text"}, UsageError, "column= has no effect: the sources are files of tokens"),
        ({"tokens_column": "ids"}, UsageError, "tokens_column= has no effect"),
        ({"keep": "url"}, UsageError, "files of tokens have no columns"),
        ({"prefix": "{url}"}, UsageError, "prefix= cannot be used with files of tokens"),
        ({"rows": "lines"}, UsageError, "rows= is documents, stream or overlap, not 'lines'"),
        ({"rows": "stream:7"}, UsageError, "stream:7. has no effect"),
        ({"rows": "overlap:x"}, UsageError, "is not a number of tokens"),
        ({"rows": "overlap"}, UsageError, "needs the length of the rows"),
        ({"source_eot": 1197}, SourceError, "the files of tokens have no end token"),
        ({"eot": 1197}, SourceError, "no token divides the documents"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    options: dict[str, Any], error: type[Exception], message: str, store: PrepareResult, tmp_path: Path
) -> None:
    files = export(store, tmp_path / "files", "llmc", shard_tokens=5000)
    with pytest.raises(error, match=message):
        prepare(files, tmp_path / "store", **options)


def test_text_and_tokens_are_two_stores(store: PrepareResult, tmp_path: Path) -> None:
    files = export(store, tmp_path / "files", "llmc", shard_tokens=5000)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(SourceError, match="some sources are files of tokens and others are text"):
        prepare([str(tmp_path / "a.jsonl"), str(files)], tmp_path / "store")
