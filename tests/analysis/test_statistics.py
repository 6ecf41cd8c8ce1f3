"""The census of a store: its counts against a plain count in Python, duplicates, values of columns, the log."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, Unpack

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tokenmill.analysis import by_column, duplicates, history
from tokenmill.analysis.by_column import ValueCount, ValueCounts
from tokenmill.analysis.count_parts import CountParts, PartCounts, PartGroup, TokenSizes, count_tokens
from tokenmill.analysis.lengths import BUCKETS, LONGEST, LengthCounts, bucket, first_lengths
from tokenmill.analysis.totals import summarize_lengths
from tokenmill.errors import CorruptStore, IncompleteStore, SourceError, UsageError
from tokenmill.storage import folder_at
from tokenmill.store.collection import open_collection
from tokenmill.store.part import PartContent

LANGUAGES = ["en", "fr", None, "中文"]


def content(documents: list[list[int]]) -> PartContent:
    """A part's columns, made of these documents."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in documents])]).astype(np.int64)
    tokens = np.array([token for each in documents for token in each], np.uint16)
    return PartContent(tokens, offsets, np.zeros(len(documents), np.uint32), np.arange(len(documents), dtype=np.uint64))


def prepared(tmp_path: Path, *sources: str, **words: Unpack[PrepareArguments]) -> str:
    """A store of these sources, in small units. Its end token is one that is in texts, too."""
    out = str(tmp_path / "tokens")
    given: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "unit_bytes": "1k", "workers": 1, "eot": "32", **words}
    tokenmill.prepare(list(sources), out=out, **given)
    return out


@pytest.mark.parametrize("tokenizer", [SMALL_TIKTOKEN, SMALL_JSON], ids=["tiktoken", "json"])
def test_counts_equal_a_plain_count(tmp_path: Path, documents: list[str], tokenizer: str) -> None:
    """Tokens, lengths, sources, bytes and vocabulary are those that a loop over all documents finds."""
    sources = [write_parquet(tmp_path / f"{i}.parquet", documents[i::3], row_group_size=2) for i in range(3)]
    directory = prepared(tmp_path, *sources, tokenizer=tokenizer)
    store, found = tokenmill.open(directory), tokenmill.stats(directory, workers=2)

    everything = [store.document(i) for i in range(len(store))]
    lengths = sorted(len(each.tokens) for each in everything)
    counts = Counter(int(token) for each in everything for token in each.tokens)
    assert (found.documents, found.tokens) == (len(everything), sum(lengths))
    assert found.text_bytes == sum(len(text.encode()) for text in documents)
    assert (found.lengths.shortest, found.lengths.longest) == (lengths[0], lengths[-1])
    assert sum(each.documents for each in found.lengths.bins) == len(lengths)
    assert all(
        each.documents == sum(each.first <= length <= each.last for length in lengths) for each in found.lengths.bins
    )
    for length, (some, their) in found.lengths.shorter_than.items():
        assert some == pytest.approx(sum(n < length for n in lengths) / len(lengths), abs=1e-6)
        assert their == pytest.approx(sum(n for n in lengths if n < length) / sum(lengths), abs=1e-6)
    assert found.vocabulary.used == len(counts)
    shown = [(each.id, each.count) for each in found.vocabulary.most_frequent]
    assert shown == sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: len(shown)]
    assert all(each.id not in counts for each in found.vocabulary.first_unused)
    by_source = Counter(each.source for each in everything)
    assert {each.name: each.documents for each in found.sources.largest} == by_source
    if found.bytes_per_token_bins is not None:  # a vocabulary whose tokens stand for the very bytes of the text
        assert {each.name: each.bytes for each in found.sources.largest} == {
            source: sum(len(text.encode()) for text in documents[i::3]) for i, source in enumerate(sources)
        }
        assert sum(found.bytes_per_token_bins) == len(everything)


