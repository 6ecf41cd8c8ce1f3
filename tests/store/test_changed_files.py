"""Stores whose files were deleted, swapped, replaced or damaged never end wrong with exit code 0."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import poison
from tests.support.arguments import PrepareArguments
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes, write_parquet
from tests.support.small_stores import Kept, rewrite_run
from tokenmill import errors
from tokenmill.executors.outcomes import Executor
from tokenmill.pipeline.driving.inventory import PartInventory
from tokenmill.pipeline.planning.compare import compare_sources
from tokenmill.pipeline.unit.documents import check_reference
from tokenmill.results import PrepareResult
from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.job import require_run
from tokenmill.store.part import PartContent, open_part, write_part
from tokenmill.store.state import MismatchRecord, publish_mismatch, read_mismatch

pytestmark = pytest.mark.timeout(240)
ROW_GROUP = 50
END = 1199


def texts(first: str = "document", rows: int = 400) -> list[str | None]:
    """Documents of different lengths."""
    return [f"{first} {row} " + "says little " * (row % 17) for row in range(rows)]


def prepare(source: str | list[str], out: Path, **options: Unpack[PrepareArguments]) -> PrepareResult:
    """A store in small units."""
    given: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "unit_bytes": 1, "workers": 1, **options}
    return tokenmill.prepare(source, out=str(out), **given)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A source of eight row groups, and its store of as many units."""
    folder = tmp_path_factory.mktemp("sound") / "store"
    prepare(write_parquet(folder / "in/a.parquet", texts(), row_group_size=ROW_GROUP), folder / "out")
    return Kept.keep(folder)


@pytest.fixture
def out(kept: Kept) -> Path:
    """The store."""
    return kept.restored() / "out"


@pytest.fixture
def source(out: Path) -> str:
    """Its source."""
    return str(out.parent / "in/a.parquet")


def replaced(path: str, documents: list[str | None], row_group_size: int = ROW_GROUP) -> str:
    """The same path with other documents."""
    return write_parquet(Path(path), documents, row_group_size=row_group_size)


def with_quarantine(tmp_path: Path, out: Path) -> str:
    """A store of JSON Lines of which one line is bad; returns the source."""
    source = tmp_path / "in" / "a.jsonl"
    source.parent.mkdir(exist_ok=True)
    lines = [json.dumps({"text": text}) for text in texts()]
    lines[7] = '{"text": 7777777777777777777777}'
    source.write_text("\n".join(lines) + "\n")
    prepare(str(source), out, max_bad=0.5, unit_bytes=4000)
    return str(source)


