"""Stores as sources: another frame, another tokenizer, another selection; what was erased in the source."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import segmented
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import IncompleteStore, JobChanged, SourceError, StoreError, TokenmillError, UsageError
from tokenmill.results import PrepareResult
from tokenmill.storage import folder_at
from tokenmill.store.part import open_part
from tokenmill.store.state import Operation, enter

END = 1199
ROWS = 240
WORDS = ("hello", "wörld", "日本語", "👩‍👩‍👧‍👦", " the ", "\n\n", "code();", "naïve", "x" * 20)
Tokens = list[list[int]]


def prepare(source: Any, out: Path, **options: Any) -> PrepareResult:
    """Prepare in this process."""
    given = {"executor": InlineExecutor(), "max_skipped": 0.1, "trust_tokens": True}
    return tokenmill.prepare(source, out=str(out), **{**given, **options})


def prepare_files(folder: Path, name: str, **options: Any) -> PrepareResult:
    """Prepare the files of the folder."""
    given = {"tokenizer": SMALL_JSON, "eot": END, "unit_bytes": 4000, "keep": "id,group"}
    return prepare(folder / "files", folder / name, **{**given, **options})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A Parquet file and a JSON Lines file, and a store of both: nulls, repeated texts, and kept columns."""
    random = np.random.default_rng(5)
    texts = [" ".join(random.choice(WORDS, random.integers(0, 12))) for _ in range(ROWS)]
    texts[50:55] = texts[20:25]
    rows = [{"id": row, "group": row % 3, "text": text} for row, text in enumerate(texts)]
    rows[7]["text"] = None
    (tmp_path / "files").mkdir()
    pq.write_table(pa.Table.from_pylist(rows[:120]), tmp_path / "files/a.parquet", row_group_size=20)
    (tmp_path / "files/b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[120:]))
    prepare_files(tmp_path, "store")
    return tmp_path


def tokens(store: PrepareResult | Path) -> Tokens:
    """The tokens of all documents."""
    opened = tokenmill.open(store)
    return [opened[position].tolist() for position in range(len(opened))]


def origins(store: PrepareResult | Path) -> list[Any]:
    """The columns of all parts but the tokens, the kept columns, and the skipped rows."""
    found = enter(folder_at(str(getattr(store, "directory", store))), Operation.READ)
    parts = [open_part(found.folder, unit, found.head) for unit in range(found.run.units)]
    kept = [path.read_bytes() for path in sorted(Path(found.folder.root, "kept").glob("*"))]
    columns = [(part.source.tolist(), part.row.tolist(), part.offsets.tolist()) for _, part in parts]
    return [columns, [summary.skipped for summary, _ in parts], kept]


def verified(store: PrepareResult | Path) -> Any:
    """The result of a comparison of all documents with the source."""
    return tokenmill.verify(store, all=True, executor=InlineExecutor())


@pytest.mark.parametrize("frame", [{"bos": 5}, {"bos": 5, "eot": 7}, {"eot": "none"}, {}], ids=str)
def test_another_frame_is_that_of_the_files(frame: dict[str, Any], folder: Path) -> None:
    """The same tokens, rows, skipped rows and kept columns, without the files; also from a store of a store."""
    expected = prepare_files(folder, "expected", **frame)
    shutil.rmtree(folder / "files")
    result = prepare(folder / "store", folder / "other", **frame)
    assert tokens(result) == tokens(expected)
    assert origins(result) == origins(expected)
    assert verified(result).documents_compared == result.documents == ROWS - 1
    again = prepare(result, folder / "again", bos="none", eot=END)
    assert tokens(again) == tokens(folder / "store")


@pytest.mark.parametrize("options", [{}, {"special": "refuse"}, {"min_tokens": 12}], ids=str)
def test_another_tokenizer_gives_the_tokens_of_the_text(options: dict[str, Any], folder: Path) -> None:
    given = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, **options}
    expected = prepare_files(folder, "expected", **given)
    shutil.rmtree(folder / "files")
    result = prepare(folder / "store", folder / "other", **given)
    assert tokens(result) == tokens(expected)
    assert origins(result) == origins(expected)
    assert result.text_bytes == expected.text_bytes
    assert verified(result).units == expected.units
    for name, store in (("one", result), ("two", expected)):
        tokenmill.export(store, to="nanogpt", val=0.2, shuffle=3, out=str(folder / name), executor=InlineExecutor())
    assert {path.name for path in (folder / "one").glob("*.bin")} == {"train.bin", "val.bin"}
    for path in (folder / "one").glob("*.bin"):
        assert path.read_bytes() == (folder / "two" / path.name).read_bytes()


