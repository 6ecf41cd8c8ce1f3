"""Files of tokens that anybody wrote: what is exported comes back, peers' layouts are read, damage is refused."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import shutil
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exports.test_formats import APPENDED, export, make_shard
from tests.support import GOLDEN
from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.storage import folder_at
from tokenmill.token_files import FORMATS
from tokenmill.token_files.recognize import START_BYTES, choose_dtype, open_tokens, recognize
from tokenmill.token_files.token_file import MAX_ID, TokenFile, as_ids

READ = [(name, dtype) for name, each in FORMATS.items() if hasattr(each, "open_tokens") for dtype in each.SPEC.dtypes]
INDEXED = ("megatron", "datatrove", "olmo", "litdata")
# The formats whose files do not state the type of their tokens.
RAW_FORMATS = ("nanogpt", "olmo")


def opened(path: Path, dtype: str = "", name: str | None = None) -> TokenFile:
    """A file of tokens, of the format that its content shows."""
    file = storage.stat(str(path))
    beside = {each.name for each in path.parent.iterdir()}
    found = name or recognize(str(path), storage.read_start(file, START_BYTES), beside.__contains__)
    assert found is not None
    return open_tokens(file, found, dtype)


def documents_of(tokens: TokenFile) -> list[list[int]]:
    """The documents of a file with an index, or all tokens as one."""
    if tokens.documents is None:
        return [tokens.read(0, tokens.tokens).tolist()]
    edges = tokens.edges(0, tokens.documents).tolist()
    return [tokens.read(start, stop).tolist() for start, stop in itertools.pairwise(edges)]


def flat(documents: Sequence[Sequence[int]]) -> list[int]:
    """All tokens."""
    return list(itertools.chain(*documents))


@pytest.mark.parametrize(("name", "dtype"), READ)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_exports_are_read(name: str, dtype: str, data: st.DataObject) -> None:
    """Each export is recognized, and any range of its tokens and documents is read, empty documents included."""
    most = min(np.iinfo(dtype).max, 200_000)
    documents = data.draw(st.lists(st.lists(st.integers(0, int(most)), max_size=9), min_size=1, max_size=9))
    every = flat(documents)
    start = data.draw(st.integers(0, len(every)))
    stop = data.draw(st.integers(start, len(every)))
    first = data.draw(st.integers(0, len(documents)))
    last = data.draw(st.integers(first, len(documents)))
    with tempfile.TemporaryDirectory() as directory:
        path = export(folder_at(directory), FORMATS[name], make_shard(dtype=dtype), documents)[0]
        tokens = opened(path, dtype if name in RAW_FORMATS else "")
        assert (tokens.dtype, tokens.tokens) == (dtype, len(every))
        assert tokens.read(start, stop).tolist() == every[start:stop]
        assert flat([batch.tolist() for batch in tokens.batches(start, stop, 3)]) == every[start:stop]
        assert (tokens.documents is not None) == (name in INDEXED)
        if tokens.documents is not None:
            edges = [0, *itertools.accumulate(map(len, documents))]
            assert tokens.documents == len(documents)
            assert tokens.edges(first, last).tolist() == edges[first : last + 1]


@pytest.mark.parametrize(
    ("golden", "dtype", "form"),
    [
        ("nanogpt/train.bin", "uint16", "nanogpt"),
        ("build-nanogpt/edufineweb_train_000001.npy", "", "build-nanogpt"),
        ("llmc/fineweb_train_000001.bin", "", "llmc"),
        ("llmc/llama3_train_000001.bin", "", "llmc"),
        ("megatron/u16_text_document.bin", "", "megatron"),
        ("megatron/i32_text_document.bin", "", "megatron"),
        ("datatrove/00000_00000_shuffled.ds", "", "datatrove"),
        ("datatrove4/00000_00000_shuffled.ds", "", "datatrove"),
        ("dolma/part-0-00000.npy", "uint16", "olmo"),
        ("litdata_u16/chunk-0-0.bin", "", "litdata"),
        ("litdata_i32/chunk-0-0.bin", "", "litdata"),
        ("mds_u16/shard.00000.mds", "", "mds"),
        ("mds_i32/shard.00000.mds", "", "mds"),
    ],
)
def test_files_of_the_peers_are_read(golden: str, dtype: str, form: str) -> None:
    """The files that each project's own writer makes are recognized and read."""
    path = GOLDEN / golden
    beside = {each.name for each in path.parent.iterdir()}
    assert recognize(str(path), path.read_bytes()[:START_BYTES], beside.__contains__) == form
    tokens = opened(path, dtype)
    if form in INDEXED:
        assert documents_of(tokens) == APPENDED
    else:
        assert sorted(tokens.read(0, tokens.tokens).tolist())[:10] == list(range(1, 11))


CODES = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8", 8: "u2"}