def flip(path: Path, position: int | None = None) -> None:
    """Flip one bit, by default in the middle of the file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1
    path.write_bytes(content)


def test_a_deleted_part_is_made_again_under_a_new_manifest(source: str, out: Path) -> None:
    """A part that is missing beside a manifest is made again, and the manifest is written again."""
    before = part_bytes(out), (out / "manifest.parquet").read_bytes()
    (out / "parts/00000003.arrow").unlink()
    result = prepare(source, out)
    assert result.units_done_now == 1
    assert (part_bytes(out), (out / "manifest.parquet").read_bytes()) == before
    assert any("missing, cut off" in notice for notice in result.notices)


def test_the_manifest_is_withdrawn_before_a_unit_is_done_again(tmp_path: Path) -> None:
    """While a unit is done again the store has no manifest: readers refuse it."""
    source = with_quarantine(tmp_path, tmp_path / "out")
    with pytest.raises(errors.RunFailed):
        prepare(source, tmp_path / "out", unit_bytes=4000, max_bad=0, retry_quarantine=True)
    assert not (tmp_path / "out/manifest.parquet").exists()
    with pytest.raises(errors.IncompleteStore):
        tokenmill.export(str(tmp_path / "out"), to="nanogpt", val="none")


def test_quarantine_is_retried_by_an_option_and_exports_hold_every_document(tmp_path: Path) -> None:
    """--retry-quarantine does the units again; a later export has all of it, and an earlier one is refused."""
    documents = texts()
    documents[60] = "POISON:RAISE " + str(documents[60])
    source = write_parquet(tmp_path / "in/a.parquet", documents, row_group_size=ROW_GROUP)
    out = tmp_path / "out"
    formats: tuple[str, ...] = ("nanogpt", "megatron", "parquet", "olmo")
    words = ("prepare", source, "--tokenizer", SMALL_JSON, "--out", out, "--unit-bytes", "1", "--max-bad", "1%")
    with poison.infected():
        run(*words)
    for name in formats:
        assert tokenmill.export(str(out), to=name, val="none").splits["train"].documents == 399
    run(*words, "--retry-quarantine")
    store = tokenmill.open(str(out))
    assert len(store) == 400
    assert not (out / "quarantine.jsonl").exists()
    for name in formats:
        with pytest.raises(errors.JobChanged, match="another store"):
            tokenmill.export(str(out), to=name, val="none")
        shutil.rmtree(out / name)
        exported = tokenmill.export(str(out), to=name, val="none").splits["train"]
        assert (exported.documents, exported.tokens) == (400, store.token_count)


def test_an_export_refuses_a_part_of_another_store(tmp_path: Path, out: Path) -> None:
    """A part with the same number of tokens that the manifest does not describe is never exported."""
    other = replaced(str(tmp_path / "in/b.parquet"), [str(text).replace("says", "sees") for text in texts()])
    prepare(other, tmp_path / "other")
    name = "parts/00000002.arrow"
    stored, foreign = (tokenmill.open(str(each)) for each in (out, tmp_path / "other"))
    assert stored.manifest["documents"].equals(foreign.manifest["documents"])
    shutil.copyfile(tmp_path / "other" / name, out / name)
    for shuffle in (None, 1):
        with pytest.raises((errors.RunFailed, errors.CorruptStore), match="not the part that the manifest describes"):
            tokenmill.export(str(out), to="nanogpt", val="none", shuffle=shuffle, out=tmp_path / f"shuffle-{shuffle}")
    with pytest.raises((errors.RunFailed, errors.CorruptStore), match="not the part that the manifest describes"):
        tokenmill.stats(str(out))


def test_an_export_finds_a_flipped_bit(tmp_path: Path, source: str, out: Path) -> None:
    """A bit that flipped in the tokens of a part ends the export with an error; --repair makes the part again."""
    sound = part_bytes(out)
    flip(out / "parts/00000005.arrow")
    formats: tuple[str, ...] = ("nanogpt", "megatron", "parquet")
    exports: list[dict[str, Any]] = [
        {"to": name, "val": "none", "shuffle": shuffle, "out": tmp_path / f"{name}-{shuffle}"}
        for name in formats
        for shuffle in (None, 1)
    ]
    for options in exports:
        with pytest.raises((errors.RunFailed, errors.CorruptStore), match="part 5 is damaged"):
            tokenmill.export(str(out), **options)
        assert not (options["out"] / ".tokenmill/manifests/00000000.parquet").exists()
    result = prepare(source, out, repair=True)
    assert result.units_done_now == 1
    assert part_bytes(out) == sound
    for options in exports:
        tokenmill.export(str(out), **options)


def test_parts_of_an_old_text_are_not_adopted(tmp_path: Path) -> None:
    """With run.json gone and a source replaced, even by one of the same size and beginning, parts are made again."""
    lines = tmp_path / "a.txt"
    lines.write_text("x" * 5000 + "\n\nold text\n\n" + "y" * 5000)
    options: PrepareArguments = {"separator": "\n\n", "unit_bytes": 3000}
    prepare(str(lines), tmp_path / "out", **options)
    for name in ("run.json", "plan.parquet", "sources.parquet", "manifest.parquet"):
        (tmp_path / "out" / name).unlink()
    lines.write_text("x" * 5000 + "\n\nNEW TEXT\n\n" + "y" * 5000)
    result = prepare(str(lines), tmp_path / "out", **options)
    prepare(str(lines), tmp_path / "fresh", **options)
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "fresh")
    assert result.units_done_now > 0
    tokenmill.verify(str(tmp_path / "out"), all=True)


def test_parts_are_kept_when_only_the_run_was_lost(source: str, out: Path) -> None:
    """With run.json gone and the sources unchanged, the parts are compared with the text and kept."""
    (out / "run.json").unlink()
    assert prepare(source, out).units_done_now == 0


def test_a_part_of_another_slice_is_not_adopted(source: str, out: Path) -> None:
    """A part under the number of another unit is found before the store is complete, and made again."""
    sound = part_bytes(out)
    parts = out / "parts"
    (out / "manifest.parquet").unlink()
    content = (parts / "00000001.arrow").read_bytes().replace(b'{"unit":1,', b'{"unit":2,')
    (parts / "00000002.arrow").write_bytes(content)
    prepare(source, out)
    assert part_bytes(out) == sound


@pytest.mark.parametrize("workers", [pytest.param(2, marks=pytest.mark.processes), 1])
def test_a_failed_audit_makes_every_part_suspect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    """Parts that were committed before the fast engine was caught are compared with the reference, and corrected."""
    monkeypatch.setenv("PYTHONPATH", poison.environment(tmp_path / "site")["PYTHONPATH"])
    documents = texts(rows=800)
    for row in range(40, 600, 40):  # some wrong documents that the audit may not meet, then nothing but wrong ones
        documents[row] = f"{documents[row]} WRONGTOKEN"
    documents[760:] = [f"WRONGTOKEN {text}" for text in documents[760:]]
    source = write_parquet(tmp_path / "in/a.parquet", documents, row_group_size=40)
    right, out = tmp_path / "right", tmp_path / "out"
    prepare(source, right, tokenizer=SMALL_JSON, eot=None, engine="tokenizers")
    with poison.infected():
        result = prepare(source, out, tokenizer=SMALL_JSON, eot=None, workers=workers)
    assert any("failed an audit" in notice for notice in result.notices)
    assert part_bytes(out) == part_bytes(right)
    assert (out / "manifest.parquet").read_bytes() == (right / "manifest.parquet").read_bytes()


def test_a_store_stays_suspect_until_every_part_is_confirmed(tmp_path: Path) -> None:
    """A run that is killed after a failed audit goes on with the reference; until then readers refuse the store."""
    documents = texts()
    documents[150] = f"{documents[150]} WRONGTOKEN"
    source = write_parquet(tmp_path / "in/a.parquet", documents, row_group_size=ROW_GROUP)
    out = tmp_path / "out"
    with poison.infected():
        prepare(source, out, tokenizer=SMALL_JSON, eot=None)
    prepare(source, tmp_path / "right", tokenizer=SMALL_JSON, eot=None, engine="tokenizers")
    # As a kill leaves it, whether the sample has met the document or not: recorded, and nothing confirmed.
    shutil.rmtree(out / layout.RECHECKED, ignore_errors=True)
    publish_mismatch(folder_at(str(out)), MismatchRecord("gigatoken", "a document"))
    with pytest.raises(errors.IncompleteStore, match="failed an audit"):
        tokenmill.open(str(out))
    prepare(source, out, tokenizer=SMALL_JSON, eot=None)
    assert part_bytes(out) == part_bytes(tmp_path / "right")
    assert len(tokenmill.open(str(out))) == 400


def test_another_version_of_the_reference_is_refused(source: str, out: Path) -> None:
    """A run begun with another version of the library that defines the tokens does not go on; others are noted."""
    (out / "manifest.parquet").unlink()
    (out / "parts/00000000.arrow").unlink()
    run = out / "run.json"
    original = run.read_text()
    rewrite_run(out, lambda content: content["versions"].update(tiktoken="0.0.1"))
    with pytest.raises(errors.JobChanged, match=r"(?s)started with 0\.0\.1.*tiktoken==0\.0\.1"):
        prepare(source, out)
    run.write_text(original)
    rewrite_run(out, lambda content: content["versions"].update(gigatoken="0.0.1"))
    assert any("gigatoken" in notice and "0.0.1" in notice for notice in prepare(source, out).notices)


def test_a_worker_with_another_version_of_the_reference_is_refused(out: Path) -> None:
    """A node or rank whose library differs from the run's fails its units, by name, and the run ends."""
    job = tokenmill.open(str(out)).job
    with pytest.raises(errors.TokenizerError, match=r"started with 0\.0\.1"):
        check_reference(job, "0.0.1")


