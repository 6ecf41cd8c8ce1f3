"""`map_dataset`: what `dataset.map` gives, row for row, for datasets of every make, after kills, elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

import tokenmill
from tests.support import poison
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.killing import alive, wait_until, workers
from tokenmill.errors import BadDocument, UsageError
from tokenmill.pipeline.datasets import map_dataset
from tokenmill.pipeline.unit import plan

datasets.disable_progress_bars()


@pytest.fixture
def cache(tmp_path: Path) -> str:
    """Where the tokens go."""
    return str(tmp_path / "tokens")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, documents: list[str]) -> Any:
    """A dataset as people load it: from Parquet, with Arrow files behind it."""
    folder = tmp_path_factory.mktemp("loaded")
    source = write_parquet(folder / "corpus.parquet", documents * 40)  # two batches, also of old versions
    return datasets.load_dataset("parquet", data_files=source, split="train", cache_dir=str(folder))


def by_map(dataset: Any, column: str = "text", **words: Any) -> Any:
    """The usual recipe with the drop-in, in this process."""
    function = tokenmill.tokenize_fn(SMALL_JSON, column=column, **words)
    return dataset.map(function, batched=True, remove_columns=[column])


def assert_same(found: Any, expected: Any) -> None:
    """The same columns of the same types, and the same rows."""
    assert found.features == expected.features
    assert found.column_names == expected.column_names
    assert found.to_dict() == expected.to_dict()


WAYS = {
    "as it is": lambda dataset: dataset,
    "split and shuffled": lambda dataset: dataset.train_test_split(test_size=0.1, seed=1)["train"],
    "a small part of it, in another order": lambda dataset: dataset.shuffle(seed=2).select(range(20)),
    "rows that follow each other": lambda dataset: dataset.select(range(30, len(dataset) - 10)),
    "few rows that follow each other": lambda dataset: dataset.select(range(30, 35)),
    "joined with itself": lambda dataset: datasets.concatenate_datasets([dataset.select(range(5, 200)), dataset]),
    "with another column beside": lambda dataset: dataset.add_column("more", list(range(len(dataset)))),
    "with text alone": lambda dataset: dataset.remove_columns("id"),
    "with text alone, shuffled": lambda dataset: dataset.remove_columns("id").shuffle(seed=3).select(range(15)),
    "with wide strings": lambda dataset: dataset.cast_column("text", datasets.Value("large_string")),
    "in memory": lambda dataset: datasets.Dataset.from_dict(dataset.to_dict()),
    "filtered": lambda dataset: dataset.filter(lambda row: row["id"] % 3 == 0),
    "with a format": lambda dataset: dataset.with_format("numpy"),
    "with some columns shown": lambda dataset: dataset.with_format("numpy", columns=["id"]),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_dataset_gives_the_rows_of_the_recipe(way: str, loaded: Any, cache: str) -> None:
    """However a dataset came about, its tokens stand beside their own rows."""
    dataset = WAYS[way](loaded)
    found = tokenmill.map_dataset(dataset, SMALL_JSON, num_proc=2, cache_dir=cache)
    assert len(found) == len(dataset)
    expected = by_map(dataset.with_format(None))  # an array of NumPy strings has lost the NULs at their ends
    assert found.format["type"] == dataset.format["type"]
    assert set(found.format["columns"]) == (set(dataset.format["columns"]) - {"text"}) | {"ids", "len"}
    assert set(found.column_names) == set(expected.column_names)
    assert_same(found.with_format(None).select_columns(expected.column_names), expected)
    assert found._indices is None


@pytest.mark.parametrize("way", ["as it is", "split and shuffled", "a small part of it, in another order"])
def test_the_text_is_kept_if_asked(way: str, loaded: Any, cache: str) -> None:
    """With `keep_text`, each row has its own text beside its tokens."""
    dataset = WAYS[way](loaded)
    found = tokenmill.map_dataset(dataset, SMALL_JSON, num_proc=2, cache_dir=cache, keep_text=True)
    assert found.column_names == [*dataset.column_names, "ids", "len"]
    assert found["text"][:] == dataset["text"][:]
    without = tokenmill.map_dataset(dataset, SMALL_JSON, num_proc=2, cache_dir=cache)
    assert found["ids"][:] == without["ids"][:]
    assert found._fingerprint != without._fingerprint


def test_rows_in_another_order_are_written_once(loaded: Any, cache: str) -> None:
    """A shuffled dataset is put in order by the first call, and again only if that file is damaged."""
    shuffled = loaded.shuffle(seed=5)
    expected = tokenmill.map_dataset(shuffled, SMALL_JSON, cache_dir=cache)["ids"][:]
    (file,) = Path(cache).rglob("ordered/*.arrow")
    written = file.stat().st_mtime_ns
    assert tokenmill.map_dataset(shuffled, SMALL_JSON, cache_dir=cache)["ids"][:] == expected
    assert file.stat().st_mtime_ns == written
    file.write_bytes(file.read_bytes()[:-100] + bytes(100))
    assert tokenmill.map_dataset(shuffled, SMALL_JSON, cache_dir=cache)["ids"][:] == expected


def test_a_dataset_with_no_row_has_the_columns_all_the_same(loaded: Any, cache: str) -> None:
    """`map` leaves them out then; what is done with the tokens next would fail."""
    for dataset in (loaded.select([]), datasets.Dataset.from_dict({"text": [], "id": []}, loaded.features)):
        found = tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache)
        assert len(found) == 0
        assert found.features == by_map(loaded).features


def test_a_renamed_column_is_found(loaded: Any, cache: str) -> None:
    """The file knows the column by another name."""
    dataset = loaded.rename_column("text", "content")
    found = tokenmill.map_dataset(dataset, SMALL_JSON, column="content", cache_dir=cache)
    assert_same(found, by_map(dataset, "content"))


def test_begin_and_end_tokens_as_declared(loaded: Any, cache: str) -> None:
    """Each choice has its own tokens in the cache."""
    for words in ({"eot": "none"}, {"eot": 5, "bos": 6}, {}):
        assert_same(tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache, **words), by_map(loaded, **words))


def test_the_splits_of_a_dictionary_share_their_work(loaded: Any, cache: str) -> None:
    """Two splits of the same files are tokenized once."""
    splits = loaded.train_test_split(test_size=0.05, seed=1)
    found = tokenmill.map_dataset(splits, SMALL_JSON, cache_dir=cache)
    assert isinstance(found, datasets.DatasetDict)
    assert list(found) == ["train", "test"]
    for name, split in splits.items():
        assert_same(found[name], by_map(split))
    assert len(os.listdir(cache)) == 1


def test_a_second_call_does_nothing_again(loaded: Any, cache: str) -> None:
    """The tokens come from the cache, under the same fingerprint, so that what is mapped next is cached too."""
    first = tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache)
    written = {path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.arrow")}
    second = tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache)
    assert {path: path.stat().st_mtime_ns for path in Path(cache).rglob("*.arrow")} == written
    assert first._fingerprint == second._fingerprint != loaded._fingerprint
    assert not list(Path(cache).rglob("text.arrow"))


def test_the_result_is_mapped_not_copied(loaded: Any, cache: str) -> None:
    """Another process opens the files; nothing but their names is sent to it."""
    import dill

    found = tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache)
    assert len(dill.dumps(found)) < 20_000
    total = found.map(lambda row: {"sum": sum(row["ids"])}, num_proc=2)
    assert sum(total["sum"]) == sum(int(np.sum(ids)) for ids in by_map(loaded)["ids"])


def test_a_row_without_text_is_named(tmp_path: Path, cache: str) -> None:
    """It cannot be left out, so it is an error, with the row's number in the dataset; but only if it is selected."""
    write_parquet(tmp_path / "corpus.parquet", ["a", None, "b"] * 10)
    dataset = datasets.load_dataset("parquet", data_files=str(tmp_path / "*.parquet"), split="train", cache_dir=cache)
    with pytest.raises(BadDocument, match=r"(?s)row 1 of the dataset has no text.*dataset\.filter"):
        tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache)
    with pytest.raises(BadDocument, match="row 0 of"):
        tokenmill.map_dataset(dataset.select([1, 0, 2] * 5), SMALL_JSON, cache_dir=cache)
    there = dataset.filter(lambda row: row["text"] is not None)
    assert_same(tokenmill.map_dataset(there, SMALL_JSON, cache_dir=cache), by_map(there))


