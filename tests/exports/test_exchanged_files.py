"""Exports whose files were deleted, cut, damaged or taken from another export never pass for right."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.arguments import ExportArguments
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.export_harm import HARMS, error_of, follow, locate, state_files, tree
from tokenmill import errors, results
from tokenmill.exports import records
from tokenmill.exports.job import PLAN, read_frozen
from tokenmill.storage import folder_at

pytestmark = pytest.mark.timeout(300)
FORMATS: list[str] = ["nanogpt", "megatron", "olmo", "litdata", "mds", "parquet"]
SHARD_TOKENS = 7000
DIFFERENCES: dict[str, ExportArguments] = {"seed": {"shuffle": 2}, "val": {"val": 0.4}}
STATE = ".tokenmill"
MANIFEST = f"{STATE}/manifests/00000000.parquet"


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


def export(store: str, out: Path, to: str, **options: Unpack[ExportArguments]) -> results.ExportResult:
    """An export in small shards."""
    given: ExportArguments = {
        "val": "none",
        "shuffle": 1,
        "shard_tokens": SHARD_TOKENS,
        "workers": 1,
        **options,
    }
    if to == "mds":
        given["sequence_tokens"] = 64
    return tokenmill.export(store, to=to, out=str(out), **given)


def verify(out: Path) -> results.VerifyResult:
    """Verify an export."""
    return tokenmill.verify(str(out), workers=1)


def first_shard(out: Path) -> str:
    """The file with the tokens of the first shard."""
    name: str = pq.read_table(out / MANIFEST)["files"][0].as_py()[0]["name"]
    return name


def refused(out: Path) -> errors.TokenmillError:
    """The error of `verify`, which has to have exit code 3."""
    error = error_of(lambda: verify(out))
    assert error is not None
    assert error.exit_code == errors.CORRUPT
    return error


@pytest.fixture(scope="module")
def exported(store: str, other_store: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """An export to a format, perhaps with a difference. Each is made once, and tests copy it."""
    folder = tmp_path_factory.mktemp("exported")

    @functools.cache
    def make(to: str, difference: str = "") -> Path:
        out = folder / f"{to}-{difference}"
        export(other_store if difference == "store" else store, out, to, **DIFFERENCES.get(difference, {}))
        return out

    return make


@pytest.mark.parametrize("taken", ["shards", "records", "manifest", "shards and manifest", "shards and records"])
@pytest.mark.parametrize(
    ("to", "difference"),
    [
        ("llmc", "seed"),
        ("llmc", "val"),
        ("llmc", "store"),
        ("megatron", "seed"),
        ("litdata", "store"),
        ("parquet", "val"),
    ],
)
def test_files_of_another_export_are_found(
    tmp_path: Path, store: str, exported: Callable[..., Path], to: str, difference: str, taken: str
) -> None:
    """Shards, records or the manifest of an export with another seed, val or store: `verify` has exit code 3."""
    sound, other, out = exported(to), exported(to, difference), tmp_path / "out"
    shutil.copytree(sound, out)
    if "shards" in taken:
        for name in tree(other):
            shutil.copyfile(other / name, out / name)
    if "records" in taken:
        shutil.copytree(other / STATE / "shards", out / STATE / "shards", dirs_exist_ok=True)
    if "manifest" in taken:
        shutil.copyfile(other / MANIFEST, out / MANIFEST)
    follow(refused(out), out, lambda: export(store, out, to))
    assert tree(out) == tree(sound)
    verify(out)


def test_the_manifest_names_its_export(exported: Callable[..., Path]) -> None:
    """The metadata of the manifest has the digest of the export's job, as every record has, and a checksum."""
    folder = folder_at(str(exported("llmc")))
    frozen = read_frozen(folder)
    assert frozen is not None
    seal = json.loads(pq.read_schema(exported("llmc") / MANIFEST).metadata[b"tokenmill.manifest"])
    assert (seal["export"], len(seal["blake3"])) == (frozen.job.digest(), 64)
    assert records.read(folder, 0).export == frozen.job.digest()


def test_a_damaged_plan_is_found(tmp_path: Path, exported: Callable[..., Path]) -> None:
    """The trainer does not read it, but `locate`, `erase` and the same export do."""
    out = shutil.copytree(exported("llmc"), tmp_path / "out")
    plan = out / PLAN
    plan.write_bytes(plan.read_bytes()[:-1])
    error = refused(out)
    assert isinstance(error, errors.CorruptStore)
    assert "plan.parquet" in str(error)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("to", ["nanogpt", "litdata"])
def test_an_export_is_compared_with_its_store(tmp_path: Path, to: str, inside: bool) -> None:
    """`verify EXPORT` reports a store that was made again, or is another one, since; and says if there is none."""
    directory = prepare(tmp_path, "says")
    out = Path(directory) / to if inside else tmp_path / "export"
    export(directory, out, to)
    assert verify(out).notices == []
    kept = shutil.copytree(out, tmp_path / "kept")
    shutil.rmtree(tmp_path / "store")
    prepare(tmp_path, "sees")
    if inside:
        shutil.copytree(kept, out)
    error = refused(out)
    assert "made from other parts" in str(error)
    if inside:
        with pytest.raises(errors.CorruptStore, match="made from other parts"):
            tokenmill.verify(directory, workers=1)
        shutil.move(out, tmp_path / "moved")
        out = tmp_path / "moved"
    shutil.rmtree(tmp_path / "store")
    (notice,) = verify(out).notices
    assert notice.startswith("store not compared")
    assert "store not compared" in command.run("verify", out).stdout