def test_a_touched_source_is_compared_by_content(source: str, out: Path) -> None:
    """Another modification time alone changes nothing."""
    os.utime(source, ns=(1, 1))
    assert prepare(source, out).units_done_now == 0
    tokenmill.verify(str(out), all=True)
    assert prepare(source, out).units_done_now == 0


def test_a_touched_source_in_an_unfinished_run(tmp_path: Path) -> None:
    """Of a file that was edited in the middle without a new size, just the units with other text are done again."""
    lines = tmp_path / "in" / "a.txt"
    lines.parent.mkdir()
    paragraphs = [f"paragraph {number:04d} " + "words " * 20 for number in range(400)]
    lines.write_text("\n\n".join(paragraphs))
    options: PrepareArguments = {"separator": "\n\n", "unit_bytes": 6000}
    first = prepare(str(lines), tmp_path / "out", **options)
    (tmp_path / "out/manifest.parquet").unlink()
    paragraphs[200] = paragraphs[200].replace("words", "WORDS")
    lines.write_text("\n\n".join(paragraphs))
    again = prepare(str(lines), tmp_path / "out", **options)
    prepare(str(lines), tmp_path / "fresh", **options)
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "fresh")
    assert 1 <= again.units_done_now < first.units // 2


@pytest.mark.parametrize("named", [False, True])
def test_a_moved_source(out: Path, named: bool) -> None:
    """A copy at another path is recognised by its content; --moved names it where that cannot be."""
    before, after = out.parent / "in", out.parent / "elsewhere"
    before.rename(after)
    result = prepare(str(after / "a.parquet"), out, moved=[f"{before}={after}"] if named else [])
    assert result.units_done_now == 0
    tokenmill.verify(str(out), all=True)


