"""Files of a store with two erasures are lost, or come back from a copy of before, of between, or of another life.

Files keep their names, and no name is used twice. So files of a copy lie beside those of the store, and nothing that
was erased is read again. The same commands, in any order, remove it.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.erasing import CALL, contents, erase_rows, files_with, write_source
from tokenmill.errors import TRY_AGAIN, CorruptStore, IncompleteStore, StoreError
from tokenmill.storage import folder_at
from tokenmill.storage.local.disk import DiskFolder
from tokenmill.store import chain
from tokenmill.store.chain import read_head, require_version
from tokenmill.store.reader import Store

SECRETS = {"a": 17, "b": 18}
"""The requests, in their order, and the document that each erases. Both are in one part."""

OPTIONS: dict[str, Any] = {**CALL, "keep": "id,url"}


class Lives:
    """A store, and what it was before two erasures, between them and after them."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "out"
        self.source = write_source(tmp_path / "in/a.parquet")
        tokenmill.prepare(self.source, out=str(self.root), **OPTIONS)
        self.documents = [tokens.copy() for tokens in Store(str(self.root))]
        self.files = [contents(self.root)]
        for request, row in SECRETS.items():
            erase_rows(str(self.root), row, request=request)
            self.files.append(contents(self.root))
        self.names = {name for name in self.files[2] if name[0] != "." and "drivers/" not in name}

    def prepare(self, **options: Any) -> Any:
        """Run the same `prepare` again."""
        return tokenmill.prepare(self.source, out=str(self.root), **OPTIONS, **options)

    def write(self, files: dict[str, bytes]) -> None:
        """Write files of a copy over the store."""
        for name, data in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def start(self, number: int) -> None:
        """The store as it was after so many erasures, and nothing else."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.write(self.files[number])
        for cache in (chain._documents_of, chain.claimed_at, chain.head_at):  # as in a new process
            cache.cache_clear()

    def leaks(self) -> list[int]:
        """The erased documents that readers find, if they do not refuse the store."""
        try:
            store = Store(str(self.root))
            return [row for row in SECRETS.values() if np.array_equal(store[row], self.documents[row])]
        except StoreError:
            return []

    def repair(self) -> None:
        """Run the same commands in both orders: nothing is left, and nothing else has changed."""
        for request in ("b", "a"):
            assert tokenmill.erase(str(self.root), request=request, workers=1).documents == 1
        for row in SECRETS.values():
            assert not files_with(self.root, self.documents[row][:-1])
        store = Store(str(self.root))
        for row, tokens in enumerate(store):
            assert np.array_equal(tokens, self.documents[row]) == (row not in SECRETS.values())
        assert store.columns("id", start=16, stop=20)["id"].to_pylist() == [16, None, None, 19]
        assert tokenmill.verify(str(self.root), workers=1).notices == []
        now = contents(self.root)
        names = [
            {name for name in files if name[0] != "." and "drivers/" not in name} for files in (now, self.files[2])
        ]
        assert names[0] == names[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Lives:
    """The store is made once, and is at the same address in every test."""
    return Lives(tmp_path_factory.mktemp("lives"))


@pytest.fixture
def lives(made: Lives) -> Lives:
    made.start(2)
    return made


RESTORED: dict[str, Callable[[str], bool]] = {
    "all": lambda _: True,
    "run.json": lambda name: name == "run.json",
    "the manifest": lambda name: name == "manifest.parquet",
    "some parts": lambda name: name in {"parts/00000001.arrow", "parts/00000002.arrow"},
    "kept columns": lambda name: name.startswith("kept/"),
    "parts and manifest": lambda name: name.startswith(("parts/", "manifest")),
}


@pytest.mark.parametrize("what", RESTORED)
@pytest.mark.parametrize("copy", ["of before", "of between"])
def test_files_of_a_copy_over_the_store(lives: Lives, what: str, copy: str) -> None:
    """Readers go on as if nothing had happened, `verify` names the files, and the same commands remove them."""
    before = contents(lives.root)
    lives.write({name: data for name, data in lives.files[copy == "of between"].items() if RESTORED[what](name)})
    assert np.array_equal(Store(str(lives.root))[SECRETS["b"]], np.full(len(lives.documents[18]), CALL["eot"]))
    assert not lives.leaks()
    if contents(lives.root).keys() != before.keys():
        with pytest.raises(CorruptStore, match=r"may hold what was erased.*tokenmill erase .* --request b"):
            tokenmill.verify(str(lives.root), workers=1)
    lives.prepare()
    assert not lives.leaks()
    lives.repair()


def test_a_restore_that_ends_anywhere(lives: Lives) -> None:
    """Whichever file of a copy of before is the last: nothing is read again, and the same commands remove it."""
    names = sorted(name for name in lives.files[0] if name.startswith(("parts", "kept", "manifest", "run.")))
    for end in range(0, len(names), 3):
        lives.start(2)
        lives.write({name: lives.files[0][name] for name in names[: end + 1]})
        assert not lives.leaks()
    lives.repair()


def test_a_restore_over_a_store_that_lost_its_files(lives: Lives) -> None:
    """Changed parts and columns are lost, and earlier ones are there: the same commands make them again."""
    for number in (0, 1):
        lives.start(2)
        for directory in ("parts", "kept"):
            shutil.rmtree(lives.root / directory)
        lives.write({name: data for name, data in lives.files[number].items() if name.startswith(("parts", "kept"))})
        assert not lives.leaks()
        lives.repair()


def test_one_record_is_lost(lives: Lives) -> None:
    """Readers refuse, or do not need it. No command goes on without a claim, or makes the store anew."""
    for name in sorted(name for name in lives.files[2] if name.startswith("changes/")):
        lives.start(2)
        (lives.root / name).unlink()
        assert not lives.leaks()
        if name.endswith(".done"):
            if "00000001" in name:  # a later change is there, so nothing asks for it
                lives.write({name: b""})
            lives.repair()
            continue
        if name.endswith(".json"):
            for call in (lambda: Store(str(lives.root)), lives.prepare, lambda: erase_rows(str(lives.root), 5)):
                with pytest.raises(CorruptStore, match=rf"{name} is missing|{name}.*(damaged|missing)"):
                    call()
        if not name.startswith("changes/00000001.files-"):  # the table of the last claim has the same rows
            with pytest.raises(CorruptStore):
                tokenmill.verify(str(lives.root), workers=1)
        lives.write({name: lives.files[2][name]})
        lives.repair()


def test_all_records_are_lost(lives: Lives) -> None:
    """The parts of before are gone, so nothing is read again, and `prepare` does not tokenize it again."""
    shutil.rmtree(lives.root / "changes")
    assert not lives.leaks()
    with pytest.raises(CorruptStore, match="part 1 is damaged"):
        tokenmill.verify(str(lives.root), workers=1)
    for options in ({}, {"repair": True}, {"retry_quarantine": True}):
        with pytest.raises(StoreError, match=r"documents were erased from it(?s:.*)changes/"):
            lives.prepare(**options)
    assert not any(files_with(lives.root, lives.documents[row][:-1]) for row in SECRETS.values())
    lives.write({name: data for name, data in lives.files[2].items() if name.startswith("changes/")})
    lives.repair()


def test_a_mirror_of_a_copy(lives: Lives) -> None:
    """`sync --delete` brings back the store of before. Nothing inside tells, and records elsewhere do."""
    folder = folder_at(str(lives.root))
    versions = [read_head(folder, number=number).version for number in (1, 2)]
    lives.start(1)
    for number, version in enumerate(versions, 1):
        if number == 1:
            require_version(folder, read_head(folder), version)
            continue
        with pytest.raises(CorruptStore, match="is an older copy"):
            require_version(folder, read_head(folder), version)
    assert erase_rows(str(lives.root), SECRETS["b"], request="b").documents == 1
    assert lives.leaks() == []


def test_a_copy_that_diverged(lives: Lives, tmp_path: Path) -> None:
    """A copy works by itself. What was erased in it has the number of another erasure: records elsewhere tell."""
    folder = folder_at(str(lives.root))
    version = read_head(folder).version
    lives.start(1)
    copy = str(shutil.copytree(lives.root, tmp_path / "copy"))
    assert Store(copy).identity == Store(str(lives.root)).identity
    erase_rows(copy, 41, request="other")
    tokenmill.verify(copy, workers=1)
    lives.write(contents(Path(copy)))  # `cp -r` and `s3 sync` of the copy
    with pytest.raises(CorruptStore, match="a copy that was changed by itself"):
        require_version(folder, read_head(folder), version)
    assert not np.array_equal(Store(str(lives.root))[41], lives.documents[41])


def test_a_claim_whose_parent_is_of_another_copy(lives: Lives) -> None:
    """Claims of two copies do not make one chain, although their numbers do."""
    name = "changes/00000001.json"
    claim = json.loads((lives.root / name).read_text())
    (lives.root / name).write_text(json.dumps({**claim, "reason": "another"}))
    for call in (tokenmill.verify, lambda out, workers: tokenmill.erase(out, request="b", workers=workers)):
        with pytest.raises(CorruptStore, match="a copy that was changed by itself"):
            call(str(lives.root), workers=1)


@pytest.mark.parametrize("lost", ["run.json", "manifest.parquet"])
def test_a_file_of_the_base_is_lost(lives: Lives, lost: str) -> None:
    """`prepare` does not make it again: erased documents would be tokenized again, or their parts adopted."""
    (lives.root / lost).unlink()
    with pytest.raises(StoreError, match="documents were erased from it"):
        lives.prepare()
    lives.write({lost: lives.files[0][lost]})
    lives.repair()


def test_a_damaged_part(lives: Lives) -> None:
    """`prepare --repair` names what to restore. Any earlier part of the unit will do for the next `erase`."""
    (name,) = (name for name in lives.files[2] if name.startswith("parts/00000001-"))
    data = bytearray(lives.files[2][name])
    data[len(data) // 2] ^= 1
    lives.write({name: bytes(data)})
    for options in ({"repair": True},):
        with pytest.raises(StoreError, match=r"documents were erased from it|is damaged(?s:.*)Restore it"):
            lives.prepare(**options)
    (lives.root / name).unlink()
    with pytest.raises(CorruptStore, match=f"{name} is missing\n *Restore it, or an earlier file"):
        tokenmill.erase(str(lives.root), request="b", workers=1)
    lives.write({"parts/00000001.arrow": lives.files[0]["parts/00000001.arrow"]})
    lives.repair()


def test_an_opened_store_whose_part_is_gone(lives: Lives) -> None:
    """The error says that documents were erased meanwhile: what was opened has to be opened again."""
    lives.start(1)
    store = Store(str(lives.root))
    erase_rows(str(lives.root), SECRETS["b"], request="b")
    with pytest.raises(StoreError, match=r"documents were erased from .* while it was read") as error:
        store[SECRETS["b"]]
    assert error.value.exit_code == TRY_AGAIN
    (lives.root / "changes/00000002.done").unlink()
    with pytest.raises(IncompleteStore, match="--request b"):
        store[SECRETS["b"]]


def test_read_only_media(lives: Lives, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers, `verify` and the loader write nothing."""

    def refuse(*_: Any, **__: Any) -> None:
        raise StoreError("read-only")

    for name in ("publish", "publish_if_absent", "discard", "append"):
        monkeypatch.setattr(DiskFolder, name, refuse)
    assert len(list(Store(str(lives.root)))) == 60
    tokenmill.verify(str(lives.root), workers=1)
    tokenmill.stats(str(lives.root), workers=1)


