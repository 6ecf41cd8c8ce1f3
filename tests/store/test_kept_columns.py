"""Kept columns: equal to the sources, committed with their parts, and of use after the sources are gone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, part_bytes
from tokenmill.errors import CorruptStore, JobChanged, SourceError, UsageError
from tokenmill.sources import discover, file_at, read_columns
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.plain_values import as_plain, host
from tokenmill.storage import folder_at
from tokenmill.store.job import STORE_FORMAT, require_run, run_record
from tokenmill.store.kept import content_hash
from tokenmill.store.layout import kept_name, publish_json
from tokenmill.store.manifest import publish_manifest
from tokenmill.store.part import read_summary
from tokenmill.store.tables import read_table

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1}
ROWS = 60


def rows() -> list[dict[str, Any]]:
    """Rows with text, some without, and columns of every plain type, some values missing."""
    return [
        {
            "text": None if row % 20 == 7 else f"document {row} " + "of some words " * (row % 9),
            "id": row,
            "url": None if row % 13 == 3 else f"https://WWW{row % 3}.example.org:8{row}/page/{row}?q=é",
            "score": row / 4 if row % 5 else None,
            "ok": row % 2 == 0,
        }
        for row in range(ROWS)
    ]


def write(folder: Path, kind: str) -> str:
    """A source of this kind with all rows, in several units."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"a.{kind}"
    table = pa.Table.from_pylist(rows())
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=10)
    elif kind == "arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=10)
    else:
        lines = [json.dumps({key: value for key, value in row.items() if value is not None}) for row in rows()]
        path.write_text("\n".join([*lines, "no object", '{"text": 5, "id": 99}']) + "\n")
    return str(path)


def prepare(source: str | list[str], out: Path, **options: Any) -> Any:
    return tokenmill.prepare(source, out=str(out), **{**CALL, "unit_bytes": 700, "max_bad": 0.5, **options})


NAMES = ("id", "url", "score", "ok")
EXPECTED = [{name: row[name] for name in NAMES} for row in rows() if row["text"] is not None]


def test_long_values_that_repeat_can_be_read(tmp_path: Path) -> None:
    """Compressed to nearly nothing, they would be taken for damage."""
    table = pa.table({"text": ["a"] * 3000, "long": ["value " * 2000] * 3000})
    pq.write_table(table, tmp_path / "a.parquet")
    prepare(str(tmp_path / "a.parquet"), tmp_path / "out", keep="long", unit_bytes="1MB")
    assert tokenmill.verify(tmp_path / "out", workers=1).documents == 3000
    assert tokenmill.open(tmp_path / "out").columns("long")["long"].unique().to_pylist() == ["value " * 2000]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
def test_kept_columns_equal_the_sources(tmp_path: Path, kind: str) -> None:
    """Every document has the values of its row; rows that are no documents have none."""
    prepare(write(tmp_path / "in", kind), tmp_path / "out", keep=NAMES)
    store = tokenmill.open(str(tmp_path / "out"))
    assert len(list((tmp_path / "out/kept").iterdir())) == len(store.manifest) > 3
    assert store.columns().to_pylist() == EXPECTED
    assert store.columns("ok", "id", start=9, stop=33).to_pylist() == [
        {"ok": row["ok"], "id": row["id"]} for row in EXPECTED[9:33]
    ]
    assert store.columns("url", start=-1).to_pylist() == [{"url": EXPECTED[-1]["url"]}]
    assert store.columns("url", start=5, stop=5).to_pylist() == []
    with pytest.raises(UsageError, match="does not keep the column 'dump'"):
        store.columns("dump")
    result = tokenmill.verify(str(tmp_path / "out"), all=True, workers=1)
    assert result.documents_compared == len(store)


def test_a_store_without_kept_columns(tmp_path: Path) -> None:
    """Without --keep, the store has no such files, and its parts no hash of them."""
    source = write(tmp_path / "in", "parquet")
    prepare(source, tmp_path / "out")
    record = json.loads((tmp_path / "out/run.json").read_text())
    assert record["format"] == STORE_FORMAT
    assert record["job"]["keep"] == []
    assert not (tmp_path / "out/kept").exists()
    prepare(source, tmp_path / "kept", keep="id,url")
    record = json.loads((tmp_path / "kept/run.json").read_text())
    assert (record["format"], record["job"]["keep"]) == (STORE_FORMAT, ["id", "url"])
    assert not read_summary(folder_at(str(tmp_path / "out")), 0).kept
    assert read_summary(folder_at(str(tmp_path / "kept")), 0).kept