def mapped_to(path: Path, words: str) -> Any:
    """A dataset whose file is at the path, whatever was there before."""
    rows = datasets.Dataset.from_dict({"text": [str(number) for number in range(50)]})
    change = {"function": lambda row: {"text": f"{words} {row['text']}"}, "load_from_cache_file": False}
    return rows.map(cache_file_name=str(path), **change)


def test_a_file_that_was_replaced_is_not_taken_for_the_dataset(tmp_path: Path, cache: str) -> None:
    """The dataset still shows the file it was opened from, also when another one has its name, or none."""
    for ending in ("arrow", "parquet", "cache"):  # datasets writes Arrow, whatever the ending
        path = tmp_path / f"rows.{ending}"
        first, second = mapped_to(path, "one"), mapped_to(path, "two")
        for dataset in (first, second, first):
            assert_same(tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache), by_map(dataset))
        path.unlink()
        assert_same(tokenmill.map_dataset(second, SMALL_JSON, cache_dir=cache), by_map(second))


def test_a_file_with_the_same_time_is_another_file(tmp_path: Path, cache: str) -> None:
    """Times can be set, as rsync and tar do it."""
    for texts in (["alpha"] * 10, ["beta gamma"] * 10, ["beta gamma"] * 20):
        datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
        os.utime(tmp_path / "saved" / "data-00000-of-00001.arrow", (10**9, 10**9))
        dataset = datasets.load_from_disk(str(tmp_path / "saved"))
        assert_same(tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache), by_map(dataset))


