"""Erasure in exports: every copy, every directory, after kills, moves and other requests."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.api.test_erase import CALL, ROWS, files_with, write
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tokenmill.api import erase as command
from tokenmill.errors import StorageError, StoreError, UsageError
from tokenmill.exports import erase_export
from tokenmill.exports.formats import FORMATS
from tokenmill.exports.job import ERASING, EXPORT
from tokenmill.storage import folder_at
from tokenmill.store.layout import publish_json
from tokenmill.store.reader import Store

SECRET = 17


def make(tmp_path: Path, name: str = "out", word: str = "") -> tuple[str, np.ndarray]:
    """A store, and the tokens of its secret document without begin and end."""
    source = write(tmp_path / f"in{word}/a.parquet")
    if word:
        table = pq.read_table(source)
        texts = [f"{word} {text}" for text in table["text"].to_pylist()]
        pq.write_table(table.set_column(0, "text", pa.array(texts)), source, row_group_size=10)
    tokenmill.prepare(source, out=str(tmp_path / name), **CALL)
    return str(tmp_path / name), Store(str(tmp_path / name))[SECRET][1:-1].copy()


def export(stores: Any, to: Any = "llmc", **options: Any) -> Any:
    return tokenmill.export(stores, to=to, workers=1, **options)


def erase(store: str, rows: tuple[int, ...] = (SECRET,), **options: Any) -> Any:
    if "request" not in options or rows:
        options["rows"] = [("a.parquet", row) for row in rows]
    return tokenmill.erase(store, workers=1, **options)


def interrupted(monkeypatch: pytest.MonkeyPatch, name: str, store: str, calls: int = 0, **options: Any) -> None:
    """Begin an erasure that ends in a call of a function, after so many calls of it."""
    original, left = getattr(command, name), [calls]

    def stop(*args: Any, **kwargs: Any) -> Any:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(command, name, stop)
        with pytest.raises(KeyboardInterrupt):
            erase(store, **options)


def recipe(tmp_path: Path, stage: str, sources: str = 'a = { store = "out", repeat = 3 }') -> str:
    path = tmp_path / "recipe.toml"
    head = f"grain = 64\n[sources]\n{sources}\n[[stages]]\nsequence_tokens = 32\nbatch_sequences = 2\n"
    path.write_text(head + stage)
    return str(path)


def test_every_copy_in_an_export_by_recipe(tmp_path: Path) -> None:
    """A store that the recipe reads twice is twice in the export; the same command then finds it complete."""
    out, secret = make(tmp_path)
    make(tmp_path, "other", "more")
    path = recipe(tmp_path, 'tokens = { a = "2.5x", b = "all" }', 'a = { store = "out", repeat = 3 }\nb = "other"')
    export(path, out=str(tmp_path / "blend"))
    assert files_with(tmp_path / "blend", secret)
    erase(out)
    assert not files_with(tmp_path / "blend", secret)
    tokenmill.verify(str(tmp_path / "blend"), workers=1)
    assert export(path, out=str(tmp_path / "blend")).shards_done_now == 0


def test_no_document_takes_the_place_of_an_erased_one(tmp_path: Path) -> None:
    """An export by recipe has a document as often as the recipe reads it, whatever was erased beside it."""
    out, _ = make(tmp_path)
    erase(out, tuple(range(40)))
    result = export(recipe(tmp_path, 'tokens = "1x"'), "parquet", out=str(tmp_path / "blend"))
    files = [path for path in (tmp_path / "blend").rglob("*.parquet") if ".tokenmill" not in str(path)]
    rows = Counter(row["row"] for path in files for row in pq.read_table(path).to_pylist())
    assert set(rows.values()) == {1}
    assert rows.keys() <= set(range(40, ROWS))
    assert result.splits["train"].documents == len(rows) > 15


@pytest.mark.parametrize("change", ["removed by the user", "removed by the erasure"])
def test_the_list_of_exports_changes_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """What was done in an export is recorded under its directory, not under its number in the list."""
    out, secret = make(tmp_path)
    first, second = sorted(("nanogpt", "megatron"), key=list(FORMATS).index)
    for to in (first, second):
        export(out, to)
    if change == "removed by the erasure":
        (tmp_path / "out" / first / ".tokenmill/manifest.parquet").unlink()
    interrupted(monkeypatch, "erase_in_export", out, 1, request="r")
    if change == "removed by the user":
        shutil.rmtree(tmp_path / "out" / first)
    result = erase(out, (), request="r")
    assert f"{out}/{second}" in result.exports
    assert not files_with(tmp_path / "out", secret)
    assert result.removed_exports == ([f"{out}/{first}"] if change == "removed by the erasure" else [])
    tokenmill.verify(f"{out}/{second}", workers=1)


def test_a_kill_before_the_mark_of_an_export_is_removed(tmp_path: Path) -> None:
    """The export can be read after the erasure was run again."""
    out, _ = make(tmp_path)
    export(out)
    erase(out, request="r")
    (tmp_path / "out/erasures/r/result.json").unlink()
    (change,) = Store(out).run.history
    publish_json(folder_at(f"{out}/llmc"), ERASING, {"change": change, "shards": []})
    erase(out, (), request="r")
    tokenmill.verify(f"{out}/llmc", workers=1)


def test_a_done_export_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is listed, and does not end the erasure in the others. A local file stands for a lost connection here."""
    out, _ = make(tmp_path)
    for name in ("one", "two"):
        export(out, out=str(tmp_path / name))
    erase(out, request="r")
    (tmp_path / "out/erasures/r/result.json").unlink()
    kind = type(folder_at(out))
    exists = kind.exists

    def lost(folder: Any, name: str) -> bool:
        if folder.root == str(tmp_path / "one") and name == ERASING:
            raise StorageError("there is no connection")
        return exists(folder, name)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "exists", lost)
        result = erase(out, (), request="r")
    assert (list(result.exports), list(result.unreached)) == ([str(tmp_path / "two")], [str(tmp_path / "one")])


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_at_the_last_file_of_a_removed_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The next call has removed the export, and does not look for it for ever."""
    out, secret = make(tmp_path)
    export(out)
    (tmp_path / "out/llmc/.tokenmill/manifest.parquet").unlink()
    kind = type(folder_at(out))
    discard = kind.discard

    def stop(folder: Any, name: str) -> None:
        if name != EXPORT or when == "after":
            discard(folder, name)
        if name == EXPORT:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kind, "discard", stop)
        with pytest.raises(KeyboardInterrupt):
            erase(out, request="r")
    result = erase(out, (), request="r")
    assert (result.removed_exports, result.unreached) == ([f"{out}/llmc"], {})
    assert not (tmp_path / "out/llmc" / EXPORT).exists()
    export(out)
    assert not files_with(tmp_path / "out", secret)


@pytest.mark.parametrize("request_", ["first", "second"])
def test_an_export_that_is_named_later(tmp_path: Path, request_: str) -> None:
    """`--export` reaches an export after the erasure, by the same request or by another one for the same documents."""
    out, secret = make(tmp_path)
    export(out, out=str(tmp_path / "far"))
    shutil.rmtree(tmp_path / "out/exports")
    assert erase(out, request="first").exports == {}
    assert files_with(tmp_path / "far", secret)
    result = erase(out, request=request_, export=str(tmp_path / "far"))
    assert result.retried == {str(tmp_path / "far"): "first"}
    assert not files_with(tmp_path / "far", secret)
    tokenmill.verify(str(tmp_path / "far"), workers=1)


def test_an_export_that_could_not_be_reached_is_tried_again(tmp_path: Path) -> None:
    """The same command, or a later erasure, erases what all requests named in it as soon as it is back."""
    out, secret = make(tmp_path)
    other = Store(out)[41][1:-1].copy()
    first, second, third = places = [str(tmp_path / name) for name in "abc"]
    for place in places:
        export(out, out=place)
        Path(place).rename(f"{place}-away")
    assert list(erase(out, request="first").unreached) == places
    Path(f"{first}-away").rename(first)
    result = erase(out, request="first")
    assert (list(result.exports), list(result.unreached)) == ([first], [second, third])
    Path(f"{second}-away").rename(second)
    assert erase(out, (41,), request="second").retried == {second: "first"}
    Path(f"{third}-away").rename(third)
    assert erase(out, request="first").unreached == {}
    for place in places:
        assert not files_with(Path(place), secret)
        assert not files_with(Path(place), other)
        tokenmill.verify(place, workers=1)
    lines = [json.loads(line) for line in (tmp_path / "out/erasures.jsonl").read_text().splitlines()]
    assert [line["unreached"] for line in lines if line["event"] == "erasure"] == [{}, {}]


def test_a_kill_while_an_export_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third request finishes what the second one had begun in the export for the first, and erases its own there."""
    out, secret = make(tmp_path)
    third = Store(out)[SECRET + 1][1:-1].copy()
    export(out, out=str(tmp_path / "far"))
    (tmp_path / "far").rename(tmp_path / "away")
    assert len(erase(out, request="first").unreached) == 1
    (tmp_path / "away").rename(tmp_path / "far")
    with monkeypatch.context() as patch:  # the second call is of the export that is tried again
        patch.setattr(erase_export, "_publish_manifest", _killed_at_call(erase_export._publish_manifest, 2))
        with pytest.raises(KeyboardInterrupt):
            erase(out, (5,), request="second")
    result = erase(out, (SECRET + 1,), request="third")
    assert (list(result.exports), result.unreached) == ([str(tmp_path / "far")], {})
    assert result.retried == {str(tmp_path / "far"): "first"}
    assert not files_with(tmp_path / "far", secret)
    assert not files_with(tmp_path / "far", third)
    for directory in (out, str(tmp_path / "far")):
        tokenmill.verify(directory, workers=1)


