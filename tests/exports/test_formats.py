"""The contract of a format, held by every one: golden bytes, round trips, damage told, names."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import GOLDEN
from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.storage import Folder, folder_at
from tokenmill.token_files import FORMATS, find_format, litdata, llmc, mds, parquet
from tokenmill.token_files.protocol import (
    CompletedSplit,
    Content,
    FileRegion,
    Format,
    Shard,
    ShardData,
    ShardRecord,
    WrittenFile,
)

APPENDED = [[1, 2, 3, 50256], [4, 5, 50256], [6, 7, 8, 9, 10, 50256]]
PREPENDED = [[50256, 1, 2, 3], [50256, 4, 5], [50256, 6, 7, 8, 9, 10]]
TOKEN_FORMATS = [name for name, each in FORMATS.items() if not each.SPEC.is_text]
KINDS = [(name, dtype) for name, each in FORMATS.items() for dtype in each.SPEC.dtypes]

Documents = Sequence[Sequence[int]]


SHARD = Shard(0, 2, "train", "", "", "uint16", "gpt2", True, 4, "input_ids", pa.array(["a.parquet"]))


def make_shard(**words: Any) -> Shard:
    """A shard of the training split, the first of two, but for what is said."""
    return dataclasses.replace(SHARD, **words)


def make_content(documents: Documents, dtype: str, cuts: Sequence[int] = (5,)) -> Content:
    """Documents of one source, their tokens in batches that are cut anywhere."""
    tokens = np.array(list(itertools.chain(*documents)), dtype)
    lengths = np.array([len(document) for document in documents], np.int64)
    rows = np.arange(len(documents), dtype=np.uint64)
    batches = iter(np.split(tokens, sorted(cuts)))
    return Content(lengths, np.zeros(len(documents), np.uint32), rows, batches, text=text_of(documents))


def text_of(documents: Documents) -> Callable[[int, int], pa.LargeStringArray]:
    """The text of documents, which lists their tokens."""
    texts = pa.array([" é ".join(map(str, document)) for document in documents], pa.large_string())
    return lambda start, stop: texts.slice(start, stop - start)


def export(folder: Folder, each: Format, shard: Shard, documents: Documents, cuts: Sequence[int] = (5,)) -> list[Path]:
    """Write one shard and what comes after all of them; every file is as it was told."""
    content = make_content(documents, shard.dtype, cuts)
    lengths = content.lengths
    written = each.write(folder, shard, content)
    assert tuple(file.name for file in written) == each.files(shard)
    record = ShardRecord(0, shard.split, shard.number, 0, len(lengths), int(lengths.sum()), written)
    split = CompletedSplit(shard.folder, shard.dtype, [record], lambda: iter([lengths]), shard.sequence_tokens)
    written += each.finish(folder, split)
    paths = [Path(folder.path(file.name)) for file in written]
    for file, path in zip(written, paths, strict=True):
        assert file == WrittenFile(file.name, path.stat().st_size, xxhash.xxh3_128_hexdigest(path.read_bytes()))
    assert not [path for path in Path(folder.root).rglob("*") if path.is_file() and path not in paths]
    return paths


def same(found: ShardData, name: str, documents: Documents) -> bool:
    """Whether a reader gave the documents back."""
    if FORMATS[name].SPEC.is_text:
        return bool(found.text == text_of(documents)(0, len(documents)))
    tokens = list(itertools.chain(*documents))
    pieces = [tokens[start : start + 4] for start in range(0, len(tokens), 4)] if name == "mds" else documents
    told = found.lengths is None or found.lengths.tolist() == [len(piece) for piece in pieces]
    return told and found.tokens.tolist() == tokens


@pytest.mark.parametrize(
    ("name", "dtype", "golden", "words"),
    [
        ("nanogpt", "uint16", "nanogpt/train.bin", {}),
        ("build-nanogpt", "uint16", "build-nanogpt/edufineweb_train_000001.npy", {"number": 1}),
        ("llmc", "uint16", "llmc/fineweb_train_000001.bin", {"number": 1}),
        ("llmc", "uint32", "llmc/llama3_train_000001.bin", {"number": 1, "name": "llama3"}),
        ("megatron", "uint16", "megatron/u16_text_document.*", {}),
        ("megatron", "int32", "megatron/i32_text_document.*", {}),
        ("datatrove", "uint16", "datatrove/*", {}),
        ("datatrove", "uint32", "datatrove4/*", {}),
        ("litdata", "uint16", "litdata_u16/*", {}),
        ("litdata", "int32", "litdata_i32/*", {}),
        ("litdata", "uint32", "litdata_u32/*", {}),
        ("mds", "uint16", "mds_u16/*", {}),
        ("mds", "int32", "mds_i32/*", {}),
    ],
)
def test_golden_bytes(tmp_path: Path, name: str, dtype: str, golden: str, words: dict[str, Any]) -> None:
    """Every format writes the bytes that its own project's writer would."""
    each = FORMATS[name]
    documents = APPENDED if each.SPEC.defaults.end == "appended" else PREPENDED
    if name == "mds":
        documents = [*documents[:2], documents[2][:-1]]
    paths = sorted(export(folder_at(str(tmp_path)), each, make_shard(dtype=dtype, **words), documents))
    expected = sorted(GOLDEN.glob(golden))
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in expected]
    if name != "megatron":
        assert [path.name for path in paths] == [path.name for path in expected]