def padded_parquet(path: Path, rows: int, padding: int) -> int:
    """Row groups of ten, with a footer of any length; returns the size of the file."""
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False, write_statistics=False) as writer:
        for start in range(0, rows, 10):
            writer.write_table(pa.table({"text": texts(rows=120)[start : start + 10]}))
        writer.add_key_value_metadata({"padding": "y" * padding})
    return path.stat().st_size


def test_a_parquet_file_with_other_row_groups_behind_the_same_beginning(tmp_path: Path) -> None:
    """A file of the same size and first bytes with more row groups is read by its own footer, and then refused."""
    source, longer = tmp_path / "in" / "a.parquet", tmp_path / "b.parquet"
    source.parent.mkdir()
    size, padding = padded_parquet(longer, 120, 10), 1000
    for _ in range(3):  # the length of the padding is a number of its own in the footer
        padding += size - padded_parquet(source, 60, padding)
    assert padded_parquet(source, 60, padding) == size
    assert source.read_bytes()[:4096] == longer.read_bytes()[:4096]
    prepare(str(source), tmp_path / "out")
    os.replace(longer, source)
    with pytest.raises(errors.JobChanged):
        prepare(str(source), tmp_path / "out")


def jsonl(path: Path, lines: list[bytes]) -> str:
    """Lines after more than 4 KiB of others."""
    path.parent.mkdir(exist_ok=True)
    head = [json.dumps({"text": text}).encode() for text in texts(rows=60)]
    path.write_bytes(b"\n".join([*head, *lines]) + b"\n")
    return str(path)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([b'{"text": "x"}  ', b'{"text": "y"}'], [b'{"text": "x"}', b'  {"text": "y"}']),
        ([b'{"text": null}', b'{"text": "yes"}'], [b'{"text": "yes"}', b'{"text": null}']),
        ([b'{"text": "\xff7"}'], [b'{"text": "77"}']),
    ],
    ids=["white space", "null", "bad row"],
)
@pytest.mark.parametrize("complete", [True, False])
def test_rows_that_moved_or_were_mended_in_place(
    tmp_path: Path, before: list[bytes], after: list[bytes], complete: bool
) -> None:
    """A source of the same size whose rows are elsewhere, or good now, is not the source of the parts."""
    source = jsonl(tmp_path / "in/a.jsonl", before)
    prepare(source, tmp_path / "out", max_bad=0.5, unit_bytes=3000)
    jsonl(tmp_path / "in/a.jsonl", after)
    if complete:
        with pytest.raises(errors.JobChanged, match="changed"):
            prepare(source, tmp_path / "out", max_bad=0.5, unit_bytes=3000)
        return
    (tmp_path / "out/manifest.parquet").unlink()
    prepare(source, tmp_path / "out", max_bad=0.5, unit_bytes=3000)
    prepare(source, tmp_path / "fresh", max_bad=0.5, unit_bytes=3000)
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "fresh")


