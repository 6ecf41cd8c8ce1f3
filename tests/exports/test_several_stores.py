"""Several stores read as one: they equal one store of all sources, and an added store leaves the others alone."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.export_model import END, flat, model, read_back
from tokenmill.errors import CorruptStore, JobChanged, UsageError
from tokenmill.token_files import FORMATS

VAL = 0.2


def export(stores: list[str], **options: Any) -> Any:
    return tokenmill.export(stores, **options)


def texts(seed: int) -> list[str | None]:
    rng = random.Random(seed)
    drawn = ["".join(rng.choices("etaoin shrdlu\n", k=rng.choice([0, 3, 40, 200]))) for _ in range(80)]
    return [None if number % 40 == 11 else text for number, text in enumerate(drawn)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A file for each of three generations."""
    folder = tmp_path_factory.mktemp("sources")
    return [write_parquet(folder / f"{name}.parquet", texts(seed), 20) for seed, name in enumerate("abc")]


@pytest.fixture(scope="module")
def stores(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Three generations: the second and third take their job from the one before."""
    folder = tmp_path_factory.mktemp("stores")
    directories = [str(folder / name) for name in "ABC"]
    tokenmill.prepare(sources[0], tokenizer=SMALL_TIKTOKEN, eot=END, out=directories[0], unit_bytes=2000, workers=1)
    for source, before, out in zip(sources[1:], directories, directories[1:], strict=False):
        tokenmill.prepare(source, like=before, out=out, unit_bytes=3000, workers=1)
    return directories


@pytest.fixture(scope="module")
def whole(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """One store of all sources."""
    out = str(tmp_path_factory.mktemp("whole") / "store")
    tokenmill.prepare(sources, tokenizer=SMALL_TIKTOKEN, eot=END, out=out, unit_bytes=2000, workers=1)
    return out


def documents(out: Path, name: str) -> dict[str, tuple[list[int], list[int]]]:
    """The tokens of each split, and the lengths of its documents if the format has them. Those of mds are sequences."""
    found = {}
    for split, shards in read_back(out, name).items():
        lengths = [length for _, some in shards for length in (some.tolist() if some is not None else [])]
        found[split] = [t for tokens, _ in shards for t in tokens.tolist()], [] if name == "mds" else lengths
    return found


@pytest.mark.parametrize(
    ("name", "shuffle"), [*((name, 7) for name in FORMATS), ("nanogpt", None), ("megatron", None), ("parquet", None)]
)
def test_three_generations_equal_one_store(
    name: str, shuffle: int | None, stores: list[str], whole: str, tmp_path: Path
) -> None:
    """An export of three stores holds what an export of one store of all sources holds, document for document."""
    options: dict[str, Any] = {"to": name, "val": VAL, "tail": "keep", "shuffle": shuffle}
    if name not in ("nanogpt", "megatron"):
        options["shard_tokens"] = 3000
    result = export(stores, out=str(tmp_path / "several"), **options)
    export([whole], out=str(tmp_path / "one"), **options)
    assert result.stores == stores
    several, one = (documents(tmp_path / which, name) for which in ("several", "one"))
    assert several == one
    assert set(several) == {"train", "val"}


@pytest.mark.parametrize("name", [name for name, each in FORMATS.items() if not each.SPEC.layout.val_last])
def test_a_store_that_is_added_leaves_the_shards_as_they_were(name: str, stores: list[str], tmp_path: Path) -> None:
    """Every token file of the earlier stores is there with the same bytes; in one file, they are its beginning."""
    options: dict[str, Any] = {"to": name, "val": VAL} | ({} if name == "nanogpt" else {"shard_tokens": 3000})
    earlier, later = tmp_path / "earlier", tmp_path / "later"
    export(stores[:2], out=str(earlier), **options)
    export(stores, out=str(later), **options)
    compared = 0
    indexes = {"index.json"}  # lists all shards
    for path in sorted(earlier.rglob("*")):
        if ".tokenmill" in path.parts or path.is_dir() or path.name in indexes:
            continue
        same = later / path.relative_to(earlier)
        if name in ("parquet", "text"):  # its names have the number of shards
            same = next(later.glob(f"{path.name.rsplit('-of-', 1)[0]}-of-*"))
        assert same.read_bytes()[: path.stat().st_size if name == "nanogpt" else None] == path.read_bytes(), path
        compared += 1
    assert compared >= 2


def test_the_validation_documents_only_grow(stores: list[str], tmp_path: Path) -> None:
    """Documents that were held out stay held out, whatever is added and in whatever order."""
    held_out = []
    for number, given in enumerate([stores[:1], stores[:2], stores, stores[::-1]]):
        export(given, to="parquet", val=VAL, out=str(tmp_path / str(number)))
        opened = tokenmill.open(given)
        shards = read_back(tmp_path / str(number), "parquet")["val"]
        assert flat(model(opened, VAL, None, "appended")["val"]) == [t for tokens, _ in shards for t in tokens.tolist()]
        held_out.append({tuple(document) for document in model(opened, VAL, None, "appended")["val"]})
    assert held_out[0] <= held_out[1] <= held_out[2] == held_out[3]


def test_first_shard_is_of_the_first_store(stores: list[str], tmp_path: Path) -> None:
    """With --val first-shard, stores that are added change neither val nor the size of shards."""
    for number, given in enumerate([stores[:1], stores]):
        export(given, to="llmc", out=str(tmp_path / str(number)))
    first, all_of_them = ({path.name: path.read_bytes() for path in (tmp_path / n).glob("*.bin")} for n in "01")
    assert first.items() <= all_of_them.items()
    assert [name for name in all_of_them if "val" in name] == [name for name in first if "val" in name]


def test_reading_several_stores(stores: list[str], whole: str) -> None:
    """Documents, tokens, rows and skipped rows are numbered through all stores, as in one store of all sources."""
    several, one = tokenmill.open(stores), tokenmill.open(whole)
    assert (len(several), several.token_count, several.directories) == (len(one), one.token_count, stores)
    assert [tokens.tolist() for tokens in several] == [tokens.tolist() for tokens in one]
    for position in (0, 77, 78, 100, 155, len(one) - 1):
        document, same = several.document(position), one.document(position)
        assert (document.source, document.row, document.kind) == (same.source, same.row, same.kind)
        assert document.store == stores[position // 78]
        assert several.decode(position) == one.decode(position)
        start = several.start_of(position)
        assert start == one.start_of(position)
        assert several.at(start) == one.at(start)
        source = several.sources["path"].to_pylist().index(document.source)
        assert several.find(source, document.row) == position
    assert several.find(1, 11) is None
    assert several.why_not(1, 11) == "null"
    assert np.array_equal(several.tokens(100, one.token_count - 100), one.tokens(100, one.token_count - 100))
    assert list(several.skipped()) == list(one.skipped())
    assert several.sources["path"].to_pylist() == one.sources["path"].to_pylist()
    again = pickle.loads(pickle.dumps(several[70:90]))
    assert [tokens.tolist() for tokens in again] == [tokens.tolist() for tokens in one[70:90]]
    assert repr(stores[0])[1:-1] in repr(several)


def test_statistics_of_several_stores(stores: list[str], whole: str, tmp_path: Path) -> None:
    """Counts are those of one store of all sources, and each store is named with its own."""
    several, one = tokenmill.stats(stores, by="id", workers=1), tokenmill.stats(whole, by="id", workers=1)
    for name in ("documents", "tokens", "text_bytes", "lengths", "vocabulary", "sources", "duplicates", "columns"):
        assert getattr(several, name) == getattr(one, name), name
    assert several.skipped.rows == one.skipped.rows
    assert one.stores is None
    assert several.stores is not None
    assert [store.name for store in several.stores.largest] == stores
    assert sum(store.tokens for store in several.stores.largest) == several.tokens
    page = tokenmill.report(stores, out=str(tmp_path / "page.html"), workers=1)
    text = Path(page.path).read_text()
    assert "Tokens by store" in text
    assert all(directory in text for directory in stores)


def test_locate_in_several_stores(stores: list[str], tmp_path: Path) -> None:
    """A token is found in its store, by the position in all of them and in an export of them, and a row in shards."""
    opened = tokenmill.open(stores)
    out = str(tmp_path / "out")
    export(stores, to="datatrove", val=VAL, shard_tokens=3000, out=out)
    for position in (3, 80, 170):
        expected = opened.document(position)
        start = opened.start_of(position)
        found = tokenmill.locate(stores, start).documents[0]
        assert (found.store, found.source, found.row) == (expected.store, expected.source, expected.row)
        alone = tokenmill.open(expected.store)
        assert np.array_equal(alone[found.document], expected.tokens)
        assert alone.start_of(found.document) == found.store_token
        for given in (None, stores):
            by_row = tokenmill.locate(out, source=expected.source, row=expected.row, store=given)
            assert by_row.documents[0].store == expected.store
            assert by_row.exports is not None
            shard = by_row.exports["datatrove"][0]
            back = tokenmill.locate(shard.file, shard.token).documents[0]
            assert (back.store, back.document) == (found.store, found.document)


def test_verify_several_stores(stores: list[str], tmp_path: Path) -> None:
    """Every store is checked, and an export of several is compared with each of them."""
    result = tokenmill.verify(stores, all=True, workers=1)
    opened = tokenmill.open(stores)
    assert (result.documents, result.documents_compared, result.tokens) == (
        len(opened),
        len(opened),
        opened.token_count,
    )
    out = tmp_path / "out"
    export(stores, to="nanogpt", val="none", out=str(out))
    assert tokenmill.verify(str(out), workers=1).notices == []
    (out / "train.bin").write_bytes((out / "train.bin").read_bytes()[::-1])
    with pytest.raises(CorruptStore, match="not as it was written"):
        tokenmill.verify(str(out), workers=1)
    assert export(stores, to="nanogpt", val="none", out=str(out)).shards_done_now == 1
    assert export(stores, to="nanogpt", val="none", out=str(out)).shards_done_now == 0
    tokenmill.verify(str(out), workers=1)


def test_an_export_without_out_goes_into_the_last_store(sources: list[str], tmp_path: Path) -> None:
    """It is checked with that store, also after that store has moved."""
    first, last = str(tmp_path / "first"), str(tmp_path / "last")
    tokenmill.prepare(sources[0], tokenizer=SMALL_TIKTOKEN, eot=END, out=first, workers=1)
    tokenmill.prepare(sources[1], like=first, out=last, workers=1)
    result = export([first, last], to="nanogpt", val="none")
    assert result.directory == f"{last}/nanogpt"
    moved = str(Path(last).rename(tmp_path / "moved"))
    assert tokenmill.verify(moved, workers=1).exports == {"nanogpt": 1}
    assert tokenmill.locate(f"{moved}/nanogpt/train.bin", 0).documents[0].store == first
    tokenmill.prepare(sources[2], tokenizer=SMALL_TIKTOKEN, eot=END, out=str(tmp_path / "other"), workers=1)
    Path(first).rename(tmp_path / "away")
    (tmp_path / "other").rename(first)
    with pytest.raises(CorruptStore, match="made from other parts"):
        tokenmill.verify(moved, workers=1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"eot": "none"}, "eot="),
        ({"eot": END, "bos": END}, "bos="),
        ({"tokenizer": SMALL_JSON, "eot": 1}, "tokenizer"),
    ],
)
def test_stores_with_other_tokens_are_refused(
    options: dict[str, Any], named: str, sources: list[str], stores: list[str], tmp_path: Path
) -> None:
    """The error names what differs, and both values."""
    other = str(tmp_path / "other")
    given = {"tokenizer": SMALL_TIKTOKEN, **options}
    tokenmill.prepare(sources[1], out=other, workers=1, **given)
    with pytest.raises(UsageError, match=f"the stores have another {named}") as error:
        tokenmill.open([stores[0], other])
    assert all(directory in str(error.value) for directory in (stores[0], other, "like"))
    with pytest.raises(UsageError, match=named):
        export([stores[0], other], to="nanogpt", out=str(tmp_path / "out"))


def test_what_is_refused_besides(stores: list[str], sources: list[str], tmp_path: Path) -> None:
    """The same store twice, no store, and options that contradict --like."""
    with pytest.raises(UsageError, match="given twice"):
        tokenmill.open([stores[0], f"{stores[0]}/../A"])
    with pytest.raises(UsageError, match="no store is given"):
        tokenmill.open([])
    out = str(tmp_path / "out")
    with pytest.raises(UsageError, match="no tokenizer is given"):
        tokenmill.prepare(sources, out=out)
    for option in ({"tokenizer": "gpt2"}, {"eot": 3}, {"bos": 3}):
        with pytest.raises(UsageError, match="cannot be used with like="):
            tokenmill.prepare(sources, like=stores[0], out=out, **option)
    assert not Path(out).exists()


def test_like_takes_the_whole_job(tmp_path: Path) -> None:
    """Column, separator, boundary tokens and the limit of a document come from the other store, or are given."""
    (tmp_path / "a.jsonl").write_text('{"body": "one"}\n{"body": "two, which is longer"}\n')
    (tmp_path / "b.jsonl").write_text('{"content": "three, of another key"}\n')
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    job: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": "none", "bos": 5, "column": "body"}
    tokenmill.prepare(str(tmp_path / "a.jsonl"), **job, max_document_bytes=10_000, out=first, workers=1)
    tokenmill.prepare(str(tmp_path / "b.jsonl"), like=first, column="content", out=second, workers=1)
    before, after = tokenmill.open(first).job, tokenmill.open(second).job
    assert (after.begin, after.end, after.column) == (5, None, "content")
    assert (after.tokenizer, after.document_bytes) == (before.tokenizer, before.document_bytes)
    assert tokenmill.prepare(str(tmp_path / "b.jsonl"), like=first, column="content", out=second).units_done_now == 0
    assert len(tokenmill.open([first, second])) == 3
    assert tokenmill.plan(str(tmp_path / "a.jsonl"), like=first).begin_token == 5


def test_a_column_stands_in_place_of_a_template(tmp_path: Path) -> None:
    """A column that is given beside the template of another store is read; beside a given template it is refused."""
    (tmp_path / "a.jsonl").write_text('{"title": "one", "body": "two, which is longer"}\n')
    call: dict[str, Any] = {"sources": str(tmp_path / "a.jsonl"), "workers": 1}
    own: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": "none"}
    first = str(tmp_path / "first")
    tokenmill.prepare(**call, **own, template="{title}", out=first)
    tokenmill.prepare(**call, **own, column="body", out=tmp_path / "body")
    others: dict[str, dict[str, Any]] = {"title": {}, "like": {"column": "body"}, "both": {"template": "{body}"}}
    for name, options in others.items():
        tokenmill.prepare(**call, like=first, **options, out=tmp_path / name)
        expected = first if name == "title" else tmp_path / "body"
        assert tokenmill.open(tmp_path / name)[0].tolist() == tokenmill.open(expected)[0].tolist()
    with pytest.raises(UsageError, match="column= cannot be used with template="):
        tokenmill.prepare(**call, **own, column="body", template="{title}", out=tmp_path / "refused")


def test_commands_take_several_stores(stores: list[str], tmp_path: Path) -> None:
    """Stores come first, then tokens; a store named like a number is written as a path."""
    opened = tokenmill.open(stores)
    last = opened.token_count - 1
    shown = run("locate", *stores, f"{last:,}").stdout
    assert stores[2] in shown
    assert f"token {tokenmill.open(stores[2]).token_count - 1:,} of {stores[2]}" in shown.replace("store        ", "")
    found = json.loads(run("locate", *stores, "0", str(last), "--json").stdout)["documents"]
    assert {document["store"] for document in found} == set(stores)
    assert "Got unexpected extra arguments (2 3)" in run("locate", *stores, "1", "2", "3", code=2).stderr
    assert "unexpected" in run("locate", stores[0], "1", stores[1], code=2).stderr
    numbered = tmp_path / "2026"
    numbered.symlink_to(stores[1])
    shown = run("locate", stores[0], f"{tmp_path}/./2026", str(last // 2)).stdout
    assert "document" in shown
    assert f"store        {stores[1]}" in run("inspect", *stores, "--doc", "100").stdout
    assert run("inspect", *stores).stdout.count("made with") == 3
    text = run("stats", *stores, "--workers", "1", "-q").stdout
    assert all(f"{directory}: " in text for directory in stores)
    out = tmp_path / "out"
    text = run("export", *stores, "--to", "nanogpt", "--out", out, "--workers", "1").stdout
    assert f"store 3      {stores[2]}" in text
    assert "no problem found" in run("verify", *stores, "--workers", "1").stdout


def test_an_export_follows_the_numbers_of_the_sources(tmp_path: Path) -> None:
    """A store that is made again with one more source, which has no document, has the same parts and other numbers."""
    for name in "pq":
        (tmp_path / name).mkdir()
        lines = [json.dumps({"text": f"{name} {row}"}) + "\n" for row in range(30)]
        (tmp_path / name / "a.jsonl").write_text("".join(lines))
    call: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1}
    directories = [str(tmp_path / name) for name in "AB"]
    for name, directory in zip("pq", directories, strict=True):
        tokenmill.prepare(tmp_path / name, out=directory, **call)
    out = tmp_path / "x"
    export(directories, to="nanogpt", val="none", shuffle=7, out=out)
    (tmp_path / "p/z.jsonl").write_text("")
    shutil.rmtree(directories[0])
    tokenmill.prepare(tmp_path / "p", out=directories[0], **call)
    with pytest.raises(JobChanged):
        export(directories, to="nanogpt", val="none", shuffle=7, out=out)
    shutil.rmtree(out)
    export(directories, to="nanogpt", val="none", shuffle=7, out=out)
    found = tokenmill.locate(out / "train.bin", 150, store=directories)
    assert [Path(document.source).name for document in found.documents] == ["a.jsonl"]


def test_the_default_place_of_several_stores_is_taken(stores: list[str], tmp_path: Path) -> None:
    """Exports of single stores stay as they are: the message has the command with another directory, and it works."""
    first, last = (str(shutil.copytree(store, tmp_path / name)) for store, name in zip(stores, "ab", strict=False))
    options = ("--to", "megatron", "--workers", "1")
    for store in (first, last):
        run("export", store, *options)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.bin")}
    shown = run("export", first, last, *options, code=2).stderr
    assert f"error: {last}/megatron holds an export of other stores\n" in shown
    command = f"tokenmill export {first} {last} --to megatron --out {tmp_path}/a-b-megatron"
    assert f"`{command}`" in shown
    run(*command.split()[1:], "--workers", "1")
    assert before.items() <= {path: path.read_bytes() for path in tmp_path.rglob("*.bin")}.items()
    again = run("export", first, last, stores[2], *options, "--out", f"{tmp_path}/a-b-megatron", code=2).stderr
    assert f"its stores   {first}, {last}\n" in again


def test_the_default_place_of_one_store_is_taken(stores: list[str], tmp_path: Path) -> None:
    """An export of several stores is in the last one. An export of that one alone gets another directory, too."""
    first, last = (str(shutil.copytree(store, tmp_path / name)) for store, name in zip(stores, "ab", strict=False))
    options = ("--to", "llmc", "--workers", "1")
    run("export", first, last, *options)
    (tmp_path / "b-llmc").mkdir()
    shown = run("export", last, *options, code=2).stderr
    assert f"`tokenmill export {last} --to llmc --out {tmp_path}/b-llmc`" in shown
    run("export", last, *options, "--out", tmp_path / "b-llmc")
    assert f"--out {tmp_path}/b-llmc-2`" in run("export", last, *options, code=2).stderr
    run("export", first, last, *options)
