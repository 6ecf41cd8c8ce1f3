"""Sources that are not plain trees of files: stores inside them, links, pipes, odd names, nothing at all."""

from __future__ import annotations

import base64
import json
import os
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, part_bytes, write_parquet
from tests.support.servers.seaweed import Bucket
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.store import layout

TOKENS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--engine", "tiktoken", "--workers", "1")
CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "engine": "tiktoken", "workers": 1}


def paths(discovery: sources.Discovery, root: Path) -> list[str]:
    """The sources by their paths below a directory."""
    return [os.path.relpath(path, root) for path in discovery.table["path"].to_pylist()]


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str]) -> Path:
    """A directory with three sources in two directories."""
    directory = tmp_path / "corpus"
    for number in (1, 2):
        write_parquet(directory / f"a/part-{number}.parquet", documents[:5])
    (directory / "b").mkdir()
    (directory / "b/notes.txt").write_text("a text")
    return directory


def result(*arguments: str | Path) -> dict[str, Any]:
    """The result of a run that prints nothing else."""
    done = run("prepare", *arguments, *TOKENS, "-q", "--json")
    assert not done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


# The store inside a source directory


@pytest.mark.parametrize("pattern", ["", "/**/*", "/**"])
def test_a_store_inside_a_source_directory_is_not_a_source_of_its_own_run(corpus: Path, pattern: str) -> None:
    """The second call has nothing to do, and says that the store was not searched."""
    out, source = corpus / "tokens", f"{corpus}{pattern}"
    first = result(source, "--out", out, "--to", "parquet")
    parts = part_bytes(out)
    again = result(source, "--out", out)
    assert (again["sources"], again["units_done_now"]) == (first["sources"], 0) == (3, 0)
    assert again["ignored"]["stores"] == [str(out)]
    assert again["notices"] == [f"not read, because it is a token store: {out}"]
    assert part_bytes(out) == parts


def test_a_store_that_is_only_half_frozen_is_not_a_source_of_its_own_run(corpus: Path) -> None:
    """A run that was killed before `run.json` has left tables and a vocabulary, which the next call does not read."""
    out = corpus / "tokens"
    result(corpus, "--out", out)
    for name in ("run.json", "manifest.parquet"):
        (out / name).unlink()
    assert result(corpus, "--out", out)["sources"] == 3


def test_stores_of_other_runs_are_not_sources(corpus: Path, tmp_path: Path) -> None:
    """A store and its exports are passed over, whichever run they belong to; a `run.json` alone makes no store."""
    store = corpus / "b/old"
    result(corpus / "a", "--out", store, "--to", "parquet")
    other = corpus / "c"
    other.mkdir()
    (other / "run.json").write_text("{}")
    (other / "more.jsonl").write_text('{"text": "one"}\n')
    found = result(corpus, "--out", tmp_path / "new")
    assert found["sources"] == 4
    assert found["ignored"]["stores"] == [str(store)]
    assert found["ignored"]["endings"] == {".json": 1}


def test_a_store_beside_other_sources_is_refused(corpus: Path, tmp_path: Path) -> None:
    """A store is no source beside files; a directory that would be both is refused before anything is written."""
    store = tmp_path / "store"
    result(corpus, "--out", store)
    told = run("prepare", store, corpus, *TOKENS, "--out", tmp_path / "new", code=1).stderr
    assert "error: a store is a source only by itself" in told
    assert f"given        {store}" in told
    before = sorted(os.listdir(corpus))
    told = run("prepare", corpus, *TOKENS, "--out", corpus, code=1).stderr
    assert "error: a directory cannot be a source and the store of the same run" in told
    assert f"--out {corpus}/tokens" in told
    assert sorted(os.listdir(corpus)) == before


def test_files_beside_those_of_the_store_can_be_named(corpus: Path) -> None:
    """A shell's `*.parquet` names the tables of a store in the same directory, too; only the others are sources."""
    directory = corpus / "a"
    first = result(*sorted(directory.glob("*.parquet")), "--out", directory)
    again = result(*sorted(directory.glob("*.parquet")), "--out", directory)
    assert (again["sources"], again["units_done_now"]) == (first["sources"], 0) == (2, 0)
    assert result(f"{directory}/*.parquet", "--out", directory)["sources"] == 2
    assert sorted(again["ignored"]["stores"]) == [
        f"{directory}/{name}.parquet" for name in ("manifest", "plan", "sources")
    ]


