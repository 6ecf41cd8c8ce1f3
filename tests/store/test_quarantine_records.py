"""Records of bad rows that are added, removed, changed or another store's are reported, and written again."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenmill
from tests.support import command
from tests.support.arguments import PrepareArguments
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.inline_executor import InlineExecutor
from tests.support.small_stores import Kept, prepare
from tokenmill import errors
from tokenmill.sources import line_numbers
from tokenmill.store import quarantine
from tokenmill.store.quarantine import QUARANTINE_FILE

pytestmark = pytest.mark.timeout(240)

OPTIONS: PrepareArguments = {"max_bad": 0.5, "unit_bytes": 1500}


def write_lines(path: Path, first: int) -> str:
    """JSON Lines of which every tenth is bad, from line `first` on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"document {row} " + "says little " * (row % 7) for row in range(60)]
    lines = [json.dumps({"text": row if row % 10 == first else text}) for row, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """Two stores with as many bad rows, in other places."""
    folder = tmp_path_factory.mktemp("stores") / "pair"
    for name, first in (("out", 3), ("other", 5)):
        prepare(write_lines(folder / "in" / f"{name}.jsonl", first), folder / name, **OPTIONS)
    return Kept.keep(folder)


@pytest.fixture
def out(pair: Kept) -> Path:
    """A store with bad rows, beside the other one."""
    return pair.restored() / "out"


def edited(change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """A damage that changes the lines of the file."""

    def damage(out: Path) -> None:
        path = out / QUARANTINE_FILE
        path.write_text("\n".join(change(path.read_text().splitlines())) + "\n")

    return damage


def change_pieces(out: Path) -> None:
    """Another row in the records of each unit, and in all of them together."""
    for path in [*(out / "quarantine").iterdir(), out / QUARANTINE_FILE]:
        records = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**each, "byte": each["byte"] + 1}) + "\n" for each in records))


def remove_pieces(out: Path) -> None:
    """No records at all."""
    shutil.rmtree(out / "quarantine")
    (out / QUARANTINE_FILE).unlink()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "added": edited(lambda lines: [*lines, lines[0]]),
    "removed": edited(lambda lines: lines[1:]),
    "changed": edited(lambda lines: [lines[0].replace("out.jsonl", "new.jsonl"), *lines[1:]]),
    "replaced": edited(lambda lines: [lines[1], *lines[1:]]),
    "no JSON": edited(lambda lines: ["{", *lines[1:]]),
    "lost": lambda out: (out / QUARANTINE_FILE).unlink(),
    "of another store": lambda out: shutil.copyfile(out.parent / "other" / QUARANTINE_FILE, out / QUARANTINE_FILE),
    "lost with the pieces": remove_pieces,
    "changed with the pieces": change_pieces,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_records_of_bad_rows_are_checked_and_written_again(out: Path, damage: str) -> None:
    """`verify` refuses the records; `prepare` writes them again, and the store is what it was."""
    sound = part_bytes(out), (out / QUARANTINE_FILE).read_bytes(), (out / "manifest.parquet").read_bytes()
    DAMAGES[damage](out)
    with pytest.raises(errors.CorruptStore):
        tokenmill.verify(str(out))
    result = prepare(str(out.parent / "in/out.jsonl"), out, **OPTIONS)
    assert (result.units_done_now > 0) == ("pieces" in damage)
    assert (part_bytes(out), (out / QUARANTINE_FILE).read_bytes(), (out / "manifest.parquet").read_bytes()) == sound
    tokenmill.verify(str(out))


def test_verify_ends_with_3(out: Path) -> None:
    """The command ends with the exit code for damage."""
    DAMAGES["of another store"](out)
    assert "tokenmill prepare" in run("verify", out, code=errors.CORRUPT).stderr


