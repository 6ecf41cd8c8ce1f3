"""Exports converge: whatever is killed, restored, copied or forged, erased documents leave their files."""

from __future__ import annotations

import itertools
import random
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.erasing import ROWS, contents, erase_rows, files_with, make_store, stop_at
from tokenmill.errors import FAILED, TRY_AGAIN, CorruptStore, UsageError
from tokenmill.exports import converge_shard, records
from tokenmill.exports.exporter import Exporter
from tokenmill.exports.job import LOCK, manifest_numbers, read_frozen
from tokenmill.exports.known_exports import KnownExport
from tokenmill.storage import folder_at
from tokenmill.store.layout import publish_json
from tokenmill.store.reader import Store
from tokenmill.token_files import FORMATS

SECRET = 17


def export(stores: Any, to: Any = "llmc", **options: Any) -> Any:
    return tokenmill.export(stores, to=to, workers=1, **options)


def tokens_of(store: str, row: int) -> np.ndarray:
    return Store(store)[row][:-1].copy()


def verify(*directories: object) -> None:
    for directory in directories:
        tokenmill.verify(str(directory), workers=1)


@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("options", [{}, {"shuffle": 3, "val": 0.2}], ids=["in order", "shuffled"])
def test_every_format(to: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """Only the shards with the document change; a new export leaves it out, and an erasure does not move its files."""
    out = make_store(tmp_path, keep="url")
    secret, other = tokens_of(out, SECRET), tokens_of(out, 41)
    export(out, to, **options)
    before = contents(Path(out, to))
    result = erase_rows(out, SECRET, request="r")
    assert result.exports == {f"{out}/{to}": result.exports[f"{out}/{to}"]}
    after = contents(Path(out, to))
    changed = {name for name, data in before.items() if after[name] != data}
    assert changed
    assert not any(name.startswith(".tokenmill") for name in changed)
    assert after.keys() - before.keys() == {".tokenmill/manifests/00000001.parquet"}
    export(out, to, out=str(tmp_path / "new"), **options)
    erase_rows(out, 41, request="s")
    for needle in (secret, other):
        assert not files_with(tmp_path / "out", needle)
        assert not files_with(tmp_path / "new", needle)
    verify(out, tmp_path / "new")
    assert export(out, to, **options).shards_done_now == 0


def test_a_kill_at_every_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a process ends, the same command gives the files of an undisturbed one. Until then `verify` fails."""
    out, far = make_store(tmp_path), tmp_path / "far"
    secrets = [tokens_of(out, row) for row in (SECRET, 41)]
    export(out, out=str(far), shard_tokens=300, val="none")
    shutil.copytree(far, tmp_path / "before")
    erase_rows(out, SECRET, 41, request="r")
    expected = contents(far)
    assert len(manifest_numbers(folder_at(str(far)))) == 2
    for number, after in itertools.product(range(3), (False, True)):
        shutil.rmtree(far)
        shutil.copytree(tmp_path / "before", far)
        with monkeypatch.context() as patch:
            calls = itertools.count()
            owner, name = (records, "publish_next") if not number else (converge_shard.ConvergeShards, "_follow")
            stop_at(patch, owner, name, lambda *_, n=number, c=calls: next(c) == max(n - 1, 0), after=after)
            with pytest.raises(KeyboardInterrupt):
                erase_rows(out, request="r")
        holds_tokens = any(files_with(far, secret) for secret in secrets)
        with pytest.raises(CorruptStore, match="erase") if holds_tokens else nullcontext():
            verify(out)
        assert erase_rows(out, request="r").unreached == {}
        assert contents(far) == expected
        assert not any(files_with(far, secret) for secret in secrets)
    verify(out, far)


@pytest.mark.parametrize("to", ["llmc", "nanogpt", "parquet"])
def test_files_of_earlier_copies_laid_over_an_export(to: Any, tmp_path: Path) -> None:
    """Any files of any copies of before and between: the next erasure gives the files of an undisturbed one."""
    out, far = make_store(tmp_path, keep="url"), tmp_path / "far"
    options = {} if to == "nanogpt" else {"shard_tokens": 300}
    export(out, to, out=str(far), val="none", **options)
    copies = [contents(far)]
    for row, request in ((SECRET, "r"), (18, "s")):
        erase_rows(out, row, request=request)
        copies.append(contents(far))
    draw = random.Random(to)
    for _ in range(12):
        for copy in draw.sample(copies[:2], draw.randint(1, 2)):
            for name in draw.sample(sorted(copy), draw.randint(1, len(copy))):
                (far / name).write_bytes(copy[name])
        assert erase_rows(out, request="r").unreached == {}
        assert contents(far) == copies[-1]
    verify(out, far)


def test_an_export_that_is_restored_as_a_whole(tmp_path: Path) -> None:
    """An older copy of the export takes its place: `verify` of the store notices it, and the next erasure follows."""
    out, far = make_store(tmp_path), tmp_path / "far"
    secret = tokens_of(out, SECRET)
    export(out, out=str(far))
    shutil.copytree(far, tmp_path / "copy")
    erase_rows(out, SECRET, request="r")
    shutil.rmtree(far)
    (tmp_path / "copy").rename(far)
    with pytest.raises(CorruptStore, match=r"(?s)documents that were erased.*erase .* --request r"):
        verify(out)
    assert list(erase_rows(out, 41, request="s").exports) == [str(far)]
    assert not files_with(far, secret)
    verify(out, far)


@pytest.mark.parametrize("shuffle", [None, 7])
def test_two_stores_in_one_export(shuffle: int | None, tmp_path: Path) -> None:
    """Each erases its own documents, whichever begins: the files are the same."""
    stores = [make_store(tmp_path, name, name) for name in ("a", "b")]
    secrets = [tokens_of(stores[0], SECRET), tokens_of(stores[1], 41)]
    far = tmp_path / "far"
    export(stores, out=str(far), shard_tokens=400, shuffle=shuffle, val=0.2)
    shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    erase_rows(stores[0], SECRET, request="r")
    verify(*stores, far)
    erase_rows(stores[1], 41, request="r")
    verify(*stores, far)
    expected = {name: data for name, data in contents(far).items() if not name.startswith(".")}
    assert not any(files_with(far, secret) for secret in secrets)
    shutil.rmtree(tmp_path)
    (tmp_path.parent / f"{tmp_path.name}-copy").rename(tmp_path)
    erase_rows(stores[1], 41, request="r")
    erase_rows(stores[0], SECRET, request="r")
    assert {name: data for name, data in contents(far).items() if not name.startswith(".")} == expected
    verify(*stores, far)


def test_every_copy_in_an_export_by_recipe(tmp_path: Path) -> None:
    """A store that the recipe reads twice is twice in the export."""
    out = make_store(tmp_path)
    make_store(tmp_path, "other", "more ")
    secret, path = tokens_of(out, SECRET), tmp_path / "recipe.toml"
    sources = '[sources]\na = { store = "out", repeat = 3 }\nb = "other"\n'
    stage = '[[stages]]\nsequence_tokens = 32\nbatch_sequences = 2\ntokens = { a = "2.5x", b = "all" }\n'
    path.write_text(f"grain = 64\n{sources}{stage}")
    export(str(path), out=str(tmp_path / "blend"))
    assert files_with(tmp_path / "blend", secret)
    erase_rows(out, SECRET)
    assert not files_with(tmp_path / "blend", secret)
    verify(tmp_path / "blend")
    assert export(str(path), out=str(tmp_path / "blend")).shards_done_now == 0


@pytest.mark.parametrize(("to", "options"), [("llmc", {"shuffle": 5}), ("nanogpt", {}), ("parquet", {"shuffle": 5})])
def test_an_export_that_is_finished_after_an_erasure(
    to: Any, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It converges at its end. Until then the erasure has not reached it: exit code 75."""
    out = make_store(tmp_path)
    secret = tokens_of(out, SECRET)
    with monkeypatch.context() as patch:
        stop_at(patch, Exporter, "_finish", lambda *_: True)
        with pytest.raises(KeyboardInterrupt):
            export(out, to, **options)
    result = erase_rows(out, SECRET, request="r")
    assert (result.exit_code, list(result.unreached)) == (TRY_AGAIN, [f"{out}/{to}"])
    assert files_with(tmp_path / "out", secret)
    assert export(out, to, **options).shards_done_now == 0
    assert not files_with(tmp_path / "out", secret)
    verify(out)
    assert erase_rows(out, request="r").exit_code == 0


def test_an_export_that_another_process_writes(tmp_path: Path) -> None:
    """The erasure ends with exit code 75, and the same command reaches the export afterwards."""
    out = make_store(tmp_path)
    export(out)
    with folder_at(f"{out}/llmc").locks.exclusive(LOCK):
        assert erase_rows(out, SECRET, request="r").exit_code == TRY_AGAIN
    result = erase_rows(out, request="r")
    assert (result.exit_code, list(result.exports)) == (0, [f"{out}/llmc"])


def test_a_list_that_names_the_export_of_another_store(tmp_path: Path) -> None:
    """It is data: the other export is not written, and listed as not reached by `erase` and `verify`."""
    out, other = make_store(tmp_path), make_store(tmp_path, "other", "more ")
    export(other, out=str(tmp_path / "far"))
    before = contents(tmp_path / "far")
    (tmp_path / "out/exports").mkdir()
    publish_json(folder_at(out), "exports/0123456789abcdef.json", KnownExport(str(tmp_path / "far")))
    result = erase_rows(out, SECRET, request="r")
    assert (result.exit_code, list(result.unreached)) == (FAILED, [str(tmp_path / "far")])
    assert contents(tmp_path / "far") == before
    with pytest.raises(CorruptStore, match="made from other parts"):
        verify(out)


def test_an_export_of_a_store_that_moved_or_was_copied(tmp_path: Path) -> None:
    """Its record names another address, so it is left as it is until the person names it; then the record follows."""
    out, far = make_store(tmp_path), tmp_path / "far"
    secret = tokens_of(out, SECRET)
    export(out, out=str(far))
    shutil.copytree(out, tmp_path / "copy")
    assert "names another store" in tokenmill.verify(str(tmp_path / "copy"), workers=1).notices[0]
    result = erase_rows(str(tmp_path / "copy"), SECRET, request="r")
    assert "--export" in result.unreached[str(far)]
    assert files_with(far, secret)
    shutil.rmtree(out)
    (tmp_path / "copy").rename(tmp_path / "moved")
    assert list(erase_rows(str(tmp_path / "moved"), request="r", export=far).exports) == [str(far)]
    assert not files_with(tmp_path, secret)
    assert erase_rows(str(tmp_path / "moved"), 41, request="s").exit_code == 0
    verify(tmp_path / "moved", far)


def test_an_export_in_the_directory_of_a_store_that_moved(tmp_path: Path) -> None:
    """It is known whatever its name is."""
    out = make_store(tmp_path)
    secret = tokens_of(out, SECRET)
    export(out, out=f"{out}/mine")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert list(erase_rows(str(tmp_path / "moved"), SECRET).exports) == [str(tmp_path / "moved/mine")]
    assert not files_with(tmp_path, secret)
    verify(tmp_path / "moved")


@pytest.mark.parametrize("place", ["far", "out/mine"])
def test_an_export_that_is_gone_until_it_is_forgotten(place: str, tmp_path: Path) -> None:
    """Exit code 1, and `verify` fails; `--forget-export` records the reason. A new export there is known again."""
    out, directory = make_store(tmp_path), str(tmp_path / place)
    export(out, out=directory)
    shutil.rmtree(directory)
    verify(out)
    (tmp_path / "rows.csv").write_text(f"a.parquet,{SECRET}\n")
    command = ("erase", out, "--rows", tmp_path / "rows.csv", "--request", "r", "--workers", "1")
    assert "no export in it any more" in run(*command, code=FAILED).stdout
    with pytest.raises(CorruptStore, match="not reached"):
        verify(out)
    run("erase", out, "--forget-export", directory, "--reason", "deleted in May", "--workers", "1")
    run(*command)
    assert any("deleted in May" in notice for notice in tokenmill.verify(out, workers=1).notices)
    with pytest.raises(UsageError, match="knows no export"):
        tokenmill.erase(out, forget_export=str(tmp_path / "nowhere"), reason="none")
    export(out, out=directory)
    assert list(erase_rows(out, 41, request="s").exports) == [directory]


def test_a_store_that_is_older_than_its_export(tmp_path: Path) -> None:
    """A mirror of before the erasure takes the place of the store: the export is the witness, and stays as it is."""
    out, far = make_store(tmp_path), tmp_path / "far"
    export(out, out=str(far))
    shutil.copytree(out, tmp_path / "copy")
    erase_rows(out, SECRET, request="r")
    before = contents(far)
    shutil.rmtree(out)
    (tmp_path / "copy").rename(out)
    for directory in (out, far):
        with pytest.raises(CorruptStore, match="older copy"):
            verify(directory)
    with pytest.raises(CorruptStore, match=r"(?s)older copy.*--forget-export"):
        erase_rows(out, 41, request="s")
    assert contents(far) == before
    tokenmill.erase(out, forget_export=str(far), reason="the newer store is lost", workers=1)
    assert erase_rows(out, 41, request="s").exit_code == 0
    assert contents(far) == before


def test_a_copy_that_diverged_takes_the_place_of_its_store(tmp_path: Path) -> None:
    """The claim of another erasure has the number that the export knows."""
    out, far = make_store(tmp_path), tmp_path / "far"
    export(out, out=str(far))
    shutil.copytree(out, tmp_path / "copy")
    erase_rows(out, SECRET, request="r")
    erase_rows(str(tmp_path / "copy"), 41, request="s")
    before = contents(far)
    shutil.rmtree(out)
    (tmp_path / "copy").rename(out)
    for directory in (out, far):
        with pytest.raises(CorruptStore, match="changed by itself"):
            verify(directory)
    assert "changed by itself" in erase_rows(out, request="s").unreached[str(far)]
    assert contents(far) == before


def test_a_manifest_that_states_the_erasure_and_the_tokens(tmp_path: Path) -> None:
    """What a record claims is not believed: the tokens are looked at, and erased."""
    out, far = make_store(tmp_path), folder_at(str(tmp_path / "far"))
    secret = tokens_of(out, SECRET)
    export(out, out=far.root)
    files = contents(tmp_path / "far")
    erase_rows(out, SECRET, request="r")
    frozen = read_frozen(far)
    assert frozen is not None
    versions = records.read_manifest(far, frozen.job.digest()).versions
    for name, data in files.items():
        (tmp_path / "far" / name).write_bytes(data)
    (tmp_path / "far/.tokenmill/manifests/00000001.parquet").unlink()
    manifest = records.read_manifest(far, frozen.job.digest())
    records.publish_next(far, manifest.with_files({}, versions), frozen.job.digest())
    with pytest.raises(CorruptStore, match="holds tokens or values of documents that were erased"):
        verify(out)
    erase_rows(out, request="r")
    assert not files_with(tmp_path / "far", secret)
    verify(out, far.root)


def test_a_damaged_export_is_made_again(tmp_path: Path) -> None:
    """A file that no erasure explains is damaged: it is not given a new checksum, and the same export repairs it."""
    out, far = make_store(tmp_path), tmp_path / "far"
    secret = tokens_of(out, SECRET)
    export(out, out=str(far), shard_tokens=300, val="none")
    for path in far.glob("*.bin"):
        data = bytearray(path.read_bytes())
        data[-2] ^= 1
        path.write_bytes(data)
    result = erase_rows(out, SECRET, request="r")
    assert (result.exit_code, "is damaged" in result.unreached[str(far)]) == (FAILED, True)
    with pytest.raises(CorruptStore):
        verify(out)
    assert export(out, out=str(far), shard_tokens=300, val="none").shards_done_now
    assert not files_with(far, secret)
    assert erase_rows(out, request="r").exit_code == 0
    verify(out, far)


def test_no_document_takes_the_place_of_an_erased_one(tmp_path: Path) -> None:
    """An export by recipe has a document as often as the recipe reads it, whatever was erased beside it."""
    out, path = make_store(tmp_path), tmp_path / "recipe.toml"
    erase_rows(out, *range(40))
    stage = '[[stages]]\nsequence_tokens = 32\nbatch_sequences = 2\ntokens = "1x"\n'
    path.write_text(f'grain = 64\n[sources]\na = {{ store = "out", repeat = 3 }}\n{stage}')
    result = export(str(path), "parquet", out=str(tmp_path / "blend"))
    files = (tmp_path / "blend").glob("*.parquet")
    rows = [row for file in files for row in pq.read_table(file)["row"].to_pylist()]
    assert len(rows) == len(set(rows)) == result.splits["train"].documents > 15
    assert set(rows) <= set(range(40, ROWS))


def test_the_first_shard_is_taken_from_what_is_left(tmp_path: Path) -> None:
    """A new export counts the tokens without erased documents, and the same command on an old one those of before."""
    out = make_store(tmp_path)
    export(out)
    erase_rows(out, *range(50))
    assert export(out).shards_done_now == 0
    left = Store(out).token_count - sum(len(Store(out)[row]) for row in range(50))
    result = export(out, out=str(tmp_path / "new"))
    assert sum(split.tokens for split in result.splits.values()) == left
    with pytest.raises(UsageError, match="would hold all tokens"):
        export(out, shard_tokens=left, out=str(tmp_path / "small"))


def test_exports_that_are_named_or_come_back_later(tmp_path: Path) -> None:
    """Any later erasure reaches them, and erases what all requests have named. One that was named stays known."""
    out = make_store(tmp_path)
    secrets = [tokens_of(out, row) for row in (SECRET, 41)]
    one, two = tmp_path / "one", tmp_path / "two"
    for directory in (one, two):
        export(out, out=str(directory))
    shutil.rmtree(tmp_path / "out/exports")
    assert erase_rows(out, SECRET, request="r").exports == {}
    assert list(erase_rows(out, request="r", export=one).exports) == [str(one)]
    two.rename(tmp_path / "away")
    assert list(erase_rows(out, 41, request="s", export=two).unreached) == [str(two)]
    (tmp_path / "away").rename(two)
    assert list(erase_rows(out, request="r").exports) == [str(one), str(two)]
    assert not any(files_with(directory, secret) for directory in (one, two) for secret in secrets)
    verify(out, one, two)


def test_what_killed_writers_left_in_a_complete_export_is_removed(tmp_path: Path) -> None:
    """A file under its temporary name holds the tokens, although the export is complete."""
    out = make_store(tmp_path)
    secret = tokens_of(out, SECRET)
    export(out, "nanogpt")
    shutil.copyfile(tmp_path / "out/nanogpt/train.bin", tmp_path / "out/nanogpt/.train.bin.unsealed")
    erase_rows(out, SECRET)
    assert not files_with(tmp_path / "out", secret)
