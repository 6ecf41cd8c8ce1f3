"""Datasets by name: the entries, the names and versions people type, the counts, and the list."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.servers.hub import Hub
from tokenmill.errors import SourceError, UsageError
from tokenmill.pipeline.bench import library
from tokenmill.pipeline.bench.measure import MeasureSpeed, Speed
from tokenmill.results import Estimate
from tokenmill.sources import catalog
from tokenmill.sources.documents import Slices
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.tokenization.resolve import resolve

EDU = "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
TOKENS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--engine", "tiktoken")
NULLS = ("--max-skipped", "10%")
ENTRY = """
[{name}]
repository = "HuggingFaceFW/fineweb-edu"
revision = "{revision}"
licence = "none"
column = "{column}"
[{name}.versions.tiny]
glob = "sample/10BT/*.parquet"
{figures}
[{name}.versions."CC-MAIN-*"]
glob = "data/{{version}}/*.parquet"
example = "CC-MAIN-2024-10"
"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory to work in, and no datasets of the user's."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.delenv(catalog.CATALOG_VARIABLE, raising=False)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write a file of datasets and make it the user's."""

    def write(text: str) -> Path:
        (tmp_path / "own.toml").write_text(text)
        monkeypatch.setenv(catalog.CATALOG_VARIABLE, str(tmp_path / "own.toml"))
        return tmp_path / "own.toml"

    return write


@pytest.fixture
def fineweb(hub: Hub, tmp_path: Path, documents: list[str]) -> Hub:
    """A hub with a small FineWeb-Edu, in its own layout and at the revision that the catalogue names."""
    folder = tmp_path / "repository"
    for number in range(14):
        texts: list[str | None] = [f"{number}. {text}" for text in documents[:20]]
        write_parquet(folder / f"sample/10BT/{number:03}_00000.parquet", [*texts, None], row_group_size=7)
    for number in range(2):
        write_parquet(folder / f"data/CC-MAIN-2024-10/000_{number:05}.parquet", [f"{number} of the dump"])
    write_parquet(folder / "data/CC-MAIN-2013-20/000_00000.parquet", ["another dump"])
    (folder / "README.md").write_text("about it")
    hub.add("HuggingFaceFW/fineweb-edu", folder, sha=EDU)
    return hub


def sources_of(directory: Path) -> list[str]:
    """The paths a run has frozen."""
    return pq.read_table(directory / "sources.parquet")["path"].to_pylist()


@pytest.mark.fast
def test_the_entries_of_the_package_are_well_formed() -> None:
    """Every version has an address; counts are those of a commit, never of a branch that may move."""
    known = catalog.load()
    assert list(known.entries) == ["fineweb", "fineweb-edu", "fineweb-2"]
    for name, dataset in known.entries.items():
        pinned = bool(re.fullmatch("[0-9a-f]{40}", dataset.revision))
        for version, facts in dataset.versions.items():
            chosen = known.choose(name, facts.example or version)
            assert chosen.address.startswith(f"hf://datasets/{dataset.repository}@{dataset.revision}/")
            assert chosen.address.endswith("/*.parquet")
            assert pinned or not (facts.files or facts.rows)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "version", "path", "rows"),
    [
        ("fineweb-edu", "10B", "sample/10BT/*.parquet", 9_672_101),
        ("fineweb-edu", "10BT", "sample/10BT/*.parquet", 9_672_101),
        ("fineweb-edu", "sample-10bt", "sample/10BT/*.parquet", 9_672_101),
        ("fineweb-edu", "100B", "sample/100BT/*.parquet", 97_270_686),
        ("fineweb-edu", "all", "data/*/*.parquet", None),
        ("fineweb", "10B", "sample/10BT/*.parquet", 14_868_862),
        ("fineweb", "CC-MAIN-2024-10", "data/CC-MAIN-2024-10/*.parquet", None),
        ("fineweb-2", "fra_Latn", "data/fra_Latn/train/*.parquet", None),
    ],
)
def test_a_name_and_a_version_mean_files(name: str, version: str, path: str, rows: int | None) -> None:
    """Each spelling of a version, and each dump or language, becomes the address of its files."""
    named = resolve_sources(name, version)
    assert [source.partition("@")[2].partition("/")[2] for source in named.sources] == [path]
    assert named.datasets[0].rows == named.expected_rows() == rows
    assert named.column == "text"