def megatron(directory: Path, sequences: Sequence[Sequence[int]], order: Sequence[int], code: int = 4) -> Path:
    """Files as Megatron's preprocess_data writes them, with several sequences for a document."""
    item = np.dtype(CODES.get(code, "f4")).itemsize
    lengths = np.array([len(sequence) for sequence in sequences], "<i4")
    path = directory / "old_text_document.bin"
    path.write_bytes(np.array(flat(sequences), CODES.get(code, "f4")).tobytes())
    pointers = (np.cumsum(lengths) - lengths).astype("<i8") * item
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(order))
    index = head + lengths.tobytes() + pointers.tobytes() + np.array(order, "<i8").tobytes()
    path.with_suffix(".idx").write_bytes(index)
    return path


@pytest.mark.parametrize("code", CODES)
def test_a_document_of_megatron_is_several_sequences(tmp_path: Path, code: int) -> None:
    """A document is what the document indices delimit, whatever the type of the tokens."""
    path = megatron(tmp_path, [[1, 2], [3], [], [4, 5, 6], [7]], [0, 2, 2, 4, 5], code)
    assert documents_of(opened(path)) == [[1, 2, 3], [], [4, 5, 6], [7]]
    assert opened(path).edges(2, 3).tolist() == [3, 6]


def test_an_index_of_olmo_has_two_columns_or_five(tmp_path: Path) -> None:
    """OLMo-core's own indices have only start and end, and end their lines with LF."""
    path = Path(shutil.copy(GOLDEN / "dolma/part-0-00000.npy", tmp_path))
    (tmp_path / "part-0-00000.csv.gz").write_bytes(gzip.compress(b"0,4\n4,7\n7,13\n"))
    assert documents_of(opened(path, "uint16")) == APPENDED


def test_rows_of_numpy_arrays_and_samples_are_known(tmp_path: Path) -> None:
    """An array of two dimensions has rows of one length, and so has a shard of MDS, but for its last sample."""
    np.save(tmp_path / "rows.npy", np.arange(12, dtype=np.int64).reshape(3, 4))
    rows = opened(tmp_path / "rows.npy")
    assert (rows.row_tokens, rows.dtype, rows.read(3, 9).tolist()) == (4, "int64", [3, 4, 5, 6, 7, 8])
    (tmp_path / "mds").mkdir()
    path = export(folder_at(str(tmp_path / "mds")), FORMATS["mds"], make_shard(), [list(range(14))])[0]
    assert (opened(path).row_tokens, opened(path).read(2, 14).tolist()) == (4, list(range(2, 14)))


def test_samples_with_other_columns_are_read(tmp_path: Path) -> None:
    """Shards of MDS may have columns beside that of the ids: of one size, or with labels as our masks."""
    shard = make_shard(dtype="uint32", mask="labels", sequence_tokens=3)
    path = export(folder_at(str(tmp_path)), FORMATS["mds"], shard, [[1, 2, 3, 4], [5, 6, 7]])[0]
    assert opened(path).read(0, 7).tolist() == [1, 2, 3, 4, 5, 6, 7]
    names, encodings, sizes = ["attention", "tokens"], ["int32", "ndarray:uint16:2"], [4, 4]
    columns = {"column_names": names, "column_encodings": encodings, "column_sizes": sizes, "compression": None}
    config = json.dumps(columns).encode()
    samples = [struct.pack("<iHH", 9, number, number + 1) for number in (1, 3, 5)]
    edges = np.cumsum([4 * 5 + len(config), 8, 8, 8])
    path.write_bytes(struct.pack("<5I", 3, *edges) + config + b"".join(samples))
    assert opened(path).read(1, 6).tolist() == [2, 3, 4, 5, 6]


def written(tmp_path: Path, name: str) -> tuple[list[Path], str]:
    """The files of a small export, and the type of their tokens if it must be given."""
    paths = export(folder_at(str(tmp_path)), FORMATS[name], make_shard(), APPENDED)
    return paths, "uint16" if name in RAW_FORMATS else ""


