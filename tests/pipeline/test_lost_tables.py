"""Plans, lists of sources and caches that are lost, damaged or swapped are made again as they were, or refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.small_stores import Kept, keep_pair, prepare
from tokenmill import errors
from tokenmill.store import layout

pytestmark = pytest.mark.timeout(240)

TABLES = (layout.PLAN, layout.SOURCES)
DAMAGES: dict[str, Callable[[Path], object]] = {
    "lost": Path.unlink,
    "cut off": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "of another store": lambda path: shutil.copyfile(path.parent.parent / "other" / path.name, path),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """The stores."""
    return keep_pair(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def out(pair: Kept) -> Path:
    """A store, beside another one of the same job and of a source of the same shape."""
    return pair.restored() / "out"


def source(out: Path) -> str:
    """The source of the store."""
    return str(out.parent / "in/out.parquet")


def frozen(out: Path) -> dict[str, bytes]:
    """The files that a store is opened by, and its parts."""
    return part_bytes(out) | {name: (out / name).read_bytes() for name in (layout.RUN, layout.MANIFEST, *TABLES)}


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "unfinished"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("names", [TABLES[:1], TABLES[1:], TABLES], ids=["plan", "sources", "both"])
def test_a_lost_table_is_made_again(out: Path, names: tuple[str, ...], damage: str, complete: bool) -> None:
    """`prepare` makes the plan and the sources again, byte for byte, and does no unit again that has its part."""
    sound = frozen(out)
    if not complete:
        (out / layout.MANIFEST).unlink()
        (out / "parts/00000001.arrow").unlink()
    for name in names:
        DAMAGES[damage](out / name)
    if any(not (out / name).exists() or (out / name).read_bytes() != sound[name] for name in names):
        with pytest.raises(
            errors.CorruptStore if complete else errors.StoreError, match="Run the same `tokenmill prep"
        ):
            tokenmill.verify(str(out))
    else:
        assert (names, damage) == (TABLES[:1], "of another store")  # two sources of one shape have one plan
    assert prepare(source(out), out).units_done_now == (0 if complete else 1)
    assert frozen(out) == sound
    tokenmill.verify(str(out), all=True)


@pytest.mark.parametrize("name", TABLES)
def test_other_options_are_refused_by_name(out: Path, name: str) -> None:
    """With another option the table is not made again, and the message names the option."""
    run = (out / layout.RUN).read_bytes()
    (out / name).unlink()
    with pytest.raises(errors.JobChanged, match="eot="):
        prepare(source(out), out, eot=5)
    with pytest.raises(errors.JobChanged, match="unit_bytes="):
        prepare(source(out), out, unit_bytes=10**6)
    assert not (out / name).exists()
    assert (out / layout.RUN).read_bytes() == run


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("other", ["other", "more", "touched"])
def test_other_sources_are_refused(out: Path, name: str, other: str) -> None:
    """With other sources the table is not made again; the advice of the message leads to a complete store."""
    if other == "touched" and name == layout.PLAN:
        pytest.skip("the list of sources is there to compare with")
    (out / name).unlink()
    given: list[str] = [source(out)]
    if other == "other":
        given = [str(out.parent / "in/other.parquet")]
    elif other == "more":
        given += [str(out.parent / "in/other.parquet")]
    else:
        os.utime(given[0], ns=(1, 1))
    with pytest.raises(errors.JobChanged, match=r"(?s)sources.*(run\.json|remove the directory)") as refused:
        prepare(given, out)
    assert not (out / name).exists()
    if "run.json" in str(refused.value):
        (out / layout.RUN).unlink()
        done = prepare(given, out)
        assert done.units_done_now == (0 if other == "touched" else done.units - (4 if other == "more" else 0))
        tokenmill.verify(str(out), all=True)


def test_a_lost_plan_and_a_touched_source(out: Path) -> None:
    """A plan is made again for sources that were touched, because their list is there to compare with."""
    (out / layout.PLAN).unlink()
    os.utime(source(out), ns=(1, 1))
    assert prepare(source(out), out).units_done_now == 0
    tokenmill.verify(str(out), all=True)


@pytest.mark.parametrize("names", [TABLES[:1], TABLES[1:], TABLES], ids=["plan", "sources", "both"])
@pytest.mark.parametrize("parts_too", [True, False], ids=["with parts", "tables"])
def test_a_lost_run_beside_tables_of_another_store(out: Path, names: tuple[str, ...], parts_too: bool) -> None:
    """Without run.json the run is planned anew; parts of another store are not adopted, whatever lies beside them."""
    sound = frozen(out)
    (out / layout.RUN).unlink()
    parts = [f"parts/{name}" for name in part_bytes(out)] if parts_too else []
    for name in (*names, *parts, layout.MANIFEST):
        shutil.copyfile(out.parent / "other" / name, out / name)
    result = prepare(source(out), out)
    assert result.units_done_now == len(parts)
    assert frozen(out) == sound
    tokenmill.verify(str(out), all=True)


def flip(path: Path) -> None:
    """Flip one bit of the last token."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def remove_tables(cache: Path) -> None:
    """Leave only directories, as a run that was stopped early does."""
    for path in cache.glob("*.*"):
        path.unlink()


