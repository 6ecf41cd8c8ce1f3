"""Files that an interrupted export left behind: sorted runs and unfinished files are compared with their checksums."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.export_harm import tree
from tokenmill import errors
from tokenmill.api import export as exporting
from tokenmill.exports import exporter

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two stores whose documents have the same lengths and other words."""
    directory = tmp_path_factory.mktemp("stores")
    for name, word in (("one", "wind"), ("other", "rain")):
        texts = [f"document {row} {word} " + "says little " * (row % 13) for row in range(200)]
        source = write_parquet(directory / f"{name}.parquet", texts, row_group_size=50)
        tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(directory / name), unit_bytes=1, workers=1)
    return str(directory / "one"), str(directory / "other")


def export(store: str, out: Path, shuffle: int | None, to: str = "nanogpt") -> None:
    """An export in one file."""
    tokenmill.export(store, to=to, out=str(out), val="none", shuffle=shuffle, workers=1)


def interrupt(monkeypatch: pytest.MonkeyPatch, method: str, action: Callable[[], None]) -> None:
    """Let an export end with an error at one of its steps."""

    def stop(*_: object, **__: object) -> None:
        raise errors.StoreError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(exporter.Exporter, method, stop)
        with pytest.raises(errors.StoreError, match="interrupted"):
            action()


def damage(path: Path) -> None:
    """Flip a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


HARMS: dict[str, Callable[[Path], object]] = {
    "tokens": lambda runs: damage(runs / "00000000.tokens"),
    "documents": lambda runs: damage(runs / "00000000.documents"),
    "index": lambda runs: damage(runs / "00000000.index"),
    "tokens gone": lambda runs: (runs / "00000000.tokens").unlink(),
    "documents gone": lambda runs: (runs / "00000000.documents").unlink(),
    "tokens cut off": lambda runs: (runs / "00000000.tokens").write_bytes(b"\0\0"),
    "another run": lambda runs: [
        shutil.copyfile(runs / f"00000000.{kind}", runs / f"00000001.{kind}")
        for kind in ("tokens", "documents", "index")
    ],
}


@pytest.mark.parametrize("harm", [*HARMS, "of another store"])
def test_sorted_runs_of_an_interrupted_shuffle(
    tmp_path: Path, stores: tuple[str, str], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """A run that is damaged, lost, or another one's is sorted again."""
    whole = exporting._freeze_work

    def small(*arguments: Any) -> object:
        return msgspec.structs.replace(whole(*arguments), run_tokens=1500)

    monkeypatch.setattr(exporting, "_freeze_work", small)
    export(stores[0], tmp_path / "right", 7)
    for store, name in zip(stores, ("out", "other"), strict=True):
        interrupt(monkeypatch, "_write", functools.partial(export, store, tmp_path / name, 7))
    runs = tmp_path / "out" / ".tokenmill" / "runs"
    assert (runs / "00000001.index").exists()
    if harm == "of another store":
        shutil.copytree(tmp_path / "other" / ".tokenmill" / "runs", runs, dirs_exist_ok=True)
    else:
        HARMS[harm](runs)
    export(stores[0], tmp_path / "out", 7)
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


@pytest.mark.parametrize("to", ["nanogpt", "megatron"])
@pytest.mark.parametrize("is_damaged", [False, True])
def test_an_unfinished_file_is_compared_with_its_checksums(
    tmp_path: Path,
    stores: tuple[str, str],
    monkeypatch: pytest.MonkeyPatch,
    to: str,
    is_damaged: bool,
) -> None:
    """All shards are recorded, but the file is not finalized: a flipped bit is noticed, and written over."""
    export(stores[0], tmp_path / "right", None, to)
    interrupt(monkeypatch, "_finish", lambda: export(stores[0], tmp_path / "out", None, to))
    (unfinished,) = (tmp_path / "out").glob(".*.unsealed")
    if is_damaged:
        damage(unfinished)
    export(stores[0], tmp_path / "out", None, to)
    assert tree(tmp_path / "out") == tree(tmp_path / "right")


@pytest.mark.parametrize("to", ["nanogpt", "megatron"])
def test_a_complete_export_whose_file_has_its_unfinished_name(tmp_path: Path, stores: tuple[str, str], to: str) -> None:
    """The manifest is there, but the trainer finds no file: the same export gives the file its name."""
    export(stores[0], tmp_path / "out", None, to)
    expected = tree(tmp_path / "out")
    (final,) = (tmp_path / "out").glob("train*.bin")
    final.rename(final.with_name(f".{final.name}.unsealed"))
    export(stores[0], tmp_path / "out", None, to)
    assert tree(tmp_path / "out") == expected


def test_verify_names_an_export_without_its_manifest(tmp_path: Path) -> None:
    """An export that is not complete cannot be checked, so the store is not verified."""
    source = write_parquet(tmp_path / "a.parquet", ["some text"] * 20)
    store = tmp_path / "store"
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(store), workers=1)
    tokenmill.export(str(store), to="nanogpt", val="none", workers=1)
    (store / "nanogpt" / ".tokenmill" / "manifests/00000000.parquet").unlink()
    with pytest.raises(errors.TokenmillError, match="not complete"):
        tokenmill.verify(str(store), all=True)
    tokenmill.export(str(store), to="nanogpt", val="none", workers=1)
    tokenmill.verify(str(store), all=True)


def flip_offset(part: Path) -> bytes:
    """Move the starts of many documents of a part by one token. Returns the part's bytes before that."""
    content = part.read_bytes()
    offsets = pa.ipc.open_file(part).read_all()["tokens"].combine_chunks().offsets.to_numpy()
    moved = offsets.copy()
    moved[1:-1] |= 1
    part.write_bytes(content.replace(offsets.tobytes(), moved.tobytes(), 1))
    return content


@pytest.mark.parametrize("to", ["parquet", "megatron", "olmo", "litdata"])
@pytest.mark.parametrize("val", ["none", "0.2"])
def test_no_plan_is_made_from_a_damaged_part(tmp_path: Path, to: str, val: str) -> None:
    """An export of a damaged part ends with an error, and the export of the repaired store is right."""
    texts = [f"document {row} " + "says little " * (row % 13) for row in range(200)]
    source = write_parquet(tmp_path / "a.parquet", texts, row_group_size=200)
    store = str(tmp_path / "store")
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=store, workers=1)

    def write(out: str) -> None:
        tokens = None if to == "megatron" else 500
        tokenmill.export(store, to=to, out=str(tmp_path / out), val=val, shard_tokens=tokens, tail="keep", workers=1)

    write("right")
    (part,) = Path(store, "parts").iterdir()
    content = flip_offset(part)
    with pytest.raises(errors.TokenmillError, match="is damaged"):
        write("out")
    part.write_bytes(content)
    write("out")
    assert tree(tmp_path / "out") == tree(tmp_path / "right")
