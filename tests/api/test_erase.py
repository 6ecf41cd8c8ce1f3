"""Erasure: the bytes of documents are gone from store and exports, and everything else stays as it was."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.errors import CorruptStore, IncompleteStore, JobChanged, StoreError, UsageError
from tokenmill.exports.formats import FORMATS
from tokenmill.pipeline.erase import _with_parts
from tokenmill.storage import folder_at
from tokenmill.store.erasing import ERASING, read_mark
from tokenmill.store.manifest import publish_manifest, read_manifest
from tokenmill.store.part import open_part, publish_part
from tokenmill.store.part_checksum import with_checksum
from tokenmill.store.reader import Store
from tokenmill.store.run import require_run

END = 1199
ROWS = 60
CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "unit_bytes": 900}
SECRETS = (3, 17, 18, 41)


def write(path: Path) -> str:
    """Documents of different lengths with an id, a URL and a host."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"document number {row} tells " + f"words{row} and more " * (row % 9 + 1) for row in range(ROWS)]
    urls = [f"https://s{row}.host{row % 4}.example/{row}" for row in range(ROWS)]
    pq.write_table(pa.table({"text": texts, "id": list(range(ROWS)), "url": urls}), path, row_group_size=10)
    return str(path)


def make(tmp_path: Path, name: str = "out", **options: Any) -> str:
    source = write(tmp_path / "in/a.parquet")
    tokenmill.prepare(source, out=str(tmp_path / name), **{**CALL, **options})
    return str(tmp_path / name)


def erase_rows(store: str, rows: tuple[int, ...] = SECRETS, **options: Any) -> Any:
    return tokenmill.erase(store, rows=[("a.parquet", row) for row in rows], workers=1, **options)


def files_with(folder: Path, tokens: np.ndarray) -> list[str]:
    """The files below a folder that hold a sequence of tokens in any width."""
    needles = [tokens.astype(kind).tobytes() for kind in ("<u2", "<u4")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_erased_documents_are_gone_and_the_others_stay(tmp_path: Path) -> None:
    """Positions, lengths and every other token are as before; the record names the documents, not their text."""
    out = make(tmp_path, keep="id,url")
    before = Store(out)
    documents = [tokens.copy() for tokens in before]
    assert files_with(tmp_path / "out", documents[17][:-1])
    identity, old = before.digest, before.columns().to_pylist()
    result = erase_rows(out, request="r-1", reason="opt-out")
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
    lines = [json.loads(line) for line in (tmp_path / "out/erasures.jsonl").read_text().splitlines()]
    assert [line["row"] for line in lines if line["event"] == "document"] == list(SECRETS)
    assert {line["request"] for line in lines} == {"r-1"}
    assert lines[0]["reason"] == "opt-out"
    assert all(line["before"] != line["after"] for line in lines if line["event"] == "file")
    assert tokenmill.verify(out, all=True, workers=1).documents_compared == ROWS


def test_verify_notices_another_list_of_a_request(tmp_path: Path) -> None:
    """The list is what the next `prepare --deny` takes. The same command writes it again."""
    out = make(tmp_path)
    erase_rows(out, request="r")
    path = tmp_path / "out/erasures/r/deny.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"17", b"16"))
    with pytest.raises(CorruptStore, match="not the list of this request"):
        tokenmill.verify(out, workers=1)
    path.unlink()
    tokenmill.verify(out, workers=1)
    erase_rows(out, request="r")
    assert path.read_bytes() == content
    tokenmill.verify(out, workers=1)


def test_the_order_of_exports_does_not_depend_on_kills(tmp_path: Path) -> None:
    """Whichever exports were done before a kill, the result is that of an undisturbed run."""
    out = make(tmp_path)
    for to in ("parquet", "megatron", "nanogpt"):
        tokenmill.export(out, to=to, workers=1)
    erase_rows(out, request="r")
    folder = tmp_path / "out/erasures/r"
    result = re.sub(rb'"seconds":.*', b"", (folder / "result.json").read_bytes())
    done = sorted(folder.glob("export-*"))
    assert len(done) == 3
    for path in done:
        path.unlink()
        (folder / "result.json").unlink()
        erase_rows(out, request="r")
        assert re.sub(rb'"seconds":.*', b"", (folder / "result.json").read_bytes()) == result


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
    result = erase_rows(out)
    assert result.unreached == {}
    assert result.exports[export.directory] > 0
    for row in SECRETS:
        assert not files_with(tmp_path / "out", documents[row][1:-1])
    if to != "parquet":
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
    assert not (tmp_path / "kept/erasures").exists()
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
    result = erase_rows(out)
    make(tmp_path, "next", deny=result.deny)
    rows = [Store(str(tmp_path / "next")).document(number).row for number in range(ROWS - 4)]
    assert rows == [row for row in range(ROWS) if row not in SECRETS]


def test_readers_refuse_an_unfinished_erasure(tmp_path: Path) -> None:
    """The error names the command that finishes it, and another request has to wait."""
    out = make(tmp_path)
    erase_rows(out, request="first")
    mark = {"what": "the erasure first", "command": f"tokenmill erase {out} --request first", "request": "first"}
    (tmp_path / "out" / ERASING).write_text(json.dumps(mark))
    readers = (tokenmill.open, tokenmill.verify, tokenmill.stats, lambda store: tokenmill.export(store, to="llmc"))
    for reader in readers:
        with pytest.raises(IncompleteStore, match=r"first of .* is not finished") as error:
            reader(out)
        assert "tokenmill erase" in str(error.value)
    with pytest.raises(IncompleteStore):
        make(tmp_path)
    with pytest.raises(UsageError, match="is not finished"):
        erase_rows(out, (5,), request="second")
    assert tokenmill.erase(out, request="first", workers=1).documents == 4
    tokenmill.verify(out, workers=1)


def test_a_store_with_erased_documents_is_not_made_again(tmp_path: Path) -> None:
    """Prepare leaves a complete store as it is, and refuses to tokenize erased documents again."""
    out = make(tmp_path, keep="url")
    erase_rows(out)
    digest = Store(out).digest
    make(tmp_path, keep="url")
    make(tmp_path, keep="url", repair=True)
    assert Store(out).digest == digest
    (tmp_path / "out/parts/00000001.arrow").unlink()
    with pytest.raises(StoreError, match="documents were erased"):
        make(tmp_path, keep="url")


def test_the_loader_continues_and_masks_what_was_erased(tmp_path: Path) -> None:
    """The state of before is valid, other tokens are the same, and erased tokens are no labels."""
    out = make(tmp_path)
    options: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 4, "grain": 32}
    loader = tokenmill.loader(out, **options)
    batches = [{name: array.copy() for name, array in loader[step].items()} for step in range(len(loader))]
    state = loader.state_dict() | {"sequences": 8}
    erase_rows(out)
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
    result = erase_rows(out)
    make(tmp_path, "without", deny=result.deny, keep="url")
    found, expected = (tokenmill.stats(str(tmp_path / name), by="host:url", workers=1) for name in ("out", "without"))
    for name in ("documents", "tokens", "text_bytes", "lengths", "columns", "duplicates"):
        assert getattr(found, name) == getattr(expected, name)