def test_a_move_of_parts_that_was_killed_goes_on(tmp_path: Path) -> None:
    """A part that stands at its old and its new number is taken once; stray files in parts/ are left alone."""
    paths = [tmp_path / "in" / f"{number}.jsonl" for number in range(2)]
    for path in paths:
        jsonl(path, [])
    names = [str(path) for path in paths]
    prepare(names, tmp_path / "out", unit_bytes=3000)
    parts = tmp_path / "out/parts"
    (tmp_path / "out/manifest.parquet").unlink()
    paths[0].write_bytes(paths[0].read_bytes() * 2)
    last = max(int(path.stem) for path in parts.iterdir())
    prepare(names, tmp_path / "grown", unit_bytes=3000)
    moved = (
        tmp_path / "grown/parts" / f"{max(int(path.stem) for path in (tmp_path / 'grown/parts').iterdir()):08d}.arrow"
    )
    shutil.copyfile(moved, parts / moved.name)  # as the kill leaves it: the copy is there, and the original, too
    (parts / "00000001 (copy).arrow").write_bytes(b"mine")
    (parts / "999999999999.arrow").write_bytes(b"mine")
    assert (parts / f"{last:08d}.arrow").exists()
    prepare(names, tmp_path / "out", unit_bytes=3000)
    strays = {"00000001 (copy).arrow": b"mine", "999999999999.arrow": b"mine"}
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "grown") | strays


def test_a_foreign_part_beside_a_missing_one(source: str, out: Path) -> None:
    """While a manifest is there, every part is compared with it before it is withdrawn, with every option."""
    sound = part_bytes(out)
    choices: list[PrepareArguments] = [{}, {"repair": True}, {"retry_quarantine": True}]
    for options in choices:
        summary, content = open_part(folder_at(str(out)), 3)
        tokens = content.tokens.copy()
        tokens[0] ^= 1
        (out / "parts/00000003.arrow").unlink()
        write_part(folder_at(str(out)), summary, PartContent(tokens, content.offsets, content.source, content.row))
        (out / "parts/00000006.arrow").unlink()
        prepare(source, out, **options)
        assert part_bytes(out) == sound


@pytest.mark.parametrize(("format_", "index"), [("megatron", "*.idx"), ("mds", "**/index.json")])
def test_an_index_of_an_export_that_is_gone_is_written_again(out: Path, format_: str, index: str) -> None:
    """The same export again sees that a file beside the shards is gone or cut off."""
    export = out / format_
    tokenmill.export(str(out), to=format_, val="none")
    (path, *_) = sorted(export.glob(index))
    content = path.read_bytes()
    for damage in (path.unlink, lambda: os.truncate(path, 3)):
        damage()
        tokenmill.export(str(out), to=format_, val="none")
        assert path.read_bytes() == content
        tokenmill.verify(str(out))


