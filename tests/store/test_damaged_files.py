"""Every file of a store, lost, cut off or another store's: each command ends right, or with advice that helps."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.corpora import part_bytes
from tests.support.small_stores import prepare
from tokenmill import errors
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.state import MismatchRecord, publish_mismatch

pytestmark = pytest.mark.timeout(240)

OPTIONS: dict[str, Any] = {"max_bad": 0.5, "unit_bytes": 1500}
FILES = {
    "run": layout.RUN,
    "plan": layout.PLAN,
    "sources": layout.SOURCES,
    "manifest": layout.MANIFEST,
    "part": "parts/00000001.arrow",
    "vocabulary": "tokenizer/*",
    "quarantine": "quarantine.jsonl",
    "records of a unit": "quarantine/*",
    "log": layout.LOG,
    "heartbeat": "drivers/*",
    "mismatch": layout.MISMATCH,
    "recheck": "rechecked/00000001.ok",
}
COMMANDS: dict[str, Callable[[Path], Any]] = {
    "status": lambda out: tokenmill.status(str(out)).state,
    "verify": lambda out: tokenmill.verify(str(out)).documents,
    "export": lambda out: (
        tokenmill.export(str(out), to="nanogpt", val="none", out=f"{out}-export").splits["train"].tokens
    ),
    "stats": lambda out: tokenmill.stats(str(out)).tokens,
}


def write_lines(path: Path, word: str) -> str:
    """JSON Lines with one bad line."""
    path.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"{word} {row} " + "says little " * (row % 7)}) for row in range(60)]
    lines[30] = '{"text": 7}'
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores of one job. In each the fast engine has failed an audit, and the reference has confirmed all parts."""
    base = tmp_path_factory.mktemp("stores")
    for name, word in (("out", "documents"), ("other", "sentences")):
        source = write_lines(base / "in" / f"{name}.jsonl", word)
        prepare(source, base / name, **OPTIONS)
        publish_mismatch(folder_at(str(base / name)), MismatchRecord("gigatoken", f"a document of {name}"))
        prepare(source, base / name, **OPTIONS)
    return base


def results(out: Path) -> dict[str, Any]:
    """What each command gives."""
    shutil.rmtree(f"{out}-export", ignore_errors=True)
    return {name: command(out) for name, command in COMMANDS.items()}


@pytest.fixture(scope="module")
def sound(stores: Path) -> dict[str, Any]:
    """What each command gives for the store before it is damaged."""
    return results(stores / "out")


def first(out: Path, pattern: str) -> Path:
    """The first file of a store that has such a name."""
    return min(out.glob(pattern))


def replace(path: Path, out: Path, pattern: str) -> None:
    """Put the other store's file in place of this one."""
    shutil.copyfile(first(out.parent / "other", pattern), path)


DAMAGES: dict[str, Callable[[Path, Path, str], object]] = {
    "lost": lambda path, _out, _pattern: path.unlink(),
    "cut off": lambda path, _out, _pattern: os.truncate(path, path.stat().st_size // 2),
    "another's": replace,
}


MAX_ADVICE = 2
"""How many messages may follow on each other."""


def follow(out: Path, source: str, message: str, depth: int = 1) -> None:
    """Do literally what a message advises, and what the next one does."""
    removed = re.search(r"Remove ([\w.]+) and run", message) or re.search(r"Or remove ([\w.]+) and run", message)
    if removed:
        (out / removed[1]).unlink()
    assert "tokenmill prepare" in message or removed, message
    try:
        prepare(source, out, repair="--repair" in message, **OPTIONS)
    except errors.JobChanged as error:
        if depth == MAX_ADVICE:
            raise
        follow(out, source, str(error), depth + 1)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_every_command_ends_right_or_with_advice_that_helps(
    stores: Path, sound: dict[str, Any], tmp_path: Path, file: str, damage: str
) -> None:
    """Each command gives the result of the sound store, or an error whose advice leads to that store."""
    for name in ("out", "other"):
        shutil.copytree(stores / name, tmp_path / name)
    out, source = tmp_path / "out", str(stores / "in/out.jsonl")
    parts, manifest = part_bytes(out), (out / layout.MANIFEST).read_bytes()
    path = first(out, FILES[file])
    DAMAGES[damage](path, out, FILES[file])
    advised = ""
    for name, command in COMMANDS.items():
        shutil.rmtree(f"{out}-export", ignore_errors=True)
        message = ""
        try:
            result = command(out)
        except errors.TokenmillError as error:
            message = str(error)
        else:
            assert result == sound[name] or (name == "status" and result in {"damaged", "stopped"}), name
        assert not message or "tokenmill prepare" in message, f"{name}: {message}"
        advised = advised or message
    if advised:
        follow(out, source, advised)
    else:
        prepare(source, out, **OPTIONS)
    assert results(out) == sound
    assert (part_bytes(out), (out / layout.MANIFEST).read_bytes()) == (parts, manifest)
    tokenmill.verify(str(out), all=True)