def test_every_name_of_a_store_is_known_as_one(corpus: Path, tmp_path: Path) -> None:
    """What a complete store holds, by the names that the layout has for it."""
    out = tmp_path / "out"
    tokenmill.prepare(str(corpus), out=str(out), **CALL)
    guard = sources.StoreGuard()
    names = {name for name in os.listdir(out) if not name.startswith(".")}
    names |= {layout.RUN, layout.SOURCES, layout.PLAN, layout.MANIFEST, layout.LOG, layout.PARTS, layout.TOKENIZER}
    names |= {
        layout.KEPT,
        layout.DENY,
        layout.QUARANTINE,
        layout.DRIVERS,
        layout.MISMATCH,
        layout.RECHECKED,
        "log-3.jsonl",
        "plan-0123456789abcdef.parquet",
    }
    assert [name for name in sorted(names) if not guard.is_marker(name)] == []


def test_a_store_below_a_source_prefix_is_not_a_source(s3: Bucket, corpus: Path) -> None:
    """In an object store, too: the second call of the same run has nothing to do."""
    s3.server.upload(corpus, f"{s3.url}/corpus")
    out = f"{s3.url}/corpus/tokens"
    for source in (f"{s3.url}/corpus", f"{s3.url}/corpus/**/*.*"):
        done = tokenmill.prepare(source, out=out, **CALL)
        again = tokenmill.prepare(source, out=out, **CALL)
        assert (done.sources, again.sources, again.units_done_now) == (3, 3, 0)
        assert again.ignored.stores == [out]
    other = tokenmill.prepare(out, out=f"{s3.url}/other", tokenizer=CALL["tokenizer"], eot="none")
    assert (other.sources, other.documents) == (3, done.documents)
    with pytest.raises(SourceError, match="a directory cannot be a source and the store"):
        tokenmill.prepare(f"{s3.url}/corpus/", out=f"{s3.url}/corpus", **CALL)


# Links


def test_a_directory_that_is_linked_twice_is_read_once(corpus: Path) -> None:
    """The directory itself is taken, not a link to it, and the links are named."""
    plain = paths(sources.discover([str(corpus)]), corpus)
    (corpus / "0").symlink_to("a")
    (corpus / "b/z").symlink_to(corpus / "a")
    found = sources.discover([str(corpus)])
    assert paths(found, corpus) == plain
    assert found.ignored.repeated == [f"{corpus}/{link} (the same as {corpus}/a)" for link in ("0", "b/z")]


@pytest.mark.parametrize("target", [".", "..", "../..", "loop"])
def test_a_loop_of_links_is_walked_once(corpus: Path, target: str) -> None:
    """Each file is found once, and the link is named."""
    (corpus / "b/loop").symlink_to(target)
    found = sources.discover([str(corpus)])
    assert paths(found, corpus) == ["a/part-1.parquet", "a/part-2.parquet", "b/notes.txt"]
    assert any(f"{corpus}/b/loop" in note for note in found.ignored.notes())


