"""The text and the values of a JSON line follow from the line alone, not from the lines beside it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tokenmill import sources
from tokenmill.errors import TokenmillError
from tokenmill.sources.documents import ReadOptions, SourceFile
from tokenmill.sources.jsonl_values import MAX_DEPTH, TooDeep, load

# pyarrow refuses a lone surrogate, so that the lines beside it are parsed with Python.
REFUSED = b'{"text":"","data":{"text":""},"other":"\\ud800"}'
FIRST = b'{"text":"first","data":{"text":"first","lang":"en"},"lang":"en"}'
DEEP_LIST = b"[" * 1200 + b"]" * 1200
DEEP_OBJECT = b'{"a":' * 1100 + b"1" + b"}" * 1100
# Newer versions of Python parse some thousand levels.
DEEPEST_LIST = b"[" * 100_000 + b"]" * 100_000
DEEPEST_OBJECT = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
VALUES = [
    *(b'"a"', b'""', b'"\\ud83d\\ude00"', b'"\\ud83d"', b'"\\u0000"', b'"a\\"b"', b'"\\x41"', b'"2024-01-01"'),
    *(
        b'"\xff"',
        b'"caf\xe9"',
        b'"\xe2\x80"',
        b'"\xed\xa0\x80"',
        b'"\xc0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xef\xbb\xbf"',
    ),
    *(b'"\x01"', b'"\t"', b"1", b"-0.0", b"1.5", b"1e400", b"9" * 30, b"9" * 5000, b"01", b"1.", b"+1", b"tru", b"'a'"),
    *(
        b"NaN",
        b"-NaN",
        b"Inf",
        b"-Inf",
        b"-Infinity",
        b'"Inf"',
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'["x",null,"y"]',
        b'[1,"a"]',
    ),
    *(b'{"text":"inner"}', b'[{"text":"one"},{"text":"two"}]', DEEP_LIST, DEEP_OBJECT, b"[" * 300 + b"]" * 300),
]
KEYS = [b'"text"', b'"data"', b'"lang"', b'"data.text"', b'"t\\u0065xt"', b'"te\xffxt"', b'""', b'"meta"']
OPTIONS: list[dict[str, Any]] = [
    {"column": "text"},
    {"column": "data.text"},
    {"column": "text", "join": " "},
    {"column": "text", "template": "{text}-{data.text}"},
]


def make_line(rng: random.Random) -> bytes:
    """An object of random keys and values. One in four lines has a byte too many or too few."""

    def value(depth: int) -> bytes:
        kind = rng.random()
        if kind < 0.1 and depth < 3:
            return b"[" + b",".join(value(depth + 1) for _ in range(rng.randrange(3))) + b"]"
        return members(depth + 1) if kind < 0.3 and depth < 3 else rng.choice(VALUES)

    def members(depth: int) -> bytes:
        return b"{" + b",".join(rng.choice(KEYS) + b": " + value(depth) for _ in range(rng.randrange(4))) + b"}"

    line = members(0)
    if line != b"{}" and rng.random() < 0.4:
        line = FIRST[:-1] + b"," + line[1:]
    place = rng.randrange(len(line))
    if rng.random() < 0.25:
        line = rng.choice([line[:place] + line[place + 1 :], line[:place] + rng.choice(KEYS)[:1] + line[place:]])
    return line


def read(path: Path, lines: list[bytes], **options: Any) -> dict[int, Any]:
    """The text or the reason of each line, by its byte offset."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    chosen, found = ReadOptions(on_bad="quarantine", **options), dict[int, Any]()
    file = source(path)
    for documents in sources.read_documents(file, sources.split_file(file, chosen, 1 << 30).whole(), chosen):
        found |= dict(zip(documents.rows.tolist(), documents.text.to_pylist(), strict=True))
        found |= {bad.row: (bad.reason,) for bad in documents.bad}
    return found


def values(path: Path, lines: list[bytes], *names: str) -> dict[int, Any]:
    """The values of each line, by its byte offset, or the error."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    try:
        (columns,) = sources.read_columns(source(path), None, names, ReadOptions())
    except TokenmillError as error:
        return {0: error.details}
    return dict(zip(columns.rows.tolist(), map(str, columns.values.to_pylist()), strict=True))


def source(path: Path) -> SourceFile:
    return sources.file_at(sources.discover([str(path)]).table, 0)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_text_of_a_line(tmp_path: Path, options: dict[str, Any]) -> None:
    """Alone, pyarrow parses a line that it accepts. Beside the refused line, Python parses it."""
    rng = random.Random(str(options))
    for _ in range(200):
        lines = [FIRST, make_line(rng)]
        alone = read(tmp_path / "a.jsonl", lines, **options)
        beside = read(tmp_path / "a.jsonl", [*lines, REFUSED], **options)
        del beside[sum(map(len, lines)) + len(lines)]
        assert alone == beside, lines[1]


@pytest.mark.parametrize("names", [("lang",), ("data.text",), ("data.lang", "meta")], ids=str)
def test_the_values_of_a_line(tmp_path: Path, names: tuple[str, ...]) -> None:
    """What --where, --deny and --keep see."""
    rng = random.Random(str(names))
    for _ in range(200):
        lines = [FIRST, make_line(rng)]
        alone = values(tmp_path / "a.jsonl", lines, *names)
        beside = values(tmp_path / "a.jsonl", [*lines, REFUSED], *names)
        beside.pop(sum(map(len, lines)) + len(lines), None)
        assert alone == beside, lines[1]


@pytest.mark.parametrize("deep", [DEEPEST_LIST, DEEPEST_OBJECT], ids=["list", "object"])
def test_values_beside_deep_ones(tmp_path: Path, deep: bytes) -> None:
    """Also in a line that pyarrow cannot infer: its list has two types."""
    line = b'{"text":"kept","meta":{"url":"https://bad.example/1"},"tree":%s,"mix":[1,"a"]}' % deep
    assert values(tmp_path / "a.jsonl", [line], "meta.url") == {0: "{'meta.url': 'https://bad.example/1'}"}
    assert read(tmp_path / "a.jsonl", [line]) == {0: "kept"}
    (detail, *_) = values(tmp_path / "a.jsonl", [line], "tree")[0][-2:]
    assert "nested too deeply" in detail


def test_a_deep_line_is_cut() -> None:
    """Values down to MAX_DEPTH are read. Brackets in strings do not count, and damage is noticed at any depth."""
    inner = b"[" * (MAX_DEPTH - 1) + b'"]]"' + b"]" * (MAX_DEPTH - 1)
    record = load(b'{"a":%s,"b":%s,"c":1}' % (inner, DEEPEST_LIST), float, "strict")
    value = record["a"]
    while isinstance(value, list):
        (value,) = value
    assert (value, record["c"]) == ("]]", 1.0)
    value = record["b"]
    while isinstance(value, list):
        (value,) = value
    assert isinstance(value, TooDeep)
    for damaged in (b'{"b":%s}' % DEEPEST_LIST[:-1], b'{"b":%s}' % DEEPEST_LIST.replace(b"[]", b"[1 2]"), DEEPEST_LIST):
        with pytest.raises(ValueError, match=r"Expecting|recursion"):
            load(damaged, float, "strict")
