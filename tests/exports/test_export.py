"""Exports against a model of plain Python: split, order, shards, limits, resume."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.export_model import END, flat, model, read_back
from tests.support.killing import wait_until
from tokenmill.api import export as exporting
from tokenmill.errors import CorruptStore, JobChanged, UsageError
from tokenmill.exports import records, shards
from tokenmill.storage import folder_at
from tokenmill.token_files import FORMATS, find_format


def words(rng: random.Random) -> str:
    letters = "etaoin shrdlu\n"
    return "".join(rng.choices(letters, k=rng.choice([0, 3, 40, 200, 900])))


def export(directory: str, **options: Any) -> Any:
    return tokenmill.export(directory, **options)


def prepare(sources: list[str], out: Path, max_skipped: float = 0.01) -> tokenmill.Store:
    call: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "unit_bytes": 6_000, "workers": 2}
    tokenmill.prepare(sources, out=str(out), max_skipped=max_skipped, **call)
    return tokenmill.open(str(out))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three Parquet files, together some 300 documents, some of them empty."""
    rng = random.Random(1)
    folder = tmp_path_factory.mktemp("corpus")
    return [write_parquet(folder / f"{name}.parquet", [words(rng) for _ in range(100)], 15) for name in "abc"]


@pytest.fixture(scope="module")
def store(corpus: list[str], tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Store:
    """A store of a dozen parts."""
    return prepare(corpus, tmp_path_factory.mktemp("store") / "store")


@pytest.fixture
def many_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sort a few parts at a time, merge the runs twice, and read shards in several batches, as of a large store."""
    monkeypatch.setattr(exporting, "batch_bytes", lambda _: 3000)
    frozen = exporting._freeze_work

    def small(*arguments: Any) -> object:
        whole = frozen(*arguments)
        return type(whole)(whole.job, bins=64, run_tokens=5_000, merges=(2, 4))

    monkeypatch.setattr(exporting, "_freeze_work", small)


def tree(out: Path) -> dict[str, str]:
    """Every file of an export but its state, by hash."""
    files = [path for path in out.rglob("*") if path.is_file() and ".tokenmill" not in path.parts]
    return {str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("name", FORMATS)
def test_an_export_is_what_the_model_says(
    store: tokenmill.Store, name: str, seed: int | None, tmp_path: Path, many_runs: None
) -> None:
    """Every format holds the model's documents, split and ordered as asked, in every shard."""
    out = tmp_path / "out"
    traits = find_format(name).SPEC
    options = {"sequence_tokens": 64} if name == "mds" else {}
    export(store.directory, to=name, out=str(out), val=0.1, shuffle=seed, shard_tokens=7_000, workers=2, **options)
    expected = model(store, 0.1, seed, traits.defaults.end)
    found = read_back(out, name)
    assert list(found) == list(expected)
    for split, documents in expected.items():
        tokens = np.concatenate([tokens for tokens, _ in found[split]]).tolist()
        stream = flat(documents)
        assert tokens == (stream[: len(stream) - len(stream) % 64] if name == "mds" else stream)
        if found[split][0][1] is not None and name != "mds":
            assert np.concatenate([lengths for _, lengths in found[split]]).tolist() == [len(d) for d in documents]


@pytest.mark.parametrize("name", ["llmc", "build-nanogpt"])
def test_shards_hold_exact_counts(store: tokenmill.Store, name: str, tmp_path: Path) -> None:
    """Where documents may be cut, every shard but the last holds exactly the tokens asked for, and val is the first."""
    done = export(store.directory, to=name, out=str(tmp_path / "out"), shard_tokens=10_000)
    found = read_back(tmp_path / "out", name)
    sizes = [len(tokens) for split in ("val", "train") for tokens, _ in found[split]]
    assert sizes[:-1] == [10_000] * (store.token_count // 10_000)
    assert sum(sizes) == store.token_count
    stream = np.concatenate([tokens for split in ("val", "train") for tokens, _ in found[split]]).tolist()
    assert stream == flat(model(store, None, None, "prepended")["train"])
    assert any("shard has" in notice for notice in done.notices)
    names = sorted(path.name for path in (tmp_path / "out").glob("*_*"))
    assert names[0].split("_")[2][:6] == "000001"
    assert "_val_000000" in names[-1]


@pytest.mark.parametrize(("tail", "last"), [("keep", "rest"), ("drop", "full"), ("merge", "both")])
def test_the_tail_is_handled_as_asked(store: tokenmill.Store, tail: str, last: str, tmp_path: Path) -> None:
    """A last shard that is not full is kept, dropped and counted, or merged into the one before."""
    done = export(store.directory, to="llmc", out=str(tmp_path), shard_tokens=10_000, tail=tail, val="none", workers=1)
    sizes = [len(tokens) for tokens, _ in read_back(tmp_path, "llmc")["train"]]
    rest = store.token_count % 10_000
    assert sizes[-1] == {"rest": rest, "full": 10_000, "both": 10_000 + rest}[last]
    assert done.splits["train"].tokens_left_out == (rest if tail == "drop" else 0)


@pytest.mark.parametrize("name", ["megatron", "datatrove", "olmo", "litdata", "parquet"])
def test_whole_documents_are_never_cut(store: tokenmill.Store, name: str, tmp_path: Path) -> None:
    """Where documents stay whole, shards end at a document's end, near the tokens asked for, and none is empty."""
    export(store.directory, to=name, out=str(tmp_path), shard_tokens=500)
    found = read_back(tmp_path, name)["train"]
    assert all(len(tokens) for tokens, _ in found)
    longest = max(len(document) for document in store)
    assert all(len(tokens) < 500 + longest for tokens, _ in found)
    assert all(tokens[-1] == END for tokens, _ in found)


@pytest.mark.processes
@pytest.mark.parametrize("name", ["nanogpt", "parquet"])
def test_a_shuffle_does_not_depend_on_workers_or_memory(
    store: tokenmill.Store, name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The same seed gives the same bytes with one and four workers, and however many runs are sorted."""
    for workers in (1, 4):
        export(store.directory, to=name, out=str(tmp_path / str(workers)), shuffle=7, workers=workers)
        request.getfixturevalue("many_runs")
    trees = [tree(tmp_path / str(workers)) for workers in (1, 4)]
    assert trees[0] == trees[1]
    export(store.directory, to=name, out=str(tmp_path / "other"), shuffle=8)
    assert tree(tmp_path / "other") != trees[0]


def test_equal_files_are_shuffled_apart(tmp_path: Path) -> None:
    """Copies of a file do not put copies of a document beside each other."""
    texts = [f"document {number}" for number in range(200)]
    sources = [write_parquet(tmp_path / f"{name}.parquet", texts) for name in "ab"]
    store = prepare(sources, tmp_path / "store")
    export(store.directory, to="parquet", out=str(tmp_path / "out"), shuffle=7)
    rows = pq.read_table(tmp_path / "out/train-00000-of-00001.parquet")["row"].to_numpy()
    assert (rows[1:] == rows[:-1]).sum() < 10


def test_the_column_of_the_tokens_can_be_renamed(tmp_path: Path) -> None:
    """Parquet has `input_ids`, unless another name is asked for; the name is part of the export."""
    store = prepare([write_parquet(tmp_path / "a.parquet", ["one", "two"])], tmp_path / "store").directory
    run("export", store, "--to", "parquet", "--val", "none", "--workers", 1)
    run("export", store, "--to", "parquet", "--val", "none", "--columns", "tokens", "--out", tmp_path / "other")
    paths = (Path(store, "parquet"), tmp_path / "other")
    usual, other = (pq.read_table(path / "train-00000-of-00001.parquet") for path in paths)
    assert usual.column_names == ["input_ids", "source", "row"]
    assert other.rename_columns(usual.column_names).equals(usual)
    assert run("verify", tmp_path / "other").returncode == 0
    again = run("export", store, "--to", "parquet", "--val", "none", "--columns", "ids", code=1).stderr
    assert "--columns        was input_ids, is now ids" in again
    for name in ("source", "row", ""):
        with pytest.raises(UsageError, match="cannot be the column of the tokens"):
            tokenmill.export(store, to="parquet", columns=name)
    with pytest.raises(UsageError, match="nanogpt has no columns"):
        tokenmill.export(store, to="nanogpt", columns="ids")


def origins(out: Path, split: str) -> set[tuple[str, int]]:
    """Source file and row of each document of a split."""
    paths = sorted(out.glob(f"{split}-*.parquet"))
    rows = [row for path in paths for row in pq.read_table(path, columns=["source", "row"]).to_pylist()]
    return {(Path(row["source"]).name, row["row"]) for row in rows}


def test_the_split_stays_when_sources_are_added_or_moved(corpus: list[str], tmp_path: Path) -> None:
    """Documents held out stay held out when a source is added before them, and when the files are elsewhere."""
    moved = tmp_path / "elsewhere" / "deeper"
    moved.mkdir(parents=True)
    copies = []
    for path in corpus[1:]:
        copies.append(str(moved / Path(path).name))
        Path(copies[-1]).write_bytes(Path(path).read_bytes())
    held = []
    for number, sources in enumerate([corpus[1:], corpus, copies]):
        store = prepare(sources, tmp_path / f"store{number}")
        out = tmp_path / f"out{number}"
        export(store.directory, to="parquet", out=str(out), val=0.1, shuffle=number)
        held.append({(name, row) for name, row in origins(out, "val") if name != "a.parquet"})
        assert not origins(out, "val") & origins(out, "train")
        assert len(origins(out, "val")) + len(origins(out, "train")) == len(store)
    assert held[0] == held[1] == held[2]
    assert 8 < len(held[0]) < 40


def test_an_export_goes_on_where_it_was_left(store: tokenmill.Store, tmp_path: Path, many_runs: None) -> None:
    """Shards without a record are written again, others are left alone, and the bytes are the same."""
    options = {"to": "llmc", "shuffle": 3, "shard_tokens": 2_000, "workers": 2}
    export(store.directory, out=str(tmp_path / "whole"), **options)
    out = tmp_path / "cut"
    export(store.directory, out=str(out), **options)
    for name in ("manifests/00000000.parquet", "plan.parquet", "shards/00000003.arrow", "shards/00000007.arrow"):
        (out / ".tokenmill" / name).unlink()
    (out / "fineweb_train_000003.bin").unlink()
    (out / ".fineweb_train_000009.bin.0123456789ab.tmp").write_bytes(b"left by a dead writer")
    done = export(store.directory, out=str(out), **options)
    assert done.shards_done_now == 2
    assert tree(out) == tree(tmp_path / "whole")
    assert export(store.directory, out=str(out), **options).shards_done_now == 0


def test_other_options_are_refused_in_the_same_directory(store: tokenmill.Store, tmp_path: Path) -> None:
    """A directory that holds an export with other options is refused with what changed."""
    export(store.directory, to="nanogpt", out=str(tmp_path), shuffle=1)
    with pytest.raises(JobChanged, match="another shuffle=") as caught:
        export(store.directory, to="nanogpt", out=str(tmp_path), shuffle=2)
    assert "was 1, is now 2" in str(caught.value)


def test_the_end_token_can_be_set(store: tokenmill.Store, tmp_path: Path) -> None:
    """--eot-position overrides the convention of the format, with documents whole or cut."""
    for name, end in (("llmc", "appended"), ("nanogpt", "prepended"), ("megatron", "prepended")):
        out = tmp_path / name
        export(store.directory, to=name, out=str(out), eot_position=end, val="none", shard_tokens=4_000)
        tokens = np.concatenate([tokens for tokens, _ in read_back(out, name)["train"]]).tolist()
        assert tokens == flat(model(store, None, None, end)["train"])


def test_a_store_without_end_token_exports_as_it_is(tmp_path: Path) -> None:
    """With no end token nothing is put before documents, and empty documents stay documents."""
    source = write_parquet(tmp_path / "a.parquet", ["one two", "", "three", ""])
    tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, out=str(tmp_path / "store"), eot="none")
    store = tokenmill.open(str(tmp_path / "store"))
    for name in ("llmc", "megatron"):
        export(store.directory, to=name, val="none", shuffle=1)
    assert len(read_back(tmp_path / "store/llmc", "llmc")["train"][0][0]) == store.token_count
    lengths = read_back(tmp_path / "store/megatron", "megatron")["train"][0][1]
    assert lengths is not None
    assert sorted(lengths.tolist()) == sorted(len(document) for document in store)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"to": "nanogtp"}, "no format 'nanogtp'"),
        ({"to": "nanogpt", "dtype": "uint32"}, "no tokens of type 'uint32'"),
        ({"to": "nanogpt", "val": "2"}, "between 0 and 1"),
        ({"to": "nanogpt", "val": "100%"}, "between 0 and 1"),
        ({"to": "nanogpt", "val": "1e999999999999999999"}, "between 0 and 1"),
        ({"to": "llmc", "shard_tokens": "10MB"}, "shard_tokens= counts tokens: write 10M"),
        ({"to": "mds", "sequence_tokens": "2KiB"}, "sequence_tokens= counts tokens: write 2K"),
        ({"to": "nanogpt", "val": "first-shard"}, "there is no first shard"),
        ({"to": "megatron", "val": "first-shard"}, "there is no first shard"),
        ({"to": "llmc", "shard_tokens": "2B"}, "too large for llmc"),
        ({"to": "litdata", "shard_tokens": "3B"}, "too large for litdata"),
        ({"to": "mds", "shard_tokens": "3B"}, "too large for mds"),
        ({"to": "mds", "tail": "merge"}, "sequences of one length"),
        ({"to": "mds", "shard_tokens": 100}, "less than one sequence"),
        ({"to": "llmc", "sequence_tokens": 8}, "no sequences of a fixed length"),
        ({"to": "llmc", "tail": "cut"}, "tail= is keep, drop or merge"),
        ({"to": "llmc", "shard_tokens": 0}, "at least 1"),
        ({"to": "llmc", "shard_tokens": "100M"}, "would hold all tokens"),
        ({"to": "llmc", "shard_tokens": "1B", "tail": "merge"}, "too large for llmc"),
        ({"to": "llmc", "shuffle": -1}, "not a seed"),
        ({"to": "llmc", "shuffle": 1 << 64}, "not a seed"),
        ({"to": "llmc", "name": "../evil"}, "cannot start the name"),
        ({"to": "llmc", "name": "x" * 300}, "cannot start the name"),
        ({"to": "build-nanogpt", "name": "trainset"}, "mix up the splits"),
        ({"to": "parquet", "name": "mine"}, "names its files itself"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    store: tokenmill.Store, options: dict[str, object], message: str, tmp_path: Path
) -> None:
    """A format that cannot hold what is asked is refused, and no shard is written."""
    with pytest.raises(UsageError, match=message):
        export(store.directory, out=str(tmp_path / "out"), **options)
    assert not list(tmp_path.glob("out/*.*"))


@pytest.mark.data
def test_a_vocabulary_too_large_for_the_format_is_refused_before_tokenizing(test_data: Path, tmp_path: Path) -> None:
    """cl100k_base does not fit into uint16; the message names formats and tokenizers that go together."""
    source = write_parquet(tmp_path / "a.parquet", ["text"])
    with pytest.raises(UsageError, match="do not fit into nanogpt") as caught:
        tokenmill.prepare(source, tokenizer="cl100k_base", out=str(tmp_path / "store"), to="nanogpt")
    assert "llmc" in str(caught.value)
    assert "gpt2" in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_prepare_exports_to_several_formats(corpus: list[str], tmp_path: Path) -> None:
    """One call makes the store and each export in a directory of its format's name."""
    done = tokenmill.prepare(
        corpus, tokenizer=SMALL_TIKTOKEN, eot=END, out=str(tmp_path), to=["nanogpt", "mds"], val=0.2, shuffle=1
    )
    assert [export.format for export in done.exports] == ["nanogpt", "mds"]
    assert (tmp_path / "nanogpt/train.bin").stat().st_size == 2 * done.exports[0].splits["train"].tokens
    assert (tmp_path / "mds/val/index.json").exists()
    with pytest.raises(UsageError, match="needs an export"):
        tokenmill.prepare(corpus, tokenizer=SMALL_TIKTOKEN, eot=END, out=str(tmp_path), shuffle=1)


def test_val_may_be_given_in_percent(store: tokenmill.Store, tmp_path: Path) -> None:
    """A share in percent is the same job as the number, whatever its digits."""
    for share, percent in (("0.07", "7%"), ("0.0007", "0.07 %"), (0.2, "20%")):
        export(store.directory, to="nanogpt", out=str(tmp_path / str(share)), val=share)
        again = export(store.directory, to="NanoGPT", out=str(tmp_path / str(share)), val=percent)
        assert again.shards_done_now == 0


def test_a_val_that_is_hardly_there_is_told_of(store: tokenmill.Store, tmp_path: Path) -> None:
    """A val without a document, or with less than a window of tokens, gets a note with a share that is enough."""
    none = export(store.directory, to="megatron", out=str(tmp_path / "none"), val="0.0000001")
    assert any("val has no documents" in note and "--val 0." in note for note in none.notices)
    tiny = export(store.directory, to="nanogpt", out=str(tmp_path / "tiny"), val="first-shard", shard_tokens=10)
    assert "val has only 10 tokens; use --val 0." in tiny.notices[-1]
    enough = tiny.notices[-1].partition("--val ")[2]
    assert export(store.directory, to="nanogpt", out=str(tmp_path / "some"), val=enough).splits["val"].tokens >= 2048


@pytest.mark.parametrize(
    ("name", "words", "use"),
    [
        ("nanogpt", {"val": 0.2}, "link {out} to data/NAME of nanoGPT, then train with --dataset=NAME"),
        ("megatron", {"name": "x"}, "--data-path {out}/x_train_text_document --split 99,1,0"),
        (
            "megatron",
            {"val": 0.2},
            "--train-data-path {out}/train_text_document --valid-data-path {out}/val_text_document",
        ),
        ("llmc", {}, '-i "{out}/fineweb_train_*.bin" -j "{out}/fineweb_val_000000.bin"'),
        ("datatrove", {"val": 0.2}, 'DatatroveFolderDataset("{out}/train", '),
        ("olmo", {"shard_tokens": 9_000}, 'NumpyFSLDatasetConfig(paths=glob("{out}/part-0-*.npy")'),
    ],
)
def test_the_result_says_what_to_tell_the_trainer(
    store: tokenmill.Store, tmp_path: Path, name: str, words: dict[str, object], use: str
) -> None:
    """The paths in it are those that were written, and a pattern finds as many files as there are shards."""
    done = export(store.directory, to=name, out=str(tmp_path), **words)
    assert done.use.startswith(use.format(out=tmp_path))
    for pattern in re.findall(rf'"({tmp_path}/[^"]*\*[^"]*)"', done.use):
        assert len(glob.glob(pattern)) == done.splits["train"].shards


def test_a_small_store_gets_small_shards_for_val(store: tokenmill.Store, tmp_path: Path) -> None:
    """Where the first of the usual shards would be everything, shards are smaller and the call says so."""
    done = export(store.directory, to="llmc", out=str(tmp_path))
    assert done.splits["val"].tokens == -(-store.token_count // 10)
    assert "smaller than two shards" in done.notices[0]


def test_other_peoples_files_are_left_alone(store: tokenmill.Store, tmp_path: Path) -> None:
    """Files in the output directory stay, and one that has the name of a shard is not overwritten."""
    (tmp_path / "notes.tmp").write_text("mine")
    (tmp_path / "folder.tmp").mkdir()
    (tmp_path / "train.bin").write_text("mine too")
    with pytest.raises(UsageError, match="is there, and not from this export"):
        export(store.directory, to="nanogpt", out=str(tmp_path))
    assert (tmp_path / "train.bin").read_text() == "mine too"
    (tmp_path / "train.bin").unlink()
    export(store.directory, to="nanogpt", out=str(tmp_path), shuffle=1)
    assert (tmp_path / "notes.tmp").read_text() == "mine"
    with pytest.raises(UsageError, match="the store itself"):
        export(store.directory, to="nanogpt", out=store.directory)


def test_the_place_of_another_stores_export_is_refused(store: tokenmill.Store, tmp_path: Path) -> None:
    """`verify` of the other store would take the export for its own. Other directories in a store can be used."""
    other = tmp_path / "other"
    source = tmp_path / "other.jsonl"
    source.write_text('{"text": "Another store."}\n')
    tokenmill.prepare(str(source), tokenizer=SMALL_JSON, out=str(other))
    with pytest.raises(UsageError, match=r"(?s)export of another store.*other/megatron"):
        export(store.directory, to="megatron", out=str(other / "megatron"))
    assert not (other / "megatron").exists()
    export(store.directory, to="megatron", out=str(other / "of-store"))
    assert tokenmill.verify(str(other)).documents == 1
    (tmp_path / "link").symlink_to(store.directory)
    export(str(tmp_path / "link"), to="megatron", out=str(Path(store.directory) / "megatron"))


def test_state_of_another_export_is_not_taken_over(store: tokenmill.Store, tmp_path: Path) -> None:
    """If the frozen job is gone, the rest of the export is refused; its directory has to be removed first."""
    export(store.directory, to="parquet", out=str(tmp_path / "a"), shard_tokens=30_000)
    export(store.directory, to="parquet", out=str(tmp_path / "b"), shard_tokens=30_000, shuffle=5)
    (tmp_path / "a/.tokenmill/export.json").unlink()
    with pytest.raises(CorruptStore, match=r"(?s)export\.json is missing.*Remove the directory"):
        export(store.directory, to="parquet", out=str(tmp_path / "a"), shard_tokens=30_000, shuffle=5)
    shutil.rmtree(tmp_path / "a")
    export(store.directory, to="parquet", out=str(tmp_path / "a"), shard_tokens=30_000, shuffle=5)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_an_export_elsewhere_can_be_verified(store: tokenmill.Store, tmp_path: Path) -> None:
    """`verify` takes the directory of an export, too."""
    export(store.directory, to="megatron", out=str(tmp_path / "out"))
    assert tokenmill.verify(str(tmp_path / "out"), workers=1).exports == {"megatron": 2}
    os.truncate(tmp_path / "out/train_text_document.bin", 10)
    with pytest.raises(CorruptStore, match="another size"):
        tokenmill.verify(str(tmp_path / "out"), workers=1)


def test_no_val_file_is_written_for_no_documents(tmp_path: Path) -> None:
    """If no document falls into val there is no file for it, and the call says so."""
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    store = prepare([source], tmp_path / "store")
    done = export(store.directory, to="nanogpt", out=str(tmp_path / "out"))
    assert list(tree(tmp_path / "out")) == ["train.bin"]
    assert "val has no documents" in done.notices[0]


@pytest.mark.parametrize("documents", [2, 3, 5, 30])
@pytest.mark.parametrize("val", ["0.0001", "0.99999"])
def test_the_advice_for_few_documents_gives_both_splits(tmp_path: Path, documents: int, val: str) -> None:
    """It is computed from the documents there are, whatever was given: larger or smaller, and it works."""
    source = write_parquet(tmp_path / "a.parquet", [f"document {number}" for number in range(documents)])
    store = prepare([source], tmp_path / "store")
    done = export(store.directory, to="llmc", out=str(tmp_path / "first"), val=val)
    assert len(done.splits) == 1
    note = next(note for note in done.notices if "has no documents" in note)
    advised = note.partition("; use --val ")[2]
    assert 0 < float(advised) < 1
    again = export(store.directory, to="llmc", out=str(tmp_path / "second"), val=advised)
    assert set(again.splits) == {"train", "val"}
    with pytest.raises(UsageError, match=rf"(?s)the split \w+ of the store has no documents.*Use val={advised}\."):
        tokenmill.loader(
            store.directory, sequence_tokens=1, grain=1, batch_sequences=1, val=val, split=note.split(maxsplit=1)[0]
        )


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("val", ["0.01", "0.99999"])
def test_one_document_cannot_be_divided(tmp_path: Path, name: str, val: str) -> None:
    """No fraction helps. A text file can be divided into documents by a separator."""
    (tmp_path / name).write_text("one\n\ntwo" if name == "a.txt" else '{"text": "one"}\n')
    store = prepare([str(tmp_path / name)], tmp_path / "store")
    (note,) = export(store.directory, to="megatron", out=str(tmp_path / "out"), val=val).notices
    assert "no documents, so it has no file; the store has one document, and a document is in one split only" in note
    assert ("--separator '\\n\\n' and another --out" in note) == (name == "a.txt")
    assert "--val" not in note


def test_an_empty_store_has_an_empty_export(tmp_path: Path) -> None:
    """A store without documents exports to no shard at all, in every format, without an error."""
    source = write_parquet(tmp_path / "a.parquet", [None])
    store = prepare([source], tmp_path / "store", max_skipped=1)
    for name in FORMATS:
        for number, options in enumerate([{}, {"val": 0.5, "shuffle": 1}]):
            done = export(store.directory, to=name, out=str(tmp_path / f"{name}{number}"), **options)
            assert done.splits == {}
            assert "no tokens" in done.notices[-1]


def test_records_name_the_origin_of_every_document(store: tokenmill.Store, tmp_path: Path) -> None:
    """The records of the shards tell, in order, where each document or piece of one is from."""
    export(store.directory, to="llmc", out=str(tmp_path), shard_tokens=5_000, shuffle=5)
    folder = folder_at(str(tmp_path))
    manifest = pq.read_table(tmp_path / ".tokenmill/manifests/00000000.parquet")
    assert sum(manifest["begun"].to_pylist()) == len(store)
    for shard in range(len(manifest)):
        record = records.read(folder, shard)
        assert records.read_lengths(folder, shard).sum() == record.tokens
        for file in record.files:
            assert xxhash.xxh3_128_hexdigest((tmp_path / file.name).read_bytes()) == file.xxh3


def test_verify_finds_damage_in_an_export(corpus: list[str], tmp_path: Path) -> None:
    """`verify` compares the files of the exports in a store with their checksums, pieces of files included."""
    store = prepare(corpus, tmp_path / "store")
    for name in ("nanogpt", "megatron"):
        export(store.directory, to=name, val=0.1)
    assert tokenmill.status(store.directory).exports == {"nanogpt": "complete", "megatron": "complete"}
    assert tokenmill.verify(store.directory, workers=1).exports == {"nanogpt": 2, "megatron": 4}
    for name in ("nanogpt/train.bin", "megatron/val_text_document.idx"):
        path = tmp_path / "store" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        with pytest.raises(CorruptStore, match=path.name):
            tokenmill.verify(store.directory, workers=1)
        path.write_bytes(whole[:-2])
        with pytest.raises(CorruptStore, match="another size"):
            tokenmill.verify(store.directory, workers=1)
        path.write_bytes(whole)


def test_too_few_tokens_for_a_sequence_are_told(tmp_path: Path) -> None:
    """A store that fills no sequence of MDS gives no shard, and the result says how many tokens that leaves out."""
    store = prepare([write_parquet(tmp_path / "a.parquet", ["one", "two"])], tmp_path / "store")
    done = export(store.directory, to="mds")
    assert done.splits["train"].shards == 0
    assert done.splits["train"].tokens_left_out == store.token_count
    assert "too few for one sequence" in done.notices[0]


@pytest.mark.parametrize("name", ["parquet", "megatron", "mds"])
def test_the_first_shard_can_be_val_in_any_format(store: tokenmill.Store, name: str, tmp_path: Path) -> None:
    """`--val first-shard` splits where the first shard ends, also where documents or sequences stay whole."""
    options = {"sequence_tokens": 50} if name == "mds" else {}
    export(store.directory, to=name, out=str(tmp_path), val="first-shard", shard_tokens=9_010, shuffle=4, **options)
    found = read_back(tmp_path, name)
    stream = np.concatenate([tokens for split in ("val", "train") for tokens, _ in found[split]]).tolist()
    expected = flat(model(store, None, 4, "appended")["train"])
    assert stream == expected[: len(stream)]
    assert len(expected) - len(stream) < 50
    assert 9_000 <= sum(len(tokens) for tokens, _ in found["val"]) < 10_000


def test_killing_an_export_at_any_moment_does_no_harm(store: tokenmill.Store, tmp_path: Path) -> None:
    """Killed again and again, the whole process group at once, the export ends with the bytes of an undisturbed one."""
    options = ["--to", "datatrove", "--shuffle", "9", "--shard-tokens", "200", "--workers", "2"]
    words = ["export", store.directory, *options, "--out"]
    run(*words, tmp_path / "whole")
    killed, records_seen = tmp_path / "killed", 0
    for more in (0, 40):
        command = [sys.executable, "-m", "tokenmill", *words, str(killed)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
        wanted = records_seen + more
        assert wait_until(lambda: process.poll() is not None or len(shard_records(killed)) > wanted)  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        records_seen = len(shard_records(killed))
    run(*words, killed)
    assert tree(killed) == tree(tmp_path / "whole")
    assert len(shard_records(killed)) > 100


def shard_records(out: Path) -> list[Path]:
    return list(out.glob(".tokenmill/shards/*.arrow"))


@pytest.mark.parametrize("name", ["nanogpt", "llmc", "megatron", "olmo"])
def test_files_that_are_gone_or_cut_are_written_again(
    store: tokenmill.Store, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export whose files were removed or cut is not taken for complete: the same call writes them again."""
    monkeypatch.setattr(shards, "REGION_TOKENS", 8_000)
    options = {"to": name, "out": str(tmp_path), "shuffle": 2, "val": 0.1, "shard_tokens": 8_000}
    export(store.directory, **options)
    whole = tree(tmp_path)
    largest = max(whole, key=lambda file: (tmp_path / file).stat().st_size)
    for harm in (lambda path: path.unlink(), lambda path: os.truncate(path, 100)):
        harm(tmp_path / largest)
        done = export(store.directory, **options)
        assert done.shards_done_now >= 1
        assert any(largest in notice for notice in done.notices)
        assert tree(tmp_path) == whole
    assert not (tmp_path / ".tokenmill/runs").exists()
    (tmp_path / ".tokenmill/shards/00000001.arrow").unlink()
    assert export(store.directory, **options).shards_done_now == 1
    assert tree(tmp_path) == whole
    assert export(store.directory, **options).shards_done_now == 0