CACHE_DAMAGES: dict[str, Callable[[Path], object]] = {
    "no run": lambda cache: (cache / layout.RUN).unlink(),
    "a damaged run": lambda cache: (cache / layout.RUN).write_bytes(b"{"),
    "no plan": lambda cache: (cache / layout.PLAN).unlink(),
    "damaged sources": lambda cache: os.truncate(cache / layout.SOURCES, 100),
    "no vocabulary": lambda cache: shutil.rmtree(cache / layout.TOKENIZER),
    "no rows": lambda cache: shutil.rmtree(cache / "rows"),
    "cut off rows": lambda cache: os.truncate(cache / "rows/00000000.arrow", 100),
    "half made": remove_tables,
    "a flipped bit in rows": lambda cache: flip(cache / "rows/00000000.arrow"),
    "no record of rows": lambda cache: (cache / "rows/00000000.json").unlink(),
    "touched rows": lambda cache: os.utime(cache / "rows/00000000.arrow"),
    "other rows": lambda cache: None,
    "other rows with their record": lambda cache: None,
}


@pytest.mark.parametrize("damage", CACHE_DAMAGES)
def test_a_damaged_cache_of_map_dataset_is_made_again(tmp_path: Path, damage: str) -> None:
    """`map_dataset` uses a cache directory only if all of it is sound; rows of another run are never taken."""
    dataset = datasets.Dataset.from_dict({"text": [f"document {row}" for row in range(50)]})
    cache = tmp_path / "cache"
    expected = tokenmill.map_dataset(dataset, SMALL_JSON, num_proc=1, cache_dir=str(cache)).to_dict()
    (folder,) = cache.iterdir()
    if damage in {
        "no run",
        "half made",
        "other rows",
        "other rows with their record",
    }:  # rows that are there belong to something else
        other = datasets.Dataset.from_dict({"text": [f"another {row}" for row in range(50)]})
        tokenmill.map_dataset(other, SMALL_JSON, num_proc=1, cache_dir=str(tmp_path / "other"))
        (other_folder,) = (tmp_path / "other").iterdir()
        shutil.copyfile(other_folder / "rows/00000000.arrow", folder / "rows/00000000.arrow")
        if damage == "other rows with their record":
            shutil.copy2(other_folder / "rows/00000000.arrow", folder / "rows/00000000.arrow")
            shutil.copy2(other_folder / "rows/00000000.json", folder / "rows/00000000.json")
    CACHE_DAMAGES[damage](folder)
    assert tokenmill.map_dataset(dataset, SMALL_JSON, num_proc=1, cache_dir=str(cache)).to_dict() == expected
    assert (folder / layout.RUN).exists()