def test_values_do_not_depend_on_batches(tmp_path: Path) -> None:
    """Keys whose values have several types within a unit get one type, however the unit is cut into blocks."""
    values = [1, 2.5, None, "x", True, 10**30, [1, {"a": None}], "\ud800", 5.0, -0.0, 1 << 60]
    lines = [json.dumps({"text": "word", "mixed": value, "n": i, "f": i or 0.5}) for i, value in enumerate(values)]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join([*lines, "no object"] * 5))
    file = file_at(discover([str(source)]).table, 0)
    hashes = set()
    for batch_bytes in (1, 100, 333, 1000, 1 << 20):
        (found,) = read_columns(file, None, ("mixed", "n", "f", "none"), ReadOptions(batch_bytes=batch_bytes))
        hashes.add(content_hash(found.values))
        assert len(found.rows) == len(found.values) == 5 * len(values)
    assert found.values["mixed"].to_pylist()[: len(values)] == [
        "1", "2.5", None, "x", "true", str(10**30), '[1, {"a": null}]', "\ufffd", "5", "-0", str(1 << 60),
    ]  # fmt: skip
    assert [found.values[name].type for name in ("n", "f", "none")] == [pa.int64(), pa.float64(), pa.large_string()]
    assert len(hashes) == 1


def test_large_whole_numbers_stay_exact(tmp_path: Path) -> None:
    """Ids beyond 64 bits become text, whatever is in the same block."""
    for number, ids in enumerate(([5, 2**63], [2**63], [5, -(2**63) - 1])):
        source = tmp_path / f"{number}.jsonl"
        source.write_text("\n".join(json.dumps({"text": "x", "id": value}) for value in ids))
        file = file_at(discover([str(source)]).table, 0)
        for batch_bytes in (1, 1 << 20):
            (found,) = read_columns(file, None, ("id",), ReadOptions(batch_bytes=batch_bytes))
            assert found.values["id"].to_pylist() == [str(value) for value in ids]


def test_a_column_that_the_sources_lack_is_refused_before_any_work(tmp_path: Path) -> None:
    """The error lists the columns, and names the option."""
    for kind in ("parquet", "arrow", "jsonl"):
        source = write(tmp_path / kind, kind)
        with pytest.raises(SourceError, match="'dump'") as error:
            prepare(source, tmp_path / "out", keep="id,dump")
        assert "Give other columns to keep=" in str(error.value)
        assert "score" in str(error.value)
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match="text files have no columns"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "out", keep="id")
    pq.write_table(pa.table({"text": ["a"], "nested": [[1]]}), tmp_path / "n.parquet")
    with pytest.raises(SourceError, match="nested"):
        prepare(str(tmp_path / "n.parquet"), tmp_path / "out", keep="nested")
    for names in ("id,id", "id,,url"):
        with pytest.raises(UsageError, match="keep="):
            prepare(str(tmp_path / "n.parquet"), tmp_path / "out", keep=names)
    assert not (tmp_path / "out").exists()


def test_the_choice_is_part_of_the_job(tmp_path: Path) -> None:
    """Another --keep for the same store is refused, and --like takes that of the store."""
    source = write(tmp_path / "in", "parquet")
    prepare(source, tmp_path / "out", keep="id,url")
    for other in (None, "id", "url,id"):
        with pytest.raises(JobChanged, match="another keep="):
            prepare(source, tmp_path / "out", keep=other)
    arguments: dict[str, Any] = {"workers": 1, "unit_bytes": 700}
    tokenmill.prepare(source, like=str(tmp_path / "out"), out=str(tmp_path / "like"), **arguments)
    assert tokenmill.open(str(tmp_path / "like")).job.keep == ("id", "url")
    tokenmill.prepare(source, like=str(tmp_path / "out"), out=str(tmp_path / "none"), keep="", **arguments)
    both = tokenmill.open([str(tmp_path / "like"), str(tmp_path / "none")])
    columns = both.columns("url")["url"].to_pylist()
    assert columns == [row["url"] for row in EXPECTED] + [None] * len(EXPECTED)


