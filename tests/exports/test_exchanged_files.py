"""Exports whose files were deleted, cut, damaged or taken from another export never pass for right."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Unpack

import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import dying
from tests.support.arguments import ExportArguments
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.export_harm import HARMS, error_of, follow, locate, state_files, tree
from tokenmill import errors, results
from tokenmill.api.parameters import FormatName
from tokenmill.executors.local import LocalExecutor
from tokenmill.exports import PRELOAD
from tokenmill.exports.job import PLAN

pytestmark = pytest.mark.timeout(300)
FORMATS: list[FormatName] = ["nanogpt", "megatron", "olmo", "litdata", "mds", "parquet"]
SHARD_TOKENS = 7000
STATE = ".tokenmill"
MANIFEST = f"{STATE}/manifest.parquet"


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalExecutor]:
    """Workers for all tests here: starting them takes longer than the exports."""
    with LocalExecutor(PRELOAD) as executor:
        yield executor


def prepare(directory: Path, word: str) -> str:
    """A store of 200 documents in four units; another word of the same length gives as many tokens."""
    texts = [f"document {row} " + f"{word} little " * (row % 13) for row in range(200)]
    source = write_parquet(directory / "in" / "a.parquet", texts, row_group_size=50)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(directory / "store"), unit_bytes=1, workers=1)
    return str(directory / "store")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store that most exports here are made from."""
    return prepare(tmp_path_factory.mktemp("store"), "says")


@pytest.fixture(scope="module")
def other_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of other documents of the same lengths."""
    return prepare(tmp_path_factory.mktemp("other"), "sees")


def export(
    store: str, out: Path, to: FormatName, pool: LocalExecutor, **options: Unpack[ExportArguments]
) -> results.ExportResult:
    """An export in small shards."""
    given: ExportArguments = {
        "val": "none",
        "shuffle": 1,
        "shard_tokens": SHARD_TOKENS,
        "workers": 1,
        "executor": pool,
        **options,
    }
    if to == "mds":
        given["sequence_tokens"] = 64
    return tokenmill.export(store, to=to, out=str(out), **given)


def verify(out: Path, pool: LocalExecutor) -> results.VerifyResult:
    """Verify an export."""
    return tokenmill.verify(str(out), workers=1, executor=pool)


def first_shard(out: Path) -> str:
    """The file with the tokens of the first shard."""
    name: FormatName = pq.read_table(out / MANIFEST)["files"][0].as_py()[0]["name"]
    return name


def refused(out: Path, pool: LocalExecutor) -> errors.TokenmillError:
    """The error of `verify`, which has to have exit code 3."""
    error = error_of(lambda: verify(out, pool))
    assert error is not None
    assert error.exit_code == errors.CORRUPT
    return error


@pytest.mark.parametrize("taken", ["shards", "records", "manifest", "shards and manifest", "shards and records"])
@pytest.mark.parametrize("difference", ["seed", "val", "store"])
@pytest.mark.parametrize("to", ["llmc", "megatron", "litdata", "parquet"])
def test_files_of_another_export_are_found(
    tmp_path: Path, store: str, other_store: str, pool: LocalExecutor, to: FormatName, difference: str, taken: str
) -> None:
    """Shards, records or the manifest of an export with another seed, val or store: `verify` has exit code 3."""
    if difference == "val" and to == "litdata":
        pytest.skip("val has a directory of its own")
    differences: dict[str, ExportArguments] = {"seed": {"shuffle": 2}, "val": {"val": 0.4}, "store": {}}
    changes = differences[difference]
    export(store, tmp_path / "out", to, pool)
    export(other_store if difference == "store" else store, tmp_path / "other", to, pool, **changes)
    sound = tree(tmp_path / "out")
    if "shards" in taken:
        for name in tree(tmp_path / "other"):
            shutil.copyfile(tmp_path / "other" / name, tmp_path / "out" / name)
    if "records" in taken:
        shutil.copytree(tmp_path / "other" / STATE / "shards", tmp_path / "out" / STATE / "shards", dirs_exist_ok=True)
    if "manifest" in taken:
        shutil.copyfile(tmp_path / "other" / MANIFEST, tmp_path / "out" / MANIFEST)
    error = refused(tmp_path / "out", pool)
    follow(error, tmp_path / "out", lambda: export(store, tmp_path / "out", to, pool))
    assert tree(tmp_path / "out") == sound
    verify(tmp_path / "out", pool)


def test_the_manifest_names_its_export(tmp_path: Path, store: str, pool: LocalExecutor) -> None:
    """The metadata of the manifest has the digest of the export's job, as every record has, and a checksum."""
    from tokenmill.exports import records
    from tokenmill.exports.job import read_frozen
    from tokenmill.storage import folder_at

    export(store, tmp_path, "llmc", pool)
    frozen = read_frozen(folder_at(str(tmp_path)))
    assert frozen is not None
    seal = json.loads(pq.read_schema(tmp_path / MANIFEST).metadata[b"tokenmill.manifest"])
    assert (seal["export"], len(seal["sha256"])) == (frozen.job.digest(), 64)
    assert records.read(folder_at(str(tmp_path)), 0).export == frozen.job.digest()


