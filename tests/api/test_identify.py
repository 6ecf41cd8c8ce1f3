"""`tokenmill identify`: what files are, one entry for those that are alike, and the next command."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.conversations import write
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.servers.hub import Hub
from tests.support.servers.hub_log import CDN
from tokenmill.errors import SourceError
from tokenmill.results import Identified
from tokenmill.token_files import FORMATS
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import Tokenizer

TEXTS = [f"{text} {number}  and more\n" for number in range(40) for text in DOCUMENTS if len(text) > 8]


@pytest.fixture(autouse=True)
def _no_vocabularies(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """What this machine has is not tried."""
    empty = str(tmp_path_factory.mktemp("cache"))
    for name in ("TIKTOKEN_CACHE_DIR", "XDG_CACHE_HOME", "TMPDIR"):
        monkeypatch.setenv(name, empty)


@pytest.fixture(scope="module")
def documents() -> list[list[int]]:
    """Documents of the small vocabulary, each with its end token."""
    small = resolve(SMALL_JSON)
    encoded = Tokenizer(small.spec, small.content, "reference").encode(pa.array(TEXTS, pa.large_string()))
    end = small.spec.end_of_text or 0
    return [[*encoded.document(index).tolist(), end] for index in range(len(TEXTS))]


def write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def identify(path: Path | Sequence[Path]) -> Identified:
    (found,) = tokenmill.identify(path, tokenizer=SMALL_JSON)
    return found


TOKEN_FORMATS = [name for name, each in FORMATS.items() if not each.SPEC.is_text]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, with an export in each format."""
    folder = tmp_path_factory.mktemp("exported")
    source = write_parquet(folder / "a.parquet", TEXTS)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=folder / "store", workers=1)
    for name in TOKEN_FORMATS:
        tokenmill.export(folder / "store", to=name, out=folder / name, val="none", workers=1)
    return folder


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_exports_are_identified(exported: Path, name: str) -> None:
    """Format, type, tokens, documents, end token and tokenizer are those of the export."""
    found = identify(exported / name)
    assert found.format == name
    assert found.dtype == ("" if name == "parquet" else "uint16")
    assert [check.tokenizer for check in found.tokenizers] == [SMALL_JSON]
    assert found.tokenizers[0].equal == found.tokenizers[0].documents >= 20
    assert found.is_sure
    assert found.end == resolve(SMALL_JSON).spec.end_of_text
    first = {"llmc": True, "build-nanogpt": True, "mds": None}.get(name, False)
    assert found.end_first is first
    tokens = tokenmill.open(exported / "store").token_count
    assert found.tokens is not None
    assert found.tokens == tokens or name in ("mds", "parquet")
    assert name == "mds" or found.documents == len(TEXTS)
    assert f"--tokenizer {SMALL_JSON} --out tokens" in found.next


def test_a_store_says_its_job(exported: Path) -> None:
    """No vocabulary is tried."""
    found = identify(exported / "store")
    assert (found.format, found.dtype, found.end_first) == ("store", "uint16", False)
    assert found.tokenizers[0].tokenizer == "small"
    assert found.next == f"tokenmill inspect {exported / 'store'}"


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "parquet", "arrow"])
def test_a_column_of_ids(tmp_path: Path, documents: list[list[int]], kind: str) -> None:
    """The column is found among others, and the tokenizer by its ids."""
    path = tmp_path / f"a.{kind}"
    rows = [{"tokens": ids, "mask": [1] * len(ids), "name": "x"} for ids in documents]
    if "jsonl" in kind:
        write_lines(path, rows)
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        with pa.ipc.new_stream(path, (table := pa.Table.from_pylist(rows)).schema) as writer:
            writer.write_table(table)
    found = identify(path)
    assert (found.format, found.column, found.holds) == (kind.removesuffix(".gz"), "tokens", "ids")
    assert (found.rows, found.documents, found.is_sure) == (len(rows), len(rows), True)
    assert found.columns["mask"].startswith("numbers")
    assert "--tokens-column tokens --tokenizer" in found.next


@pytest.mark.parametrize(("overlap", "rows"), [(1, "overlap"), (0, "stream")])
def test_rows_of_one_length(tmp_path: Path, documents: list[list[int]], overlap: int, rows: str) -> None:
    """Such rows go on in the next one, and may begin with the last token of the row before."""
    ids = [token for document in documents for token in document]
    length = 256
    lines = [{"token_ids": ids[at : at + length + overlap]} for at in range(0, len(ids) - length - 1, length)]
    found = identify(write_lines(tmp_path / "a.jsonl", lines))
    assert (found.row_tokens, found.rows_are, found.is_sure) == (length + overlap, rows, True)
    assert f"--tokens-column token_ids --rows {rows}" in found.next


