"""Splits and configs of a dataset that is given as a whole: refused, chosen, recorded, and part of the job."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.servers.hub import Hub
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import JobChanged, UsageError
from tokenmill.sources import SplitChoice, discover, splits_of
from tokenmill.sources.splits import split_by_name

OPTIONS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "0", "--workers", "1", "--quiet")
CARD = "---\nlicense: mit\n{configs}language:\n- en\n---\n# A dataset\n"


def write(folder: Path, *names: str) -> Path:
    """A folder with a file for each name, which holds that name as its only text."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".parquet"):
            write_parquet(path, [name])
        elif name.endswith((".jsonl", ".json")):
            path.write_text(json.dumps({"text": name}) + "\n")
        else:
            path.write_text(f"text\n{name}\n" if name.endswith(".csv") else name)
    return folder


def write_card(folder: Path, configs: str) -> Path:
    """Add a card."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(CARD.format(configs=f"configs:\n{configs}"))
    return folder


def found(source: object, *names: str, config: str | None = None) -> dict[str, str | None]:
    """The sources that are read, by their paths below the folder, each with its split."""
    result = discover([str(source)], splits=SplitChoice.parse(names, config))
    paths = [path.removeprefix(f"{source}/") for path in result.table["path"].to_pylist()]
    return dict(zip(paths, splits_of(result.table), strict=True))


def notes(*sources: object, splits: tuple[str, ...] = ()) -> str:
    """The notes about some sources."""
    return "\n".join(discover([str(source) for source in sources], splits=SplitChoice(splits)).notes)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A `DatasetDict.save_to_disk` with three splits, one of them with a name that no rule would guess."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        splits = {name: datasets.Dataset.from_dict({"text": [name] * 3}) for name in ("train", "test", "hard")}
        datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "dd"))
    return tmp_path / "dd"


def test_a_saved_dataset_dict_is_refused_with_its_splits(saved: Path, tmp_path: Path) -> None:
    """The message lists every split with files and bytes, and how to choose; nothing is written."""
    refused = command.run("prepare", saved, *OPTIONS, "--out", tmp_path / "out", code=2)
    assert "has 3 splits, which would be mixed" in refused.stderr
    for name in ("train", "test", "hard"):
        assert f"  {name:<12} 1 file, " in refused.stderr
    assert "dataset_dict.json" in refused.stderr
    assert "--split train" in refused.stderr
    assert "--split all" in refused.stderr
    assert not (tmp_path / "out").exists()
    planned = command.run("plan", saved, "--tokenizer", SMALL_TIKTOKEN, "--eot", "0", code=2)
    assert "which would be mixed" in planned.stderr


def test_a_split_is_read_and_recorded(saved: Path, tmp_path: Path) -> None:
    """Only its files are in the store, and the table of sources has its name."""
    result = tokenmill.prepare(saved, split="test", tokenizer=SMALL_TIKTOKEN, eot=0, out=tmp_path / "out", workers=1)
    assert result.documents == 3
    assert any("not read: train (1 file" in note for note in result.notices)
    table = pq.read_table(tmp_path / "out" / "sources.parquet")
    assert table["path"].to_pylist() == [f"{saved}/test/data-00000-of-00001.arrow"]
    assert splits_of(table) == ["test"]
    planned = tokenmill.plan(saved, split=["test", "hard"], tokenizer=SMALL_TIKTOKEN, eot=0)
    assert (planned.sources, planned.rows) == (2, 6)


def test_all_splits_are_read_and_recorded(saved: Path, tmp_path: Path) -> None:
    """`--split all` reads each source with its split, and a second run finds the same job."""
    options = (saved, *OPTIONS, "--out", tmp_path / "out", "--split", "all")
    command.run("prepare", *options)
    table = pq.read_table(tmp_path / "out" / "sources.parquet")
    assert splits_of(table) == ["hard", "test", "train"]
    assert "all units were done already" in command.run("prepare", *options).stdout
    assert command.run("verify", tmp_path / "out", "--all").returncode == 0


def test_the_split_is_part_of_the_job(saved: Path, tmp_path: Path) -> None:
    """The same files with other splits, or other splits of the same dataset, are another job."""
    given: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "out": tmp_path / "out", "workers": 1}
    tokenmill.prepare(saved, split="all", **given)
    with pytest.raises(JobChanged, match="belong to other splits") as refused:
        tokenmill.prepare([saved / name for name in ("hard", "test", "train")], **given)
    assert "was hard, is now none" in str(refused.value)
    with pytest.raises(JobChanged, match="not the sources"):
        tokenmill.prepare(saved, split=["hard", "test"], **given)


def test_parts_know_the_split_of_their_sources(saved: Path, tmp_path: Path) -> None:
    """Parts that are kept without run.json are made again if their sources belong to other splits now."""
    given: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "out": tmp_path / "out", "workers": 1}
    tokenmill.prepare(saved, split="all", **given)
    (tmp_path / "out" / "run.json").unlink()
    (tmp_path / "out" / "manifest.parquet").unlink()
    assert tokenmill.prepare([saved / name for name in ("hard", "test", "train")], **given).units_done_now == 1


LAYOUTS = {
    "data/train-00000-of-00002.parquet": "train",
    "data/train_sft-00000-of-00002-0a1b.parquet": "train_sft",
    "data/test.jsonl": "test",
    "data/validation/0.jsonl.gz": "validation",
    "default/train/0000.parquet": "train",
    "dev/a/b.arrow": "dev",
    "train.jsonl": "train",
    "train_web.jsonl": "train",
    "val-3.jsonl": "val",
    "Test_1.parquet": "Test",
    "testimonials.jsonl": None,
    "trains/0.parquet": None,
    "web/train-0.parquet": None,
    "part-train.parquet": None,
    "data/web.parquet": None,
}


@pytest.mark.parametrize(("path", "split"), LAYOUTS.items())
def test_names_in_the_layouts_of_the_hub(path: str, split: str | None) -> None:
    """A split is the name of a directory or the beginning of a file's name, at the top or in data/."""
    assert split_by_name(path) == split