def test_counts_do_not_depend_on_how_documents_are_cut(
    tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part with many documents is counted some at a time, with the same result."""
    sources = [write_parquet(tmp_path / f"{i}.parquet", documents[i::3]) for i in range(3)]
    directory = prepared(tmp_path, *sources)
    stores = open_collection([directory])
    count_parts, group = CountParts(stores.job, stores.parts_without_erased([0])), PartGroup(0, 0, len(stores.manifest))
    whole = count_parts(group)
    monkeypatch.setattr("tokenmill.analysis.count_parts.DOCUMENTS_PER_BATCH", 2)
    cut = count_parts(group)
    for name in ("ratios", "by_source", "tokens"):
        assert np.array_equal(getattr(whole, name), getattr(cut, name))
    assert summarize_lengths(whole.lengths) == summarize_lengths(cut.lengths)


def test_the_small_vocabulary_is_faithful(tmp_path: Path, documents: list[str]) -> None:
    """Byte-level vocabularies let bytes be told for each document; what is told adds up to the text."""
    found = tokenmill.stats(prepared(tmp_path, write_parquet(tmp_path / "a.parquet", documents)))
    assert found.bytes_per_token_bins is not None
    assert found.sources.largest[0].bytes == found.text_bytes


@given(st.lists(st.lists(st.integers(0, 9), max_size=12), max_size=12), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_tokens_are_counted_however_they_are_cut(documents: list[list[int]], at_once: int) -> None:
    """Bytes of documents, empty ones too, are right wherever the pieces end in which tokens are counted."""
    sizes = np.arange(10, dtype=np.int64)
    counts = np.zeros(10, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tokenmill.analysis.count_parts.TOKENS_PER_BATCH", at_once)
        written = count_tokens("store", 0, content(documents), counts, TokenSizes(sizes, 3))
    assert written.tolist() == [sum(each) - 3 for each in documents]
    assert counts.tolist() == [sum(each.count(token) for each in documents) for token in range(10)]


@pytest.mark.fast
def test_a_token_that_there_is_not_is_refused() -> None:
    """A part with an id beyond the vocabulary is damaged, and not counted."""
    with pytest.raises(CorruptStore, match="holds token 9, of 5"):
        count_tokens("store", 3, content([[1, 9]]), np.zeros(5, np.int64), TokenSizes(np.ones(5, np.int64), 0))


@pytest.mark.fast
@given(st.lists(st.integers(0, 1 << 50), min_size=1, max_size=50))
@settings(max_examples=100, deadline=None)
def test_quantiles_are_as_near_as_promised(lengths: list[int]) -> None:
    """A quantile is the exact one up to 255 tokens, and at most 1 % off beyond."""
    counts, halves = LengthCounts(), LengthCounts()
    counts.add(np.array(lengths[::2], np.int64))
    halves.add(np.array(lengths[1::2], np.int64))
    counts.merge(halves)
    ordered = sorted(lengths)
    for share in (0.01, 0.25, 0.5, 0.75, 0.99, 1.0):
        exact = ordered[min(max(int(np.ceil(share * len(ordered))), 1), len(ordered)) - 1]
        found = counts.quantile(share)
        assert found == exact if exact < 256 else abs(found - exact) <= 0.01 * exact


@pytest.mark.fast
def test_buckets_follow_each_other() -> None:
    """Every length has one bucket; their edges rise, and none is wider than 1 % of its lengths."""
    edges = first_lengths()
    assert len(edges) == BUCKETS + 1
    assert (np.diff(edges) >= 1).all()
    assert (bucket(edges[:-1]) == np.arange(BUCKETS)).all()
    assert (bucket(edges[1:] - 1) == np.arange(BUCKETS)).all()
    assert (np.diff(edges)[256:] / edges[256:-1] <= 0.01).all()
    assert bucket(np.array([LONGEST, LONGEST + 1, 1 << 62], np.int64)).tolist() == [BUCKETS - 1] * 3


def test_duplicates_are_exact(tmp_path: Path) -> None:
    """Equal documents are found across parts and sources; not one that differs in one token."""
    base = ["The quick brown fox.", "", "Jumps over the lazy dog.", "The quick brown fox!"]
    first = write_parquet(tmp_path / "a.parquet", [*base, "The quick brown fox."], row_group_size=1)
    second = write_parquet(tmp_path / "b.parquet", ["", "The quick brown fox.", "alone"], row_group_size=1)
    directory = prepared(tmp_path, first, second)
    store, found = tokenmill.open(directory), tokenmill.stats(directory).duplicates
    counts = Counter(tuple(store[i].tolist()) for i in range(len(store)))
    assert found is not None
    assert found.groups == sum(n > 1 for n in counts.values()) == 2
    assert found.documents == sum(n - 1 for n in counts.values()) == 3
    assert found.tokens == sum(len(tokens) * (n - 1) for tokens, n in counts.items())
    assert [(each.copies, each.source, each.row) for each in found.largest] == [(3, first, 0), (2, first, 1)]


@pytest.mark.fast
@given(st.lists(st.lists(st.integers(0, 2), max_size=3), max_size=30), st.integers(1, 5), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_duplicates_do_not_depend_on_ranges_or_files(documents: list[list[int]], ranges: int, files: int) -> None:
    """However hashes are cut into ranges and files, the same groups are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "DOCUMENTS_PER_BATCH", 2)
        whole = duplicates.records(content(documents))
    expected = duplicates.count(whole)
    counts = Counter(map(tuple, documents))
    assert (expected.groups, expected.documents) == (
        sum(n > 1 for n in counts.values()),
        sum(n - 1 for n in counts.values()),
    )
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        for file in range(files):
            duplicates.spill(duplicates.scratch_path(scratch, file), [whole[file::files]], ranges)
        found = duplicates.DuplicateCounts()
        for number in reversed(range(ranges)):
            found = duplicates.merge(found, duplicates.CountDuplicates(scratch, files, ranges)(number))
    assert found == expected


