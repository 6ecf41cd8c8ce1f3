"""Parts with the column `train` and with several documents of one row, which nothing writes yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tokenmill
from tests.support.small_stores import prepare, rewrite_part, rewrite_run, write_source
from tokenmill import spans as spans_module
from tokenmill.errors import CorruptStore, StoreError
from tokenmill.spans import Spans
from tokenmill.storage import folder_at
from tokenmill.store.chain import read_head
from tokenmill.store.layout import part_name
from tokenmill.store.part import (
    PartContent,
    PartSummary,
    check_content,
    check_part,
    open_part,
    read_summary,
    write_columns,
    write_part,
)
from tokenmill.store.part_ranges import open_ranged

SPANS = [[0, 1, 2, 4], [], [1, 3]]
LENGTHS = [4, 2, 3]


def spans_of(lists: list[list[int]]) -> Spans:
    offsets = np.cumsum([0, *map(len, lists)])
    return Spans(np.array([value for one in lists for value in one], np.uint32), offsets)


def lists_of(spans: Spans | None) -> list[list[int]]:
    assert spans is not None
    lists: list[list[int]] = spans.array().to_pylist()
    return lists


def content_with(spans: Spans | None) -> PartContent:
    """Three documents, of which two are pieces of one row."""
    offsets = np.cumsum([0, *LENGTHS])
    source, row = np.zeros(3, np.uint32), np.array([5, 5, 8], np.uint64)
    return PartContent(np.arange(offsets[-1], dtype=np.uint16), offsets, source, row, None, spans)


def test_a_part_with_spans_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Whole and by range; in slices, in selections, and after an erasure, which empties them."""
    folder = folder_at(str(tmp_path))
    folder.create("parts")
    written = write_part(folder, PartSummary(0, "job", 3, 9, 20), content_with(spans_of(SPANS)))
    assert check_part(folder, 0) == written
    content = open_part(folder, 0)[1]
    assert lists_of(content.train) == SPANS
    assert lists_of(content.slice(1, 3).train) == SPANS[1:]
    selected = content.select(np.array([True, False, True]))
    assert lists_of(selected.train) == [SPANS[0], SPANS[2]]
    assert selected.tokens.tolist() == [0, 1, 2, 3, 6, 7, 8]
    erased = content.erase(np.array([2, 0, 0]), 99)
    assert lists_of(erased.train) == [[], [], SPANS[2]]
    assert erased.tokens.tolist() == [99] * 4 + [4, 5, 6, 7, 8]
    assert open_ranged(folder, 0).read_tokens(3, 7).tolist() == [3, 4, 5, 6]


def test_both_checksums_cover_the_spans(tmp_path: Path) -> None:
    """Another span is found by either; a part without the column has other checksums than one with empty spans."""
    folder = folder_at(str(tmp_path))
    folder.create("parts")
    summary = write_part(folder, PartSummary(0, "job", 3, 9, 20), content_with(spans_of(SPANS)))
    other = content_with(spans_of([[0, 1, 3, 4], [], [1, 3]]))
    with pytest.raises(CorruptStore, match="checksum"):
        check_content(folder, summary, other)
    metadata = {"tokenmill.format": "1", "tokenmill.part": msgspec.json.encode(summary)}
    with folder.publish(part_name(0)) as file:
        write_columns(file, other, metadata)
    with pytest.raises(CorruptStore, match=f"expected {summary.blake3}"):
        check_part(folder, 0)
    checksums = []
    for spans in (None, spans_of([[], [], []])):
        folder.discard(part_name(0))
        written = write_part(folder, PartSummary(0, "job", 3, 9, 20), content_with(spans))
        checksums += [written.blake3, written.xxh3]
    assert len(set(checksums)) == 4


@pytest.mark.parametrize("batch", [1, 2, 1 << 20])
@pytest.mark.parametrize(
    "lists",
    [
        [[0, 5], [], []],  # after the end of the document
        [[2, 2], [], []],
        [[3, 1], [], []],
        [[2, 4, 0, 1], [], []],  # not in order
        [[0, 3, 2, 4], [], []],  # overlapping
        [[0, 1, 2], [1], []],  # not in pairs
        [[0, 1], []],  # of two documents
    ],
)
def test_what_no_document_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, lists: list[list[int]]
) -> None:
    """Spans lie in their document, in order; however many are checked at once."""
    monkeypatch.setattr(spans_module, "SPANS_PER_BATCH", batch)
    documents = content_with(None).offsets
    assert spans_of(SPANS).fit(documents)
    assert not spans_of(lists).fit(documents)
    if len(lists) == 3:
        folder = folder_at(str(tmp_path))
        folder.create("parts")
        write_part(folder, PartSummary(0, "job", 3, 9, 20), content_with(spans_of(lists)))
        with pytest.raises(CorruptStore, match="spans"):
            open_part(folder, 0)


def test_pieces_of_a_row_are_documents(tmp_path: Path) -> None:
    """They are read, exported in a fixed order, and erased together, with their spans."""
    prepare(write_source(tmp_path / "in.parquet", "word"), out := tmp_path / "out", eot=0)

    def change(content: PartContent) -> PartContent:
        rows = content.row.copy()
        rows[1] = rows[0]
        return replace(content, row=rows, train=spans_of([[0, 1]] * len(rows)))

    rewrite_part(out, change)
    assert [tokenmill.open(out).document(number).row for number in range(3)] == [0, 0, 2]
    for name in "ab":
        tokenmill.export(out, to="nanogpt", shuffle=7, val="none", out=tmp_path / name)
    assert (tmp_path / "a/train.bin").read_bytes() == (tmp_path / "b/train.bin").read_bytes()
    assert tokenmill.erase(out, rows=[(str(tmp_path / "in.parquet"), 0)]).documents == 2
    folder = folder_at(str(out))
    content = open_part(folder, 0, read_head(folder))[1]
    assert lists_of(content.train)[:3] == [[], [], [0, 1]]
    assert not content.tokens[: content.offsets[2]].any()
    assert read_summary(folder, 0, read_head(folder)).documents == len(content.row)


def test_a_job_with_an_unknown_option_is_refused(tmp_path: Path) -> None:
    """A later version may add options without another format; this one does not read such a store as plain text."""
    prepare(write_source(tmp_path / "in.parquet", "word"), out := tmp_path / "out")
    rewrite_run(out, lambda run: run["job"].update(translate="en"))
    with pytest.raises(StoreError, match=r"(?s)newer tokenmill.*translate"):
        tokenmill.open(out)
