"""Text before documents: `--prefix`, which is encoded by itself, and `--prefix-rate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.inline_executor import InlineExecutor
from tests.support.rearranged import write_tokenizer
from tests.support.segmented import write
from tokenmill.errors import JobChanged, TokenmillError
from tokenmill.results import PrepareResult

TEXTS = ["plain text", "", " leading space", None, "日本語 naïve", "0000000004\nnot a size", "last\r\n"] * 20
HOSTS = ["example.org", None, "", "b.net", "ünï.com", "----------\n", "line\nend"] * 20
PREFIXES = [None if host is None else f"[{host}]\n\n" for host in HOSTS]
ROWS = [row for row, text in enumerate(TEXTS) if text is not None]


def write_rows(path: Path, hosts: list[Any] = HOSTS) -> str:
    if path.suffix == ".jsonl":
        rows = zip(TEXTS, hosts, strict=True)
        path.write_text("".join(json.dumps({"text": text, "host": host}) + "\n" for text, host in rows))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"text": TEXTS, "host": pa.array(hosts, pa.string())}), path, row_group_size=25)
    else:
        table = pa.table({"text": TEXTS, "host": pa.array(hosts, pa.string())})
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, 25)
    return str(path)


def prepare(source: str, out: Path, **options: Any) -> PrepareResult:
    given = {"tokenizer": SMALL_JSON, "prefix": "[{host}]\n\n", "unit_bytes": 500, "max_skipped": 1}
    return tokenmill.prepare(source, out=str(out), **{"executor": InlineExecutor(), **given, **options})


def documents(result: PrepareResult) -> list[list[int]]:
    return [row.tolist() for row in tokenmill.open(result)]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_the_rest_of_a_document_is_exactly_the_plain_tokens(kind: str, tmp_path: Path) -> None:
    """A row with a null has no prefix. Workers and units change nothing, and `verify` compares all of it."""
    source = write_rows(tmp_path / f"a.{kind}")
    result = prepare(source, tmp_path / "out", bos=1)
    plain = documents(prepare(source, tmp_path / "plain", prefix=None))
    store = tokenmill.open(result)
    for position, row in enumerate(ROWS):
        tokens, prefix = store[position].tolist(), PREFIXES[row]
        before = len(tokens) - len(plain[position])
        assert tokens[before:] == plain[position]
        assert tokens[0] == 1
        text = b"".join(store.token_bytes(token) for token in tokens[1:before]).decode()
        assert text == (prefix or "")
        assert store.text(position) == TEXTS[row]
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == len(ROWS)
    again = prepare(source, tmp_path / "again", bos=1, workers=2, executor=None)
    assert part_bytes(again.directory) == part_bytes(result.directory)
    assert documents(prepare(source, tmp_path / "units", bos=1, unit_bytes=170)) == documents(result)


def test_a_rate_gives_the_prefix_to_a_fraction_and_a_larger_one_to_these_and_more(tmp_path: Path) -> None:
    rows = [{"text": "some text", "host": f"{row}.org"} for row in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, options = str(tmp_path / "a.jsonl"), {"unit_bytes": 30_000}
    plain = len(documents(prepare(source, tmp_path / "plain", prefix=None, **options))[0])
    prefixed: list[set[int]] = []
    for rate in ("0", "0.3", "90%", "1"):
        found = documents(prepare(source, tmp_path / rate, prefix_rate=rate, **options))
        prefixed.append({row for row, tokens in enumerate(found) if len(tokens) > plain})
    assert [len(each) for each in prefixed[::3]] == [0, 3000]
    assert abs(len(prefixed[1]) - 900) < 130
    assert abs(len(prefixed[2]) - 2700) < 85
    assert prefixed[1] < prefixed[2]


def test_it_stands_before_a_rearranged_document(tmp_path: Path) -> None:
    source, tokenizer = write_rows(tmp_path / "a.parquet"), write_tokenizer(tmp_path / "qwen.json", "qwen")
    both = prepare(source, tmp_path / "both", tokenizer=tokenizer, fim_rate=0.5)
    fim = prepare(source, tmp_path / "fim", tokenizer=tokenizer, fim_rate=0.5, prefix=None)
    store, other = tokenmill.open(both), tokenmill.open(fim)
    for position, row in enumerate(ROWS):
        assert store.decode(position) == (PREFIXES[row] or "") + other.decode(position)
    assert tokenmill.verify(both, all=True, executor=InlineExecutor()).documents_compared == len(ROWS)


def test_other_columns_filters_duplicates_and_templates(tmp_path: Path) -> None:
    source = write_rows(tmp_path / "a.parquet")
    unique = prepare(source, tmp_path / "unique", dedup="exact", keep="host", where="host is not null")
    assert unique.documents == 5
    store = tokenmill.open(unique)
    shown = [f"[{HOSTS[row]}]\n\n{TEXTS[row]}" for row in range(7) if None not in (TEXTS[row], HOSTS[row])]
    assert [store.decode(position) for position in range(5)] == shown
    template = prepare(source, tmp_path / "template", template="{text}|{host}", null="empty")
    assert tokenmill.open(template).decode(0) == "[example.org]\n\nplain text|example.org"
    like = prepare(source, tmp_path / "like", tokenizer=None, like=template.directory, prefix=None)
    assert documents(like) == documents(template)
    off = prepare(source, tmp_path / "off", tokenizer=None, like=template.directory, prefix="none")
    assert tokenmill.open(off).job.prefix == ""


def test_a_source_whose_prefixes_changed_is_found(tmp_path: Path) -> None:
    """Its first bytes and its size are as before, so its parts are compared with it: their texts are the same."""
    source = write_rows(tmp_path / "a.jsonl")
    prepare(source, tmp_path / "out", limit_units=11)
    changed = [None if host is None else host.replace("example", "elpmaxe") for host in HOSTS]
    write_rows(Path(source), [*HOSTS[:91], *changed[91:]])
    with pytest.raises(JobChanged, match="the sources changed"):
        prepare(source, tmp_path / "out")


def test_special_tokens_in_the_columns_of_a_prefix(tmp_path: Path) -> None:
    hosts = ["a <|endoftext|>" if row == 4 else host for row, host in enumerate(HOSTS)]
    source = write_rows(tmp_path / "a.parquet", hosts)
    refused = prepare(source, tmp_path / "refuse", special="refuse", max_bad=1)
    assert refused.skipped_reasons["spells a control token"] == 1
    parsed = tokenmill.open(prepare(source, tmp_path / "parse", special="parse"))
    text = tokenmill.open(prepare(source, tmp_path / "text"))
    end = text.job.end
    assert [store[3].tolist().count(end) for store in (parsed, text)] == [2, 1]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prefix": None, "prefix_rate": 0.5}, "--prefix-rate needs --prefix"),
    ({"prefix_rate": 2}, "--prefix-rate 2 is not a fraction"),
    ({"prefix": "no column"}, "the template names no column"),
    ({"prefix": "{hots}"}, "no column named 'hots'"),
    ({"prefix": "<|endoftext|>{host}"}, "the prefix spells <|endoftext|>, a special token"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(TokenmillError) as raised:
        prepare(write_rows(tmp_path / "a.parquet"), tmp_path / "out", **options)
    assert message in repr(raised.value)
    assert not (tmp_path / "out" / "parts").exists()


def test_sources_without_the_column_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(TokenmillError, match="text files have no columns"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "out")
    with pytest.raises(TokenmillError, match="'hots'"):
        prepare(write_rows(tmp_path / "a.jsonl"), tmp_path / "out", prefix="{hots}")
    segments = write(tmp_path / "b.parquet", [[{"text": "a", "train": True}]])
    with pytest.raises(TokenmillError) as raised:
        prepare(segments, tmp_path / "out", segments="segments", prefix="{id}")
    assert "--prefix cannot be used with --segments" in repr(raised.value)