def test_kept_columns_are_committed_with_their_part(tmp_path: Path) -> None:
    """A unit whose kept columns are missing or damaged is done again; those without a part are written over."""
    source = write(tmp_path / "in", "parquet")
    prepare(source, tmp_path / "sound", keep="id,url")
    sound = {path.name: path.read_bytes() for path in (tmp_path / "sound/kept").iterdir()}

    def check(out: Path, done: int, **options: Any) -> None:
        assert prepare(source, out, keep="id,url", **options).units_done_now == done
        assert {path.name: path.read_bytes() for path in (out / "kept").iterdir()} == sound
        assert part_bytes(out) == part_bytes(tmp_path / "sound")
        tokenmill.verify(str(out), workers=1)

    for complete in (True, False):
        out = shutil.copytree(tmp_path / "sound", tmp_path / f"missing-{complete}")
        (out / kept_name(1)).unlink()
        if not complete:
            (out / "manifest.parquet").unlink()
        check(out, 1)
    out = shutil.copytree(tmp_path / "sound", tmp_path / "before its part")
    for name in ("manifest.parquet", "parts/00000001.arrow", "parts/00000002.arrow"):
        (out / name).unlink()
    (out / kept_name(2)).write_bytes(b"of a killed worker")
    (out / "kept/.00000002.parquet.0123456789ab.tmp").write_bytes(b"half a fi")
    check(out, 2)
    out = shutil.copytree(tmp_path / "sound", tmp_path / "exchanged")
    shutil.copyfile(out / kept_name(1), out / kept_name(2))
    with pytest.raises(CorruptStore, match="the kept columns of part 2 are damaged"):
        tokenmill.verify(str(out), workers=1)
    with pytest.raises(CorruptStore, match="the kept columns of part 2 are damaged"):
        tokenmill.open(str(out)).columns()
    check(out, 1, repair=True)


def test_kept_columns_of_a_changed_source(tmp_path: Path) -> None:
    """A source with the same text and other values is not the source of the parts; parts that move keep theirs."""
    first, second = (str(tmp_path / f"in/{name}.parquet") for name in "ab")
    (tmp_path / "in").mkdir()
    table = pa.Table.from_pylist(rows())
    for path in (first, second):
        pq.write_table(table, path, row_group_size=10)
    prepare([first, second], tmp_path / "out", keep="id,url")
    (tmp_path / "out/manifest.parquet").unlink()
    changed = table.set_column(1, "id", pa.array(range(1000, 1000 + ROWS)))
    pq.write_table(pa.concat_tables([changed, table]), first, row_group_size=10)
    prepare([first, second], tmp_path / "out", keep="id,url")
    prepare([first, second], tmp_path / "fresh", keep="id,url")
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "fresh")
    kept = [{path.name: path.read_bytes() for path in (tmp_path / out / "kept").iterdir()} for out in ("out", "fresh")]
    assert kept[0] == kept[1]
    tokenmill.verify(str(tmp_path / "out"), all=True, workers=1)