def test_a_moved_store_is_found_again(tmp_path: Path) -> None:
    """The same export from where the store is now writes no shard, and `verify` compares with that store."""
    directory = prepare(tmp_path, "says")
    export(directory, tmp_path / "export", "llmc")
    shutil.move(directory, tmp_path / "moved")
    assert verify(tmp_path / "export").notices
    assert export(str(tmp_path / "moved"), tmp_path / "export", "llmc").shards_done_now == 0
    assert verify(tmp_path / "export").notices == []


@pytest.mark.parametrize("to", ["nanogpt", "olmo"])
def test_an_export_without_its_job_is_corrupt(
    tmp_path: Path, store: str, exported: Callable[..., Path], to: str
) -> None:
    """Without export.json, verify, locate, finish and export have exit code 3 and advice that works."""
    out = shutil.copytree(exported(to), tmp_path / "out")
    sound, shard = tree(out), out / first_shard(out)
    (out / STATE / "export.json").unlink()
    locate: tuple[str | Path, ...] = ("locate", shard, "5")
    for words in (("verify", out), locate, (*locate, "--store", store), ("finish", out)):
        message = command.run(*words, code=errors.CORRUPT).stderr
        assert "export.json is missing" in message
        assert f"Remove the directory {out} and export again." in message
    error = error_of(lambda: export(store, out, to))
    assert error is not None
    assert error.exit_code == errors.CORRUPT
    follow(error, out, lambda: export(store, out, to))
    assert tree(out) == sound
    with pytest.raises(errors.StoreError, match="is an export, not a store"):
        tokenmill.finish(str(out))


def test_an_export_without_its_job_is_a_problem_of_its_store(tmp_path: Path) -> None:
    """`verify STORE` reports an export inside it that has no export.json, and `locate` names it."""
    directory = prepare(tmp_path, "says")
    tokenmill.export(directory, to="llmc", shard_tokens=SHARD_TOKENS)
    (tmp_path / "store/llmc" / STATE / "export.json").unlink()
    with pytest.raises(errors.CorruptStore, match=r"export\.json is missing"):
        tokenmill.verify(directory, workers=1)
    assert "is missing" in tokenmill.locate(directory, source="a.parquet", row=1).unasked["llmc"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    "to", [*FORMATS[:1], *(pytest.param(to, marks=pytest.mark.slow) for to in FORMATS[1:5]), FORMATS[5]]
)
def test_advice_leads_to_a_right_export(
    tmp_path: Path, store: str, exported: Callable[..., Path], to: str, harm: str
) -> None:
    """Every file of an export is harmed: each command ends well and right, or its advice, if followed, mends it."""
    sound, other, out = exported(to), exported(to, "seed"), tmp_path / "out"
    expected, shard = tree(sound), first_shard(sound)
    located = locate(sound, shard, store)
    for name in state_files(sound):
        source = other / name if (other / name).exists() else other / first_shard(other)
        harmless = name == f"{STATE}/plan.parquet"  # a complete export does without
        for call in (verify, functools.partial(export, store, to=to)):
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(sound, out)
            HARMS[harm](out / name, source)
            error = error_of(functools.partial(call, out=out))
            if error is None and call is verify:
                assert harmless or tree(out) == expected, name
                assert harmless or is_alike(out / name, sound / name), name
            if error is not None:
                assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
                follow(error, out, lambda: export(store, out, to))
            assert tree(out) == expected, name
            verify(out)
        shutil.rmtree(out)
        shutil.copytree(sound, out)
        HARMS[harm](out / name, source)
        error = error_of(lambda: check_located(out, shard, store, located))
        if error is not None:
            assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
            follow(error, out, lambda: export(store, out, to))
            assert tree(out) == expected, name


@pytest.mark.parametrize("to", ["nanogpt", "llmc", "parquet", "olmo"])
def test_a_file_that_a_trainer_would_also_read_is_found(
    tmp_path: Path, store: str, exported: Callable[..., Path], to: str
) -> None:
    """A file that is called like a shard, but is not of the export, is refused by verify and by the same export."""
    out = shutil.copytree(exported(to), tmp_path / "out")
    shard = out / first_shard(out)
    extra = out / (shard.name.replace("train", "val") if to == "nanogpt" else shard.name.replace("0000", "0009"))
    shutil.copyfile(shard, extra)
    (out / "notes.bin").write_text("somebody else's")
    assert str(extra) in str(refused(out))
    with pytest.raises(errors.UsageError, match="not from this export"):
        export(store, out, to)
    extra.unlink()
    export(store, out, to)
    verify(out)


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


def test_a_flipped_byte_is_written_over_by_the_same_export(
    tmp_path: Path, store: str, exported: Callable[..., Path]
) -> None:
    """The same export compares the files on a disk with their checksums, and writes only the one that differs."""
    for to in ("nanogpt", "llmc", "litdata"):
        out = shutil.copytree(exported(to), tmp_path / to)
        expected = tree(out)
        for name in expected:
            HARMS["flip"](out / name, out)
            done = export(store, out, to)
            assert any(name in notice for notice in done.notices)
            assert done.shards_done_now == (0 if name == "index.json" else 1)
            assert tree(out) == expected