def test_locate_names_the_original_row(folder: Path) -> None:
    source = tokenmill.locate(folder / "store", source="b.jsonl", byte=0).documents[0]
    result = prepare(folder / "store", folder / "other", bos=5)
    found = tokenmill.locate(result.directory, source="b.jsonl", byte=0).documents[0]
    assert (found.source, found.byte, found.document) == (source.source, source.byte, source.document)
    assert found.columns == {"id": 120, "group": 0}


def test_selections_are_those_of_the_files(folder: Path) -> None:
    options = {"where": "group != 1", "keep": "id", "dedup": "exact", "min_tokens": 3, "max_tokens": 60}
    expected = prepare_files(folder, "expected", **options)
    result = prepare(folder / "store", folder / "other", **options)
    assert tokens(result) == tokens(expected)
    assert origins(result)[0] == origins(expected)[0]
    assert origins(result)[2] == origins(expected)[2]
    assert result.skipped_rows == expected.skipped_rows
    assert result.skipped_reasons["duplicate"] == expected.skipped_reasons["duplicate"] > 0
    assert verified(result).documents_compared
    text = prepare(folder / "store", folder / "text", tokenizer=SMALL_TIKTOKEN, eot=0, **options)
    assert verified(text).documents_compared


def test_kept_columns_are_needed_to_select(folder: Path) -> None:
    for options in ({"keep": "text"}, {"where": "text = 'a'"}):
        with pytest.raises(UsageError, match="the column 'text' is not kept in the source"):
            prepare(folder / "store", folder / "other", **options)
    assert not tokenmill.open(prepare(folder / "store", folder / "none", keep="none")).job.keep


def erase(store: Path | str, rows: Any) -> Any:
    """Erase rows of a store."""
    return tokenmill.erase(store, rows=rows, executor=InlineExecutor())


def test_erased_documents_are_left_out(folder: Path) -> None:
    erase(folder / "store", [("a.parquet", 3), ("a.parquet", 90), ("b.jsonl", 0)])
    result = prepare(folder / "store", folder / "other", bos=5)
    erased = {3, 90, 120}
    opened = tokenmill.open(result)
    ids = opened.columns("id")["id"].to_pylist()
    assert ids == [row for row in range(ROWS) if row not in {*erased, 7}]
    assert result.skipped_reasons == {"null": 1, "erased": 3}
    assert verified(result).documents_compared == len(ids)
    text = prepare(folder / "store", folder / "text", tokenizer=SMALL_TIKTOKEN, eot=0)
    assert text.documents == len(ids)


@pytest.mark.parametrize("options", [{"bos": 5}, {"tokenizer": SMALL_TIKTOKEN, "eot": 0}], ids=["frame", "tokenizer"])
def test_what_is_erased_in_the_source_is_named_until_it_is_erased_here(options: dict[str, Any], folder: Path) -> None:
    result = prepare(folder / "store", folder / "other", where="group != 1", **options)
    assert tokenmill.status(result.directory).notices == verified(result).notices == []
    erase(folder / "store", [("a.parquet", 3), ("a.parquet", 4), ("b.jsonl", 0)])
    command = f"`tokenmill erase {result.directory} --rows {folder / 'store'}`"
    note = f"2 rows of this store were erased in its source since; {command} does it here"
    assert tokenmill.status(result.directory).notices == [note]
    checked = verified(result)
    assert note in checked.notices
    assert any("not compared with its source" in notice for notice in checked.notices)
    with pytest.raises(JobChanged, match="the store that is the source changed since this run was started") as caught:
        prepare(folder / "store", folder / "other", where="group != 1", **options)
    assert "documents were erased in it" in str(caught.value)
    erased = erase(result.directory, folder / "store")
    assert erased.documents == 2
    assert erase(result.directory, str(folder / "store")).documents == 2
    assert tokenmill.status(result.directory).notices == []
    assert verified(result).documents == result.documents