def test_golden_olmo(tmp_path: Path) -> None:
    """OLMo's tokens and the places of its documents are those of dolma's writer; ids and paths are our own."""
    paths = export(folder_at(str(tmp_path)), FORMATS["olmo"], make_shard(), APPENDED)
    tokens, rows = (GOLDEN / "dolma" / path.name for path in paths)
    assert paths[0].read_bytes() == tokens.read_bytes()
    assert paths[1].read_bytes()[:8] == rows.read_bytes()[:8]  # then comes how hard the compressor tried
    assert paths[1].read_bytes()[9] == rows.read_bytes()[9]
    ours, theirs = (gzip.decompress(path.read_bytes()).split(b"\r\n") for path in (paths[1], rows))
    assert [line.split(b",")[:2] for line in ours] == [line.split(b",")[:2] for line in theirs]
    assert ours == [b"0,4,0-0,a.parquet,1", b"4,7,0-1,a.parquet,2", b"7,13,0-2,a.parquet,3", b""]


@pytest.mark.parametrize(("name", "dtype"), KINDS)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_documents_come_back(name: str, dtype: str, data: st.DataObject) -> None:
    """What is written is read back, however the tokens were cut into batches, empty documents included."""
    most = min(np.iinfo(dtype).max, 200_000)
    documents = data.draw(st.lists(st.lists(st.integers(0, int(most)), max_size=9), max_size=9))
    cuts = data.draw(st.lists(st.integers(0, sum(map(len, documents))), max_size=5))
    shard = make_shard(dtype=dtype)
    with tempfile.TemporaryDirectory() as directory:
        export(folder_at(directory), FORMATS[name], shard, documents, cuts)
        found = FORMATS[name].read(folder_at(directory), FORMATS[name].files(shard), dtype)
        assert found.tokens.dtype == dtype
        assert found.lengths is None or found.lengths.dtype == np.int64
        assert same(found, name, documents)


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_do_not_depend_on_batches(tmp_path: Path, name: str) -> None:
    """One batch, or one for each token with empty ones between, give the same files."""
    for place, cuts in enumerate([(), [*range(14), *range(14)]]):
        (tmp_path / str(place)).mkdir()
        export(folder_at(str(tmp_path / str(place))), FORMATS[name], make_shard(), APPENDED, cuts)
    first, second = ([p.read_bytes() for p in sorted((tmp_path / place).iterdir())] for place in "01")
    assert first == second


@pytest.mark.parametrize("name", TOKEN_FORMATS)
@pytest.mark.parametrize("tokens", [12, 14])
def test_tokens_that_are_not_the_documents_are_refused(tmp_path: Path, name: str, tokens: int) -> None:
    """A stream that ends early or late is an error, and no file appears."""
    content = dataclasses.replace(make_content(APPENDED, "uint16"), batches=iter([np.zeros(tokens, np.uint16)]))
    with pytest.raises(StoreError, match="do not have its tokens"):
        FORMATS[name].write(folder_at(str(tmp_path)), make_shard(), content)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["nanogpt", "megatron"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_pieces_make_the_whole(name: str, data: st.DataObject) -> None:
    """Pieces of one file, filled in any order and sealed, equal the file written at once."""
    each = FORMATS[name]
    pieces = data.draw(
        st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), min_size=1, max_size=4)
    )
    lengths = [np.array([len(document) for document in documents], np.int64) for documents in pieces]
    tokens = [int(some.sum()) for some in lengths]
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other:
        folder, records = folder_at(directory), {}
        for place in data.draw(st.permutations(range(len(pieces)))):
            start = sum(tokens[:place])
            shard = make_shard(number=place, region=FileRegion(start, sum(tokens)))
            written = each.write(folder, shard, make_content(pieces[place], "uint16", ()))
            records[place] = ShardRecord(place, "train", place, start, len(pieces[place]), tokens[place], written)
        names = each.files(make_shard(region=FileRegion(0, 0)))
        folder.regions.finalize(names[0], sum(tokens) * 2)
        each.finish(folder, CompletedSplit("", "uint16", list(records.values()), lambda: iter(lengths), file=names[0]))
        whole = export(folder_at(other), each, make_shard(), list(itertools.chain(*pieces)), ())
        assert [Path(folder.path(name)).read_bytes() for name in names] == [path.read_bytes() for path in whole]