@pytest.mark.parametrize("restored", ["quarantine.jsonl", "quarantine", "both"])
@pytest.mark.parametrize("documents", [0, 4])
def test_rows_in_quarantine(tmp_path: Path, restored: str, documents: int) -> None:
    """A copy brings their text back, beside the records of now. `verify` tells, and the same erasure removes it."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    bad = {"text": 7, "id": 3 if documents else 900, "name": "SECRET"}
    lines = [*({"text": f"document {row}", "id": row % 5} for row in range(20)), bad]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    call: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "max_bad": 0.5, "keep": "id"}
    tokenmill.prepare(str(source), out=str(out), quarantine_text=True, **call)
    before = contents(out)
    request: dict[str, Any] = {"column": "id", "values": [str(bad["id"])], "request": "r", "workers": 1}
    result = tokenmill.erase(out, **request)
    assert (result.documents, result.quarantined, result.not_found) == (documents, 1, [])
    assert tokenmill.prepare(str(source), out=str(out), quarantine_text=True, **call).quarantined == 1
    with pytest.raises(StoreError, match="documents were erased"):
        tokenmill.prepare(str(source), out=str(out), quarantine_text=True, retry_quarantine=True, **call)
    names = {"quarantine.jsonl": ("quarantine.jsonl",), "quarantine": ("quarantine/",)}
    prefixes = tuple(itertools.chain(*names.values())) if restored == "both" else names[restored]
    for name in (name for name in before if name.startswith(prefixes)):
        (out / name).write_bytes(before[name])
    assert any(b"SECRET" in data for data in contents(out).values())
    with pytest.raises(CorruptStore, match="may hold what was erased"):
        tokenmill.verify(out, workers=1)
    tokenmill.erase(out, **request)
    assert not any(b"SECRET" in data for data in contents(out).values())
    tokenmill.verify(out, workers=1)
