"""The states of a store, and which operations go on in each."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenmill
from tests.support.small_stores import prepare
from tokenmill import errors
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.state import ADMITTED, MismatchRecord, Operation, State, look, publish_mismatch

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
DOCUMENTS = 40

MEANINGS = {
    State.ABSENT: "there is no `run.json`",
    State.EXPORT: "there is no `run.json`, but the record or the plan of an export",
    State.DAMAGED: "`run.json` is damaged or of another format, or a record in `changes/` is lost or damaged",
    State.RESTORED: "documents were erased, and `run.json` or the manifest is lost or damaged",
    State.CHANGING: "an erasure is claimed and not done",
    State.UNPLANNED: "the plan or the list of sources is lost or damaged",
    State.PARTIAL: "there is no manifest",
    State.SUSPECT: "the fast engine failed an audit, and not every part is confirmed",
    State.UNLISTED: "the manifest is damaged, or belongs to another run",
    State.COMPLETE: "none of these",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete store of two units, from which nothing was erased."""
    base = tmp_path_factory.mktemp("states")
    (base / "a.jsonl").write_text("".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(DOCUMENTS)))
    prepare(str(base / "a.jsonl"), base / "out", unit_bytes=600)
    return base / "out"


def erase(out: Path) -> None:
    tokenmill.erase(str(out), rows=[("a.jsonl", 0)], request="r", workers=1)


def damage(name: str) -> Callable[[Path], object]:
    return lambda out: (out / name).write_bytes(b"damaged")


def lose(*names: str) -> Callable[[Path], None]:
    def change(out: Path) -> None:
        for name in names:
            (out / name).unlink()

    return change


def after_erasure(change: Callable[[Path], object]) -> Callable[[Path], None]:
    def both(out: Path) -> None:
        erase(out)
        change(out)

    return both


def become_export(out: Path) -> None:
    tokenmill.export(str(out), to="nanogpt", val="none", workers=1)
    (out / "nanogpt").rename(out.with_name("export"))
    shutil.rmtree(out)
    out.with_name("export").rename(out)


def become_lost_export(out: Path) -> None:
    become_export(out)
    (out / layout.EXPORT).unlink()


def other_format(out: Path) -> None:
    record = json.loads((out / layout.RUN).read_bytes())
    (out / layout.RUN).write_text(json.dumps({**record, "format": 99}))


def other_manifest(out: Path) -> None:
    (out.with_name("b.jsonl")).write_text('{"text": "another document"}\n')
    prepare(str(out.with_name("b.jsonl")), out.with_name("other"))
    shutil.copyfile(out.with_name("other") / layout.MANIFEST, out / layout.MANIFEST)


ADVICE = re.compile(r"tokenmill \w+|[Rr]estore|newer tokenmill|no such store|export again")
CASES: list[tuple[str, State, Callable[[Path], object]]] = [
    ("nothing", State.ABSENT, shutil.rmtree),
    ("parts alone", State.ABSENT, lose(layout.RUN, layout.MANIFEST, layout.PLAN, layout.SOURCES)),
    ("an export", State.EXPORT, become_export),
    ("an export without its record", State.EXPORT, become_lost_export),
    ("a damaged run", State.DAMAGED, damage(layout.RUN)),
    ("another format", State.DAMAGED, other_format),
    ("a lost claim", State.DAMAGED, after_erasure(lose("changes/00000001.json"))),
    ("a lost run after an erasure", State.RESTORED, after_erasure(lose(layout.RUN))),
    ("a damaged run after an erasure", State.RESTORED, after_erasure(damage(layout.RUN))),
    ("a lost manifest after an erasure", State.RESTORED, after_erasure(lose(layout.MANIFEST))),
    ("a damaged manifest after an erasure", State.RESTORED, after_erasure(damage(layout.MANIFEST))),
    ("an erasure that is not done", State.CHANGING, after_erasure(lose("changes/00000001.done"))),
    ("a lost plan", State.UNPLANNED, lose(layout.PLAN)),
    ("damaged sources", State.UNPLANNED, damage(layout.SOURCES)),
    ("a lost manifest", State.PARTIAL, lose(layout.MANIFEST)),
    (
        "a failed audit",
        State.SUSPECT,
        lambda out: publish_mismatch(folder_at(str(out)), MismatchRecord("gigatoken", "a document")),
    ),
    ("a damaged manifest", State.UNLISTED, damage(layout.MANIFEST)),
    ("the manifest of another run", State.UNLISTED, other_manifest),
    ("a complete store", State.COMPLETE, lambda _: None),
    ("an erasure that is done", State.COMPLETE, erase),
]

COMMANDS: dict[Operation, Callable[[Path], object]] = {
    Operation.FINISH: lambda out: tokenmill.finish(str(out), workers=1),
    Operation.STATUS: lambda out: tokenmill.status(str(out)),
    Operation.LIKE: lambda out: tokenmill.prepare(
        str(out.with_name("a.jsonl")), like=str(out), out=str(out.with_name("like")), workers=1
    ),
    Operation.ERASE: lambda out: tokenmill.erase(str(out), rows=[("a.jsonl", 0)], request="r", workers=1),
    Operation.READ: lambda out: tokenmill.stats(str(out), workers=1),
}


def test_every_state_has_a_case() -> None:
    """Each state, each meaning and each operation of the table is tested here."""
    assert {state for _, state, _ in CASES} == set(State) == set(MEANINGS)
    assert {*COMMANDS, Operation.PREPARE} == set(Operation) == set(ADMITTED)


@pytest.mark.parametrize(("state", "change"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_an_operation_goes_on_only_where_the_table_says_so(
    store: Path, tmp_path: Path, state: State, change: Callable[[Path], object]
) -> None:
    """In any other state each command raises an error that says what helps, and changes nothing."""
    shutil.copy(store.with_name("a.jsonl"), tmp_path / "a.jsonl")
    shutil.copytree(store, tmp_path / "out")
    out = tmp_path / "out"
    change(out)
    found = look(folder_at(str(out)))
    assert found.state is state
    files = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    for operation, command in COMMANDS.items():
        if state in ADMITTED[operation]:
            found.require(operation)
            continue
        with pytest.raises(errors.StoreError) as raised:
            command(out)
        assert ADVICE.search(str(raised.value)), raised.value
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == files
    if state not in ADMITTED[Operation.PREPARE]:
        with pytest.raises(errors.StoreError):
            prepare(str(tmp_path / "a.jsonl"), out, unit_bytes=600)


def test_the_page_shows_the_table() -> None:
    """docs/formats.md has each state, its meaning, and the operations that go on in it."""
    rows = [
        f"| {state} | {MEANINGS[state]} | {', '.join(each for each in Operation if state in ADMITTED[each])} |"
        for state in State
    ]
    assert "\n".join(rows) in PAGE.read_text()