def test_a_damaged_plan_is_found(tmp_path: Path, store: str, pool: LocalExecutor) -> None:
    """The trainer does not read it, but `locate`, `erase` and the same export do."""
    out = tmp_path / "out"
    export(store, out, "llmc", pool)
    plan = out / PLAN
    plan.write_bytes(plan.read_bytes()[:-1])
    error = refused(out, pool)
    assert isinstance(error, errors.CorruptStore)
    assert "plan.parquet" in str(error)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("to", ["nanogpt", "litdata"])
def test_an_export_is_compared_with_its_store(
    tmp_path: Path, pool: LocalExecutor, to: FormatName, inside: bool
) -> None:
    """`verify EXPORT` reports a store that was made again, or is another one, since; and says if there is none."""
    directory = prepare(tmp_path, "says")
    out = Path(directory) / to if inside else tmp_path / "export"
    export(directory, out, to, pool)
    assert verify(out, pool).notices == []
    kept = shutil.copytree(out, tmp_path / "kept")
    shutil.rmtree(tmp_path / "store")
    prepare(tmp_path, "sees")
    if inside:
        shutil.copytree(kept, out)
    error = refused(out, pool)
    assert "made from other parts" in str(error)
    if inside:
        with pytest.raises(errors.CorruptStore, match="made from other parts"):
            tokenmill.verify(directory, workers=1)
        shutil.move(out, tmp_path / "moved")
        out = tmp_path / "moved"
    shutil.rmtree(tmp_path / "store")
    (notice,) = verify(out, pool).notices
    assert notice.startswith("store not compared")
    ended = dying.run("tokenmill", "verify", out, seconds=60)
    assert ended.exit_code == 0
    assert "store not compared" in ended.output


def test_a_moved_store_is_found_again(tmp_path: Path, pool: LocalExecutor) -> None:
    """The same export from where the store is now writes no shard, and `verify` compares with that store."""
    directory = prepare(tmp_path, "says")
    export(directory, tmp_path / "export", "llmc", pool)
    shutil.move(directory, tmp_path / "moved")
    assert verify(tmp_path / "export", pool).notices
    assert export(str(tmp_path / "moved"), tmp_path / "export", "llmc", pool).shards_done_now == 0
    assert verify(tmp_path / "export", pool).notices == []


@pytest.mark.parametrize("to", ["nanogpt", "olmo"])
def test_an_export_without_its_job_is_corrupt(tmp_path: Path, store: str, pool: LocalExecutor, to: FormatName) -> None:
    """Without export.json, verify, locate, finish and export have exit code 3 and advice that works."""
    out = tmp_path / "out"
    export(store, out, to, pool)
    sound, shard = tree(out), out / first_shard(out)
    (out / STATE / "export.json").unlink()
    locate: tuple[str | Path, ...] = ("locate", shard, "5")
    for command in (("verify", out), locate, (*locate, "--store", store), ("finish", out)):
        ended = dying.run("tokenmill", *command, seconds=60)
        assert ended.exit_code == errors.CORRUPT, ended.output
        assert "export.json is missing" in ended.output
        assert f"Remove the directory {out} and export again." in ended.output
        assert "Traceback" not in ended.output
    error = error_of(lambda: export(store, out, to, pool))
    assert error is not None
    assert error.exit_code == errors.CORRUPT
    follow(error, out, lambda: export(store, out, to, pool))
    assert tree(out) == sound
    with pytest.raises(errors.StoreError, match="is an export, not a store"):
        tokenmill.finish(str(out))


