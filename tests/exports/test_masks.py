"""Exports of stores with segments: the files say which tokens are trained on, in every order, and after erasures."""

from __future__ import annotations

import csv
import glob
import gzip
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.segmented import prepare_store, stored_mask
from tokenmill.errors import CorruptStore, UsageError
from tokenmill.exports import shards
from tokenmill.storage import folder_at
from tokenmill.store.reader import Store
from tokenmill.token_files import mds

IGNORED = -100


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_store(tmp_path_factory.mktemp("masks"))


@pytest.fixture
def store(kept_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept_store, tmp_path / "store"))


def documents_of(store: Store) -> dict[tuple[str, int], tuple[list[int], list[bool]]]:
    """The tokens and the mask of each document, by its source and row."""
    found = {}
    for position in range(len(store)):
        document = store.document(position)
        mask = stored_mask(store, position) if store.job.segments else [True] * len(document.tokens)
        found[document.source, document.row] = document.tokens.tolist(), mask
    return found


def parquet_documents(directory: Path, kind: str) -> dict[tuple[str, int], tuple[list[int], list[bool]]]:
    """The same from the files of an export, as a trainer reads them."""
    found = {}
    for file in sorted(directory.glob("*.parquet")):
        for row in pq.read_table(file).to_pylist():
            ids = row["input_ids"]
            if kind == "labels":
                assert row["attention_mask"] == [1] * len(ids)
                mask = [label != IGNORED for label in row["labels"]]
                learned = [label for label, trained in zip(row["labels"], mask, strict=True) if trained]
                assert learned == [token for token, trained in zip(ids, mask, strict=True) if trained]
            else:
                assert set(row["loss_weights"]) <= {0.0, 1.0}
                assert row["loss_weights"][-1:] in ([0.0], [])  # the weight of a loss: that of the token after
                mask = [False, *(weight == 1.0 for weight in row["loss_weights"])][: len(ids)]
            found[row["source"], row["row"]] = ids, mask
    return found


def olmo_documents(directory: Path) -> dict[tuple[str, int], tuple[list[int], list[bool]]]:
    """The same from raw arrays, as OLMo-core reads them: a mask of bool, as long as the tokens."""
    found: dict[tuple[str, int], tuple[list[int], list[bool]]] = {}
    for file in sorted(path for path in directory.glob("**/*.npy") if not path.stem.endswith("_mask")):
        tokens = np.memmap(file, np.uint16, "r")
        mask = np.memmap(file.with_name(f"{file.stem}_mask.npy"), np.bool_, "r")
        assert len(mask) == len(tokens)
        with gzip.open(file.with_suffix(".csv.gz"), "rt", newline="") as rows:
            for start, end, _, path, place in csv.reader(rows):
                held = slice(int(start), int(end))
                found[path, int(place) - 1] = tokens[held].tolist(), mask[held].tolist()
    return found


def megatron_pair(prefix: Path) -> list[np.ndarray[Any, Any]]:
    """The documents of a pair, as GPT-NeoX's indexed dataset reads it: by the pointers, in the type of the index."""
    index = prefix.with_suffix(".idx").read_bytes()
    assert index[:17] == b"MMIDIDX\0\0" + (1).to_bytes(8, "little")
    dtype = np.dtype({4: "<i4", 8: "<u2"}[index[17]])
    count, edges = (int(number) for number in np.frombuffer(index, "<u8", 2, 18))
    lengths = np.frombuffer(index, "<i4", count, 34)
    pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
    assert np.array_equal(np.frombuffer(index, "<i8", edges, 34 + 12 * count), np.arange(count + 1))
    data = prefix.with_suffix(".bin").read_bytes()
    return [np.frombuffer(data, dtype, *pair) for pair in zip(lengths.tolist(), pointers.tolist(), strict=True)]


def labelled_pairs(directory: str) -> list[tuple[list[int], list[bool]]]:
    """The tokens and the mask of each document of a Megatron export with labels, in the order of the files."""
    found = []
    for file in sorted(Path(directory).glob("*_text_document.bin")):
        other = file.with_name(file.name.replace("_text_document", "_text_label_document"))
        for ids, labels in zip(megatron_pair(file), megatron_pair(other), strict=True):
            assert labels.dtype == np.int32
            mask = labels != IGNORED
            assert np.array_equal(labels[mask], ids[mask])
            found.append((ids.tolist(), mask.tolist()))
    return found