def exported(tmp_path: Path, name: str, documents: Documents = APPENDED) -> tuple[Folder, Format, tuple[str, ...]]:
    """A shard's folder, format and files, to be damaged."""
    folder, each = folder_at(str(tmp_path)), FORMATS[name]
    export(folder, each, make_shard(), documents)
    return folder, each, each.files(make_shard())


def damage(path: Path, data: bytes) -> None:
    """Put other bytes in a file's place, as a new file: the old one may still be mapped."""
    path.unlink()
    path.write_bytes(data)


@pytest.mark.parametrize("name", FORMATS)
def test_cut_files_are_damaged(tmp_path: Path, name: str) -> None:
    """A file that ends early is told as damaged, unless all that is read is there; a raw file tells only odd ends."""
    folder, each, files = exported(tmp_path, name)
    for file in files:
        path = tmp_path / file
        data = path.read_bytes()
        for end in range(len(data)):
            damage(path, data[:end])
            try:
                found = each.read(folder, files, "uint16")
            except CorruptStore:
                continue
            is_noticed = each.SPEC.layout.states_length or end % 2
            assert not is_noticed or same(found, name, APPENDED)
        path.unlink()
        with pytest.raises(StoreError, match=file):
            each.read(folder, files, "uint16")
        path.write_bytes(data)


@pytest.mark.thorough
@pytest.mark.parametrize("name", FORMATS)
def test_flipped_bytes_are_damage_or_tokens(tmp_path: Path, name: str) -> None:
    """Whatever byte of a file is flipped, the reader gives sound counts or tells that the file is damaged."""
    folder, each, files = exported(tmp_path, name)
    for path in (tmp_path / file for file in files):
        data = path.read_bytes()
        for place, mask in itertools.product(range(len(data)), (0x01, 0x80)):
            damage(path, data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :])
            try:
                found = each.read(folder, files, "uint16")
            except CorruptStore:
                continue
            assert len(found.tokens) == 13 if found.text is None else len(found.text) == len(APPENDED)
            assert found.lengths is None or int(found.lengths.sum()) == 13
        damage(path, data)


@pytest.mark.parametrize(
    ("name", "file", "places"),
    [
        ("build-nanogpt", 0, range(128)),
        ("llmc", 0, [*range(16), 1023]),
        ("megatron", 1, range(102)),
        ("datatrove", 1, range(16, 24)),
        ("datatrove", 2, range(4, 9)),
        ("olmo", 1, range(2)),
        ("litdata", 0, [*range(8), *range(16, 20)]),
        ("mds", 0, range(24 + 182 + 6)),
        *((name, 0, [*range(4), *range(-8, 0)]) for name in ("parquet", "text", "nanochat")),
    ],
)
def test_headers_are_checked(tmp_path: Path, name: str, file: int, places: Sequence[int]) -> None:
    """No bit of what a format tells of its own tokens can change unseen."""
    folder, each, files = exported(tmp_path, name)
    path = tmp_path / files[file]
    data = path.read_bytes()
    for place, bit in itertools.product(places, range(8)):
        changed = bytearray(data)
        changed[place] ^= 1 << bit
        damage(path, bytes(changed))
        with pytest.raises(CorruptStore):
            each.read(folder, files, "uint16")


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if each.SPEC.layout.states_type])
def test_other_dtypes_are_refused(tmp_path: Path, name: str) -> None:
    """Tokens are never read as another type than they have, where a shard's files state it."""
    folder, each, files = exported(tmp_path, name, [[1, 2], [3, 4]])
    with pytest.raises(CorruptStore):
        each.read(folder, files, each.SPEC.dtypes[-1])


