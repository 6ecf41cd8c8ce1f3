"""Parts that the log of the run does not record are compared with the text of their sources before they count."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import tokenmill
from tests.support.corpora import part_bytes
from tests.support.small_stores import Kept, prepare
from tokenmill import errors
from tokenmill.storage import folder_at
from tokenmill.store.job import require_run
from tokenmill.store.tables import log_run

pytestmark = pytest.mark.timeout(240)
UNIT_BYTES = 3000


def write_lines(path: Path, word: str) -> str:
    """JSON Lines of one size and with one beginning of more than 4 KiB, whatever the word is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"document {row} says little " * 3 for row in range(120)]
    texts[100] = f"document 100 {word}"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """The stores of two texts of one shape."""
    folder = tmp_path_factory.mktemp("stores") / "pair"
    for name, file, word in (("out", "a", "wind"), ("other", "b", "rain")):
        prepare(write_lines(folder / "in" / f"{file}.jsonl", word), folder / name, unit_bytes=UNIT_BYTES)
    return Kept.keep(folder)


@pytest.fixture
def stores(pair: Kept) -> tuple[str, Path, Path]:
    """The source and the store of one text, and the store of another text of the same shape."""
    folder = pair.restored()
    return str(folder / "in/a.jsonl"), folder / "out", folder / "other"


def events(out: Path, event: str) -> int:
    """How often the log has an event."""
    lines = (out / "log.jsonl").read_text().splitlines()
    return sum(json.loads(line)["event"] == event for line in lines)


def test_parts_of_another_text_with_the_same_beginning(stores: tuple[str, Path, Path]) -> None:
    """Without a manifest, a part of another store with the same job and slice is compared by its text."""
    source, out, other = stores
    expected = part_bytes(out)
    (out / "manifest.parquet").unlink()
    shutil.copytree(other / "parts", out / "parts", dirs_exist_ok=True)
    assert part_bytes(out) != expected
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == expected


def test_an_earlier_part_that_is_put_back(stores: tuple[str, Path, Path]) -> None:
    """The log records two parts of a unit: the last one counts."""
    source, out, _ = stores
    old = part_bytes(out)
    write_lines(Path(source), "snow")
    (out / "manifest.parquet").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)
    expected = part_bytes(out)
    assert expected != old
    for name, content in old.items():
        (out / "parts" / name).write_bytes(content)
    (out / "manifest.parquet").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == expected


def test_recorded_parts_are_not_made_again(stores: tuple[str, Path, Path]) -> None:
    """A part that the log records is kept; without the log it is compared, and kept as well."""
    source, out, _ = stores
    (out / "manifest.parquet").unlink()
    units = events(out, "unit")
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert events(out, "unit") == units
    (out / "manifest.parquet").unlink()
    (out / "log.jsonl").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert events(out, "unit") == 0
    tokenmill.verify(str(out), all=True)


def test_finish_refuses_what_it_cannot_compare(stores: tuple[str, Path, Path]) -> None:
    """`finish` reads no source, so it asks for `prepare`, which heals the store."""
    source, out, other = stores
    expected = part_bytes(out)
    (out / "manifest.parquet").unlink()
    shutil.copytree(other / "parts", out / "parts", dirs_exist_ok=True)
    with pytest.raises(errors.CorruptStore, match="cannot be used") as caught:
        tokenmill.finish(str(out))
    assert "tokenmill prepare" in str(caught.value)
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == expected


def test_repair_compares_the_text(stores: tuple[str, Path, Path]) -> None:
    """Parts and records of another text, all in one: `verify` names the command, and `--repair` heals the store."""
    source, out, other = stores
    expected = part_bytes(out)
    shutil.copytree(other / "parts", out / "parts", dirs_exist_ok=True)
    theirs, ours = (log_run(require_run(folder_at(str(store)))) for store in (other, out))
    (out / "log.jsonl").write_text((other / "log.jsonl").read_text().replace(theirs, ours))
    (out / "manifest.parquet").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)  # a forged log: the parts are taken as recorded
    with pytest.raises(errors.TokenmillError, match="repair=True"):
        tokenmill.verify(str(out), all=True)
    prepare(source, out, unit_bytes=UNIT_BYTES, repair=True)
    assert part_bytes(out) == expected