def test_two_links_that_lead_to_each_other_are_walked_once(tmp_path: Path) -> None:
    """Two directories with a link to the other one each."""
    for name, other in (("one", "two"), ("two", "one")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.txt").write_text(name)
        (tmp_path / name / "link").symlink_to(tmp_path / other)
    assert paths(sources.discover([str(tmp_path / "one")]), tmp_path) == ["one/link/x.txt", "one/x.txt"]
    assert paths(sources.discover([str(tmp_path)]), tmp_path) == ["one/x.txt", "two/x.txt"]


def test_a_file_with_several_names_is_read_once(corpus: Path) -> None:
    """By links of both kinds, below one directory or two; the first file that is no link is taken."""
    (corpus / "0.txt").symlink_to("b/notes.txt")
    os.link(corpus / "a/part-1.parquet", corpus / "b/part-0.parquet")
    found = sources.discover([str(corpus)])
    assert paths(found, corpus) == ["a/part-1.parquet", "a/part-2.parquet", "b/notes.txt"]
    assert found.ignored.repeated == [
        f"{corpus}/0.txt (the same as {corpus}/b/notes.txt)",
        f"{corpus}/b/part-0.parquet (the same as {corpus}/a/part-1.parquet)",
    ]
    given = sources.discover([str(corpus / "b"), str(corpus / "a")])
    assert paths(given, corpus) == ["b/notes.txt", "b/part-0.parquet", "a/part-2.parquet"]


def test_a_cache_of_linked_files_is_read_by_the_names_that_tell_their_kind(tmp_path: Path) -> None:
    """As huggingface_hub keeps files: the content has no ending, the links to it have."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs/0a1b").write_text("text")
    for snapshot in ("one", "two"):
        (tmp_path / "snapshots" / snapshot).mkdir(parents=True)
        (tmp_path / "snapshots" / snapshot / "x.txt").symlink_to("../../blobs/0a1b")
    found = sources.discover([str(tmp_path)])
    assert paths(found, tmp_path) == ["snapshots/one/x.txt"]
    assert found.ignored.endings == {"none": 1}


def test_arguments_that_overlap_give_each_file_once(corpus: Path) -> None:
    """In the order in which files are named first; the result names the others."""
    found = result(corpus / "b", corpus / "a/part-2.parquet", corpus, "--out", corpus.parent / "out")
    assert found["sources"] == 3
    table = pq.read_table(corpus.parent / "out/sources.parquet", columns=["path"])["path"].to_pylist()
    assert [os.path.relpath(path, corpus) for path in table] == ["b/notes.txt", "a/part-2.parquet", "a/part-1.parquet"]
    assert found["ignored"]["counts"] == {"repeated": 2}
    assert "given twice" in found["notices"][0]


# What is no file to read


def test_special_files_and_other_endings_are_named_in_the_result(corpus: Path, tmp_path: Path) -> None:
    """With --json and -q, in the log, and among the notes of `plan`."""
    os.mkfifo(corpus / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(corpus / "b/s.jsonl"))
        (corpus / "gone.parquet").symlink_to("nowhere")
        for name in ("x.csv", "y.CSV", "README", "notes.txt~"):
            (corpus / name).touch()
        found = result(corpus, "--out", tmp_path / "out")
        printed = run("prepare", corpus, *TOKENS, "--out", tmp_path / "out", "-q").stdout
        planned = tokenmill.plan(str(corpus), **CALL)
    special = [
        f"{corpus}/b/s.jsonl (socket)",
        f"{corpus}/gone.parquet (link to a missing file)",
        f"{corpus}/pipe.txt (named pipe)",
    ]
    ignored = found["ignored"]
    assert ignored["special"] == special
    assert ignored["endings"] == {".csv": 2, ".txt~": 1, "none": 1}
    assert ignored["files"] == 4
    assert len(found["notices"]) == 2
    for text in (json.dumps(found["notices"]), printed, json.dumps(planned.notices)):
        assert "4 files with other endings (2 .csv, 1 .txt~, 1 none)" in text
        assert all(line in text for line in special)
    events = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    logged = next(event for event in events if event["event"] == "ignored")
    assert logged["endings"] == ignored["endings"]
    assert planned.ignored.special == ignored["special"]


def test_a_glob_names_the_directories_and_pipes_that_it_does_not_read(corpus: Path) -> None:
    """A directory that is called like a file, as Spark writes them, is read if it is given by its path."""
    (corpus / "b/part.parquet").mkdir()
    (corpus / "a/part-1.parquet").rename(corpus / "b/part.parquet/0.PARQUET")
    os.mkfifo(corpus / "a/part-9.parquet")
    found = sources.discover([f"{corpus}/*/part*"])
    assert paths(found, corpus) == ["a/part-2.parquet"]
    assert found.ignored.special == [
        f"{corpus}/a/part-9.parquet (named pipe)",
        f"{corpus}/b/part.parquet (directory, which a glob does not search)",
    ]
    assert paths(sources.discover([f"{corpus}/b/part.parquet"]), corpus) == ["b/part.parquet/0.PARQUET"]
    with pytest.raises(SourceError, match=r"no source in (.|\n)*directory, which a glob does not search"):
        sources.discover([f"{corpus}/b/*.parquet"])


def test_names_that_are_not_utf8_or_have_several_lines_do_not_break_the_result(corpus: Path, tmp_path: Path) -> None:
    """Where such a file is not read it is named, escaped; hidden ones are counted."""
    with open(os.fsencode(corpus) + b"/\xff.csv", "wb"):
        pass
    os.mkfifo(os.fsencode(corpus) + b"/\xfe\n.txt")
    (corpus / ".hidden.txt").write_text("hidden")
    found = result(corpus, "--out", tmp_path / "out")
    assert found["ignored"]["example"] == f"{corpus}/\\xff.csv"
    assert found["ignored"]["special"] == [f"{corpus}/\\xfe\n.txt (named pipe)"]
    assert found["ignored"]["hidden"] == 1
    assert f"{corpus}/\\xff.csv" in run("plan", corpus, *TOKENS).stdout


def test_many_endings_and_paths_are_counted_in_a_short_record(tmp_path: Path) -> None:
    """A thousand endings become the most frequent ones and the rest."""
    for number in range(60):
        (tmp_path / f"x.{number:02}").touch()
        (tmp_path / f"y.{number % 3}0").touch()
    (tmp_path / "x.txt").touch()
    ignored = sources.discover([str(tmp_path)]).ignored
    assert ignored.files == sum(ignored.endings.values())
    assert len(ignored.endings) == 21
    assert ignored.endings["others"] == ignored.files - sum(list(ignored.endings.values())[:20])


def test_a_directory_that_cannot_be_listed_is_named(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Permission denied is an error, and no directory is passed over because of it."""
    scandir = os.scandir

    def denied(path: str) -> Any:
        if path.endswith("/b"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(SourceError, match=f"cannot list {corpus}/b\n.*Permission denied"):
        sources.discover([str(corpus)])


# Encrypted, empty


class PlainKeys(pe.KmsClient):
    """Keeps the keys of a test in the file itself."""

    def __init__(self, _: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        """The key, as text."""
        return base64.b64encode(key_bytes)

    def unwrap_key(self, wrapped_key: bytes, _: str) -> bytes:
        """The key again."""
        return base64.b64decode(wrapped_key)


def write_encrypted(path: Path, column: str, *, plain_footer: bool) -> str:
    """A Parquet file of two columns, one of them encrypted."""
    table = pa.table({"text": ["one", "two"], "id": [1, 2]})
    config = pe.EncryptionConfiguration("footer", column_keys={"key": [column]}, plaintext_footer=plain_footer)
    properties = pe.CryptoFactory(PlainKeys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return str(path)


@pytest.mark.parametrize(("plain_footer", "what"), [(True, "column text"), (False, "footer")])
def test_encrypted_parquet_is_called_that(tmp_path: Path, plain_footer: bool, what: str) -> None:
    """It is not supported, and not damaged; no worker dies of it."""
    path = write_encrypted(tmp_path / "x.parquet", "text", plain_footer=plain_footer)
    told = run("prepare", path, *TOKENS, "--out", tmp_path / "out", code=1).stderr
    assert "error: encrypted Parquet is not supported" in told
    assert f"encrypted    {what}" in told
    assert "damaged" not in told
    assert "killed" not in told


def test_the_plain_text_of_a_file_with_another_encrypted_column_is_read(tmp_path: Path) -> None:
    """Only the column of the text is needed."""
    path = write_encrypted(tmp_path / "x.parquet", "id", plain_footer=True)
    assert result(path, "--out", tmp_path / "out")["documents"] == 2


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "nulls"])
def test_sources_without_documents_are_noted(tmp_path: Path, kind: str) -> None:
    """The result of `prepare`, with -q too, says that the store is empty, and why; so does that of `plan`."""
    texts = [None, None] if kind == "nulls" else []
    source = write_parquet(tmp_path / "x.parquet", texts) if kind != "jsonl" else str(tmp_path / "x.jsonl")
    if kind == "jsonl":
        Path(source).touch()
    found = result(source, "--out", tmp_path / "out", "--max-skipped", "1")
    why = "all 2 rows of the sources are skipped" if kind == "nulls" else "the sources have no rows"
    note = f"the store holds no documents: {why}"
    assert found["notices"] == [note]
    assert (
        f"note         {note}"
        in run("prepare", source, *TOKENS, "--out", tmp_path / "out", "--max-skipped", "1", "-q").stdout
    )
    assert note in (tmp_path / "out/log.jsonl").read_text()
    if kind != "nulls":
        assert "the sources have no rows" in run("plan", source, *TOKENS, "-q").stdout