def test_text_and_messages(tmp_path: Path) -> None:
    """The column of the text is the one that is long; conversations are found by their roles."""
    rows = [{"url": f"http://{row}", "body": text} for row, text in enumerate(TEXTS)]
    text = identify(write_lines(tmp_path / "a.jsonl", rows))
    assert (text.column, text.holds, text.rows) == ("body", "text", len(rows))
    assert text.next.endswith("a.jsonl --column body --tokenizer gpt2 --out tokens")
    chat = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "This."}]
    messages = identify(Path(write(tmp_path / "b.parquet", [chat] * 3)))
    assert (messages.column, messages.holds) == ("messages", "messages")
    assert "--messages messages" in messages.next
    (tmp_path / "a.csv").write_text("id,body\n1,A text that is longer than the others\n")
    assert identify(tmp_path / "a.csv").columns == {"id": "text", "body": "text"}
    (tmp_path / "a.txt").write_text("text\n")
    assert identify(tmp_path / "a.txt").holds == "text"


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32"])
def test_the_type_of_raw_tokens_is_found(tmp_path: Path, documents: list[list[int]], dtype: str) -> None:
    """By their largest id: int32 is read as uint32. The evidence names the other types."""
    ids = np.array([token for document in documents for token in document])
    ids.astype(f"<{np.dtype(dtype).str[1:]}").tofile(tmp_path / "a.bin")
    found = identify(tmp_path / "a.bin")
    assert found.dtype == dtype.replace("int32", "uint32").replace("uuint", "uint")
    assert "its largest id would be" in found.dtype_evidence
    assert (found.is_sure, found.documents, found.end_first) == (True, len(documents), False)


def test_files_that_are_alike_are_one_entry(tmp_path: Path, documents: list[list[int]]) -> None:
    """With the sum of their numbers; a file of another type is an entry of its own."""
    paths = []
    for number in range(12):
        ids = np.array([token for document in documents[number * 50 : number * 50 + 100] for token in document])
        paths.append(tmp_path / f"part_{number:03}.bin")
        ids.astype("<u2").tofile(paths[-1])
    few = identify(paths[:3])
    assert (len(few.files), few.documents, few.estimated) == (3, 300, [])
    assert few.tokens == sum(path.stat().st_size for path in paths[:3]) // 2
    assert f"prepare '{tmp_path}/part_00*.bin' --tokenizer" in few.next
    every = identify(tmp_path)
    assert (len(every.files), every.looked, every.bytes) == (12, 8, sum(path.stat().st_size for path in paths))
    assert every.estimated == ["tokens", "documents"]
    np.array(documents[0] * 100, "<u4").tofile(tmp_path / "part_013.bin")
    found = tokenmill.identify(tmp_path, tokenizer=SMALL_JSON)
    assert sorted(len(each.files) for each in found) == [1, 12]
    assert "*" not in next(each.next for each in found if len(each.files) == 1)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Each is an entry with its problem. If there is no other one, the call is wrong."""
    (tmp_path / "a.parquet").write_bytes(b"PAR1" + random.Random(1).randbytes(100))
    (tmp_path / "b.bin").touch()
    (tmp_path / "c.md").write_text("# x")
    good = write_lines(tmp_path / "d.jsonl", [{"text": "A text."}])
    paths = [tmp_path / name for name in ("a.parquet", "b.bin", "c.md")]
    found = {Path(each.files[0]).name: each.problem for each in tokenmill.identify([*paths, good])}
    assert found.pop("d.jsonl") == ""
    assert all(found.values())
    assert "is empty" in found["b.bin"]
    with pytest.raises(SourceError, match="no file could be identified"):
        tokenmill.identify(paths)
    failed = run("identify", *paths, code=2)
    assert "error: no file could be identified" in failed.stderr
    noise = np.random.default_rng(1).integers(0, 1000, 10_000).astype("<u2")
    noise.tofile(tmp_path / "noise.bin")
    unknown = identify(tmp_path / "noise.bin")
    assert (unknown.tokenizers, unknown.is_sure) == ([], False)
    assert unknown.next.endswith("noise.bin --tokenizer ORG/MODEL")


def test_the_command_shows_lines(exported: Path) -> None:
    """The case that people have: shards of a trainer, without knowing of which tokenizer."""
    shown = run("identify", exported / "llmc", "--tokenizer", SMALL_JSON).stdout
    assert "format       llmc (llm.c, modded-nanogpt), uint16\n" in shown
    assert "<|endoftext|> before each document\n" in shown
    assert "documents decode and encode to the same ids\n" in shown
    assert "next         tokenmill prepare " in shown
    unknown = run("identify", exported / "llmc").stdout
    assert "none that was tried: give others with --tokenizer ORG/MODEL" in unknown
    (parsed,) = json.loads(run("identify", exported / "nanogpt", "--json", "--tokenizer", SMALL_JSON).stdout)
    assert (parsed["format"], parsed["is_sure"]) == ("nanogpt", True)


def test_only_the_start_of_a_remote_file_is_read(
    hub: Hub, tmp_path: Path, documents: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large file of the Hub is identified by ranges."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
    ids = np.array([token for document in documents for token in document], "<u2")
    repeated = np.tile(ids, 30_000_000 // len(ids))
    header = np.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(repeated)
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train_000001.bin").write_bytes(header.tobytes() + repeated.tobytes())
    hub.add("org/name", folder)
    found = tokenmill.identify("hf://datasets/org/name", tokenizer=SMALL_JSON)[0]
    assert (found.format, found.tokens, found.is_sure) == ("llmc", len(repeated), True)
    assert hub.log.bytes_sent(CDN) < 16 << 20
