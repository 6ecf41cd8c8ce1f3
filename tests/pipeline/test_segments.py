"""Documents made of segments (`--segments`): their text is tokenized as one, and the column `train` is exact."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support import DATA
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tests.support.segmented import expected_mask, random_documents, stored_mask, write
from tests.support.small_stores import rewrite_part
from tokenmill.errors import CorruptStore, SourceError, TokenmillError, UsageError
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.isolate import Isolate, IsolatedUnit
from tokenmill.results import PrepareResult
from tokenmill.spans import Spans
from tokenmill.storage import folder_at
from tokenmill.store import tables
from tokenmill.store.job import require_run
from tokenmill.store.part import PartContent, open_part

KINDS = ("parquet", "jsonl", "arrow")


def prepare(source: str, out: Path, **options: Any) -> PrepareResult:
    given = {"tokenizer": SMALL_JSON, "segments": "segments", "unit_bytes": 1500, "executor": InlineExecutor()}
    return tokenmill.prepare(source, out=str(out), **{**given, **options})


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_those_of_the_text_and_the_mask_is_that_of_the_bytes(kind: str, tmp_path: Path) -> None:
    """With begin and end tokens; `verify` compares all of it with the source; the counts are in every result."""
    documents = random_documents(150, 7)
    result = prepare(write(tmp_path / f"a.{kind}", documents), tmp_path / "store", bos=1, keep="id")
    store, present = tokenmill.open(result), [each for each in documents if each is not None]
    trained = 0
    for position, segments in enumerate(present):
        assert store.decode(position) == "".join(each["text"] for each in segments)
        assert store.text(position) == store.decode(position)
        mask = stored_mask(store, position)
        assert mask == expected_mask(store, position, segments), segments
        trained += sum(mask)
    assert len(store) == len(present)
    assert 0 < trained < result.tokens
    assert result.trained_tokens == trained == tokenmill.stats(result).trained_tokens
    assert tokenmill.inspect(result).trained_tokens == trained
    assert tokenmill.inspect(result, doc=5).trained == store.trained(5)
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents
    again = prepare(str(tmp_path / f"a.{kind}"), tmp_path / "other", bos=1, keep="id", workers=2, executor=None)
    assert tokenmill.open(again).digest == store.digest


def test_all_kinds_of_sources_give_the_same_documents(tmp_path: Path) -> None:
    documents = random_documents(120, 3)
    columns = []
    for kind in KINDS:
        store = tokenmill.open(prepare(write(tmp_path / f"a.{kind}", documents), tmp_path / kind))
        contents = [store.part(part) for part in range(len(store.manifest))]
        trains = [content.train for content in contents if content.train is not None]
        columns.append((np.concatenate([each.tokens for each in contents]).tolist(), Spans.join(trains).array()))
    assert columns[0] == columns[1] == columns[2]


def test_a_unit_in_isolation_gives_the_same_part(tmp_path: Path) -> None:
    """Document by document, as after the death of a worker."""
    source = write(tmp_path / "a.parquet", random_documents(60, 5))
    result, other = prepare(source, tmp_path / "store"), prepare(source, tmp_path / "other", limit_units=1)
    folder = folder_at(other.directory)
    expected = (tmp_path / "other/parts" / "00000000.arrow").read_bytes()
    folder.discard("parts/00000000.arrow")
    run = require_run(folder)
    task = next(iter(plan.tasks(tables.read_plan(folder, run), tables.read_sources(folder, run), range(1))))
    assert Isolate(other.directory, run.job, "gigatoken", WorkerLimits(1 << 30))(IsolatedUnit(task)) is not None
    assert (tmp_path / "other/parts" / "00000000.arrow").read_bytes() == expected
    assert result.documents >= other.documents


WRONG: list[Any] = [
    [{"text": "a"}],
    [{"train": True}],
    [{"text": None, "train": True}],
    [{"text": "a", "train": None}],
    [None],
]
WRONG_JSON: list[Any] = [*WRONG, "text", {"text": "a", "train": True}, ["a"], [{"text": 1, "train": True}], 5, [[]]]
WRONG_JSON += [[{"text": "a", "train": "yes"}], [{"text": "a", "train": 1}]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_segments_is_a_bad_row(kind: str, tmp_path: Path) -> None:
    """It fails the run, or goes to quarantine; the rows around it are as without it."""
    wrong = WRONG_JSON if kind == "jsonl" else WRONG
    documents = random_documents(40, 9)
    mixed = [*documents[:20], *wrong, *documents[20:]]
    source = write(tmp_path / f"a.{kind}", mixed)
    with pytest.raises(TokenmillError) as raised:
        prepare(source, tmp_path / "failed", on_bad="fail")
    assert "the segments of a document are not valid" in str(raised.value)
    assert '{"text": "...", "train": true or false}' in str(raised.value)
    result = prepare(source, tmp_path / "store", on_bad="quarantine", max_bad=1)
    assert result.skipped_reasons == {"not segments": len(wrong), "null": 1}
    clean = prepare(write(tmp_path / f"b.{kind}", documents), tmp_path / "clean")
    assert [row.tolist() for row in tokenmill.open(result)] == [row.tolist() for row in tokenmill.open(clean)]
    assert result.trained_tokens == clean.trained_tokens
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents


def test_bytes_that_are_not_utf8_are_a_bad_row(tmp_path: Path) -> None:
    line = b'{"segments": [{"text": "\xff", "train": true}]}\n{"segments": [{"text": "a", "train": true}]}\n'
    (tmp_path / "a.jsonl").write_bytes(line)
    result = prepare(str(tmp_path / "a.jsonl"), tmp_path / "store", on_bad="quarantine", max_bad=1)
    assert result.skipped_reasons == {"not valid UTF-8": 1}
    assert tokenmill.open(result).trained(0) == [(0, 2)]


def test_a_path_a_null_and_a_surrogate(tmp_path: Path) -> None:
    """The column may be a field of another one, as `data.segments`."""
    rows = [{"data": {"segments": [{"text": "a\ud800b", "train": True}]}}, {"data": {"segments": None}}, {"data": {}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = prepare(str(tmp_path / "a.jsonl"), tmp_path / "store", segments="data.segments", max_skipped=1)
    assert tokenmill.open(result).decode(0) == "a\ufffdb"
    assert result.skipped_reasons == {"missing": 1, "null": 1}


def test_a_mask_that_is_not_that_of_the_source_is_found(tmp_path: Path) -> None:
    """By `verify --all`, although all checksums of the part are right."""
    result = prepare(write(tmp_path / "a.parquet", random_documents(60, 5)), tmp_path / "store")

    def empty(content: PartContent) -> PartContent:
        assert content.train is not None
        return replace(content, train=content.train.emptied(np.arange(len(content.row)) == 7))

    rewrite_part(Path(result.directory), empty)
    with pytest.raises(CorruptStore) as raised:
        tokenmill.verify(result, all=True, executor=InlineExecutor())
    assert "is trained on other tokens" in str(raised.value)


def test_an_erased_document_is_not_trained_on(tmp_path: Path) -> None:
    result = prepare(write(tmp_path / "a.parquet", random_documents(60, 5)), tmp_path / "store", keep="id")
    store = tokenmill.open(result)
    longest = max(range(len(store)), key=lambda position: len(store.trained(position) or []))
    value = str(store.columns("id")["id"][longest].as_py())
    tokenmill.erase(result, column="id", values=[value], request="r-1", executor=InlineExecutor())
    assert tokenmill.open(result).trained(longest) == []
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents - 1
    _, content = open_part(folder_at(result.directory), 0, tokenmill.open(result).collection.members[0].head)
    assert content.train is not None


@pytest.mark.parametrize(("train", "word"), [(True, "all"), (False, "no")])
def test_a_mask_of_one_kind_is_pointed_out(train: bool, word: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", [[{"text": "some words", "train": train}]] * 5)
    result = prepare(source, tmp_path / "store")
    assert any(note.startswith(f"{word} tokens are trained on") for note in result.notices)


def test_a_store_like_another_has_segments_too(tmp_path: Path) -> None:
    """A given column or template stands in place of them, and the other way round."""
    source = write(tmp_path / "a.parquet", random_documents(30, 5))
    first = prepare(source, tmp_path / "store")
    like = {"tokenizer": None, "segments": None, "like": first.directory}
    assert prepare(source, tmp_path / "b", **like).trained_tokens == first.trained_tokens
    assert prepare(source, tmp_path / "c", **like, column="segments.text", join="").trained_tokens is None
    plain = prepare(source, tmp_path / "d", segments=None, column="segments.text", join="")
    like = {"tokenizer": None, "like": plain.directory}
    assert prepare(source, tmp_path / "e", **like).trained_tokens == first.trained_tokens


@pytest.mark.parametrize("name", ["column", "template", "join", "separator"])
def test_options_that_name_other_text_are_refused(name: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", random_documents(5, 5))
    with pytest.raises(UsageError) as raised:
        prepare(source, tmp_path / "store", **{name: "{id}"})
    assert raised.value.headline == f"--{name} cannot be used with --segments"


@pytest.mark.parametrize(
    ("column", "found"),
    [
        ("id", "a source has no field 'text' of the column 'id.text'"),
        ("other", "a source has no column named 'other.text'"),
    ],
)
def test_a_column_of_something_else_is_refused(column: str, found: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", random_documents(5, 5))
    with pytest.raises(SourceError) as raised:
        prepare(source, tmp_path / "store", segments=column)
    assert raised.value.headline == found


def test_the_option_is_named_where_it_is_missing(tmp_path: Path) -> None:
    """For a column of segments that is given as a column of text."""
    documents = random_documents(20, 5)
    for kind in KINDS:
        with pytest.raises(TokenmillError) as raised:
            prepare(write(tmp_path / f"a.{kind}", documents), tmp_path / kind, segments=None, column="segments")
        assert "segments='segments'" in str(raised.value).replace('"', "'")


def test_the_place_of_a_token_tells_whether_it_is_trained_on(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [[{"text": "ab", "train": False}, {"text": " cd", "train": True}]])
    result = prepare(source, tmp_path / "store")
    store = tokenmill.open(result)
    masks = [tokenmill.locate(result, token).documents[0].trained for token in range(store.token_count)]
    expected = [int(mask) for mask in stored_mask(store, 0)]
    assert masks == expected
    assert tokenmill.locate(result, source=source, byte=0).documents[0].trained == sum(expected)


def test_files_without_a_mask_are_refused(tmp_path: Path) -> None:
    """Before any work, unless the mask is to be ignored."""
    source = write(tmp_path / "a.parquet", random_documents(30, 5))
    with pytest.raises(UsageError) as refused:
        prepare(source, tmp_path / "store", to="nanogpt")
    assert "the files of nanogpt do not say which" in refused.value.headline
    assert not (tmp_path / "store").exists()
    result = prepare(source, tmp_path / "store")
    with pytest.raises(UsageError):
        tokenmill.export(result, to="llmc", executor=InlineExecutor())
    exported = tokenmill.export(result, to="nanogpt", mask="ignore", val="none", executor=InlineExecutor())
    assert sum(each.tokens for each in exported.splits.values()) == result.tokens
    with pytest.raises(UsageError):
        tokenmill.export(result, to="nanogpt", mask="zeros")  # type: ignore[arg-type]


def test_several_tokenizers_share_one_read(tmp_path: Path) -> None:
    """Each store has the tokens and the mask that it has alone."""
    source = write(tmp_path / "a.parquet", random_documents(60, 5))
    names = [SMALL_JSON, f"{DATA / 'small.tiktoken'}:cl100k_base"]
    both = prepare(source, tmp_path / "both", tokenizer=names, eot=0, executor=None, workers=1)
    for number, (result, name) in enumerate(zip((both, *both.others), names, strict=True)):
        alone = prepare(source, tmp_path / str(number), tokenizer=name, eot=0)
        assert tokenmill.open(result).digest == tokenmill.open(alone).digest
        assert result.trained_tokens == alone.trained_tokens