@pytest.mark.fast
def test_copies_take_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a document is there, a scratch file has one record of it, so no range grows with its copies."""
    monkeypatch.setattr(duplicates, "DOCUMENTS_PER_BATCH", 1000)
    parts = [content([[1, 2]] * 2500), content([[7]] + [[1, 2]] * 2500)]
    for file in range(2):
        duplicates.spill(duplicates.scratch_path(str(tmp_path), file), [duplicates.records(it) for it in parts], 3)
        written = Path(duplicates.scratch_path(str(tmp_path), file)).stat().st_size
        assert written == 4 * 8 + 2 * duplicates.RECORD.itemsize
    found = duplicates.DuplicateCounts()
    for number in range(3):
        found = duplicates.merge(found, duplicates.CountDuplicates(str(tmp_path), 2, 3)(number))
    assert (found.groups, found.documents, found.tokens) == (2, 9999 + 1, 2 * 9999 + 1)
    assert [(each.copies, each.tokens, each.row) for each in found.largest] == [(10_000, 2, 0), (2, 1, 0)]


def test_nothing_is_left_in_the_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes are spilled into the directory for temporary files, and nothing of them is there afterwards."""
    directory = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one", "two"]))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    tokenmill.stats(directory)
    with pytest.raises(SourceError):
        tokenmill.stats(directory, by="nothing")
    assert list(scratch.iterdir()) == []