def test_two_stores_with_one_name_of_a_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second store does not take the unfinished mark of the first one in a joint export for its own."""
    stores = [make(tmp_path, name, name)[0] for name in ("a", "b")]
    secrets = [Store(store)[row][:-1].copy() for store, row in zip(stores, (SECRET, 41), strict=True)]
    far = str(tmp_path / "far")
    export(stores, out=far, shard_tokens=400)
    with monkeypatch.context() as patch:
        patch.setattr(erase_export, "_publish_manifest", _killed_at_call(erase_export._publish_manifest, 1))
        with pytest.raises(KeyboardInterrupt):
            erase(stores[0], request="r")
    result = erase(stores[1], (41,), request="r")
    assert result.unreached == {far: f"the erasure r of another store is not finished in {far}"}
    assert files_with(tmp_path / "far", secrets[1])
    erase(stores[0], (), request="r")
    assert erase(stores[1], (), request="r").retried == {far: "r"}
    for secret in secrets:
        assert not files_with(tmp_path / "far", secret)
    tokenmill.verify(far, workers=1)


def test_a_kill_after_an_export_was_named_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that finishes the erasure does not name the export, and reaches it for the earlier one too."""
    out, secret = make(tmp_path)
    export(out, out=str(tmp_path / "far"))
    shutil.rmtree(tmp_path / "out/exports")
    erase(out, request="first")
    interrupted(monkeypatch, "erase_in_store", out, rows=(5,), request="second", export=str(tmp_path / "far"))
    assert erase(out, (), request="second").retried == {str(tmp_path / "far"): "first"}
    assert not files_with(tmp_path / "far", secret)
    tokenmill.verify(str(tmp_path / "far"), workers=1)


