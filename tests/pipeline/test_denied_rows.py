"""`prepare --deny`: rows that a list names are left out, counted with their reason, and stay out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, part_bytes
from tests.support.export_model import read_back
from tokenmill.errors import CorruptStore, JobChanged, SourceError, UsageError
from tokenmill.store.deny import canonical_list, parse_list
from tokenmill.token_files import FORMATS

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "unit_bytes": 700}
ROWS = 40


def table(name: str, first: int = 0) -> pa.Table:
    """Rows with a number, a host that repeats, and some without text."""
    numbers = range(first, first + ROWS)
    hosts = ["a.example", "www.b.example", "notb.example", None]
    return pa.table(
        {
            "text": [None if n % 11 == 5 else f"{name} {n} " + "some words " * (n % 7) for n in numbers],
            "id": list(numbers),
            "url": [None if hosts[n % 4] is None else f"https://{hosts[n % 4]}/{name}/{n}" for n in numbers],
        }
    )


def write(path: Path, values: pa.Table) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in values.to_pylist()))
    else:
        pq.write_table(values, path, row_group_size=8)
    return str(path)


RULES: list[dict[str, Any]] = [
    {"column": "id", "value": 3},
    {"column": "url", "value": "https://a.example/x/8"},
    {"column": "url", "host": "B.example."},
    {"source": "x.parquet", "row": 6},
    {"column": "id", "value": 99_999},
]


def is_denied(row: dict[str, Any]) -> bool:
    by_host = row["url"] is not None and "//www.b.example/" in row["url"]
    return row["id"] == 3 or row["url"] == "https://a.example/x/8" or by_host or row["id"] == 6


def deny(path: Path, rules: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_rows_on_the_list_are_left_out(tmp_path: Path, kind: str) -> None:
    """By value, host with subdomains, and row; every other row is a document, and the reasons are counted."""
    values = table("x")
    source = write(tmp_path / f"in/x.{kind}", values)
    rules = [rule if "row" not in rule or kind == "parquet" else {"column": "id", "value": 6} for rule in RULES]
    out = tmp_path / "out"
    result = tokenmill.prepare(source, out=str(out), deny=deny(tmp_path / "deny.jsonl", rules), keep="id", **CALL)
    expected = [row for row in values.to_pylist() if row["text"] is not None and not is_denied(row)]
    store = tokenmill.open(str(out))
    assert store.columns("id")["id"].to_pylist() == [row["id"] for row in expected]
    denied = sum(map(is_denied, values.to_pylist()))
    nulls = ROWS - denied - len(expected)
    assert result.skipped_reasons == {"denied": denied, "null": nulls}
    assert (result.quarantined, result.documents + result.skipped_rows) == (0, ROWS)
    assert tokenmill.verify(str(out), all=True, workers=1).documents_compared == len(expected)
    assert tokenmill.stats(str(out), workers=1).skipped.reasons == {"denied": denied, "null": nulls}
    if kind == "parquet":
        with pytest.raises(UsageError, match="denied"):
            tokenmill.locate(str(out), source=source, row=3)
    shown = run("prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--deny", tmp_path / "deny.jsonl",
                "--keep", "id", "--unit-bytes", "700", "--out", out)  # fmt: skip
    assert f"{denied} rows left out (--deny)" in shown.stdout


def test_the_list_is_part_of_the_job(tmp_path: Path) -> None:
    """Another list is refused, the order of its lines does not matter, and a lost copy is written again."""
    source = write(tmp_path / "in/x.parquet", table("x"))
    out = tmp_path / "out"
    tokenmill.prepare(source, out=str(out), deny=deny(tmp_path / "1", RULES), **CALL)
    again = deny(tmp_path / "2", [*RULES[::-1], RULES[0]])
    assert tokenmill.prepare(source, out=str(out), deny=again, **CALL).units_done_now == 0
    for other in (None, deny(tmp_path / "3", RULES[1:])):
        with pytest.raises(JobChanged, match="another deny="):
            tokenmill.prepare(source, out=str(out), deny=other, **CALL)
    whole = part_bytes(out)
    shutil.rmtree(out / "deny")
    (out / "manifest.parquet").unlink()
    (out / "parts/00000001.arrow").unlink()
    assert tokenmill.prepare(source, out=str(out), deny=again, **CALL).units_done_now == 1
    assert part_bytes(out) == whole
    (out / "log.jsonl").unlink()  # now the parts are compared with their sources
    (out / "manifest.parquet").unlink()
    assert tokenmill.prepare(source, out=str(out), deny=again, **CALL).units_done_now == 0
    like = tmp_path / "like"
    tokenmill.prepare(source, out=str(like), like=str(out), workers=1, unit_bytes=700)
    assert part_bytes(like) == whole


@pytest.fixture(scope="module")
def generations(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], str]:
    """Stores of prepare, --like, and --like with --deny; and one of all sources without the denied rows."""
    folder = tmp_path_factory.mktemp("generations")
    tables = [table(name, first) for name, first in (("p", 1000), ("q", 2000), ("x", 0))]
    sources = [write(folder / f"in/{number}x.parquet", values) for number, values in enumerate(tables)]
    stores = [str(folder / f"store{number}") for number in range(3)]
    tokenmill.prepare(sources[0], out=stores[0], **CALL)
    tokenmill.prepare(sources[1], out=stores[1], like=stores[0], workers=1)
    rules: list[dict[str, Any]] = [{"column": "url", "host": "b.example"}, {"column": "id", "value": 3}]
    tokenmill.prepare(sources[2], out=stores[2], like=stores[1], deny=deny(folder / "deny.jsonl", rules), workers=1)
    kept = pa.Table.from_pylist(
        [
            row
            for row in tables[2].to_pylist()
            if row["id"] != 3 and "b.example/" not in str(row["url"]).replace("notb", "")
        ],
        tables[2].schema,
    )
    whole = str(folder / "whole")
    tokenmill.prepare([*sources[:2], write(folder / "clean/2x.parquet", kept)], out=whole, **CALL)
    return stores, whole


@pytest.mark.parametrize("name", FORMATS)
def test_three_generations_with_denied_rows_equal_one_store(
    generations: tuple[list[str], str], name: str, tmp_path: Path
) -> None:
    """The export of three stores, the last with denied rows, is that of one store without these rows."""
    options: dict[str, Any] = {"to": name, "val": "none", "tail": "keep", "workers": 1}
    if name not in ("nanogpt", "megatron"):
        options["shard_tokens"] = 3000
    tokens = []
    for number, given in enumerate(generations):
        tokenmill.export(given, out=str(tmp_path / f"out{number}"), **options)
        shards = read_back(tmp_path / f"out{number}", name)["train"]
        lengths = [n for _, some in shards for n in (some.tolist() if some is not None and name != "mds" else [])]
        tokens.append(([t for some, _ in shards for t in some.tolist()], lengths))
    assert tokens[0] == tokens[1]


def test_lists_and_columns_that_are_refused(tmp_path: Path) -> None:
    """A line that is no rule is named; a column that a source lacks is refused before any work."""
    source = write(tmp_path / "in/x.parquet", table("x"))
    for line in (
        "[]",
        "{}",
        '{"column": "a"}',
        '{"column": "a", "value": 1, "host": "b"}',
        '{"row": 5}',
        '{"url": "x"}',
    ):
        (tmp_path / "deny").write_text(f'\n{{"column": "id", "value": 1}}\n{line}\n')
        with pytest.raises(UsageError, match="line 3 of"):
            tokenmill.prepare(source, out=str(tmp_path / "out"), deny=tmp_path / "deny", **CALL)
    given = deny(tmp_path / "deny", [{"column": "dump", "value": "x"}])
    with pytest.raises(SourceError, match="'dump'"):
        tokenmill.prepare(source, out=str(tmp_path / "out"), deny=given, **CALL)
    assert not (tmp_path / "out").exists()


def test_hosts_and_values() -> None:
    """A host denies its subdomains and nothing that only ends like it; values are compared as text."""
    rules: list[dict[str, Any]] = [
        {"column": "u", "host": "b.example"},
        {"column": "n", "value": 5.0},
        {"column": "n", "value": True},
    ]
    listed = parse_list(canonical_list("\n".join(map(json.dumps, rules)).encode(), "list"))
    urls = [
        "http://b.example/",
        "a.B.example",
        "http://notb.example",
        "http://example",
        None,
        "http://c.a.b.example:1/",
    ]
    values = pa.table({"u": pa.array(urls, pa.large_string()), "n": pa.array([None] * 5 + [7], pa.int64())})
    assert listed.matches(values).tolist() == [True, True, False, False, False, True]
    others = [
        "b.example:8080/x",
        "\ufeffhttps:///b.example",
        "\u00a0http:b.example",
        "mailto:me@b.example",
        "b.example.org:1/",
    ]
    no_numbers = pa.nulls(len(others), pa.int64())
    values = pa.table({"u": pa.array(others, pa.large_string()), "n": no_numbers})
    assert listed.matches(values).tolist() == [True, True, True, True, False]
    numbers = pa.table({"u": pa.nulls(3, pa.large_string()), "n": pa.array([5, 4, 6], pa.int64())})
    assert listed.matches(numbers).tolist() == [True, False, False]


@pytest.mark.parametrize("number", [5, 10**15, 1234567890123456, 2**63, 2**64 - 1, 0.1, -2.5])
def test_numbers_are_denied_in_columns_of_any_type(number: float) -> None:
    """A number has several spellings: the one of the list and that of the column need not be the same."""
    listed = parse_list(canonical_list(json.dumps({"column": "n", "value": number}).encode(), "list"))
    types = [pa.float64(), pa.float32()]
    if isinstance(number, int):
        types = [pa.uint64(), *([pa.int64()] if number < 2**63 else [])]
        types += [pa.float64()] if float(number) == number else []
    for kind in types:
        column = [float(number) if pa.types.is_floating(kind) else number, 7, None]
        values = pa.table({"n": pa.array(column, pa.float64() if kind == pa.float32() else kind).cast(kind)})
        assert listed.matches(values).tolist() == [True, False, False], kind


def test_numbers_are_denied_whatever_the_lines_beside_them_hold(tmp_path: Path) -> None:
    """A line with a fraction makes the whole column one of floating point numbers."""
    source = tmp_path / "x.jsonl"
    ids = [10**15, 5.5, 10**15 + 1]
    source.write_text("".join(json.dumps({"text": f"row {n}", "id": n}) + "\n" for n in ids))
    rules = deny(tmp_path / "deny", [{"column": "id", "value": 10**15}])
    assert tokenmill.prepare(str(source), out=str(tmp_path / "out"), deny=rules, **CALL).documents == 2


def test_a_damaged_list_is_found_and_written_again(tmp_path: Path) -> None:
    """No part is removed because the store's copy of the list is damaged."""
    source, out = write(tmp_path / "in/x.parquet", table("x")), tmp_path / "out"
    call = CALL | {"deny": deny(tmp_path / "deny", RULES)}
    tokenmill.prepare(source, out=str(out), **call)
    expected = part_bytes(out)
    (copy,) = (out / "deny").iterdir()
    content = copy.read_bytes()
    copy.write_bytes(content[:-3] + b"x" + content[-2:])
    with pytest.raises(CorruptStore, match=r"(?s)deny.*is damaged.*it writes the list again"):
        tokenmill.verify(str(out))
    tokenmill.prepare(source, out=str(out), repair=True, **call)
    assert copy.read_bytes() == content
    assert part_bytes(out) == expected
    tokenmill.verify(str(out), sample=1.0)
    copy.unlink()
    with pytest.raises(CorruptStore, match=r"(?s)deny.*is missing.*it writes the list again"):
        tokenmill.verify(str(out))
    tokenmill.prepare(source, out=str(out), **call)
    tokenmill.verify(str(out))


