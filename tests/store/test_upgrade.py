"""Stores of format 5 are brought to the current format: the same tokens, exports and states, whenever it is killed."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.change_kills import ChangeKills, Place
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.old_stores import as_format_5
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import IncompleteStore, RunFailed, StoreError, UsageError
from tokenmill.storage import folder_at
from tokenmill.store.erasing import ERASING, ErasingMark, publish_mark
from tokenmill.store.reader import Store

DATA = Path(__file__).parents[1] / "data"
CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "unit_bytes": 900, "workers": 1, "max_bad": 0.5}
ROWS = 40


def write_source(path: Path) -> str:
    """JSON Lines with two rows that are no text, one of them with a secret, and one without text."""
    rows: list[dict[str, Any]] = [{"text": f"document number {row} tells " * (row % 5 + 1)} for row in range(ROWS)]
    rows[7], rows[23], rows[11] = {"text": 7, "secret": "hidden"}, {"text": 23}, {"text": None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def old_store(tmp_path: Path) -> str:
    tokenmill.prepare(write_source(tmp_path / "in.jsonl"), out=tmp_path / "out", quarantine_text=True, **CALL)
    return as_format_5(str(tmp_path / "out"))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_tokens_exports_and_states_stay(tmp_path: Path) -> None:
    """Before and after, readers find the same; a second upgrade changes nothing."""
    out = old_store(tmp_path)
    before = Store(out)
    tokens, identity = before.tokens(0, before.token_count).copy(), before.identity
    tokenmill.export(out, to="llmc", val=0.2)
    exported = files_of(tmp_path / "out/llmc")
    state = tokenmill.loader(out, sequence_tokens=16, batch_sequences=2, grain=32).state_dict() | {"sequences": 2}
    with pytest.raises(UsageError, match="tokenmill upgrade"):
        tokenmill.erase(out, rows=[("in.jsonl", 0)])
    result = tokenmill.upgrade(out)
    assert (result.format, result.upgraded, result.units, result.documents) == (8, True, len(before.manifest), ROWS - 3)
    after = Store(out)
    assert np.array_equal(after.tokens(0, after.token_count), tokens)
    assert after.identity == identity != after.digest
    assert tokenmill.verify(out, all=True).documents_compared == ROWS - 3
    assert tokenmill.export(out, to="llmc", val=0.2).shards_done_now == 0
    assert files_of(tmp_path / "out/llmc") == exported
    tokenmill.loader(out, sequence_tokens=16, batch_sequences=2, grain=32).load_state_dict(state)
    upgraded = files_of(tmp_path / "out")
    again = json.loads(run("upgrade", out, "--json").stdout)
    assert (again["upgraded"], again["tokens"]) == (False, len(tokens))
    assert files_of(tmp_path / "out") == upgraded


def test_an_upgraded_store_can_be_changed(tmp_path: Path) -> None:
    """A lost part is made again with the same bytes, and documents and rows in quarantine can be erased."""
    out = old_store(tmp_path)
    tokenmill.export(out, to="nanogpt")
    tokenmill.upgrade(out)
    part = tmp_path / "out/parts/00000001.arrow"
    expected = part.read_bytes()
    part.unlink()
    source = str(tmp_path / "in.jsonl")
    (tmp_path / "in.jsonl").touch()  # the parts are compared with the sources, by their tokens
    tokenmill.prepare(source, out=out, quarantine_text=True, **CALL)
    assert part.read_bytes() == expected
    tokenmill.prepare(source, out=out, quarantine_text=True, repair=True, **CALL)
    assert part.read_bytes() == expected
    lines = (tmp_path / "in.jsonl").read_text().splitlines(keepends=True)
    row = sum(map(len, lines[:7]))
    result = tokenmill.erase(out, rows=[("in.jsonl", 0), ("in.jsonl", row)])
    assert (result.documents, result.quarantined, list(result.exports.values())) == (1, 1, [1])
    assert b"hidden" not in b"".join(files_of(tmp_path / "out").values())
    tokenmill.verify(out, all=True)


def test_other_text_is_noticed_without_a_hash_of_it(tmp_path: Path) -> None:
    """A source of the same size with another word is found when its parts are compared by tokens."""
    out = old_store(tmp_path)
    tokenmill.upgrade(out)
    source = tmp_path / "in.jsonl"
    source.write_text(source.read_text().replace("number 5", "member 5", 1))
    with pytest.raises(StoreError, match="changed"):
        tokenmill.prepare(str(source), out=out, quarantine_text=True, **CALL)


def test_the_store_of_a_release(tmp_path: Path) -> None:
    """The store that tokenmill 0.1 wrote, whose sources are gone."""
    out = shutil.copytree(DATA / "store-format-5", tmp_path / "old")
    tokens = Store(str(out)).tokens(0, Store(str(out)).token_count).copy()
    tokenmill.upgrade(out)
    after = Store(str(out))
    assert np.array_equal(after.tokens(0, after.token_count), tokens)
    tokenmill.verify(str(out), sample=0)


def test_what_is_refused(tmp_path: Path) -> None:
    """A store that is not complete, a damaged part, and a store with an unfinished erasure."""
    out = old_store(tmp_path)
    incomplete = shutil.copytree(out, tmp_path / "incomplete")
    (incomplete / "manifest.parquet").unlink()
    with pytest.raises(IncompleteStore):
        tokenmill.upgrade(incomplete)
    damaged = shutil.copytree(out, tmp_path / "damaged")
    part = damaged / "parts/00000000.arrow"
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    with pytest.raises(RunFailed, match="part 0 is damaged"):
        tokenmill.upgrade(damaged)
    assert Store(str(damaged)).run.format == 5  # it can still be read
    tokenmill.upgrade(out)
    tokenmill.erase(out, rows=[("in.jsonl", 0)], request="r")
    publish_mark(folder_at(out), ErasingMark("the erasure r", f"tokenmill erase {out} --request r", "r"))
    with pytest.raises(UsageError, match="the erasure r is not finished"):
        tokenmill.upgrade(out)


def test_the_mark_of_an_erasure_stays(tmp_path: Path) -> None:
    """An erasure that was killed after its mark and before its new run.json is not finished by an upgrade."""
    tokenmill.prepare(write_source(tmp_path / "in.jsonl"), out=tmp_path / "out", **CALL)
    folder = folder_at(str(tmp_path / "out"))
    publish_mark(folder, ErasingMark("the erasure r", "tokenmill erase", "r"))
    for _ in ("as it was written", "damaged"):
        with pytest.raises(UsageError, match=r"erasure( r)? is not finished"):
            tokenmill.upgrade(folder.root)
        assert (tmp_path / "out" / ERASING).exists()
        (tmp_path / "out" / ERASING).write_text("{")


def check_kills(place: Place, store: Path, kills: int) -> None:
    seed = int(os.environ.get("TOKENMILL_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"to repeat this: TOKENMILL_KILL_SEED={seed}")  # noqa: T201 - pytest shows it for a failed test
    rng = random.Random(seed)
    trial = ChangeKills(place, files_of(store), lambda root: ("upgrade", root, "--workers", "1"), rng)
    trial.run_undisturbed()
    while kills > 0:
        kills -= max(trial.kill(kills), 1)
    assert trial.problems == []


def test_a_killed_upgrade_is_finished_by_the_same_command(tmp_path: Path) -> None:
    """SIGKILL at random moments: readers find the store or refuse, and the final bytes are those of one run."""
    out = old_store(tmp_path)
    check_kills(Place(str(tmp_path)), Path(out), 3)


def test_a_killed_upgrade_in_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    """The same in an object store."""
    tokenmill.prepare(write_source(tmp_path / "in.jsonl"), out=f"{s3.url}/made", quarantine_text=True, **CALL)
    as_format_5(f"{s3.url}/made")
    made = Place(s3.url, s3.server)
    local = Place(str(tmp_path))
    local.write("made", made.read("made"))
    check_kills(made, tmp_path / "made", 2)