@pytest.mark.fast
@pytest.mark.parametrize(
    ("version", "said"),
    [
        (None, ("fineweb-edu needs a version", "--version 10B")),
        ("11B", ("no version '11B'", "Did you mean 10B?")),
        (10, ("no version '10'", "Did you mean 10B?")),
        ("cc-main-2024-10", ("Did you mean CC-MAIN-2024-10?",)),
        ("CC-MAIN-/../x", ("no version",)),
        ("CC-MAIN-*", ("no version",)),
    ],
)
def test_a_version_that_is_none_is_refused_with_those_there_are(
    version: str | int | None, said: tuple[str, ...]
) -> None:
    """The message lists the versions, and guesses."""
    with pytest.raises(UsageError) as raised:
        resolve_sources("fineweb-edu", version)
    for words in (*said, "10B, 100B, 350B, all, CC-MAIN-* (such as CC-MAIN-2024-10)"):
        assert words in raised.value.text


@pytest.mark.fast
@pytest.mark.parametrize("name", ["finweb-edu", "FineWeb-Edu", "HuggingFaceFW/fineweb-edu"])
def test_a_mistyped_name_is_guessed(name: str) -> None:
    """What is neither a path nor a dataset, but nearly one, gets a suggestion."""
    with pytest.raises(SourceError, match="no such file or directory") as raised:
        resolve_sources(name)
    assert "Did you mean the dataset fineweb-edu?" in str(raised.value)


def test_a_path_wins_over_a_dataset_of_its_name(tmp_path: Path) -> None:
    """An existing path is read, with a note; a version makes no sense then, and is refused."""
    write_parquet(Path("fineweb-edu/a.parquet"), ["one", "two"])
    named = resolve_sources(["fineweb-edu", "other.parquet"])
    assert named.sources == ["fineweb-edu", "other.parquet"]
    assert named.notes == ["fineweb-edu is a local path, so the dataset of that name is not read"]
    with pytest.raises(UsageError, match='version="10B" needs the name of a dataset') as raised:
        resolve_sources("fineweb-edu", "10B")
    assert "is a local path" in str(raised.value)
    done = tokenmill.prepare("fineweb-edu", tokenizer=SMALL_TIKTOKEN, eot=1199, out=str(tmp_path / "out"))
    assert done.documents == 2
    assert done.notices == named.notes


@pytest.mark.fast
def test_paths_that_are_no_names_are_left_alone() -> None:
    """Files, globs and addresses pass as they are, whether they exist or not; so does a word that is near nothing."""
    words = ["a.parquet", "data/*.parquet", "s3://bucket/fineweb-edu", "./fineweb-edu", "nothing"]
    assert resolve_sources(words).sources == words


@pytest.mark.fast
def test_several_sources_may_stand_beside_a_dataset() -> None:
    """The others pass as they are; the rows of all are not known then."""
    named = resolve_sources(["mine.parquet", "fineweb-edu"], "10B")
    assert named.sources[0] == "mine.parquet"
    assert named.sources[1].endswith("/sample/10BT/*.parquet")
    assert named.expected_rows() is None


@pytest.mark.fast
def test_a_file_of_the_user_adds_datasets_and_wins(own) -> None:
    """An entry of the user's replaces the one of its name; its column is the default."""
    own(
        ENTRY.format(name="fineweb-edu", revision="v1", column="body", figures="")
        + ENTRY.format(name="mine", revision="main", column="text", figures="rows = 5")
    )
    named = resolve_sources("fineweb-edu", "tiny")
    assert named.sources == ["hf://datasets/HuggingFaceFW/fineweb-edu@v1/sample/10BT/*.parquet"]
    assert named.column == "body"
    assert resolve_sources("fineweb-edu", "tiny", "other").column == "other"
    assert resolve_sources("mine", "CC-MAIN-1").sources[0].endswith("@main/data/CC-MAIN-1/*.parquet")
    assert resolve_sources("fineweb", "10B").expected_rows() == 14_868_862
    with pytest.raises(UsageError, match="different columns"):
        resolve_sources(["fineweb-edu", "mine"], "tiny")