def test_rows_of_a_store_that_is_not_the_source_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="is not the source of"):
        erase(folder / "store", folder / "store")
    result = prepare(folder / "store", folder / "other", bos=5)
    with pytest.raises(UsageError, match="nothing was erased in"):
        erase(result.directory, folder / "store")


def test_a_source_that_is_gone_is_named(folder: Path) -> None:
    result = prepare(folder / "store", folder / "other", bos=5)
    (folder / "store").rename(folder / "moved")
    assert "cannot be read: no such store" in tokenmill.status(result.directory).notices[0]
    assert tokenmill.verify(result, executor=InlineExecutor()).notices
    with pytest.raises(StoreError, match="no such store"):
        verified(result)
    moved = prepare(folder / "moved", folder / "other", bos=5)
    assert moved.units_done_now == 0
    assert verified(result).notices == []


def test_a_flipped_byte_in_the_source_is_found(folder: Path) -> None:
    result = prepare(folder / "store", folder / "whole", bos=5)
    part = max((folder / "store/parts").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(part.read_bytes())
    data[data.index(np.uint16(END).tobytes(), 600)] ^= 1
    part.write_bytes(data)
    with pytest.raises(TokenmillError, match="is damaged"):
        prepare(folder / "store", folder / "other", bos=5)
    with pytest.raises(TokenmillError, match="is damaged"):
        verified(result)


def test_bad_rows_of_the_source_stay_in_quarantine(folder: Path) -> None:
    with (folder / "files/b.jsonl").open("a") as file:
        file.write('{"id": 1, "group": 2, "text": 5}\n')
    prepare_files(folder, "bad", max_bad=0.1)
    shutil.rmtree(folder / "files")
    result = prepare(folder / "bad", folder / "other", bos=5)
    assert result.quarantined == 1
    assert verified(result).documents == ROWS - 1
    lines = [(folder / name / "quarantine.jsonl").read_text() for name in ("bad", "other")]
    assert lines[0] == lines[1]


def test_tokens_that_are_not_text_are_bad_rows(tmp_path: Path) -> None:
    """Ids that are cut inside a character, for a column of ids and for a store of them."""
    ids = [[72, 105], [0xE2, 0x82], [33], [0xFF]] * 5
    source = tmp_path / "a.parquet"
    pq.write_table(pa.table({"ids": pa.array(ids, pa.list_(pa.uint16()))}), source)
    given = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "max_bad": 1.0}
    decoded = prepare(source, tmp_path / "decoded", tokens_column="ids", source_tokenizer=SMALL_JSON, **given)
    store = prepare(source, tmp_path / "store", tokens_column="ids", tokenizer=SMALL_JSON, eot=END)
    result = prepare(store, tmp_path / "other", **given)
    assert tokens(result) == tokens(decoded)
    assert result.quarantined == decoded.quarantined > 0
    assert result.skipped_reasons == {"tokens are not text": result.quarantined}
    assert verified(decoded).documents == verified(result).documents == result.documents


def test_masks_are_kept_with_the_same_tokenizer(tmp_path: Path) -> None:
    documents = segmented.random_documents(80, 3)
    source = segmented.write(tmp_path / "a.parquet", documents)
    given = {"tokenizer": SMALL_JSON, "segments": "segments", "unit_bytes": 500, "max_skipped": 1.0}
    store = prepare(source, tmp_path / "store", eot=END, **given)
    for name, frame in (("both", {"bos": 5, "eot": 7}), ("none", {"eot": "none"})):
        expected = prepare(source, tmp_path / f"{name}-expected", **given, **{"eot": END, **frame})
        result = prepare(store, tmp_path / name, max_skipped=1.0, **frame)
        assert tokens(result) == tokens(expected)
        one, other = (tokenmill.open(each) for each in (result, expected))
        assert [one.trained(at) for at in range(len(one))] == [other.trained(at) for at in range(len(other))]
        assert result.trained_tokens == expected.trained_tokens
        assert verified(result).documents == expected.documents
    with pytest.raises(UsageError, match="a store with a mask can be a source only for the same tokenizer"):
        prepare(store, tmp_path / "text", tokenizer=SMALL_TIKTOKEN, eot=0)