def test_what_kept_columns_are_for(tmp_path: Path) -> None:
    """After the sources are gone, documents have their URLs, and tokens are counted by value and by host."""
    source = write(tmp_path / "in", "parquet")
    out = tmp_path / "out"
    prepare(source, out, keep="id,url,ok")
    before = tokenmill.stats(str(out), by=["id", "url", "ok", "host:url"], workers=1).columns
    shutil.rmtree(tmp_path / "in")
    after = tokenmill.stats(str(out), by=["id", "url", "ok", "host:url"], workers=1).columns
    assert before == after
    hosts = {share.name: share.documents for share in after[3].largest}
    assert sum(hosts.values()) == len(EXPECTED)
    assert set(hosts) == {"www0.example.org", "www1.example.org", "www2.example.org", "(none)"}
    assert after[3].by == "host:url"
    with pytest.raises(SourceError):
        tokenmill.stats(str(out), by="score", workers=1)
    store = tokenmill.open(str(out))
    located = tokenmill.locate(str(out), store.start_of(20)).documents[0]
    assert located.columns == {name: EXPECTED[20][name] for name in ("id", "url", "ok")}
    shown = run("locate", out, str(store.start_of(20))).stdout
    assert EXPECTED[20]["url"] in shown
    shown = run("inspect", out, "--doc", "20").stdout
    assert EXPECTED[20]["url"] in shown
    assert json.loads(run("inspect", out, "--doc", "-1", "--json").stdout)["columns"]["id"] == EXPECTED[-1]["id"]
    assert "id, url, ok" in run("inspect", out).stdout
    page = tokenmill.report(str(out), by="host:url", workers=1)
    assert "www1.example.org" in Path(page.path).read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("inspect", "--doc", "1"),
        ("locate", "5"),
        ("stats", "--by", "nope", "--workers", "1"),
        ("loader", "RECIPE", "--seconds", "0"),
        ("erase", "--column", "nope", "--values", "VALUES", "--workers", "1"),
    ],
    ids=lambda words: words[0],
)
def test_a_name_that_only_the_run_has_is_damage(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Forged kept columns in run.json end every command that uses them with exit code 3."""
    prepare(write(tmp_path / "in", "parquet"), out := tmp_path / "out", keep="id,url")
    folder = folder_at(str(out))
    frozen = require_run(folder)
    job = msgspec.structs.replace(frozen.job, keep=("id", "nope"))
    forged = msgspec.structs.replace(frozen, job=job)
    publish_json(folder, "run.json", run_record(forged))
    publish_manifest(folder, forged, read_table(folder, "manifest.parquet"))
    (tmp_path / "values").write_text("1\n")
    stage = {"sequence_tokens": 8, "batch_sequences": 1, "tokens": "all"}
    recipe = {"sources": {"a": {"store": str(out), "where": "nope = 1"}}, "stages": [stage], "grain": 8}
    (tmp_path / "r.json").write_text(json.dumps(recipe))
    command, *options = (str(tmp_path / "values") if word == "VALUES" else word for word in words)
    on_recipe = options[:1] == ["RECIPE"]
    shown = run(command, tmp_path / "r.json" if on_recipe else out, *options[on_recipe:], code=3)
    assert "damaged" in shown.stderr
    assert "'nope'" in shown.stderr
    assert "damaged" in run("verify", out, "--workers", "1", code=3).stderr


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://Example.org/a", "example.org"),
        ("http://user:word@example.org:8080/a@b", "example.org"),
        ("//cdn.example.org?x", "cdn.example.org"),
        ("example.org./path", "example.org"),
        ("http://[::1]:80/", "[::1]"),
        ("http://a@b@example.org/x", "example.org"),
        ("http://example.org:80@other.org/", "other.org"),
        ("https:\\\\example.org\\x", "example.org"),
        ("https://xn--bcher-kva.example#top", "xn--bcher-kva.example"),
        ("", None),
        ("/only/a/path", None),
        (None, None),
    ],
)
def test_hosts_of_urls(url: str | None, expected: str | None) -> None:
    """The host is in lower case, without user, port and the dot of the root."""
    assert host(pa.array([url], pa.large_string())).to_pylist() == [expected]


def test_types_of_values() -> None:
    """Every plain type becomes text, a whole number, a floating point number or a boolean."""
    for array, expected in [
        (pa.array([1, None], pa.uint8()), [1, None]),
        (pa.array([2**64 - 1, 1], pa.uint64()), [str(2**64 - 1), "1"]),
        (pa.array([0.5, None], pa.float32()), [0.5, None]),
        (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
        (pa.array([b"a\xff", None]), ["a\ufffd", None]),
        (pa.nulls(2), [None, None]),
        (pa.array([0], pa.date32()), ["1970-01-01"]),
        (pa.array([True, None]), [True, None]),
    ]:
        assert as_plain(array).to_pylist() == expected
    one, other = pa.table({"a": pa.array(["x", None])}), pa.table({"a": pa.array(["x", ""])})
    text = pa.large_string()
    assert content_hash(one.cast(pa.schema([("a", text)]))) != content_hash(other.cast(pa.schema([("a", text)])))