GOOD = ENTRY.format(name="mine", revision="main", column="text", figures="")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mine", ("own.toml", "at end of document")),
        ("mine = 3", ("entry        mine", "Expected `object`")),
        (GOOD.replace("licence", "license"), ("entry        mine", "license")),
        (GOOD.replace('"none"', "3"), ("entry        mine", "$.licence")),
        (GOOD.replace("HuggingFaceFW/", ""), ("$.repository",)),
        (GOOD.replace('glob = "sample', 'rows = "many"\nglob = "sample'), ("entry        mine", "].rows")),
        (GOOD.replace('glob = "sample', 'rows = 0\nglob = "sample'), ("mine", "].rows")),
        (GOOD.replace('glob = "sample', 'row = 1\nglob = "sample'), ("mine", "`row`")),
        (GOOD.replace("sample/", "../"), ("mine", "].glob")),
        (GOOD.replace("sample/", "a/../"), ("mine", "].glob")),
        (GOOD.replace("sample/", "/"), ("mine", "].glob")),
        (GOOD.replace("{version}", "x"), ("mine", "CC-MAIN-*", "{version}")),
        (GOOD.replace("CC-MAIN-2024", "2024"), ("mine", "CC-MAIN-*", "`example`")),
        (GOOD.replace("[mine]", '["my set"]').replace("[mine.", '["my set".'), ("my set", "A-Za-z0-9_-")),
        (GOOD.split("[mine.versions")[0] + "[mine.versions]", ("entry        mine", "$.versions")),
    ],
)
def test_a_wrong_entry_is_named_with_its_file_and_key(own, text: str, said: tuple[str, ...]) -> None:
    """The user's file is checked strictly: the message names the file, the entry and the key."""
    path = own(text)
    with pytest.raises(UsageError) as raised:
        resolve_sources("mine", "tiny")
    for words in (str(path), *said):
        assert words in raised.value.text


@pytest.mark.fast
def test_a_file_of_the_user_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the variable; a run that names only files does not look at it."""
    monkeypatch.setenv(catalog.CATALOG_VARIABLE, "nowhere.toml")
    with pytest.raises(UsageError, match="cannot be read") as raised:
        resolve_sources("mine")
    assert catalog.CATALOG_VARIABLE in str(raised.value)
    assert resolve_sources("a.parquet").sources == ["a.parquet"]


def test_a_limited_run_by_name_notes_another_count(fineweb: Hub, tmp_path: Path) -> None:
    """Three units of a sample: its files and no others, pinned to the commit, and a note that the rows are not those
    of the Hub.
    """
    out = tmp_path / "out"
    words = ("fineweb-edu", "--version", "10B", *TOKENS, "--unit-bytes", "1k", "--limit-units", "3")
    done = run("prepare", *words, "--out", out)
    address = f"hf://datasets/HuggingFaceFW/fineweb-edu@{EDU}/sample/10BT"
    assert f"dataset      fineweb-edu 10B, {address}/*.parquet" in done.stderr
    assert "note: the files of fineweb-edu 10B hold 294 rows; 9,672,101 are expected" in done.stderr
    assert "the Hub's count" not in done.stdout
    assert "3 of 3 units in this run" in done.stdout
    assert sources_of(out) == [f"{address}/{number:03}_00000.parquet" for number in range(14)]
    planned = json.loads(run("plan", *words, "--json").stdout)
    assert planned["units"] == 3
    assert planned["notices"] == ["the files of fineweb-edu 10B hold 294 rows; 9,672,101 are expected"]


def test_a_run_over_other_files_than_are_known_is_refused(fineweb: Hub, tmp_path: Path) -> None:
    """Without a limit the count is an error at planning: nothing is tokenized, and the message says what to do."""
    for command in (("prepare", "--out", tmp_path / "out"), ("plan",)):
        message = run(*command, "fineweb-edu", "--version", "10B", *TOKENS, code=1).stderr
        assert "found        14 files with 294 rows" in message
        assert "expected     14 files with 9,672,101 rows" in message
        assert "give that address as the SOURCE" in message
    assert not (tmp_path / "out" / "run.json").exists()
    address = re.search(r"at +(hf://\S+)", message)
    assert address
    assert "documents    280" in run("prepare", address[1], *TOKENS, *NULLS, "--out", tmp_path / "out").stdout


def test_a_dump_is_a_version(fineweb: Hub, tmp_path: Path) -> None:
    """A dump's files are those of its folder; nothing is known of their number, so nothing is said."""
    done = run("prepare", "fineweb-edu", "--version", "CC-MAIN-2024-10", *TOKENS, "--out", tmp_path / "out")
    folder = f"hf://datasets/HuggingFaceFW/fineweb-edu@{EDU}/data/CC-MAIN-2024-10"
    assert sources_of(tmp_path / "out") == [f"{folder}/000_{number:05}.parquet" for number in range(2)]
    assert "expected" not in done.stderr
    message = run("prepare", "fineweb-edu", "--version", "CC-MAIN-2024-99", *TOKENS, "--out", tmp_path / "x", code=2)
    assert f"HuggingFaceFW/fineweb-edu has no data/CC-MAIN-2024-99 at its commit {EDU}" in message.stderr
    assert f"/datasets/HuggingFaceFW/fineweb-edu/tree/{EDU}/data\n" in message.stderr