def test_without_room_for_hashes_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the disk is too small to look for duplicates, everything else is counted, and a note says what to do."""
    directory = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one", "one"]))
    monkeypatch.setattr("shutil.disk_usage", lambda _: pq and type("Usage", (), {"free": 10})())
    found = tokenmill.stats(directory)
    assert (found.documents, found.duplicates) == (2, None)
    assert "TMPDIR" in found.notices[0]


def _tagged(tmp_path: Path, kind: str, texts: list[str | None]) -> str:
    """A source with a language for each row."""
    languages = [LANGUAGES[i % len(LANGUAGES)] for i in range(len(texts))]
    if kind == "parquet":
        table = pa.table({"text": pa.array(texts, pa.string()), "language": languages, "n": range(len(texts))})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
        return str(tmp_path / "a.parquet")
    lines = [json.dumps({"text": text, "language": tag}) for text, tag in zip(texts, languages, strict=True)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    return str(tmp_path / "a.jsonl")


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_by_column_equals_a_plain_count(tmp_path: Path, documents: list[str], kind: str) -> None:
    """Tokens, documents and bytes of each value are those of its rows; rows without text are in none."""
    texts: list[str | None] = [*documents]
    texts[1] = texts[6] = None
    directory = prepared(tmp_path, _tagged(tmp_path, kind, texts))
    store, found = tokenmill.open(directory), tokenmill.stats(directory, by="language", workers=2)
    present = [(place, text) for place, text in enumerate(texts) if text is not None]
    expected: dict[str, list[int]] = {}
    for number, (place, text) in enumerate(present):
        figures = expected.setdefault(LANGUAGES[place % len(LANGUAGES)] or by_column.NONE, [0, 0, 0])
        for i, more in enumerate((1, len(store[number]), len(text.encode()))):
            figures[i] += more
    (by,) = found.columns
    assert {each.name: [each.documents, each.tokens, each.bytes] for each in by.largest} == expected
    assert (by.by, by.count, by.others, by.folded) == ("language", len(expected), None, False)
    assert found.skipped.reasons == {"null": 2}


def test_values_of_several_types(tmp_path: Path) -> None:
    """In JSON Lines a value may be a number in some rows, or nested: each is counted as text."""
    lines = ['{"text": "a", "tag": "x"}', '{"text": "b", "tag": 7}', '{"text": "c"}', '{"text": "d", "tag": [1, "z"]}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (by,) = tokenmill.stats(prepared(tmp_path, str(tmp_path / "a.jsonl")), by=["tag"]).columns
    assert {each.name: each.documents for each in by.largest} == {"x": 1, "7": 1, by_column.NONE: 1, '[1, "z"]': 1}


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_that_there_is_not_is_named(tmp_path: Path, kind: str) -> None:
    """The error tells which columns there are, and the option that names one."""
    directory = prepared(tmp_path, _tagged(tmp_path, kind, ["a", "b"]))
    with pytest.raises(SourceError) as error:
        tokenmill.stats(directory, by="dump")
    assert "'dump'" in str(error.value)
    assert "language" in str(error.value)
    assert error.value.text.endswith(by_column.ADVICE)


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_column_that_some_sources_lack(tmp_path: Path, kind: str) -> None:
    """Rows of a file without the column are as those without a value, be it alone in its unit or among others."""
    for number in (1, 2):
        bare = {"text": ["a", "b"]}
        if kind == "parquet":
            pq.write_table(pa.table(bare), tmp_path / f"{number}.parquet")
        else:
            (tmp_path / f"{number}.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    tagged = _tagged(tmp_path, kind, ["c", "d", "e", "f"])
    lacking = [str(tmp_path / f"{number}.{kind}") for number in (1, 2)]
    for place, unit_bytes in enumerate(("1", "1M")):
        out = str(tmp_path / f"tokens{place}")
        sources = [lacking[0], tagged, lacking[1]]
        tokenmill.prepare(sources, tokenizer=SMALL_TIKTOKEN, out=out, unit_bytes=unit_bytes, workers=1, eot="none")
        (by,) = tokenmill.stats(out, by="language").columns
        assert {each.name: each.documents for each in by.largest} == {by_column.NONE: 5, "en": 1, "fr": 1, "中文": 1}
        with pytest.raises(SourceError, match="'dump'"):
            tokenmill.stats(out, by="dump")


def test_a_column_only_in_later_lines(tmp_path: Path) -> None:
    """In JSON Lines a column may begin beyond a file's first unit."""
    lines = [json.dumps({"text": "x" * 100})] * 20 + [json.dumps({"text": "y", "tag": "t"})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    directory = prepared(tmp_path, str(tmp_path / "a.jsonl"))
    assert len(list(Path(directory, "parts").iterdir())) > 1
    (by,) = tokenmill.stats(directory, by="tag").columns
    assert {each.name: each.documents for each in by.largest} == {by_column.NONE: 20, "t": 1}


def test_numbers_and_booleans_are_counted(tmp_path: Path) -> None:
    """Columns of any plain type can be counted by; nested ones are refused."""
    columns: dict[str, list[Any]] = {
        "text": list("abcd"),
        "n": [1, 2, 2, None],
        "x": [0.5, 0.5, 2, 1e30],
        "ok": [True, False, None, True],
    }
    pq.write_table(pa.table({**columns, "nested": [[1]] * 4}), tmp_path / "a.parquet", row_group_size=2)
    rows = [{name: values[row] for name, values in columns.items()} for row in range(4)]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, rows)))
    directory = prepared(tmp_path, str(tmp_path / "a.parquet"), str(tmp_path / "b.jsonl"))
    counted = tokenmill.stats(directory, by=["n", "x", "ok"]).columns
    found = [{each.name: each.documents for each in by.largest} for by in counted]
    assert found[0] == {"1": 2, "2": 4, by_column.NONE: 2}
    assert found[1] == {"0.5": 4, "2": 2, "1e+30": 2}
    assert found[2] == {"true": 4, "false": 2, by_column.NONE: 2}
    with pytest.raises(SourceError, match="is nested"):
        tokenmill.stats(directory, by="nested")