@pytest.mark.parametrize(
    ("name", "words", "files"),
    [
        ("nanogpt", {"split": "val"}, ["val.bin"]),
        ("build-nanogpt", {"split": "val"}, ["edufineweb_val_000000.npy"]),
        ("build-nanogpt", {"name": "web", "number": 12}, ["web_train_000012.npy"]),
        ("llmc", {"split": "val"}, ["fineweb_val_000000.bin"]),
        ("megatron", {"region": FileRegion(0, 0)}, ["train_text_document.bin", "train_text_document.idx"]),
        ("megatron", {"name": "web", "number": 3}, [f"web_train_000003_text_document.{end}" for end in ("bin", "idx")]),
        ("datatrove", {"folder": "val"}, [f"val/00000_00000_shuffled.ds{end}" for end in ("", ".index", ".metadata")]),
        ("datatrove", {"shuffled": False}, [f"00000_00000_unshuffled.ds{end}" for end in ("", ".index", ".metadata")]),
        ("olmo", {"folder": "train", "number": 7}, ["train/part-0-00007.npy", "train/part-0-00007.csv.gz"]),
        ("litdata", {"folder": "val", "number": 10}, ["val/chunk-0-10.bin"]),
        ("mds", {"folder": "val", "number": 10}, ["val/shard.00010.mds"]),
        ("parquet", {"split": "val", "number": 1, "count": 3}, ["val-00001-of-00003.parquet"]),
        ("text", {"split": "val", "number": 1, "count": 3}, ["val-00001-of-00003.parquet"]),
        ("nanochat", {"split": "val", "number": 3, "count": 1}, ["shard_00003.parquet"]),
    ],
)
def test_names(name: str, words: dict[str, Any], files: list[str]) -> None:
    """Files have the names that the trainers look for."""
    assert list(FORMATS[name].files(make_shard(**words))) == files


def test_formats_are_found_by_name() -> None:
    """Each format is known by its own name; another is refused with the list of those there are."""
    assert [find_format(name).SPEC.name for name in FORMATS] == list(FORMATS)
    with pytest.raises(UsageError, match="nanogpt, build-nanogpt"):
        find_format("zip")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("megatron-lm", "Did you mean megatron?"),
        ("NeMo", "Did you mean megatron?"),
        ("llm.c", "Did you mean llmc?"),
        ("nanogpt,megatron", "Give --to once for each"),
    ],
)
def test_a_format_that_is_called_otherwise_is_guessed(said: str, advice: str) -> None:
    """Capitals do not matter; another spelling, a trainer's name or a list is refused with what was meant."""
    assert find_format("Megatron") is FORMATS["megatron"]
    with pytest.raises(UsageError) as raised:
        find_format(said)
    assert advice in raised.value.text


def test_numpy_reads_build_nanogpt(tmp_path: Path) -> None:
    """The shards of build-nanogpt are NumPy files, whatever their type."""
    for dtype in ("uint16", "uint32"):
        path = export(folder_at(str(tmp_path)), FORMATS["build-nanogpt"], make_shard(dtype=dtype), PREPENDED)[0]
        assert np.load(path).dtype == dtype
        assert np.load(path).tolist() == list(itertools.chain(*PREPENDED))


def test_olmo_rows_are_those_of_csv(tmp_path: Path) -> None:
    """Paths with commas, quotes and line ends are quoted as Python's csv does it, over batches of rows."""
    paths = ["plain", "a,b", 'a "b"', "two\nlines", "ü"]
    count = 70_000
    source = (np.arange(count) % len(paths)).astype(np.uint32)
    rows = np.arange(count, dtype=np.uint64) * 3
    content = Content(np.ones(count, np.int64), source, rows, iter([np.zeros(count, np.uint16)]))
    each, shard = FORMATS["olmo"], make_shard(paths=pa.array(paths))
    each.write(folder_at(str(tmp_path)), shard, content)
    text = io.StringIO(newline="")
    csv.writer(text).writerows(
        (n, n + 1, f"{s}-{row}", paths[s], row + 1)
        for n, (s, row) in enumerate(zip(source.tolist(), rows.tolist(), strict=True))
    )
    assert gzip.decompress((tmp_path / "part-0-00000.csv.gz").read_bytes()) == text.getvalue().encode()
    assert len(each.read(folder_at(str(tmp_path)), each.files(shard), "uint16").tokens) == count


def test_datatrove_metadata_can_be_taken_apart(tmp_path: Path) -> None:
    """The tokenizer's name never breaks the first line, and the last is a count for people."""
    for tokenizer, tokens, text in [
        ("a|b\nc", 999, "a_b_c|2\n999\n999 T"),
        ("", 1000, "unknown|2\n1000\n1.00 kT"),
        ("o/gpt", 1_234_567, "o/gpt|2\n1234567\n1.23 MT"),
    ]:
        export(folder_at(str(tmp_path)), FORMATS["datatrove"], make_shard(tokenizer=tokenizer), [[0] * tokens])
        assert (tmp_path / "00000_00000_shuffled.ds.metadata").read_text() == text