def test_a_whole_run_counts_its_rows(fineweb: Hub, tmp_path: Path, own) -> None:
    """Where the rows are as many as the catalogue says, skipped ones included, the summary says so, each time; a
    branch is pinned.
    """
    own(ENTRY.format(name="mine", revision="main", column="text", figures="files = 14\nrows = 294"))
    words = ("prepare", "mine", "--version", "tiny", *TOKENS, *NULLS, "--out", tmp_path / "out")
    for _ in range(2):
        done = run(*words)
        assert "documents    280" in done.stdout
        assert "rows         294, equal to the Hub's count" in done.stdout
        assert "note" not in done.stderr
    assert all(f"@{EDU}/" in path for path in sources_of(tmp_path / "out"))
    result = json.loads(run(*words, "--json", "--quiet").stdout)
    assert (result["datasets"], result["expected_rows"]) == (["mine tiny"], 294)


def test_beside_other_sources_only_the_files_of_the_dataset_count(fineweb: Hub, tmp_path: Path, own) -> None:
    """Rows of other sources, also of the same repository, are not taken for the dataset's."""
    own(ENTRY.format(name="mine", revision=EDU, column="text", figures="files = 14\nrows = 294"))
    beside = write_parquet(tmp_path / "beside.parquet", ["one", "two"])
    dump = f"hf://datasets/HuggingFaceFW/fineweb-edu@{EDU}/data/CC-MAIN-2013-20/"
    done = run("prepare", beside, "mine", dump, "--version", "tiny", *TOKENS, *NULLS, "--out", tmp_path / "out")
    assert "documents    283" in done.stdout
    assert "the Hub's count" not in done.stdout


@pytest.mark.fast
@pytest.mark.parametrize("figures", ["rows = 293", "rows = 295", "files = 13", "files = 15\nrows = 294", "rows = 294"])
def test_one_row_or_file_too_many_or_too_few_is_enough(own, figures: str) -> None:
    """Files of a dataset that are more or fewer than known, or hold more or fewer rows, are refused, and only they."""
    own(ENTRY.format(name="mine", revision=EDU, column="text", figures=figures))
    folder = f"hf://datasets/HuggingFaceFW/fineweb-edu@{EDU}/sample/10BT"
    sources = pa.table({"path": ["/a.parquet", *(f"{folder}/{number:03}_00000.parquet" for number in range(14))]})
    pieces = [Slices(*np.array([[0, 9], [9, 11], [5, 5], [19, 2]]))] * 15
    named = resolve_sources(["/a.parquet", "mine"], "tiny")
    if figures == "rows = 294":
        named.check_plan(sources, pieces)
        return
    with pytest.raises(SourceError, match="the files of mine tiny are not as expected"):
        named.check_plan(sources, pieces)