@pytest.mark.parametrize(
    "names",
    [
        ("data/train-0.parquet", "data/test-0.parquet"),
        ("train/0.jsonl", "test/0.jsonl"),
        ("train-0.jsonl", "test-0.jsonl"),
        ("train.jsonl", "test.jsonl", "extra.jsonl"),
    ],
)
def test_names_alone_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Parquet, Arrow and JSON Lines in the layouts of the Hub are several splits without a declaration."""
    write(tmp_path, *names)
    with pytest.raises(UsageError, match=r"has 2 splits(.|\n)*known from   the names of the files"):
        found(tmp_path)
    assert found(tmp_path, "train") == {names[0]: "train"}
    assert len(found(tmp_path, "all")) == len(names)
    with pytest.raises(UsageError, match=r"has no split 'dev'(.|\n)*train        1 file"):
        found(tmp_path, "dev")


def test_names_alone_do_not_count_for_text(tmp_path: Path) -> None:
    """Text files are read as they are, with a note."""
    write(tmp_path, "train.txt", "test.txt")
    assert found(tmp_path) == {"test.txt": None, "train.txt": None}
    assert "look like several splits (test, train), and all of them are read" in notes(tmp_path)


def test_one_split_among_other_files_is_no_split(tmp_path: Path) -> None:
    """A folder `dev` beside others is a folder; a folder with one split only has that split."""
    write(tmp_path / "mixed", "dev/0.jsonl", "web/0.jsonl")
    assert found(tmp_path / "mixed") == {"dev/0.jsonl": None, "web/0.jsonl": None}
    write(tmp_path / "one", "data/train-0.parquet", "data/train-1.parquet")
    assert set(found(tmp_path / "one").values()) == {"train"}
    assert not notes(tmp_path / "one")


def test_named_files_are_read_as_they_are(tmp_path: Path) -> None:
    """Files, globs and folders of splits that are named are read, with a note about their names."""
    write(tmp_path, "data/train-0.parquet", "data/test-0.parquet")
    files = [tmp_path / "data" / name for name in ("train-0.parquet", "test-0.parquet")]
    for given in (files, [tmp_path / "data" / "*.parquet"]):
        assert "several splits (test, train)" in notes(*given)
        assert splits_of(discover([str(each) for each in given], splits=SplitChoice()).table) == [None, None]
    assert not notes(files[0])
    with pytest.raises(UsageError, match='split="train": no source has splits'):
        notes(*files, splits=("train",))
    write(tmp_path / "dirs", "train/0.jsonl", "test/0.jsonl")
    assert "several splits (test, train)" in notes(tmp_path / "dirs/train", tmp_path / "dirs/test")


SPLITS = "  data_files:\n  - split: train\n    path: a/*\n  - split: unseen\n    path:\n    - b/0.csv\n    - b/1.txt\n"


def test_a_card_declares_splits_of_every_format(tmp_path: Path) -> None:
    """Names that no rule would guess, text and CSV: what the card says counts."""
    write(tmp_path, "a/0.txt", "a/1.txt", "b/0.csv", "b/1.txt", "c.txt", "b/state.json")
    write_card(tmp_path, f"- config_name: default\n{SPLITS}")
    with pytest.raises(UsageError, match=r"has 2 splits(.|\n)*train        2 files(.|\n)*unseen       2 files"):
        found(tmp_path)
    assert found(tmp_path, "unseen") == {"b/0.csv": "unseen", "b/1.txt": "unseen"}
    assert len(found(tmp_path, "all")) == 4
    assert "not read: 1 file" in notes(tmp_path, splits=("all",))


FORMS: Mapping[str, dict[str, str | None]] = {
    "- config_name: x\n  data_files: a/*.txt\n": {"a/0.txt": "train"},
    "- config_name: x\n  data_files:\n  - a/*.txt\n  - ./b/0.txt\n": {"a/0.txt": "train", "b/0.txt": "train"},
    "- config_name: x\n  data_files:\n    dev: b/*\n": {"b/0.txt": "dev"},
    "- config_name: x\n  data_files: '*.txt'\n  data_dir: b\n": {"b/0.txt": "train"},
    "- config_name: x\n  data_dir: b\n": {"b/0.txt": "train"},
    "- {config_name: x, data_files: [{split: test, path: '**/0.txt'}]}\n": {"a/0.txt": "test", "b/0.txt": "test"},
    "- config_name: no\n  data_files: a/*\n- config_name: y\n  default: true\n  data_files: b/*\n": {
        "b/0.txt": "train"
    },
    "- config_name: x\n  data_files: missing/*\n": {"a/0.txt": None, "b/0.txt": None},
}


@pytest.mark.parametrize("configs", FORMS)
def test_forms_of_a_card(tmp_path: Path, configs: str) -> None:
    """Every form of `data_files` that the Hub documents; what is not there does not count."""
    write_card(write(tmp_path, "a/0.txt", "b/0.txt"), configs)
    assert found(tmp_path) == FORMS[configs]


def test_configs(tmp_path: Path) -> None:
    """Several configs without a default are refused with their names; the default one is said, and another chosen."""
    write(tmp_path, "en/train-0.parquet", "no/train-0.parquet", "no/test-0.parquet")
    en = "- config_name: en\n  data_files: en/*\n"
    no = "- config_name: no\n  data_files:\n  - {split: train, path: no/train-*}\n  - {split: test, path: no/test-*}\n"
    write_card(tmp_path, en + no)
    with pytest.raises(UsageError, match=r'has 2 configs(.|\n)*config       no(.|\n)*config="en"'):
        found(tmp_path)
    assert found(tmp_path, config="en") == {"en/train-0.parquet": "train"}
    assert found(tmp_path, "test", config="no") == {"no/test-0.parquet": "test"}
    with pytest.raises(UsageError, match="has 2 splits"):
        found(tmp_path, config="no")
    with pytest.raises(UsageError, match=r"has no config 'de'(.|\n)*config       en"):
        found(tmp_path, config="de")
    write_card(tmp_path, f"{en}  default: true\n{no}")
    assert found(tmp_path) == {"en/train-0.parquet": "train"}
    assert "config en of" in notes(tmp_path)
    assert "Others for --config: no" in notes(tmp_path)
    with pytest.raises(UsageError, match='config="en": no source has configs'):
        found(tmp_path / "en", config="en")


@pytest.mark.parametrize(
    "configs",
    ["- [[[[[[[[[[[[[[[[[[[[[[[[[[", f"- {'[' * 100_000}", "- &a x\n- *a\n", "- config_name: {}\n", "  : :\n -"],
)
def test_a_card_that_cannot_be_read_is_noted(tmp_path: Path, configs: str) -> None:
    """Then the names of files count."""
    write_card(write(tmp_path, "train.jsonl", "other.jsonl"), configs)
    assert found(tmp_path) == {"train.jsonl": None, "other.jsonl": None}
    assert "README.md cannot be read, so the names of files count" in notes(tmp_path)


def test_a_readme_that_is_no_card(tmp_path: Path) -> None:
    """A file without metadata declares nothing, whatever its encoding is."""
    write(tmp_path, "train.jsonl")
    (tmp_path / "README.md").write_bytes(b"Caf\xe9\nconfigs:\n- config_name: x\n  data_files: y\n")
    assert found(tmp_path) == {"train.jsonl": "train"}
    assert not notes(tmp_path)


def test_splits_in_a_bucket(s3: Bucket, saved: Path, tmp_path: Path) -> None:
    """Names, a card and `dataset_dict.json` in an object store count as they do on a disk."""
    write(tmp_path / "named", "data/train-0.parquet", "data/test-0.parquet")
    card = "- config_name: default\n  data_files:\n    train: a.csv\n    test: b.csv\n"
    write_card(write(tmp_path / "card", "a.csv", "b.csv"), card)
    assert saved == tmp_path / "dd"
    for name in ("named", "card", "dd"):
        s3.server.upload(tmp_path / name, f"{s3.url}/{name}")
        on_disk, in_bucket = tmp_path / name, f"{s3.url}/{name}"
        with pytest.raises(UsageError, match="splits") as refused:
            found(in_bucket)
        with pytest.raises(UsageError) as expected:
            found(on_disk)
        assert str(refused.value) == str(expected.value).replace(str(on_disk), in_bucket)
        assert found(in_bucket, "test") == found(on_disk, "test")
        assert found(in_bucket, "all") == found(on_disk, "all")
        assert set(found(in_bucket, "test").values()) == {"test"}
    out = tmp_path / "out"
    command.run("prepare", f"{s3.url}/named", "--split", "test", "--out", out, *OPTIONS)
    assert splits_of(tokenmill.open(out).sources) == ["test"]


def test_a_dataset_of_the_hub(hub: Hub, tmp_path: Path) -> None:
    """A repository is refused with its splits, its default config is read, and paths below it are read with a note."""
    corpus = write(tmp_path / "corpus", "data/train-0.parquet", "data/test-0.parquet", "sample/train-0.parquet")
    files = "  data_files:\n  - split: train\n    path: data/train-*\n  - split: test\n    path: data/test-*\n"
    sample = "- config_name: sample\n  data_files: sample/*\n"
    write_card(corpus, f"- config_name: default\n{files}{sample}")
    repository = hub.add("org/name", corpus)
    address = "hf://datasets/org/name"
    refused = command.run("prepare", address, *OPTIONS, "--out", tmp_path / "out", code=2).stderr
    assert "has 2 splits" in refused
    assert "README.md" in refused
    done = command.run("prepare", address, *OPTIONS, "--out", tmp_path / "out", "--split", "train", "--json")
    assert any("config default of" in note for note in json.loads(done.stdout)["notices"])
    table = pq.read_table(tmp_path / "out" / "sources.parquet")
    assert table["path"].to_pylist() == [f"{address}@{repository.sha}/data/train-0.parquet"]
    assert splits_of(table) == ["train"]
    command.run("prepare", address, *OPTIONS, "--out", tmp_path / "sample", "--config", "sample")
    for number, path in enumerate(("data", "data/*.parquet")):
        done = command.run("prepare", f"{address}/{path}", *OPTIONS, "--out", tmp_path / f"{number}", "--json")
        assert any("several splits (test, train)" in note for note in json.loads(done.stdout)["notices"])
        assert json.loads(done.stdout)["sources"] == 2