def test_an_export_without_its_job_is_a_problem_of_its_store(tmp_path: Path, pool: LocalExecutor) -> None:
    """`verify STORE` reports an export inside it that has no export.json, and `locate` names it."""
    directory = prepare(tmp_path, "says")
    tokenmill.export(directory, to="llmc", shard_tokens=SHARD_TOKENS, executor=pool)
    (tmp_path / "store/llmc" / STATE / "export.json").unlink()
    with pytest.raises(errors.CorruptStore, match=r"export\.json is missing"):
        tokenmill.verify(directory, workers=1)
    assert "is missing" in tokenmill.locate(directory, source="a.parquet", row=1).unasked["llmc"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    "to", [*FORMATS[:1], *(pytest.param(to, marks=pytest.mark.slow) for to in FORMATS[1:5]), FORMATS[5]]
)
def test_advice_leads_to_a_right_export(
    tmp_path: Path, store: str, pool: LocalExecutor, to: FormatName, harm: str
) -> None:
    """Every file of an export is harmed: each command ends well and right, or its advice, if followed, mends it."""
    sound, other, out = tmp_path / "sound", tmp_path / "other", tmp_path / "out"
    export(store, sound, to, pool)
    export(store, other, to, pool, shuffle=2)
    expected, shard = tree(sound), first_shard(sound)
    located = locate(sound, shard, store)
    for name in state_files(sound):
        source = other / name if (other / name).exists() else other / first_shard(other)
        harmless = name == f"{STATE}/plan.parquet"  # a complete export does without
        for command in ("verify", "export"):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(sound, out)
            HARMS[harm](out / name, source)
            call = {"verify": lambda: verify(out, pool), "export": lambda: export(store, out, to, pool)}[command]
            error = error_of(call)
            if error is None and command == "verify":
                assert harmless or tree(out) == expected, name
                assert harmless or is_alike(out / name, sound / name), name
            if error is not None:
                assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
                follow(error, out, lambda: export(store, out, to, pool))
            assert tree(out) == expected, name
            verify(out, pool)
        shutil.rmtree(out)
        shutil.copytree(sound, out)
        HARMS[harm](out / name, source)
        error = error_of(lambda: check_located(out, shard, store, located))
        if error is not None:
            assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
            follow(error, out, lambda: export(store, out, to, pool))
            assert tree(out) == expected, name


@pytest.mark.parametrize("to", ["nanogpt", "llmc", "parquet", "olmo"])
def test_a_file_that_a_trainer_would_also_read_is_found(
    tmp_path: Path, store: str, pool: LocalExecutor, to: FormatName
) -> None:
    """A file that is called like a shard, but is not of the export, is refused by verify and by the same export."""
    out = tmp_path / "out"
    export(store, out, to, pool)
    shard = out / first_shard(out)
    extra = out / (shard.name.replace("train", "val") if to == "nanogpt" else shard.name.replace("0000", "0009"))
    shutil.copyfile(shard, extra)
    (out / "notes.bin").write_text("somebody else's")
    assert str(extra) in str(refused(out, pool))
    with pytest.raises(errors.UsageError, match="not from this export"):
        export(store, out, to, pool)
    extra.unlink()
    export(store, out, to, pool)
    verify(out, pool)


def is_alike(path: Path, sound: Path) -> bool:
    """Whether a file of the state that was harmed still says the same: some bytes of Arrow files are padding."""
    if not path.exists():
        return False
    if path.suffix == ".arrow":
        return arrow_content(path) == arrow_content(sound)
    if path.suffix == ".parquet":
        return pq.read_table(path).equals(pq.read_table(sound), check_metadata=True)
    return path.read_bytes() == sound.read_bytes()


def arrow_content(path: Path) -> tuple[object, object]:
    """The rows and the metadata of an Arrow file."""
    import pyarrow as pa

    table = pa.ipc.open_file(path).read_all()
    return table.to_pylist(), table.schema.metadata


def check_located(out: Path, shard: str, store: str, expected: list[object]) -> None:
    """Locate ends with an error, or finds what it finds in the sound export."""
    assert locate(out, shard, store) == expected


def test_a_flipped_byte_is_written_over_by_the_same_export(tmp_path: Path, store: str, pool: LocalExecutor) -> None:
    """The same export compares the files on a disk with their checksums, and writes only the one that differs."""
    for to in ("nanogpt", "llmc", "litdata"):
        out = tmp_path / to
        export(store, out, to, pool)
        expected = tree(out)
        for name in expected:
            HARMS["flip"](out / name, out)
            done = export(store, out, to, pool)
            assert any(name in notice for notice in done.notices)
            assert done.shards_done_now == (0 if name == "index.json" else 1)
            assert tree(out) == expected