def labelled_samples(directory: str) -> list[tuple[list[int], list[bool]]]:
    """The tokens and the mask of each sample of MosaicML Streaming, read as its MDSReader does: sizes, then columns."""
    found = []
    for shard in json.loads((Path(directory) / "index.json").read_text())["shards"]:
        assert shard["column_names"] == ["labels", "tokens"]
        assert shard["column_encodings"][0] == "ndarray:int32"
        data = (Path(directory) / shard["raw_data"]["basename"]).read_bytes()
        edges = np.frombuffer(data, "<u4", shard["samples"] + 1, 4).tolist()
        for begin, end in itertools.pairwise(edges):
            sizes = np.frombuffer(data, "<u4", 2, begin).tolist()
            assert begin + 8 + sum(sizes) == end
            parts = data[begin + 8 : begin + 8 + sizes[0]], data[begin + 8 + sizes[0] : end]
            labels, ids = map(decode_array, parts, ("<i4", f"<{np.dtype(shard['column_encodings'][1][8:]).str[1:]}"))
            mask = labels != IGNORED
            assert np.array_equal(labels[mask], ids[mask])
            found.append((ids.tolist(), mask.tolist()))
    return found


def decode_array(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """What streaming encodes as `ndarray:dtype`: a byte of four times the dimensions and the width of the length."""
    width = {4: 1, 5: 2, 6: 4}[data[0]]
    values = np.frombuffer(data[1 + width :], dtype)
    assert int.from_bytes(data[1 : 1 + width], "little") == len(values)
    return values


def read(directory: str, to: str, kind: str = "labels") -> dict[tuple[str, int], tuple[list[int], list[bool]]]:
    return parquet_documents(Path(directory), kind) if to == "parquet" else olmo_documents(Path(directory))


@pytest.mark.parametrize(("to", "kind"), [("parquet", "labels"), ("parquet", "weights"), ("olmo", "mask")])
@pytest.mark.parametrize("options", [{}, {"shuffle": 7}, {"shuffle": 7, "val": 0.2}], ids=str)
def test_files_have_the_mask_of_the_store(store: Path, to: str, kind: str, options: dict[str, Any]) -> None:
    """Also after a verification, which reads the files back, and in two calls of which the first was interrupted."""
    wanted: dict[str, Any] = {"mask": kind} if kind == "weights" else {}
    result = tokenmill.export(store, to=to, shard_tokens=2000, executor=InlineExecutor(), **options, **wanted)
    assert read(result.directory, to, kind) == expected(store, kind)
    tokenmill.verify(store, executor=InlineExecutor())


def expected(store: Path, kind: str) -> dict[tuple[str, int], tuple[list[int], list[bool]]]:
    """The documents of the store. Weights do not tell of the first token of a document, which has no loss."""
    documents = documents_of(tokenmill.open(store))
    if kind != "weights":
        return documents
    return {origin: (ids, [False, *mask[1:]][: len(ids)]) for origin, (ids, mask) in documents.items()}


@pytest.mark.parametrize(("to", "kind"), [("parquet", "labels"), ("parquet", "weights"), ("olmo", "mask")])
def test_an_erasure_reaches_the_mask(store: Path, to: str, kind: str) -> None:
    wanted: dict[str, Any] = {"mask": kind} if kind == "weights" else {}
    result = tokenmill.export(store, to=to, shard_tokens=2000, executor=InlineExecutor(), **wanted)
    before = read(result.directory, to, kind)
    tokenmill.erase(store, column="id", values=["3", "50", "51"], executor=InlineExecutor())
    after = read(result.directory, to, kind)
    assert after == expected(store, kind)
    assert sum(before[key] != after[key] for key in before) == 3
    tokenmill.verify(store, executor=InlineExecutor())


def test_a_changed_mask_is_found(store: Path) -> None:
    """A label of another token is not a mask, whatever the checksums of the pages say."""
    result = tokenmill.export(store, to="parquet", executor=InlineExecutor())
    (file,) = Path(result.directory).glob("*.parquet")
    table = pq.read_table(file)
    labels = [[label + (label != IGNORED) for label in row] for row in table["labels"].to_pylist()]
    field = table.schema.field("labels")
    changed = table.set_column(1, field, pa.chunked_array([pa.array(labels, field.type)]))
    pq.write_table(changed, file)
    with pytest.raises(CorruptStore):
        tokenmill.verify(store, executor=InlineExecutor())


def test_a_plain_store_and_one_with_segments_in_one_export(store: Path, tmp_path: Path) -> None:
    """All tokens of the plain one are trained on."""
    texts = [f"document {number} " * (number % 9 + 1) for number in range(50)]
    source = write_parquet(tmp_path / "plain.parquet", texts)
    plain = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(tmp_path / "plain"), executor=InlineExecutor())
    both = [str(store), plain.directory]
    result = tokenmill.export(both, to="parquet", out=tmp_path / "out", shuffle=3, executor=InlineExecutor())
    expected = documents_of(tokenmill.open(store)) | documents_of(tokenmill.open(plain))
    assert read(result.directory, "parquet") == expected