def test_a_new_commit_of_a_dataset_changes_nothing(tmp_path: Path) -> None:
    """Files of another revision on the Hub with the same hashes are the same sources, without a look at their text."""
    path = "hf://datasets/org/name@{}/data/{}.parquet"
    tables = [
        pa.table(
            {
                "path": [path.format(commit, number) for number in range(3)],
                "kind": pa.array(["parquet"] * 3).dictionary_encode(),
                "size": [10, 20, 30],
                "fingerprint": ["a", "b", "c"],
            }
        )
        for commit in ("1" * 40, "2" * 40)
    ]
    before = tables[0].append_column("identity", pa.array([1, 2, 3], pa.uint64()))
    changes = compare_sources(folder_at(str(tmp_path)), before, tables[1], [])
    assert not changes.changed.any()
    assert not changes.unproved.any()
    assert changes.table["path"].to_pylist() == tables[1]["path"].to_pylist()
    assert changes.table["identity"].to_pylist() == [1, 2, 3]


def test_a_repaired_source_costs_its_own_units(tmp_path: Path) -> None:
    """After a damaged source was repaired, and has more units now, parts of other sources are kept."""
    paths = [tmp_path / "in" / f"{number}.jsonl" for number in range(3)]
    paths[0].parent.mkdir()
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps({"text": f"{number} {text}"}) + "\n" for text in texts()))
    whole = paths[1].read_text()
    paths[1].write_text(whole[: len(whole) // 2])  # a download that broke off
    options: PrepareArguments = {"unit_bytes": 6000, "max_bad": 0.0005}
    with pytest.raises(errors.RunFailed):
        prepare([str(path) for path in paths], tmp_path / "out", **options)
    paths[1].write_text(whole)
    again = prepare([str(path) for path in paths], tmp_path / "out", **options)
    prepare([str(path) for path in paths], tmp_path / "fresh", **options)
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "fresh")
    plan = tables.read_plan(folder_at(str(tmp_path / "out")), require_run(folder_at(str(tmp_path / "out"))))
    own = int((plan["source"].to_numpy() == 1).sum())
    assert again.units_done_now <= own
    tokenmill.verify(str(tmp_path / "out"), all=True)


def test_what_is_too_long_follows_from_the_job(tmp_path: Path) -> None:
    """The limit is part of the job; a memory budget that cannot hold such a document is refused."""
    source = tmp_path / "in" / "a.jsonl"
    source.parent.mkdir()
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in ["x" * 3000, "short", "y" * 900]))
    options: PrepareArguments = {"unit_bytes": 1000, "max_bad": 0.5}
    for memory in ("1GB", "4GB"):
        given: PrepareArguments = {**options, "memory": memory, "max_document_bytes": 1000}
        result = prepare(str(source), tmp_path / memory, **given)
        assert (result.documents, result.quarantined) == (2, 1)
    assert part_bytes(tmp_path / "1GB") == part_bytes(tmp_path / "4GB")
    with pytest.raises(errors.UsageError, match=r"(?s)memory=.* less than one worker needs.*max_document_bytes="):
        prepare(str(source), tmp_path / "small", memory="400MB")
    with pytest.raises(errors.JobChanged, match="max_document_bytes="):
        prepare(str(source), tmp_path / "1GB", max_document_bytes=2000, unit_bytes=1000, max_bad=0.5)


def test_a_text_that_is_one_long_document_is_refused_at_planning(tmp_path: Path) -> None:
    """A .txt file that is longer than a document may be is refused with both ways out."""
    path = tmp_path / "a.txt"
    path.write_text("x" * 5000)
    with pytest.raises(errors.SourceError, match=r"(?s)one document of.*separator=.*max_document_bytes="):
        prepare(str(path), tmp_path / "out", max_document_bytes=1000)