def _killed_at_call(original: Any, number: int) -> Any:
    """A function that ends the process at a call of it, counted from 1."""
    left = [number]

    def call(*arguments: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        return original(*arguments)

    return call


def test_an_export_in_the_directory_of_the_store(tmp_path: Path) -> None:
    """It is known whatever its name is, also after the store moved."""
    out, secret = make(tmp_path)
    export(out, out=f"{out}/mine")
    (tmp_path / "out").rename(tmp_path / "moved")
    result = erase(str(tmp_path / "moved"))
    assert result.exports == {str(tmp_path / "moved/mine"): 1}
    assert not files_with(tmp_path, secret)


def test_a_store_that_moved_after_its_export(tmp_path: Path) -> None:
    """The sources of its export are read where the store is now. An export with a lost store is listed."""
    out, secret = make(tmp_path)
    other, _ = make(tmp_path, "other", "more")
    export(out, "parquet", out=str(tmp_path / "single"))
    export([out, other], out=str(tmp_path / "both"))
    shutil.rmtree(other)
    (tmp_path / "out").rename(tmp_path / "moved")
    result = erase(str(tmp_path / "moved"), request="r")
    assert list(result.exports) == [str(tmp_path / "single")]
    assert list(result.unreached) == [str(tmp_path / "both")]
    assert not files_with(tmp_path / "single", secret)
    (tmp_path / "moved").rename(tmp_path / "out")
    assert "no such store" in erase(out, request="r").unreached[str(tmp_path / "both")]
    tokenmill.verify(out, workers=1)


def test_another_request_between_freezing_and_the_first_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that was frozen before another one changed the parts looks for its documents again."""
    out, secret = make(tmp_path)
    documents = [tokens.copy() for tokens in Store(out)]
    interrupted(monkeypatch, "mark_store", out, request="a")
    assert erase(out, (18,), request="b").documents == 1
    assert erase(out, (), request="a").documents == 1
    assert not files_with(tmp_path / "out", secret)
    for row, tokens in enumerate(Store(out)):
        assert np.array_equal(tokens, documents[row]) == (row not in {SECRET, 18})
    tokenmill.verify(out, all=True, workers=1)


def test_the_first_shard_is_taken_from_what_is_left(tmp_path: Path) -> None:
    """A new export counts the tokens without erased documents, and the same command on an old one those of before."""
    out, _ = make(tmp_path)
    export(out)
    erase(out, tuple(range(50)))
    assert export(out).shards_done_now == 0
    left = Store(out).token_count - sum(len(Store(out)[row]) for row in range(50))
    result = export(out, out=str(tmp_path / "new"))
    assert sum(split.tokens for split in result.splits.values()) == left
    with pytest.raises(UsageError, match="would hold all tokens"):
        export(out, shard_tokens=left, out=str(tmp_path / "small"))


def test_another_tokenizer_does_not_bring_documents_back(tmp_path: Path) -> None:
    """The run of the first store makes no part of a second store from which documents were erased."""
    source = write(tmp_path / "in/a.parquet")
    options: Any = {"tokenizer": [SMALL_JSON, SMALL_TIKTOKEN], "eot": 1199, "unit_bytes": 900, "workers": 1}
    tokenmill.prepare(source, out=str(tmp_path / "both"), **options)
    second = tmp_path / "both/small.tiktoken"
    secret = Store(str(second))[SECRET][1:-1].copy()
    erase(str(second))
    for path in (tmp_path / "both").glob("*/parts/*.arrow"):
        path.unlink()
    with pytest.raises(StoreError, match="documents were erased"):
        tokenmill.prepare(source, out=str(tmp_path / "both"), **options)
    assert not files_with(second, secret)