def test_a_run_that_was_stopped_goes_on_with_the_same_bytes(folder: Path) -> None:
    """With one worker and with two; the second call does what is missing."""
    given = {"tokenizer": SMALL_TIKTOKEN, "eot": 0}
    whole = prepare(folder / "store", folder / "whole", **given)
    trial = prepare(folder / "store", folder / "other", limit_units=2, **given)
    assert trial.units == 2
    result = prepare(folder / "store", folder / "other", workers=2, executor=None, **given)
    assert result.units_done_now == whole.units - 2
    assert part_bytes(result.directory) == part_bytes(whole.directory)
    assert prepare(folder / "store", folder / "other", **given).units_done_now == 0


def test_a_source_that_has_grown_is_refused(folder: Path) -> None:
    trial = prepare_files(folder, "trial", limit_units=2)
    result = prepare(trial, folder / "other", bos=5)
    assert result.units == 2
    Path(trial.directory, "manifest.parquet").unlink()
    with pytest.raises(IncompleteStore):
        prepare(trial, folder / "new", bos=5)
    grown = prepare_files(folder, "trial")
    with pytest.raises(JobChanged) as caught:
        prepare(grown, folder / "other", bos=5)
    assert f"it has {grown.units} units now, and had 2" in str(caught.value)


def test_options_of_another_store_are_taken(folder: Path) -> None:
    """`--like` a store of files and one of a store; both stores can be read together."""
    like = prepare_files(folder, "like", bos=5, where="group != 1", keep="id", template="{text}!")
    result = prepare(folder / "store", folder / "other", like=like.directory)
    assert tokenmill.open([result, prepare(folder / "files", folder / "more", like=result.directory)]).job.begin == 5
    assert result.skipped_reasons == {"null": 1, "filtered": ROWS // 3 - 1}  # the null is of this group
    assert tokenmill.open(result).job.keep == ("id",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "text"}, "column= cannot be used with a store as source"),
        ({"split": "train"}, "split= cannot be used with a store as source"),
        ({"unit_bytes": 1000}, "unit_bytes= cannot be used with a store as source"),
        ({"special": "parse"}, "special= needs another tokenizer than that of the source"),
        ({"tokenizer": [SMALL_JSON, SMALL_TIKTOKEN]}, "several tokenizers cannot be used with a store as source"),
        ({"engine": "gigatoken"}, 'engine="gigatoken" has no effect'),
    ],
)
def test_options_about_files_are_refused(options: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=message):
        prepare(folder / "store", folder / "other", **options)


def test_other_sources_beside_a_store_are_refused(folder: Path) -> None:
    with pytest.raises(SourceError, match="a store is a source only by itself"):
        prepare([folder / "store", folder / "files"], folder / "other", tokenizer=SMALL_JSON, eot=END)
    with pytest.raises(SourceError, match="a directory cannot be a source and the store of the same run"):
        prepare(folder / "store", folder / "store", tokenizer=SMALL_JSON, eot=END)


def test_a_plan_of_a_store_is_that_of_its_units(folder: Path) -> None:
    planned = tokenmill.plan(folder / "store", tokenizer=SMALL_TIKTOKEN, eot=0, executor=InlineExecutor())
    done = prepare(folder / "store", folder / "other", tokenizer=SMALL_TIKTOKEN, eot=0)
    assert planned.units == done.units
    assert planned.tokens.low <= done.tokens <= planned.tokens.high


def test_rows_of_several_documents_stay_together(tmp_path: Path) -> None:
    """A store of a stream of tokens: its rows have many documents, and a document has many rows."""
    random = np.random.default_rng(3)
    documents = [random.integers(0, 1000, random.integers(0, 30)).tolist() for _ in range(150)]
    stream = [token for ids in documents for token in [*ids, END]]
    rows = [stream[start : start + 40] for start in range(0, len(stream), 40)]
    pq.write_table(pa.table({"ids": pa.array(rows, pa.list_(pa.uint16()))}), tmp_path / "a.parquet", row_group_size=10)
    given = {"tokens_column": "ids", "tokenizer": SMALL_JSON, "rows": "stream", "unit_bytes": 500}
    store = prepare(tmp_path / "a.parquet", tmp_path / "store", eot=END, **given)
    result = prepare(store, tmp_path / "other", bos=5, eot=7)
    assert tokens(result) == [[5, *ids, 7] for ids in documents]
    assert verified(result).documents_compared == len(documents)
    with pytest.raises(UsageError, match="dedup= cannot be used with this store as source"):
        prepare(store, tmp_path / "new", dedup="exact")