def test_a_part_that_vanishes_while_the_run_goes_on(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is written only when every part is there."""
    collect = PartInventory.collect
    calls: list[int] = []

    def delete_first(self: PartInventory, executor: Executor) -> bool:
        if not calls:
            (tmp_path / "out/parts/00000004.arrow").unlink()
        calls.append(1)
        return collect(self, executor)

    monkeypatch.setattr(PartInventory, "collect", delete_first)
    prepare(source, tmp_path / "out")
    assert len(calls) == 2
    assert len(part_bytes(tmp_path / "out")) == 8
    tokenmill.verify(str(tmp_path / "out"))


def test_parts_of_a_complete_store_that_were_swapped(tmp_path: Path) -> None:
    """Two parts of equal size under each other's names are found by `prepare`, although a manifest is there."""
    source = write_parquet(tmp_path / "in/a.parquet", ["same words"] * 100, row_group_size=50)
    prepare(source, tmp_path / "out")
    sound = part_bytes(tmp_path / "out")
    parts = tmp_path / "out/parts"
    (parts / "00000000.arrow").rename(parts / "x")
    (parts / "00000001.arrow").rename(parts / "00000000.arrow")
    (parts / "x").rename(parts / "00000001.arrow")
    assert prepare(source, tmp_path / "out").units_done_now == 2
    assert part_bytes(tmp_path / "out") == sound


@pytest.mark.parametrize(("lost_bytes", "with_manifest"), [(700, True), (1, False)])
def test_a_truncated_part_is_made_again(source: str, out: Path, lost_bytes: int, with_manifest: bool) -> None:
    """A part that was cut off is made again, although its header is whole and, maybe, no manifest lists its size."""
    sound = part_bytes(out)
    os.truncate(out / "parts/00000006.arrow", len(sound["00000006.arrow"]) - lost_bytes)
    if not with_manifest:
        (out / "manifest.parquet").unlink()
    assert prepare(source, out).units_done_now == 1
    assert part_bytes(out) == sound


def test_a_store_without_its_parts_goes_on(source: str, out: Path) -> None:
    """After `rm -r parts` everything is done again, and status says meanwhile that the store is incomplete."""
    sound = part_bytes(out)
    shutil.rmtree(out / "parts")
    assert tokenmill.status(str(out)).state != "complete"
    prepare(source, out)
    assert part_bytes(out) == sound


def test_verify_checks_the_vocabulary(out: Path) -> None:
    """A damaged vocabulary in the store is a problem that verify reports."""
    (vocabulary,) = (out / "tokenizer").iterdir()
    flip(vocabulary)
    with pytest.raises(errors.CorruptStore, match="is not the vocabulary"):
        tokenmill.verify(str(out))


@pytest.mark.parametrize(("number", "reason"), [(2, "a newer tokenmill wrote it"), (0, "Prepare it again")])
def test_a_store_or_an_export_of_another_format_is_refused(source: str, out: Path, number: int, reason: str) -> None:
    """Every command refuses it before anything is written, also while the run is not complete."""
    tokenmill.export(str(out), to="nanogpt")
    job = out / "nanogpt/.tokenmill/export.json"
    written = json.loads(job.read_text())
    job.write_text(json.dumps({**written, "format": number, "field": "of another format"}))
    with pytest.raises(errors.StoreError, match=f"nanogpt has format {number}"):
        tokenmill.export(str(out), to="nanogpt")
    rewrite_run(out, lambda run: run.update(format=number, field="of another format"))
    (out / "manifest.parquet").unlink()
    before = sorted(out.rglob("*"))
    for call in (tokenmill.open, tokenmill.status, tokenmill.finish, tokenmill.verify):
        with pytest.raises(errors.StoreError, match=f"(?s)has format {number}.*{reason}"):
            call(str(out))
    with pytest.raises(errors.StoreError, match=f"(?s)has format {number}.*{reason}"):
        prepare(source, out)
    assert sorted(out.rglob("*")) == before


def test_manifest_rows_have_both_checksums(out: Path) -> None:
    """The manifest lists BLAKE3, XXH3 and the size of every part."""
    manifest = pq.read_table(out / "manifest.parquet")
    sizes = [path.stat().st_size for path in sorted((out / "parts").iterdir())]
    assert manifest["bytes"].to_pylist() == sizes
    assert {len(value) for value in manifest["xxh3"].to_pylist()} == {32}


def test_a_flipped_bit_in_run_json_is_found(source: str, out: Path) -> None:
    """A changed digit of a size is damage, with advice that heals the store, and not another job."""
    expected = part_bytes(out)
    run = out / "run.json"
    size = json.loads(run.read_text())["job"]["tokenizer"]["vocabulary_size"]
    run.write_text(run.read_text().replace(f'"vocabulary_size": {size}', f'"vocabulary_size": {size + 70_000}'))
    for call in (tokenmill.verify, tokenmill.open):
        with pytest.raises(errors.CorruptStore, match=r"(?s)run\.json is damaged.*Remove run\.json"):
            call(str(out))
    run.unlink()
    prepare(source, out)
    assert part_bytes(out) == expected


def test_a_worker_does_not_take_the_tokenizer_of_an_earlier_store(tmp_path: Path) -> None:
    """Two runs in one process and one directory: the second has another split pattern."""
    source = write_parquet(
        tmp_path / "a.parquet", [f"It's {row} o'clock, they'LL say 12345 times" for row in range(60)]
    )
    vocabulary = SMALL_TIKTOKEN.partition(":")[0]
    for name, scheme in (("out", "gpt2"), ("out", "cl100k_base"), ("right", "cl100k_base")):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        prepare(source, tmp_path / name, tokenizer=f"{vocabulary}:{scheme}", eot="none")
    assert part_bytes(tmp_path / "out") == part_bytes(tmp_path / "right")


@pytest.mark.parametrize("lost", ["the part", "the record"])
def test_parts_of_a_wrong_engine_stay_out(tmp_path: Path, lost: str) -> None:
    """After a failed audit, a part of the fast engine that is put back, or a lost record, makes no store wrong."""
    texts = [f"document {row} says little" + " WRONGTOKEN" * (row == 3) for row in range(60)]
    source = write_parquet(tmp_path / "a.parquet", texts, row_group_size=10)
    out, options = tmp_path / "out", PrepareArguments(tokenizer=SMALL_JSON, eot=None)
    prepare(source, out, tokenizer=SMALL_JSON, eot=None, engine="tokenizers")
    expected = part_bytes(out)
    shutil.rmtree(out)
    with poison.infected():
        prepare(source, out, **options)
    assert part_bytes(out) == expected
    (out / "manifest.parquet").unlink()
    if lost == "the record":
        (out / "engine-mismatch.json").unlink()
        assert read_mismatch(folder_at(str(out))) is not None
        return
    summary, tokens = open_part(folder_at(str(out)), 5)
    tokens = dataclasses.replace(tokens, tokens=tokens.tokens ^ np.uint16(1))
    (out / "parts/00000005.arrow").unlink()
    write_part(folder_at(str(out)), summary, tokens)
    with poison.infected():
        prepare(source, out, **options)
    assert part_bytes(out) == expected


@pytest.mark.parametrize("key", ["tokens", "documents", "text_bytes", "blake3", "slice"])
@pytest.mark.parametrize("with_manifest", [True, False])
def test_a_flipped_bit_at_the_head_of_a_part_is_found(
    tmp_path: Path, source: str, out: Path, key: str, with_manifest: bool
) -> None:
    """The metadata of a part is in its file twice; some commands read the first copy, others the second."""
    expected = part_bytes(out)
    part = out / "parts/00000003.arrow"
    content = part.read_bytes()
    flip(part, next(at for at in range(content.index(f'"{key}":'.encode()) + len(key) + 3, 9999) if content[at] > 44))
    assert part.read_bytes() != content
    if with_manifest:
        for call in (
            lambda: tokenmill.verify(out),
            lambda: tokenmill.export(out, to="llmc", out=tmp_path / "x"),
        ):
            with pytest.raises((errors.CorruptStore, errors.RunFailed), match=r"(?s)part 3 is damaged.*repair=True"):
                call()
        prepare(source, out, repair=True)
        tokenmill.export(out, to="llmc", out=tmp_path / "x")
    else:
        (out / "manifest.parquet").unlink()
        prepare(source, out)
    assert part_bytes(out) == expected
    tokenmill.verify(out, sample=1.0)