def test_a_count_that_only_reading_tells_is_checked_at_the_end(hub: Hub, tmp_path: Path, own) -> None:
    """JSON Lines tell no rows before they are read; the store is complete only if they are as many as expected."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": "three"}\n')
    hub.add("org/lines", folder)
    entry = '[lines]\nrepository = "org/lines"\nlicence = "none"\n[lines.versions.all]\nglob = "*.jsonl"\nrows = '
    words = ("prepare", "lines", "--version", "all", *TOKENS, "--out", tmp_path / "out")
    own(f"{entry}4")
    message = run(*words, code=1).stderr
    assert "the parts hold 3 rows, and 4 are expected" in message
    assert "run it again with that address" in message
    assert not (tmp_path / "out" / "manifest.parquet").exists()
    own(f"{entry}3")
    assert "rows         3, equal to the Hub's count" in run(*words).stdout


def test_datasets_are_listed_in_80_columns() -> None:
    """The table has every dataset and version with what is known; disk follows from the tokenizer, time is a range."""
    shown = run("datasets", "--tokenizer", SMALL_TIKTOKEN).stdout
    assert max(map(len, shown.replace(SMALL_TIKTOKEN, "cl100k_base").splitlines())) <= 80
    table = shown.partition("\n\n")[0].splitlines()
    assert table[0].split() == ["dataset", "version", "tokens", "download", "disk", "time"]
    line = next(line for line in table if line.startswith("fineweb-edu"))
    assert re.match(r"fineweb-edu +10B +10.0B +28.5 GB +20.2 GB +\d", line)
    assert re.search(r"[0-9.]+ ((s|min|h) )?to [0-9.]+ (s|min|h|days)$", line)
    assert "hidden       files, rows" in shown
    assert re.search(r"time +at .* to .*/s of text with \d+ workers?; without the download", shown)
    assert f"tokens       counted with GPT-2; the number differs with {SMALL_TIKTOKEN}" in shown


def test_a_narrow_terminal_gets_fewer_columns() -> None:
    """At 60 columns the table has what fits, each line is one, and what is left out is named."""
    shown = run("datasets", "--tokenizer", SMALL_TIKTOKEN, COLUMNS="60").stdout
    table = shown.partition("\n\n")[0].splitlines()
    assert max(map(len, table)) <= 60
    assert table[0].split() == ["dataset", "version", "tokens", "disk", "time"]
    assert len(table) == 12
    assert "hidden       files, rows, download" in shown


def test_one_dataset_is_shown_with_its_command() -> None:
    """Licence, revision and the command to type are there; a name that is none gets a suggestion."""
    shown = run("datasets", "fineweb-edu", "--tokenizer", SMALL_TIKTOKEN).stdout
    for words in ("license      ODC-By 1.0", f"revision     {EDU}", "column       text", "such as CC-MAIN-2024-10"):
        assert words in shown
    assert shown.endswith(
        f"tokenmill prepare fineweb-edu --version 10B --tokenizer {SMALL_TIKTOKEN} --to nanogpt \\\n"
        "  --out fineweb-edu-10B\n"
    )
    assert max(map(len, shown.replace(SMALL_TIKTOKEN, "gpt2").splitlines())) <= 80
    assert "fineweb-2" not in shown
    assert "Did you mean fineweb-edu?" in run("datasets", "finweb-edu", code=2).stderr


def test_datasets_as_json() -> None:
    """--json gives every figure as a number; what is not known is null."""
    offered = json.loads(run("datasets", "--tokenizer", SMALL_TIKTOKEN, "--json").stdout)
    versions = {each["name"]: {it["version"]: it for it in each["versions"]} for each in offered["datasets"]}
    assert offered["token_bytes"] == 2
    assert offered["bytes_per_second"]["high"] > offered["bytes_per_second"]["low"] > 0
    ten = versions["fineweb"]["10B"]
    assert (ten["files"], ten["rows"], ten["bytes"]) == (15, 14_868_862, 30_639_384_917)
    assert ten["disk_bytes"] == 10_371_489_838 * 2 + 14_868_862 * 20
    assert ten["seconds"]["high"] > ten["seconds"]["low"] > 0
    assert versions["fineweb-2"]["???_????"]["rows"] is None


def test_the_speed_is_that_of_all_workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker measures its own speed, and the sum is the upper end: one process times the cores would be more."""
    rates = iter([40e6, 20e6, 30e6])
    monkeypatch.setattr(MeasureSpeed, "__call__", lambda *_: Speed(bytes_per_second=next(rates)))
    measured = library.machine_bytes_per_second(resolve(SMALL_TIKTOKEN), "tiktoken", InlineExecutor(), 3)
    assert measured == Estimate(45e6, 90e6)
    monkeypatch.setattr(library, "_library_texts", lambda: iter(["too little"]))
    assert library.machine_bytes_per_second(resolve(SMALL_TIKTOKEN), "tiktoken", InlineExecutor(), 3) is None
    assert library.core_bytes_per_second(resolve(SMALL_TIKTOKEN), "tiktoken") is None


def test_without_a_vocabulary_the_list_goes_without_times(tmp_path: Path) -> None:
    """Without network and cache there is no time column, a note, and no error; the disk gpt2 takes is known."""
    offline = {
        "TIKTOKEN_CACHE_DIR": str(tmp_path),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "https_proxy": "http://127.0.0.1:9",
    }
    shown = run("datasets", code=0, **offline).stdout
    assert shown.splitlines()[0].split() == ["dataset", "version", "files", "rows", "tokens", "download", "disk"]
    assert "note         no time estimate" in shown
    assert "20.2 GB" in shown
    assert "no tokenizer called 'gpt9'" in run("datasets", "-t", "gpt9", code=2, **offline).stderr
