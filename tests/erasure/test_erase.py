"""Erasure: the bytes of documents are gone from store and exports, and everything else stays as it was."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.erasing import CALL, END, ROWS, erase_rows, files_with, write_source
from tokenmill.erasure.erased_unit import Erased
from tokenmill.errors import CorruptStore, IncompleteStore, JobChanged, StoreError, UsageError
from tokenmill.storage import folder_at
from tokenmill.store.chain import claimed_documents, read_chain, read_head
from tokenmill.store.part import ErasedRange, PartContent, PartSummary, with_checksum
from tokenmill.store.reader import Store
from tokenmill.token_files import FORMATS

SECRETS = (3, 17, 18, 41)


def make(tmp_path: Path, name: str = "out", **options: Any) -> str:
    """All stores are of one source."""
    source = write_source(tmp_path / "in/a.parquet")
    tokenmill.prepare(source, out=str(tmp_path / name), **{**CALL, **options})
    return str(tmp_path / name)


def erase(store: str, rows: tuple[int, ...] = SECRETS, **options: Any) -> Any:
    return erase_rows(store, *rows, **options)


def test_erased_documents_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    """Positions, lengths and every other token are as before; the record names the documents, not their text."""
    out = make(tmp_path, keep="id,url")
    before = Store(out)
    documents = [tokens.copy() for tokens in before]
    assert files_with(tmp_path / "out", documents[17][:-1])
    identity, old = before.digest, before.columns().to_pylist()
    result = erase(out, request="r-1", reason="opt-out")
    assert (result.documents, result.tokens) == (4, sum(len(documents[row]) for row in SECRETS))
    assert result.not_found == []
    after = Store(out)
    assert after.identity == identity != after.digest
    assert after.token_count == before.token_count
    for row, tokens in enumerate(after):
        expected = np.full(len(documents[row]), END) if row in SECRETS else documents[row]
        assert np.array_equal(tokens, expected)
    for row in SECRETS:
        assert not files_with(tmp_path / "out", documents[row][:-1])
        assert after.document(row).erased == "r-1"
    assert after.document(4).erased == ""
    nothing = {"id": None, "url": None}
    assert after.columns().to_pylist() == [nothing if row in SECRETS else old[row] for row in range(ROWS)]
    assert sum(len(after.erased(part)) for part in range(len(after.manifest))) == 4
    head = after.collection.members[0].head
    assert claimed_documents(folder_at(out), head)["row"].to_pylist() == list(SECRETS)
    (claim,) = read_chain(folder_at(out), head)
    assert (claim.request, claim.reason, claim.selector, claim.not_found) == ("r-1", "opt-out", "--rows", 0)
    assert read_head(folder_at(out)).is_done
    assert tokenmill.verify(out, all=True, workers=1).documents_compared == ROWS - len(SECRETS)


def test_nothing_of_the_selector_is_in_the_store(tmp_path: Path) -> None:
    """Claims and lists hold hashes of values and hosts. The lists still leave the same documents out."""
    out, plain = make(tmp_path, keep="url"), make(tmp_path, "plain")
    values, hosts = ["https://s5.host1.example/5", "https://s6.host2.example/6"], ["host3.example"]
    for store in (out, plain):
        assert tokenmill.erase(store, column="url", values=values, request="v", workers=1).documents == 2
        result = tokenmill.erase(store, column="url", hosts=hosts, request="h", workers=1)
        assert (result.documents, result.not_found) == (15, [])
        changes = b"".join(path.read_bytes() for path in Path(store, "changes").iterdir())
        for text in (*values, *hosts, "s5.host1.example", "s7.host3.example"):
            assert text.encode() not in changes
    made = tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=tmp_path / "denied", deny=out, **CALL)
    assert made.documents == ROWS - 17
    one = tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=tmp_path / "one", deny=result.deny, **CALL)
    assert one.documents == ROWS - 15


def test_a_number_in_a_hashed_list_has_one_spelling(tmp_path: Path) -> None:
    """1.50 names the number 1.5, and not the text `1.5`, as in a list in clear."""
    pq.write_table(pa.table({"text": ["a b", "c d"], "x": [1.5, 2.5], "y": ["1.5", "1.50"]}), tmp_path / "a.parquet")
    left = {}
    for column in "xy":
        out = str(tmp_path / column)
        tokenmill.prepare(str(tmp_path / "a.parquet"), out=out, **CALL)
        result = tokenmill.erase(out, column=column, values=["1.50"], workers=1)
        denied = str(tmp_path / f"{column}-denied")
        tokenmill.prepare(str(tmp_path / "a.parquet"), out=denied, deny=result.deny, **CALL)
        left[column] = [Store(denied).document(0).row, result.documents]
    assert left == {"x": [1, 1], "y": [0, 1]}


def test_verify_notices_another_list_of_a_request(tmp_path: Path) -> None:
    """The list is what the next `prepare --deny` takes. The same command writes a lost one again."""
    out = make(tmp_path)
    path = Path(erase(out, request="r").deny)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"17", b"16"))
    with pytest.raises(CorruptStore, match="not the list that the claim names"):
        tokenmill.verify(out, workers=1)
    path.unlink()
    with pytest.raises(CorruptStore, match="is missing"):
        tokenmill.verify(out, workers=1)
    erase(out, request="r")
    assert path.read_bytes() == content
    tokenmill.verify(out, workers=1)


@pytest.mark.parametrize(
    ("to", "options"),
    [
        *((to, {"shuffle": 7, "val": 0.3, "shard_tokens": 150}) for to in FORMATS),
        *((to, {}) for to in ("nanogpt", "megatron", "parquet")),
    ],
)
def test_exports_are_erased_in_place(tmp_path: Path, to: Any, options: dict[str, Any]) -> None:
    """The tokens are gone, files keep their tokens elsewhere, and a new export has no such document."""
    if to == "nanogpt":
        options = {name: value for name, value in options.items() if name != "shard_tokens"}
    if to == "mds":
        options = {**options, "sequence_tokens": 32, "tail": "keep", "shard_tokens": 160}
    out = make(tmp_path)
    documents = [tokens.copy() for tokens in Store(out)]
    export = tokenmill.export(out, to=to, workers=1, **options)
    sizes = {path: path.stat().st_size for path in Path(export.directory).rglob("*") if path.is_file()}
    result = erase(out)
    assert result.unreached == {}
    assert result.exports[export.directory] > 0
    for row in SECRETS:
        assert not files_with(tmp_path / "out", documents[row][1:-1])
    if to not in ("parquet", "text", "nanochat"):
        data = [path for path in sizes if ".tokenmill" not in str(path)]
        assert {path: path.stat().st_size for path in data} == {path: sizes[path] for path in data}
        assert to == "mds" or files_with(Path(export.directory), documents[5][1:5])
    tokenmill.verify(out, workers=1)
    again = tokenmill.export(out, to=to, workers=1, **options)  # the same command: nothing to do
    assert again.shards_done_now == 0
    fresh = tokenmill.export(out, to=to, workers=1, out=str(tmp_path / "fresh"), **options)
    count = sum(split.documents for split in fresh.splits.values())
    assert count == sum(split.documents for split in export.splits.values()) - 4 or to == "mds"
    tokenmill.verify(str(tmp_path / "fresh"), workers=1)


def test_selectors(tmp_path: Path) -> None:
    """By value, by host with subdomains, from kept columns without sources, from the sources; what is not found."""
    kept, plain = make(tmp_path, "kept", keep="id,url"), make(tmp_path, "plain")
    lists = {"values": ["https://s5.host1.example/5", "https://nowhere.example"], "hosts": ["host2.example", "no.such"]}
    found = {}
    for name, selected in lists.items():
        file = tmp_path / f"{name}.txt"
        file.write_text("\n".join(selected) + "\n", encoding="utf-8-sig")  # as Excel and Notepad write it
        for store in (kept, plain):
            options: dict[str, Any] = {"column": "url", name: file, "workers": 1}
            found[name, store] = tokenmill.erase(store, **options, dry_run=True)
    assert found["values", kept].documents == found["values", plain].documents == 1
    assert found["hosts", kept].documents == found["hosts", plain].documents == 15
    assert found["values", kept].not_found == ["url https://nowhere.example"]
    assert found["hosts", plain].not_found == ["host no.such in url"]
    assert not (tmp_path / "kept/changes").exists()
    shutil.rmtree(tmp_path / "in")
    result = tokenmill.erase(kept, column="url", hosts=["host2.example"], workers=1)
    assert result.documents == 15
    twice = tokenmill.erase(kept, column="id", values=["2", "3"], workers=1)
    assert (twice.documents, twice.not_found) == (1, ["id 2"])
    missing = tokenmill.erase(kept, rows=[("a.parquet", 999)], request="nothing", workers=1)
    assert (missing.documents, missing.not_found) == (0, ["row 999 of a.parquet"])
    with pytest.raises(UsageError, match="one selector"):
        tokenmill.erase(kept, column="url", values=["a"], hosts=["b"])
    with pytest.raises(JobChanged, match="another selector"):
        tokenmill.erase(kept, rows=[("a.parquet", 1)], request="nothing", workers=1)


def test_the_list_denies_the_documents_in_the_next_run(tmp_path: Path) -> None:
    """The file that `erase` names leaves the same documents out."""
    out = make(tmp_path)
    result = erase(out)
    make(tmp_path, "next", deny=result.deny)
    rows = [Store(str(tmp_path / "next")).document(number).row for number in range(ROWS - 4)]
    assert rows == [row for row in range(ROWS) if row not in SECRETS]


def test_readers_refuse_an_unfinished_erasure(tmp_path: Path) -> None:
    """The error names the command that finishes it. Another request finishes it, too."""
    out = make(tmp_path)
    erase(out, request="first")
    done = tmp_path / "out/changes/00000001.done"
    done.unlink()
    readers = (tokenmill.open, tokenmill.verify, tokenmill.stats, lambda store: tokenmill.export(store, to="llmc"))
    for reader in (*readers, lambda _: make(tmp_path)):
        with pytest.raises(IncompleteStore, match=r"first of .* is not finished") as error:
            reader(out)
        assert f"tokenmill erase {out} --request first" in str(error.value)
    assert tokenmill.erase(out, request="first", workers=1).documents == 4
    done.unlink()
    assert erase(out, (5,), request="second").documents == 1
    assert done.exists()
    tokenmill.verify(out, workers=1)


def test_a_store_with_erased_documents_is_not_made_again(tmp_path: Path) -> None:
    """Prepare leaves a complete store as it is, and refuses to tokenize erased documents again."""
    out = make(tmp_path, keep="url")
    erase(out)
    digest = Store(out).digest
    make(tmp_path, keep="url")
    make(tmp_path, keep="url", repair=True)
    assert Store(out).digest == digest
    (tmp_path / "out/parts/00000003.arrow").unlink()
    with pytest.raises(StoreError, match="documents were erased"):
        make(tmp_path, keep="url")


def test_the_loader_continues_and_masks_what_was_erased(tmp_path: Path) -> None:
    """The state of before is valid, other tokens are the same, and erased tokens are no labels."""
    out = make(tmp_path)
    options: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 4, "grain": 32}
    loader = tokenmill.loader(out, **options)
    batches = [{name: array.copy() for name, array in loader[step].items()} for step in range(len(loader))]
    state = loader.state_dict() | {"sequences": 8}
    erase(out)
    after = tokenmill.loader(out, **options, fields=("input_ids", "labels", "document_ids"))
    after.load_state_dict(state)
    masked = 0
    for step, before in enumerate(batches):
        batch = after[step]
        is_masked = batch["labels"] == -100
        masked += int(is_masked.sum())
        assert (batch["labels"][~is_masked] == before["labels"][~is_masked]).all()
        inside = np.isin(batch["document_ids"], SECRETS)
        assert (batch["input_ids"][~inside] == before["input_ids"][~inside]).all()
        assert (batch["input_ids"][inside] == END).all()
        assert is_masked[:, :-1][inside[:, 1:]].all()
    assert masked > 10


def test_the_command(tmp_path: Path) -> None:
    """The command prints what it did, and inspect and locate name the request."""
    out = make(tmp_path)
    (tmp_path / "rows.csv").write_text("source,row\na.parquet,7\nin/a.parquet,999\n")
    shown = run("erase", out, "--rows", str(tmp_path / "rows.csv"), "--request", "R7", "--workers", "1").stdout
    assert "1 (" in shown
    assert "row 999 of in/a.parquet" in shown
    assert "erased (request R7)" in run("inspect", out, "--doc", "7").stdout
    assert "erased (request R7)" in run("locate", out, str(Store(out).start_of(7))).stdout
    assert "1 document erased (request R7)" in run("stats", out, "--workers", "1").stdout
    answer = json.loads(run("erase", out, "--request", "R7", "--json").stdout)
    assert (answer["documents"], answer["request"]) == (1, "R7")


def test_stats_leave_erased_documents_out(tmp_path: Path) -> None:
    """Counts are those of a store without the documents, also by a kept column."""
    out = make(tmp_path, keep="url")
    result = erase(out)
    make(tmp_path, "without", deny=result.deny, keep="url")
    found, expected = (tokenmill.stats(str(tmp_path / name), by="host:url", workers=1) for name in ("out", "without"))
    for name in ("documents", "tokens", "text_bytes", "lengths", "columns", "duplicates"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("harm", ["tokens", "marks"])
def test_verify_finds_documents_that_were_not_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """Checksums and claim are those of the part. The tokens are still there, or nothing says that they are not."""
    out = make(tmp_path)
    original = Erased.part

    def part(erased: Erased, summary: PartSummary, content: PartContent, kept: str) -> tuple[PartSummary, PartContent]:
        after, replaced = original(erased, summary, content, kept)
        if harm == "tokens":
            replaced = replace(replaced, tokens=content.tokens)
        else:
            after = msgspec.structs.replace(after, erased=(ErasedRange(0, 0, 1),))
        return with_checksum(after, replaced), replaced

    with monkeypatch.context() as patch:
        patch.setattr(Erased, "part", part)
        erase(out, (17,), request="r")
    with pytest.raises(CorruptStore, match=r"of a document that was erased|does not mark the documents"):
        tokenmill.verify(out, workers=1)


def test_text_in_quarantine_is_erased(tmp_path: Path) -> None:
    """A row that is no document keeps its record without its text."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "good words"}\n{"text": 5, "secret": "hidden"}\n' * 3)
    out = str(tmp_path / "out")
    tokenmill.prepare(str(source), out=out, max_bad=0.9, quarantine_text=True, **CALL)
    assert "hidden" in (tmp_path / "out/quarantine.jsonl").read_text()
    rows = [json.loads(line)["byte"] for line in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    result = tokenmill.erase(out, rows=[("in.jsonl", row) for row in [*rows, 0]], workers=1)
    assert (result.documents, result.quarantined, result.not_found) == (1, 3, [])
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_dir() or b"hidden" not in path.read_bytes()
    assert not (tmp_path / "out/quarantine.jsonl").exists()
    assert len([*(tmp_path / "out").glob("quarantine-*.jsonl")]) == 1
    assert tokenmill.stats(out, workers=1).skipped.quarantined == 3
    tokenmill.verify(out, workers=1)


KILLED = """
import os, signal, sys
from tokenmill.cli import main

def kill(event, arguments):
    if event in ("os.link", "os.rename") and os.path.basename(arguments[1]).startswith(name):
        os.kill(os.getpid(), signal.SIGKILL)

name = sys.argv.pop(1)
sys.addaudithook(kill)
main()
"""


def test_a_killed_erasure_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """SIGKILL before some files are published: readers read the old store or refuse.

    `test_kills.py` ends the command at every write, and `python -m scripts.erase_soak` kills at random moments.
    """
    out = make(tmp_path, keep="url")
    tokenmill.export(out, to="llmc", workers=1)
    digest, secret = Store(out).digest, Store(out)[2][:-1].copy()
    arguments = ["--column", "url", "--hosts", str(tmp_path / "hosts"), "--request", "r", "--workers", "1"]
    (tmp_path / "hosts").write_text("host2.example\n")
    for name in ("00000001.documents", "00000001.json", "00000001.done"):
        command = [sys.executable, "-c", KILLED, name, "erase", out, *arguments]
        assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
        if name != "00000001.done":
            assert Store(out).digest == digest
    with pytest.raises(IncompleteStore, match="not finished"):
        Store(out)
    run("erase", out, "--request", "r", "--workers", "1")
    assert not files_with(tmp_path / "out", secret)
    tokenmill.verify(out, workers=1)


def test_the_first_shard_is_taken_from_what_is_left(tmp_path: Path) -> None:
    """A new export counts the tokens without erased documents, and the same command on an old one those of before."""
    out = make(tmp_path)
    tokenmill.export(out, to="llmc", workers=1)
    erase(out, tuple(range(50)))
    assert tokenmill.export(out, to="llmc", workers=1).shards_done_now == 0
    left = Store(out).token_count - sum(len(Store(out)[row]) for row in range(50))
    result = tokenmill.export(out, to="llmc", workers=1, out=str(tmp_path / "new"))
    assert sum(split.tokens for split in result.splits.values()) == left
    with pytest.raises(UsageError, match="would hold all tokens"):
        tokenmill.export(out, to="llmc", workers=1, shard_tokens=left, out=str(tmp_path / "small"))


def test_another_tokenizer_does_not_bring_documents_back(tmp_path: Path) -> None:
    """The run of the first store makes no part of a second store from which documents were erased."""
    source = write_source(tmp_path / "in/a.parquet")
    options: Any = {"tokenizer": [SMALL_JSON, SMALL_TIKTOKEN], "eot": END, "unit_bytes": 900, "workers": 1}
    tokenmill.prepare(source, out=str(tmp_path / "both"), **options)
    second = tmp_path / "both/small.tiktoken"
    secret = Store(str(second))[17][1:-1].copy()
    erase(str(second), (17,))
    for path in (tmp_path / "both").glob("*/parts/*.arrow"):
        path.unlink()
    with pytest.raises(StoreError, match="documents were erased"):
        tokenmill.prepare(source, out=str(tmp_path / "both"), **options)
    assert not files_with(second, secret)