def test_rows_that_are_named_by_a_path_are_not_forgotten_when_the_source_moves(tmp_path: Path) -> None:
    """The list names the row of another path then, so the call is refused."""
    source, out = write(tmp_path / "q/x.parquet", table("x")), tmp_path / "out"
    call = CALL | {"deny": deny(tmp_path / "deny", [{"source": "q/x.parquet", "row": 6}])}
    tokenmill.prepare(source, out=str(out), **call)
    (out / "manifest.parquet").unlink()
    (out / "parts/00000000.arrow").unlink()
    (tmp_path / "q").rename(tmp_path / "z")
    with pytest.raises(JobChanged, match="names rows of a source by its path"):
        tokenmill.prepare(f"{tmp_path}/z/x.parquet", out=str(out), moved=f"{tmp_path}/q={tmp_path}/z", **call)
    (tmp_path / "z").rename(tmp_path / "q")
    tokenmill.prepare(source, out=str(out), **call)
    assert sum(r["documents"] for r in pq.read_table(out / "manifest.parquet").to_pylist()) == ROWS - 4 - 1


def test_rules_that_cannot_match_are_pointed_out(tmp_path: Path) -> None:
    """A source that is not read is named in a note, and a pattern is not a host."""
    source = write(tmp_path / "in/x.parquet", table("x"))
    rules = [{"source": name, "row": 0} for name in ("./x.parquet", "y.parquet", "in/x.parquet")]
    arguments = ["--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--deny", deny(tmp_path / "deny", rules)]
    result = run("prepare", source, *arguments, "--out", tmp_path / "out")
    assert "--deny names 2 sources of which nothing is read: ./x.parquet, y.parquet" in result.stderr
    with pytest.raises(UsageError, match=r"'\*\.b\.example' is not a host"):
        canonical_list(b'{"column": "u", "host": "*.b.example"}', "list")