@pytest.mark.parametrize("module", [llmc, litdata, mds])
def test_files_too_large_for_their_offsets_are_refused(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that the format cannot address is an error, not a file with offsets that wrapped around."""
    monkeypatch.setattr(module, "MAX_BYTES", 40)
    with pytest.raises(StoreError, match="larger than its format allows"):
        export(folder_at(str(tmp_path)), module, make_shard(), APPENDED)
    assert not list(tmp_path.iterdir())


def test_mds_keeps_a_rest_and_raises_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest is a last, shorter sample; a shard larger than the usual limit tells one that holds it."""
    monkeypatch.setattr(mds, "LIMITS", (64, 512, 1024))
    path, index = export(folder_at(str(tmp_path)), mds, make_shard(), APPENDED)
    told = json.loads(index.read_text())["shards"][0]
    assert (told["samples"], told["size_limit"], told["raw_data"]["bytes"]) == (4, 512, path.stat().st_size)
    assert b'"size_limit": 512' in path.read_bytes()
    lengths = mds.read(folder_at(str(tmp_path)), [path.name], "uint16").lengths
    assert lengths is not None
    assert lengths.tolist() == [4, 4, 4, 1]


def test_parquet_row_groups_hold_whole_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups end with documents, and hold as many tokens and rows as fit, or one longer document."""
    monkeypatch.setattr(parquet, "GROUP_TOKENS", 4)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 3)
    documents = [[1, 2], [3, 4], [], [], [5] * 9, [], [], [], [6], [7, 8, 9, 10]]
    path = export(folder_at(str(tmp_path)), parquet, make_shard(), documents, (1, 6, 11))[0]
    file = pq.ParquetFile(path)
    groups = [file.read_row_group(group)["input_ids"].to_pylist() for group in range(file.num_row_groups)]
    assert groups == [[[1, 2], [3, 4], []], [[]], [[5] * 9], [[], [], []], [[6]], [[7, 8, 9, 10]]]
    assert parquet.read(folder_at(str(tmp_path)), [path.name], "uint16").tokens.tolist() == list(
        itertools.chain(*documents)
    )


def test_parquet_names_each_path_once(tmp_path: Path) -> None:
    """Two sources of the same path, as in a recipe that repeats a store. Equal values would make pyarrow write junk."""
    lengths, ones = np.array([2, 1, 3], np.int64), np.arange(3)
    content = Content(lengths, ones.astype(np.uint32), ones.astype(np.uint64), iter([np.arange(6, dtype=np.uint16)]))
    shard = make_shard(count=1, paths=pa.array(["a.parquet", "b.parquet", "a.parquet"]))
    (written,) = parquet.write(folder_at(str(tmp_path)), shard, content)
    table = pq.ParquetFile(tmp_path / written.name, read_dictionary=["source"]).read()
    (chunk,) = table["source"].chunks
    assert chunk.dictionary.to_pylist() == ["a.parquet", "b.parquet"]
    assert chunk.to_pylist() == ["a.parquet", "b.parquet", "a.parquet"]


def test_parquet_holds_a_long_document_of_one_token(tmp_path: Path) -> None:
    """Such a file is compressed to nearly nothing, and is not taken for damage."""
    tokens = np.full(5_000_000, 7, np.uint16)
    one = np.zeros(1, np.int64)
    content = Content(one + len(tokens), one.astype(np.uint32), one.astype(np.uint64), iter([tokens]))
    folder = folder_at(str(tmp_path))
    (written,) = parquet.write(folder, make_shard(count=1), content)
    assert (tmp_path / written.name).stat().st_size < 50_000
    assert np.array_equal(parquet.read(folder, [written.name], "uint16").tokens, tokens)


def test_datasets_loads_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load_dataset` finds both splits, with the tokens, the source and the row of each document."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    folder = folder_at(str(tmp_path / "export"))
    folder.create()
    for split in ("train", "val"):
        parquet.write(folder, make_shard(split=split, count=1), make_content(APPENDED, "uint16"))
    loaded = datasets.load_dataset(folder.root, cache_dir=str(tmp_path / "cache"))
    assert set(loaded) == {"train", "validation"}
    assert loaded["validation"]["input_ids"][:] == APPENDED
    assert loaded["train"][2] == {"input_ids": APPENDED[2], "source": "a.parquet", "row": 2}