def test_damaged_tokens_are_made_anew(loaded: Any, cache: str) -> None:
    """What a loss of power or a full disk left of the cache is not believed."""
    tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache)
    for path in Path(cache).rglob("rows/*.arrow"):
        os.truncate(path, path.stat().st_size // 2)
    assert_same(tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache), by_map(loaded))


def test_rows_of_another_unit_are_made_anew(tmp_path: Path, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of two units that were exchanged, with their records, are not used."""
    monkeypatch.setattr(plan, "default_unit_bytes", lambda _: 1)
    texts = [f"document {row} says little" for row in range(2000)]
    datasets.Dataset.from_dict({"text": texts}).save_to_disk(str(tmp_path / "saved"))
    dataset = datasets.load_from_disk(str(tmp_path / "saved"))
    tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache)
    (rows,) = Path(cache).rglob("rows")
    for ending in ("arrow", "json"):
        first, second = (rows / f"0000000{unit}.{ending}" for unit in (0, 1))
        content = first.read_bytes(), second.read_bytes()
        status = first.stat(), second.stat()
        for path, data, before in zip((first, second), reversed(content), reversed(status), strict=True):
            path.write_bytes(data)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert_same(tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache), by_map(dataset))


def test_the_text_of_an_interrupted_call_is_written_again(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset without files is written to a file first. A call that goes on does not read what another left there."""
    dataset = datasets.Dataset.from_dict({"text": [f"document {row} says little" for row in range(300)]})
    with monkeypatch.context() as patch:
        patch.setattr(map_dataset.DatasetMapper, "_run", lambda *_: (_ for _ in ()).throw(RuntimeError("interrupted")))
        with pytest.raises(RuntimeError, match="interrupted"):
            tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache)
    (text,) = Path(cache).rglob("text.arrow")
    text.write_bytes(text.read_bytes().replace(b"document 7 says", b"document 7 sags"))
    assert_same(tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache), by_map(dataset))


def test_calls_at_the_same_time_wait_for_each_other(tmp_path: Path, documents: list[str], cache: str) -> None:
    """As the ranks of a training job make them: one does the work, all get the rows."""
    datasets.Dataset.from_dict({"text": documents * 20}).save_to_disk(str(tmp_path / "dataset"))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "dataset"), cache, SMALL_JSON]
    calls = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [call.communicate()[0] for call in calls] == [f"{len(documents) * 20}\n"] * 2
    assert len(os.listdir(cache)) == 1


def test_no_rows_of_several_files(tmp_path: Path, cache: str) -> None:
    """An empty selection beside other columns."""
    rows = datasets.Dataset.from_dict({"text": ["a"] * 20, "id": list(range(20))})
    rows.save_to_disk(str(tmp_path / "saved"), num_shards=2)
    dataset = datasets.load_from_disk(str(tmp_path / "saved"))
    for none in (dataset.select([]), dataset.filter(lambda row: row["id"] > 100)):
        assert len(tokenmill.map_dataset(none, SMALL_JSON, cache_dir=cache)) == 0


def test_what_cannot_be_mapped_is_refused(loaded: Any, cache: str) -> None:
    """A stream, something else, or a column that is not there."""
    with pytest.raises(UsageError, match=r"(?s)IterableDataset.*tokenize_fn"):
        tokenmill.map_dataset(loaded.to_iterable_dataset(), SMALL_JSON, cache_dir=cache)
    with pytest.raises(UsageError, match=r"(?s)no column named 'content'.*text"):
        tokenmill.map_dataset(loaded, SMALL_JSON, column="content", cache_dir=cache)