@pytest.mark.parametrize("name", sorted({name for name, _ in READ} - {"nanogpt"}))
def test_truncated_files_are_refused(tmp_path: Path, name: str) -> None:
    """A file that is cut off, that of the tokens or the index, gives all documents or is refused."""
    paths, dtype = written(tmp_path, name)
    expected = documents_of(opened(paths[0], dtype))
    for path in paths:
        data = path.read_bytes()
        for end in range(0, len(data), 1 + len(data) // 200):
            path.write_bytes(data[:end])
            try:
                found = documents_of(opened(paths[0], dtype, name))
            except SourceError:
                continue
            assert found == expected
        path.unlink()
        if path == paths[0] or (name in INDEXED and not path.name.endswith("metadata")):
            with pytest.raises(SourceError):
                opened(paths[0], dtype, name)
        path.write_bytes(data)


@pytest.mark.parametrize("name", sorted({name for name, _ in READ}))
def test_flipped_bytes_are_refused_or_tokens(tmp_path: Path, name: str) -> None:
    """Where a byte is flipped, sound positions are read, or the file is refused."""
    paths, dtype = written(tmp_path, name)
    for path in paths:
        data = path.read_bytes()
        for place, mask in itertools.product(range(0, min(len(data), 300), 1 + len(data) // 100), (0x01, 0x80)):
            path.write_bytes(data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :])
            try:
                tokens = opened(paths[0], dtype, name)
                found = documents_of(tokens)
                as_ids(tokens.read(0, tokens.tokens), tokens.file)
            except SourceError:
                continue
            assert len(flat(found)) == tokens.tokens
        path.write_bytes(data)


def swapped(path: Path) -> None:
    """A header of llm.c in the other order of bytes."""
    path.write_bytes(np.array([20240520, 1, 3] + [0] * 253, ">i4").tobytes() + bytes(6))


def past_the_end(path: Path) -> None:
    """An index of Megatron whose last sequence is longer than the file."""
    megatron(path.parent, [[1, 2], [3]], [0, 1, 2], 8).rename(path)
    path.write_bytes(bytes(4))
    path.with_name("old_text_document.idx").rename(path.with_suffix(".idx"))


def ends_late(path: Path) -> None:
    """An index of datatrove that has a document more than the file."""
    path.write_bytes(bytes(8))
    Path(f"{path}.index").write_bytes(np.array([2, 5], "<u8").tobytes())
    Path(f"{path}.metadata").write_bytes(b"gpt2|2\n5\n5 T")


def compressed(path: Path) -> None:
    """A chunk of litdata whose index states a compression."""
    shutil.copy(GOLDEN / "litdata_u16/chunk-0-0.bin", path)
    index = json.loads((GOLDEN / "litdata_u16/index.json").read_bytes())
    index["config"]["compression"] = "zstd"
    path.with_name("index.json").write_text(json.dumps(index))


def floats(path: Path) -> None:
    """Megatron's files of another kind of values."""
    megatron(path.parent, [[1]], [0, 1], 7).rename(path)
    path.with_name("old_text_document.idx").rename(path.with_suffix(".idx"))


@pytest.mark.parametrize(
    ("name", "write", "reason"),
    [
        ("a.bin", swapped, "big-endian"),
        ("a.npy", lambda path: np.save(path, np.arange(3, dtype=">u2")), "big-endian"),
        ("a.npy", lambda path: np.save(path, np.ones(3)), "an array of float64, which are not tokens"),
        ("a.npy", lambda path: np.save(path, np.ones((1, 2, 2), np.uint16)), r"shape \(1, 2, 2\)"),
        ("a.bin", past_the_end, "do not follow each other up to byte 4"),
        ("a.bin", floats, "values of float32, which are not tokens"),
        ("a.ds", ends_late, "end at token 5 of 4"),
        ("a.bin", compressed, "compressed with zstd"),
    ],
)
def test_files_that_cannot_be_tokens_are_refused(
    tmp_path: Path, name: str, write: Callable[[Path], None], reason: str
) -> None:
    """Each kind of file that cannot be read is refused with its reason."""
    write(tmp_path / name)
    with pytest.raises(SourceError, match=reason):
        opened(tmp_path / name)


@pytest.mark.parametrize("wrong", [-1, MAX_ID + 1])
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, wrong: int) -> None:
    """Tokens of 64 bits are read if they are ids; others are refused."""
    np.save(tmp_path / "a.npy", np.array([1, 2, wrong], np.int64))
    tokens = opened(tmp_path / "a.npy")
    assert as_ids(tokens.read(0, 2), tokens.file).tolist() == [1, 2]
    with pytest.raises(SourceError, match=f"{wrong} is not the id of a token"):
        as_ids(tokens.read(0, 3), tokens.file)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_the_type_of_raw_tokens_is_found(tmp_path: Path, dtype: str) -> None:
    """The widest type all of whose ids are in the vocabulary is that of the tokens; the evidence is told."""
    ids = np.random.default_rng(1).integers(0, 50257, 20_001).astype(dtype)
    ids[::50] = 50256
    (tmp_path / "a.bin").write_bytes(ids.tobytes())
    chosen = choose_dtype(storage.stat(str(tmp_path / "a.bin")), 50257, 50256)
    assert (np.dtype(chosen.dtype).itemsize, chosen.largest) == (ids.itemsize, 50256)
    assert abs(chosen.ends / chosen.tokens - 0.02) < 0.001


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"It is a text, not tokens.\n" * 40, "it is text"),
        (b"PK\x03\x04" + bytes(100), "a checkpoint of PyTorch"),
        (np.arange(65536, dtype=np.uint16).tobytes(), "largest id 65535"),
        (b"", "a vocabulary of 50257"),
        (b"\x01\x00\x02", "a vocabulary of 50257"),
    ],
)
def test_raw_files_without_tokens_are_refused(tmp_path: Path, data: bytes, reason: str) -> None:
    """A file that is something else, or whose ids are in no type those of the vocabulary, is refused."""
    (tmp_path / "a.bin").write_bytes(data)
    with pytest.raises(SourceError, match=reason):
        choose_dtype(storage.stat(str(tmp_path / "a.bin")), 50257, 50256)


def test_types_that_differ_are_refused() -> None:
    """A type that was given must be the one that the file states."""
    with pytest.raises(SourceError, match="of uint16, not of uint32"):
        opened(GOLDEN / "llmc/fineweb_train_000001.bin", "uint32")
    assert dataclasses.replace(opened(GOLDEN / "nanogpt/train.bin", "uint16")).documents is None