def test_masks_that_cannot_be_are_refused(store: Path, tmp_path: Path) -> None:
    """A format without the mask, a mask of a store that has none, names of columns, and a delayed stream."""
    texts = write_parquet(tmp_path / "plain.parquet", ["a b c"])
    plain = tokenmill.prepare(texts, tokenizer=SMALL_JSON, out=str(tmp_path / "plain"), executor=InlineExecutor())
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (store, {"to": "llmc"}, "only some tokens of the documents are trained on"),
        (store, {"to": "megatron"}, "only some tokens of the documents are trained on"),
        (store, {"to": "mds"}, "only some tokens of the documents are trained on"),
        (store, {"to": "llmc", "mask": "labels"}, "llmc has no labels"),
        (store, {"to": "olmo", "mask": "weights"}, "olmo has no weights"),
        (plain, {"to": "parquet", "mask": "labels"}, "--mask labels has no effect"),
        (store, {"to": "parquet", "columns": "labels"}, "the column 'labels' tells which tokens are trained on"),
        (store, {"to": "parquet", "eot_position": "prepended"}, "--eot-position prepended cannot be used with a mask"),
        (store, {"to": "parquet", "mask": "zeros"}, "--mask is labels, weights or ignore, not 'zeros'"),
    ]
    for directory, options, headline in wrong:
        with pytest.raises(UsageError) as raised:
            tokenmill.export(directory, executor=InlineExecutor(), **options)
        assert raised.value.headline.startswith(headline), raised.value
    ignored = tokenmill.export(store, to="parquet", mask="ignore", executor=InlineExecutor())
    (file,) = Path(ignored.directory).glob("*.parquet")
    assert pq.read_schema(file).names == ["input_ids", "source", "row"]


@pytest.mark.parametrize("change", ["last", "value"])
def test_changed_weights_are_found(store: Path, change: str) -> None:
    """A weight after the last token of a document, and one that is neither 0 nor 1."""
    result = tokenmill.export(store, to="parquet", mask="weights", executor=InlineExecutor())
    (file,) = Path(result.directory).glob("*.parquet")
    table = pq.read_table(file)
    weights = [[*row[:-1], 1.0] if change == "last" else [0.5 * one for one in row] for row in table[1].to_pylist()]
    field = table.schema.field("loss_weights")
    pq.write_table(table.set_column(1, field, pa.chunked_array([pa.array(weights, field.type)])), file)
    with pytest.raises(CorruptStore):
        tokenmill.verify(store, executor=InlineExecutor())


@pytest.mark.parametrize("shard_tokens", [2000, 10**9])
def test_the_pattern_of_the_tokens_is_not_that_of_the_masks(store: Path, shard_tokens: int) -> None:
    """The line that says how to point OLMo-core at the files names both, in the same order."""
    result = tokenmill.export(store, to="olmo", shard_tokens=shard_tokens, executor=InlineExecutor())
    tokens, masks = (sorted(glob.glob(pattern)) for pattern in re.findall(r'glob\("([^"]+)"\)', result.use))
    assert masks == [path.replace(".npy", "_mask.npy") for path in tokens]
    assert len(tokens) == len(list(Path(result.directory).glob("**/*.csv.gz")))
    assert (len(tokens) > 10) == (shard_tokens == 2000)


MEGATRON: list[dict[str, Any]] = [{}, {"shuffle": 7, "dtype": "int32"}, {"val": 0.2, "shard_tokens": 2000}]