def test_a_compared_part_with_a_flipped_bit(stores: tuple[str, Path, Path]) -> None:
    """A part that is compared with the text of its sources is compared with its own checksum, too."""
    source, out, _ = stores
    expected = part_bytes(out)
    for name in ("manifest.parquet", "log.jsonl"):
        (out / name).unlink()
    path = min((out / "parts").iterdir())
    content = bytearray(path.read_bytes())
    content[content.index(b"ARROW1", 8) // 2] ^= 1
    path.write_bytes(content)
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == expected


def test_a_manifest_that_is_a_directory(stores: tuple[str, Path, Path]) -> None:
    """What stands in the place of the manifest and is no file ends in an error that names it, not in a traceback."""
    source, out, _ = stores
    (out / "manifest.parquet").unlink()
    (out / "manifest.parquet").mkdir()
    with pytest.raises(errors.TokenmillError, match=r"manifest\.parquet"):
        prepare(source, out, unit_bytes=UNIT_BYTES)


def test_finish_misses_records_of_bad_rows(tmp_path: Path) -> None:
    """`finish` does not complete a store whose parts state bad rows that no file names; `prepare` heals it."""
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "good"}\n{"text": 7}\n' * 20)
    prepare(str(source), tmp_path / "out", unit_bytes=200, max_bad=0.6)
    for name in ("manifest.parquet", "quarantine.jsonl"):
        (tmp_path / "out" / name).unlink()
    shutil.rmtree(tmp_path / "out" / "quarantine")
    with pytest.raises(errors.CorruptStore, match="cannot be used"):
        tokenmill.finish(str(tmp_path / "out"), max_bad=0.6)
    prepare(str(source), tmp_path / "out", unit_bytes=200, max_bad=0.6)
    assert len((tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()) == 20


def test_an_earlier_part_that_is_put_back_with_its_log(stores: tuple[str, Path, Path]) -> None:
    """The log of the run on the earlier text does not prove the earlier parts."""
    source, out, _ = stores
    old, log = part_bytes(out), (out / "log.jsonl").read_bytes()
    write_lines(Path(source), "snow")
    (out / "manifest.parquet").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)
    expected = part_bytes(out)
    for name, content in old.items():
        (out / "parts" / name).write_bytes(content)
    (out / "log.jsonl").write_bytes(log)
    (out / "manifest.parquet").unlink()
    prepare(source, out, unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == expected


def test_a_damaged_part_gets_no_new_checksum(tmp_path: Path) -> None:
    """A source before it grows, so its units get other numbers: a damaged part is made again, not renamed."""
    first, second = (write_lines(tmp_path / "in" / name, "wind") for name in ("a.jsonl", "b.jsonl"))
    out = tmp_path / "out"
    prepare([first, second], out, unit_bytes=UNIT_BYTES)
    (out / "manifest.parquet").unlink()
    flip_token(max((out / "parts").iterdir()))
    with open(first, "a") as file:
        file.writelines(json.dumps({"text": f"more {row} " * 9}) + "\n" for row in range(120))
    prepare([first, second], out, unit_bytes=UNIT_BYTES)
    prepare([first, second], tmp_path / "right", unit_bytes=UNIT_BYTES)
    assert part_bytes(out) == part_bytes(tmp_path / "right")


@pytest.mark.parametrize("repair", [False, True])
def test_a_damaged_part_is_not_another_text(stores: tuple[str, Path, Path], repair: bool) -> None:
    """A complete store whose source was touched: a damaged part is made again, and not taken for changed sources."""
    source, out, _ = stores
    expected = part_bytes(out)
    flip_token(sorted((out / "parts").iterdir())[1])
    os.utime(source, (1, 1))
    prepare(source, out, unit_bytes=UNIT_BYTES, repair=repair)
    assert part_bytes(out) == expected


def flip_token(part: Path) -> None:
    """Flip a bit in the tokens of a part."""
    content = bytearray(part.read_bytes())
    tokens = pa.ipc.open_file(part).read_all()["tokens"].combine_chunks().values.to_numpy()
    content[bytes(content).index(tokens[50:90].tobytes())] ^= 1
    part.write_bytes(content)