@pytest.mark.parametrize("where", ["store", "unmarked", "export"])
def test_verify_finds_tokens_that_are_put_back(tmp_path: Path, where: str) -> None:
    """Tokens of an erased document that come back with right checksums are found, in the store and in an export."""
    out = make(tmp_path)
    tokenmill.export(out, to="llmc", workers=1)
    saved = Path(shutil.copytree(out, tmp_path / "saved"))
    erase_rows(out, (17,))
    tokenmill.verify(out, workers=1)
    unit = int(Store(out)._index.find_document(17)[0])
    folder = folder_at(out)
    if where == "export":
        shutil.rmtree(f"{out}/llmc/.tokenmill/shards")
        shutil.copytree(saved / "llmc/.tokenmill/shards", f"{out}/llmc/.tokenmill/shards")
        shutil.copyfile(saved / "llmc/.tokenmill/manifest.parquet", f"{out}/llmc/.tokenmill/manifest.parquet")
        for path in (saved / "llmc").glob("*.bin"):
            shutil.copyfile(path, f"{out}/llmc/{path.name}")
    else:
        old_summary, old = open_part(folder_at(str(saved)), unit)
        new_summary, new = open_part(folder, unit)
        summary = old_summary if where == "unmarked" else new_summary
        summary = with_checksum(summary, replace(new, tokens=old.tokens))
        publish_part(folder, summary, replace(new, tokens=old.tokens.copy()), replace=True)
        run_ = require_run(folder)
        manifest = read_manifest(folder, run_)
        size = folder.size(f"parts/{unit:08d}.arrow")
        publish_manifest(folder, run_, _with_parts(manifest, [(unit, summary.sha256, summary.xxh3, size)]))
    with pytest.raises(CorruptStore, match="erased"):
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
    tokenmill.verify(out, workers=1)


def content(folder: Path) -> dict[str, bytes]:
    """The files of a store that tell of its result, with the time of the request left out."""
    skipped = ("log.jsonl", ".lock", "lock", "drivers")
    files = [path for path in folder.rglob("*") if path.is_file() and not set(path.parts) & set(skipped)]
    found = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    root = str(folder).encode()
    return {name: re.sub(rb'"time": ?"[^"]*"', b"", data.replace(root, b"")) for name, data in found.items()}


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
    """SIGKILL before some files are published: readers read the old store or refuse; the bytes are those of one run.

    `python -m scripts.erase_soak` kills at random moments.
    """
    out = make(tmp_path, keep="url")
    for to in ("nanogpt", "parquet", "llmc"):
        tokenmill.export(out, to=to, workers=1)
    digest = Store(out).digest
    (tmp_path / "once").mkdir()
    shutil.copytree(out, tmp_path / "once/out")
    arguments = ["--column", "url", "--hosts", str(tmp_path / "hosts"), "--request", "r", "--workers", "1"]
    (tmp_path / "hosts").write_text("host2.example\n")
    run("erase", str(tmp_path / "once/out"), *arguments)
    for name in ("run.json", "manifest.parquet", "export-", "result.json"):
        command = [sys.executable, "-c", KILLED, name, "erase", out, *arguments]
        assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
        assert read_mark(folder_at(out)) is not None
        if name == "run.json":
            assert Store(out).digest == digest
        else:
            with pytest.raises(IncompleteStore, match="not finished"):
                Store(out)
    run("erase", out, *arguments)
    assert content(tmp_path / "out") == content(tmp_path / "once/out")
    tokenmill.verify(out, workers=1)