def test_records_in_a_store_without_bad_rows(tmp_path: Path, out: Path) -> None:
    """Records beside parts that skip nothing are reported, and removed."""
    source = tmp_path / "good.jsonl"
    source.write_text(json.dumps({"text": "good"}) + "\n")
    prepare(str(source), tmp_path / "good", **OPTIONS)
    shutil.copyfile(out / QUARANTINE_FILE, tmp_path / "good" / QUARANTINE_FILE)
    with pytest.raises(errors.CorruptStore):
        tokenmill.verify(str(tmp_path / "good"))
    prepare(str(source), tmp_path / "good", **OPTIONS)
    assert not (tmp_path / "good" / QUARANTINE_FILE).exists()


def test_records_of_an_earlier_part_are_removed(tmp_path: Path) -> None:
    """A source is repaired, and its units are done again: no record of the rows that were bad before remains."""
    source = tmp_path / "in" / "rows.jsonl"
    write_lines(source, 3)
    with pytest.raises(errors.TokenmillError):
        prepare(str(source), tmp_path / "out", unit_bytes=1500, max_bad=0.01)
    assert list((tmp_path / "out" / "quarantine").iterdir())
    write_lines(source, 11)  # no row has this remainder
    prepare(str(source), tmp_path / "out", unit_bytes=1500, max_bad=0.01)
    assert list((tmp_path / "out" / "quarantine").iterdir()) == []


LINES = b'{"text": "a"}\n\n  \n{"text": 7}\r\n{"text": null}\nno object\n{"id": 1}\n' + b'{"text": "x"}\n' * 40
# The number of each line that is not a document, and the byte at which it starts.
SKIPPED = {4: 18, 5: 31, 6: 46, 7: 56}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize("unit_bytes", [20, 1 << 20])
def test_rows_of_json_lines_have_a_byte_and_a_line(tmp_path: Path, name: str, unit_bytes: int) -> None:
    """In the quarantine and in `inspect --skipped`, however the file is cut."""
    path = tmp_path / name
    path.write_bytes(gzip.compress(LINES) if name.endswith("gz") else LINES)
    tokenmill.prepare(
        path,
        tokenizer=SMALL_JSON,
        out=tmp_path / "out",
        unit_bytes=unit_bytes,
        max_bad=0.5,
        executor=InlineExecutor(),
    )
    records = [json.loads(line) for line in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    assert [(record["line"], record["byte"]) for record in records] == [(4, 18), (6, 46)]
    assert not any("row" in record for record in records)
    shown = command.run("inspect", tmp_path / "out", "--skipped").stdout.splitlines()
    assert [line.split("  ")[1] for line in shown] == [f"line {line} (byte {byte})" for line, byte in SKIPPED.items()]
    found = map(json.loads, command.run("inspect", tmp_path / "out", "--skipped", "--json").stdout.splitlines())
    assert {entry["line"]: entry["byte"] for entry in found} == SKIPPED
    first = tokenmill.stats(tmp_path / "out", workers=1).skipped.first
    assert [(bad.row, bad.byte, bad.line) for bad in first] == [(None, 18, 4), (None, 46, 6)]


def test_a_line_is_not_counted_where_that_is_not_possible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far into a file, in a file that has changed or is gone, and in an array, whose lines are not its rows."""
    monkeypatch.setattr(quarantine, "MAX_COUNTED_BYTES", 30)
    monkeypatch.setattr(line_numbers, "CHUNK_BYTES", 16)
    source = tmp_path / "a.jsonl"
    source.write_bytes(LINES)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "out", max_bad=0.5, executor=InlineExecutor())
    records = [json.loads(line) for line in (tmp_path / "out/quarantine.jsonl").read_text().splitlines()]
    assert [(record["byte"], record.get("line")) for record in records] == [(18, 4), (46, None)]
    source.unlink()
    assert command.run("inspect", tmp_path / "out", "--skipped").stdout.splitlines()[0].split("  ")[1] == "byte 18"
    array = tmp_path / "a.json"
    array.write_text('[\n{"text": "x"},\n{"text": 7}\n]')
    tokenmill.prepare(array, tokenizer=SMALL_JSON, out=tmp_path / "array", max_bad=0.5, executor=InlineExecutor())
    (record,) = (json.loads(line) for line in (tmp_path / "array/quarantine.jsonl").read_text().splitlines())
    assert (record["byte"], "line" in record) == (17, False)