def test_sources_of_text_have_no_columns(tmp_path: Path) -> None:
    """A .txt file has nothing to count by."""
    (tmp_path / "a.txt").write_text("a document")
    with pytest.raises(UsageError, match="text files have no columns"):
        tokenmill.stats(prepared(tmp_path / "2", str(tmp_path / "a.txt")), by="n")


def test_sources_that_changed_are_refused(tmp_path: Path) -> None:
    """A column is read from the sources as they were, or not at all; without one the sources are not needed."""
    source = _tagged(tmp_path, "parquet", ["a", "b"])
    directory = prepared(tmp_path, source)
    write_parquet(Path(source), ["something else", "x", "y"])
    assert tokenmill.stats(directory).documents == 2
    with pytest.raises(SourceError, match="changed"):
        tokenmill.stats(directory, by="language")


@pytest.mark.fast
def test_too_many_values_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the smallest are counted together; nothing is lost, and it is said."""
    monkeypatch.setattr(by_column, "MAX_VALUES", 4)
    counts = ValueCounts()
    for number in range(100):
        other = ValueCounts({f"v{number}": ValueCount(1, number, 0), "big": ValueCount(1, 1000, 0)})
        counts.merge(other)
    total = sum(each.tokens for each in counts.counts.values()) + counts.others.tokens
    assert total == sum(range(100)) + 100_000
    assert counts.folded
    assert len(counts.counts) <= 4
    assert counts.ranked()[0] == ("big", ValueCount(100, 100_000, 0))


def test_one_document_and_none(tmp_path: Path) -> None:
    """A store of one document, or of none, has figures like any other."""
    one = tokenmill.stats(prepared(tmp_path / "1", write_parquet(tmp_path / "one.parquet", ["one"])))
    none = tokenmill.stats(prepared(tmp_path / "0", write_parquet(tmp_path / "none.parquet", [])))
    assert (one.documents, one.lengths.shortest, one.lengths.longest) == (1, one.tokens, one.tokens)
    assert set(one.lengths.quantiles.values()) == {one.tokens}
    assert (none.documents, none.tokens, none.bytes_per_token, none.lengths.bins) == (0, 0, None, [])
    assert none.vocabulary.used == 0


def test_an_incomplete_store_is_refused(tmp_path: Path) -> None:
    """Figures of a store that lacks parts would be wrong."""
    directory = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one"]))
    Path(directory, "manifest.parquet").unlink()
    with pytest.raises(IncompleteStore):
        tokenmill.stats(directory)


def test_a_damaged_part_is_told(tmp_path: Path) -> None:
    """An error of a worker is raised here as what it is."""
    directory = prepared(tmp_path, write_parquet(tmp_path / "a.parquet", ["one"]))
    Path(directory, "parts", "00000000.arrow").write_bytes(b"nothing")
    with pytest.raises(CorruptStore, match="part 0 is damaged"):
        tokenmill.stats(directory)


def _log(folder: Path, name: str, *events: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("".join(json.dumps(each) + "\n" for each in events))


def _unit(time: float, tokens: int = 100, **more: object) -> dict[str, object]:
    return {"time": time, "event": "unit", "unit": 1, "tokens": tokens, "text_bytes": 4 * tokens, **more}


@pytest.mark.fast
def test_the_log_becomes_a_history(tmp_path: Path) -> None:
    """Sessions, pauses, speed, memory and deaths are told from the logs of all ranks."""
    _log(
        tmp_path,
        "log.jsonl",
        {"time": 1000.0, "event": "start"},
        _unit(1010.0, seconds=10.0, pid=1, peak_bytes=50),
        {"time": 1020.0, "event": "death", "unit": 7, "cause": "memory", "how": "was killed", "file": "a", "pid": 2},
        {"time": 5000.0, "event": "start"},
        _unit(5010.0, seconds=10.0, pid=3, peak_bytes=70),
        {"time": 5020.0, "event": "failure", "unit": 7, "kind": "ValueError", "message": "no\nmore"},
    )
    _log(tmp_path, "log-1.jsonl", {"time": 1005.0, "event": "start"}, _unit(1015.0, pid=1, node="n", seconds=5.0))
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert (found.started, found.ended, found.sessions, found.working_seconds) == (1000.0, 5020.0, 3, 40.0)
    assert found.pauses == [history.Pause(20.0, 3980.0)]
    assert (found.deaths, found.failures, found.units_tried_again) == ({"memory": 1}, {"ValueError": 1}, 1)
    assert [(each.event, each.what) for each in found.troubles] == [
        ("death", "was killed, on a"),
        ("failure", "ValueError: no"),
    ]
    assert (found.workers, found.peak_bytes) == (4, 70)
    rates = np.array(found.tokens_per_second)
    assert len(rates) <= 100
    assert rates.sum() * found.bin_seconds == pytest.approx(300, rel=1e-3)
    assert rates[:12].max() == pytest.approx(10.0)  # the first unit alone
    assert rates[75:].max() == 0.0


@pytest.mark.fast
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        b"\xff\xfe not json\n",
        b'{"time": 1e400, "event": "unit"}\n',
        b'{"time": -5, "event": "start"}\n{"time": 1e300, "event": "unit"}\n',
        b'{"time": 1, "event": "unit", "tokens": -1}\n[1]\n"x"\nnull\n',
        b"[" * 100_000 + b"\n",
        b'{"time": 1, "event": "unit", "pid": "x"}',
        b"x" * (3 << 20),
    ],
)
def test_a_strange_log_breaks_nothing(tmp_path: Path, data: bytes) -> None:
    """A log that is empty, cut off or nonsense tells nothing, and does no harm."""
    (tmp_path / "log.jsonl").write_bytes(data)
    assert history.read_history(folder_at(str(tmp_path))) is None


@pytest.mark.fast
def test_lines_that_make_no_sense_are_counted(tmp_path: Path) -> None:
    """What can be read of a log is told, and how much cannot."""
    cut = b'{"time": 2.0, "event": "start"}\n{"time": 3.0, "event": "unit", "tokens": 5}\n{"time": 4.0, "ev'
    (tmp_path / "log.jsonl").write_bytes(b"nonsense\n" + cut)
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert (found.units, found.tokens, found.lines_not_understood) == (1, 5, 2)


@pytest.mark.fast
def test_bad_bytes_in_a_line_are_that_line_only(tmp_path: Path) -> None:
    """A byte that is no UTF-8, in a string of a log, costs one line of it."""
    good = b'{"time": 3.0, "event": "unit", "tokens": 5}\n'
    (tmp_path / "log.jsonl").write_bytes(good + b'{"time": 4.0, "event": "notice", "message": "\xff"}\n' + good)
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert (found.units, found.lines_not_understood) == (2, 1)


@pytest.mark.fast
def test_a_log_that_is_no_file_is_passed_over(tmp_path: Path) -> None:
    """A directory, a pipe or a link that leaves the store is told, and the other logs are read."""
    store = tmp_path / "store"
    _log(store, "log.jsonl", {"time": 5.0, "event": "start"}, _unit(6.0))
    _log(tmp_path, "log.jsonl", _unit(6.0))
    (store / "log-1.jsonl").mkdir()
    os.mkfifo(store / "log-2.jsonl")
    (store / "log-3.jsonl").symlink_to(tmp_path / "log.jsonl")
    notices: list[str] = []
    found = history.read_history(folder_at(str(store)), notices)
    assert found is not None
    assert (found.units, found.sessions) == (1, 1)
    assert [notice.partition(" ")[0] for notice in notices] == ["log-1.jsonl", "log-2.jsonl", "log-3.jsonl"]


def test_a_damaged_quarantine_is_a_notice(tmp_path: Path) -> None:
    """Rows in quarantine are named up to the damage, the page says so, and all else is told."""
    (tmp_path / "a.jsonl").write_text('{"text": 1}\n{"text": 2}\n{"text": "a"}\n')
    directory = prepared(tmp_path, str(tmp_path / "a.jsonl"), max_bad="90%")
    path = Path(directory, "quarantine.jsonl")
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0] + b'{"unit": "\xff')
    found = tokenmill.stats(directory)
    assert (found.skipped.quarantined, len(found.skipped.first)) == (2, 1)
    assert "quarantine.jsonl is damaged" in found.notices[0]


@pytest.mark.fast
@pytest.mark.parametrize(("first", "last"), [(5.0, 5.0004), (-0.0, 5e-324), (5.0, 5.0)])
def test_a_run_of_no_time_has_no_course(tmp_path: Path, first: float, last: float) -> None:
    """A run that is shorter than a millisecond has no bins, and nothing is divided by its time."""
    _log(tmp_path, "log.jsonl", {"time": first, "event": "start"}, _unit(last))
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert (found.working_seconds, found.tokens_per_second, found.units) == (0.0, [], 1)


@pytest.mark.fast
def test_many_kinds_of_trouble(tmp_path: Path) -> None:
    """A kind that is known goes on being counted when there is no room for new ones; the first are so by time."""
    kinds = [f"kind {number}" for number in range(30)] + ["kind 0"] * 5
    events = [{"time": 100.0 + i, "event": "failure", "kind": kind, "unit": i} for i, kind in enumerate(kinds)]
    _log(tmp_path, "log.jsonl", *events)
    _log(tmp_path, "log-7.jsonl", {"time": 1.0, "event": "failure", "kind": "early", "unit": 1 << 70, "pid": 1 << 70})
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert found.failures["kind 0"] == 6
    assert sum(found.failures.values()) == 36
    assert (len(found.troubles), found.troubles[0].what) == (20, "early: ")
    assert [each.time for each in found.troubles] == [1.0, *(100.0 + i for i in range(19))]
    msgspec.json.encode(found)


@pytest.mark.fast
def test_a_line_that_ends_the_store_is_no_session(tmp_path: Path) -> None:
    """Ranks have a log each; the log in which the store is said to be complete adds no session."""
    _log(tmp_path, "log.jsonl", {"time": 900.0, "event": "complete", "units": 2})
    assert history.read_history(folder_at(str(tmp_path))) is None
    _log(tmp_path, "log-0.jsonl", {"time": 5.0, "event": "start"}, _unit(6.0, pid=1, peak_bytes=1 << 70))
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert (found.sessions, found.ended, found.pauses) == (1, 6.0, [])
    assert found.peak_bytes == 1 << 52


@pytest.mark.fast
def test_what_a_run_logs_before_its_start_is_no_session(tmp_path: Path) -> None:
    """A run logs ignored files and notices before its `start`; each run is one session."""
    for number in range(1, 4):
        time = 100.0 * number
        ignored, start = {"time": time, "event": "ignored"}, {"time": time + 1, "event": "start"}
        _log(tmp_path, f"log-{number}.jsonl", ignored, start, _unit(time + 2), start | {"time": time + 9})
    found = history.read_history(folder_at(str(tmp_path)))
    assert found is not None
    assert found.sessions == 6


def test_ignored_files_do_not_make_a_second_session(tmp_path: Path) -> None:
    """One run over a directory with a file that is not read is one session."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "in" / "b.pdf").write_text("no text")
    found = tokenmill.stats(prepared(tmp_path, str(tmp_path / "in"))).history
    assert found is not None
    assert found.sessions == 1


@pytest.mark.fast
def test_no_log_is_no_history(tmp_path: Path) -> None:
    """A store may have been copied without it."""
    assert history.read_history(folder_at(str(tmp_path))) is None


@pytest.mark.fast
def test_counts_of_nothing_add_nothing() -> None:
    """A group of parts without documents leaves a tally as it was."""
    tally = PartCounts(np.zeros(4, np.int64), by_source=np.zeros((3, 2), np.int64))
    tally.merge(PartCounts(np.zeros(4, np.int64)))
    assert (tally.token_count, tally.document_count, tally.by_source.sum()) == (0, 0, 0)