@pytest.mark.parametrize("options", MEGATRON, ids=str)
def test_labels_beside_megatron_files(store: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an erasure, which empties the labels, and after an interrupted one, which changed one file of two."""
    monkeypatch.setattr(shards, "REGION_TOKENS", 500)
    wanted: dict[str, Any] = {"to": "megatron", "mask": "labels", "executor": InlineExecutor(), **options}
    result = tokenmill.export(store, **wanted)
    before = labelled_pairs(result.directory)
    assert sorted(before) == sorted(documents_of(tokenmill.open(store)).values())
    tokenmill.verify(store, executor=InlineExecutor())
    old = {file: file.read_bytes() for file in Path(result.directory).glob("*_label_document.bin")}
    tokenmill.erase(store, column="id", values=["3", "50", "51"], executor=InlineExecutor())
    after = labelled_pairs(result.directory)
    assert sorted(after) == sorted(documents_of(tokenmill.open(store)).values())
    assert [ids for ids, _ in before] != [ids for ids, _ in after]
    assert [len(ids) for ids, _ in before] == [len(ids) for ids, _ in after]
    changed = [file for file, data in old.items() if file.read_bytes() != data]
    assert changed
    for file in changed:
        file.write_bytes(old[file])
    with pytest.raises(CorruptStore, match="of documents that were erased"):
        tokenmill.verify(store, executor=InlineExecutor())
    tokenmill.export(store, **wanted)
    assert labelled_pairs(result.directory) == after
    tokenmill.verify(store, executor=InlineExecutor())


@pytest.mark.parametrize("shard_tokens", [None, 9000])
def test_a_changed_label_is_found(store: Path, shard_tokens: int | None) -> None:
    """And written again by the same export, which compares checksums, as is a label file that was removed."""
    wanted: dict[str, Any] = {"to": "megatron", "mask": "labels", "executor": InlineExecutor()}
    wanted |= {"shard_tokens": shard_tokens} if shard_tokens else {}
    result = tokenmill.export(store, **wanted)
    files = sorted(Path(result.directory).glob("*_label_document.*"))
    before = [file.read_bytes() for file in files]
    for file, data in zip(files, before, strict=True):
        file.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
        with pytest.raises(CorruptStore, match="not as it was written"):
            tokenmill.verify(store, executor=InlineExecutor())
        tokenmill.export(store, **wanted)
        assert [file.read_bytes() for file in files] == before
        file.unlink()
        tokenmill.export(store, **wanted)
        assert [file.read_bytes() for file in files] == before


def test_labels_are_the_same_with_several_workers(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes regions of both files."""
    monkeypatch.setattr(shards, "REGION_TOKENS", 500)
    made = []
    for workers in (1, 2):
        out = store.parent / str(workers)
        result = tokenmill.export(store, to="megatron", mask="labels", shuffle=7, workers=workers, out=out)
        assert result.use == (
            f'"train_data_paths": ["{out}/train_text_document"], '
            f'"train_label_data_paths": ["{out}/train_text_label_document"]'
        )
        made.append({file.name: file.read_bytes() for file in out.glob("*_document.*")})
    assert made[0] == made[1]
    assert len(made[0]) == 4


@pytest.mark.parametrize("options", [{}, {"shuffle": 7, "dtype": "uint32"}, {"shuffle": 3, "tail": "keep"}], ids=str)
def test_labels_in_samples_of_mds(store: Path, options: dict[str, Any]) -> None:
    """The stream of documents with its labels, cut into samples, before and after an erasure."""
    wanted: dict[str, Any] = {"shuffle": options.get("shuffle"), "executor": InlineExecutor()}
    stream = tokenmill.export(store, to="parquet", **wanted)
    wanted |= {"sequence_tokens": 300, "shard_tokens": 3000, **options}
    result = tokenmill.export(store, to="mds", mask="labels", **wanted)
    made = []
    for _ in range(2):
        documents = parquet_documents(Path(stream.directory), "labels").values()
        ids, mask = (list(itertools.chain(*(document[part] for document in documents))) for part in (0, 1))
        cuts = range(0, len(ids) if "tail" in options else len(ids) // 300 * 300, 300)
        assert labelled_samples(result.directory) == [(ids[at : at + 300], mask[at : at + 300]) for at in cuts]
        tokenmill.verify(store, executor=InlineExecutor())
        made.append(mask)
        tokenmill.erase(store, column="id", values=["3", "50", "51"], executor=InlineExecutor())
    assert sum(made[1]) < sum(made[0])


def test_labels_of_mds_with_several_workers(store: Path) -> None:
    """The same bytes. A changed label is found, and is not read as the label of another token."""
    made = []
    for workers in (1, 2):
        out = store.parent / str(workers)
        options: dict[str, Any] = {"sequence_tokens": 300, "shard_tokens": 3000, "shuffle": 7}
        tokenmill.export(store, to="mds", mask="labels", workers=workers, out=out, **options)
        made.append({file.name: file.read_bytes() for file in out.glob("[a-z]*")})
    assert made[0] == made[1]
    file = out / "shard.00000.mds"
    data = file.read_bytes()
    first = (
        int.from_bytes(data[4:8], "little")
        + 11
        + next(4 * at for at, trained in enumerate(labelled_samples(str(out))[0][1]) if trained)
    )
    file.write_bytes(data[:first] + bytes([data[first] ^ 1]) + data[first + 1 :])
    with pytest.raises(CorruptStore, match="not as it was written"):
        tokenmill.verify(str(out), executor=InlineExecutor())
    with pytest.raises(CorruptStore, match="its labels are not those of its tokens"):
        mds.read(folder_at(str(out)), [file.name], "uint16")