def test_files_are_not_too_many(loaded: Any, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large dataset gets larger files, not more of them."""
    monkeypatch.setattr(plan, "default_unit_bytes", lambda _: 1)
    monkeypatch.setattr(map_dataset, "MAX_FILES", 4)
    found = tokenmill.map_dataset(loaded, SMALL_JSON, cache_dir=cache)
    assert 2 <= len(list(Path(cache).rglob("rows/*.arrow"))) <= 6
    assert_same(found, by_map(loaded))


SCRIPT = """
import datasets, sys, tokenmill
from tokenmill.pipeline.unit import plan
plan.default_unit_bytes = lambda _: 1
dataset = datasets.load_from_disk(sys.argv[1])
found = tokenmill.map_dataset(dataset, sys.argv[3], num_proc=2, cache_dir=sys.argv[2], engine="tokenizers")
print(len(found), flush=True)
"""


def units_written(cache: str) -> int:
    return len(list(Path(cache).rglob("rows/*.arrow")))


def test_killed_at_any_moment_it_goes_on(
    tmp_path: Path, documents: list[str], cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed call leaves no process behind; a killed worker is replaced; in the end, the rows are the same.

    The last document hangs in the first call, so that there is work left.
    """
    dataset = datasets.Dataset.from_dict({"text": [*documents * 100, "POISON:HANG"]})
    dataset.save_to_disk(str(tmp_path / "dataset"))
    dataset = datasets.load_from_disk(str(tmp_path / "dataset"))
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "dataset"), cache, SMALL_JSON]
    environment = poison.environment(tmp_path / "site")
    for has_worker_killed in (True, False):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
            assert wait_until(lambda: bool(units_written(cache) and workers(process.pid)))
            at_work = workers(process.pid)
            if has_worker_killed:
                os.kill(at_work[0], signal.SIGKILL)
                assert wait_until(lambda: bool(set(workers(process.pid)) - set(at_work)))  # noqa: B023
                at_work += workers(process.pid)
            assert process.poll() is None
            process.kill()
        assert wait_until(lambda: not alive(at_work))  # noqa: B023
    done = units_written(cache)
    monkeypatch.setattr(plan, "default_unit_bytes", lambda _: 1)
    assert_same(tokenmill.map_dataset(dataset, SMALL_JSON, cache_dir=cache), by_map(dataset))
    assert units_written(cache) > done


def test_the_tokens_have_the_name_that_is_asked_for(loaded: Any, cache: str) -> None:
    """`output` names the column, with the tokens of the cache; a column that is there is not replaced."""
    usual = tokenmill.map_dataset(loaded, SMALL_JSON, 1, cache_dir=cache)
    named = tokenmill.map_dataset(loaded, SMALL_JSON, 1, cache_dir=cache, output="input_ids")
    assert named.column_names == ["id", "input_ids"]
    assert named["input_ids"][:] == usual["ids"][:]
    assert named._fingerprint != usual._fingerprint
    with pytest.raises(UsageError, match=r"'ids' is there already(?s:.*)output="):
        tokenmill.map_dataset(loaded.rename_column("id", "ids"), SMALL_JSON, 1, cache_dir=cache)
    with pytest.raises(UsageError, match="'id' is there already"):
        tokenmill.map_dataset(loaded, SMALL_JSON, 1, cache_dir=cache, output="id")
    both = tokenmill.map_dataset(loaded, SMALL_JSON, 1, cache_dir=cache, output="text")
    assert both["text"][:] == usual["ids"][:]


def test_conversations_are_not_made_text_by_their_spelling(cache: str) -> None:
    """The advice for a list of messages is a chat template, not the Python spelling of the list."""
    rows = datasets.Dataset.from_dict({"messages": [[{"role": "user", "content": "x"}]]})
    with pytest.raises(UsageError, match="Conversations are not supported yet") as raised:
        tokenmill.map_dataset(rows, SMALL_JSON, 1, column="messages", cache_dir=cache)
    assert "str(" not in str(raised.value)


@pytest.mark.parametrize(
    "values",
    [[1, 2], [1.5, float("nan")], [True, False], [["a"], ["b"]], [{"a": "x"}, {"a": "y"}]],
    ids=["integers", "floats", "booleans", "lists", "structs"],
)
def test_a_column_that_is_not_text_is_refused(tmp_path: Path, values: list[Any]) -> None:
    """Numbers are not tokenized as their digits, and lists are no Arrow error: the column and its type are named."""
    dataset = datasets.Dataset.from_dict({"value": values, "title": ["a", "b"]})
    with pytest.raises(UsageError, match=r"'value'(?s:.*)type  (?s:.*)text columns title(?s:.*)dataset\.map"):
        tokenmill.map_dataset(dataset, SMALL_JSON, 1, column="value", cache_dir=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()
    function = tokenmill.tokenize_fn(SMALL_JSON, column="value")
    for rows in (dataset.data.table, {"value": values}):
        with pytest.raises(UsageError, match="'value' does not hold text"):
            function(rows)
