"""The scan for characters that the fast engine may split differently, and the completeness of its tables."""

import importlib.util
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support import ROOT
from tokenmill.tokenization import unicode_gap
from tokenmill.tokenization.unicode_gap import GAP, SPLIT_GAP, Ranges, documents_with_gap

POINTS = sorted({point for first, last in GAP for point in range(first, last + 1)})
EDGES = sorted({point + step for first, last in GAP for point, step in ((first, -1), (first, 0), (last, 0), (last, 1))})

in_table = st.sampled_from(POINTS).map(chr)
near_table = st.sampled_from(EDGES).map(chr)
anything = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), near_table, st.sampled_from("aé中😀")), max_size=12
)
rarely_in_table = st.one_of(anything, anything, st.tuples(anything, in_table, anything).map("".join))


def joined(texts: list[str], before: str = "", after: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Documents as a buffer and offsets, with other text before the first and after the last."""
    parts = [text.encode() for text in (before, *texts, after)]
    offsets = np.cumsum([len(part) for part in parts[:-1]], dtype=np.int64)
    return np.frombuffer(b"".join(parts), np.uint8), offsets


def naive(texts: list[str], table: Ranges) -> list[int]:
    """What documents_with_gap promises, said slowly."""
    points = {point for first, last in table for point in range(first, last + 1)}
    return [i for i, text in enumerate(texts) if points & set(map(ord, text))]


@pytest.mark.thorough
@given(st.lists(rarely_in_table, max_size=12), rarely_in_table, rarely_in_table, st.integers(1, 40), st.booleans())
@example([], "", "", 1, False)
@example(["", "\U000323b0", ""], "\u088f", "\u088f", 1, True)
def test_any_documents(texts: list[str], before: str, after: str, block_bytes: int, small: bool) -> None:
    """Exactly the documents with a character of the table are found, wherever the blocks end."""
    table = SPLIT_GAP if small else GAP
    data, offsets = joined(texts, before, after)
    found = documents_with_gap(data, offsets, table, block_bytes=block_bytes)
    assert found.dtype == np.int64
    assert found.tolist() == naive(texts, table)


def test_every_code_point() -> None:
    """Of all characters, as documents of their own, those of the table are found and no other."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    lengths = [1 + (p >= 0x80) + (p >= 0x800) + (p >= 0x10000) for p in points]
    data = np.frombuffer("".join(map(chr, points)).encode(), np.uint8)
    found = documents_with_gap(data, np.cumsum([0, *lengths], dtype=np.int64))
    assert [points[i] for i in found] == POINTS


@pytest.mark.parametrize("point", [0x7FD, 0x88F, 0xA7F1, 0x10940, 0x33479])
def test_every_alignment_at_a_block_edge(point: int) -> None:
    """A character is found at any place around the edge of a block of the usual size."""
    block_bytes = unicode_gap._BLOCK_BYTES
    for at in range(block_bytes - 6, block_bytes + 3):
        data, offsets = joined(["x" * at + chr(point) + "y", "é" * 9])
        assert documents_with_gap(data, offsets).tolist() == [0]


def test_empty_documents_are_not_blamed() -> None:
    """The document that holds the character is named, not an empty one that begins at the same byte."""
    data, offsets = joined(["", "", "a\u088fb", "", "c", ""])
    assert documents_with_gap(data, offsets).tolist() == [2]


@pytest.fixture(scope="module")
def derivation() -> ModuleType:
    """The script that derives the tables."""
    path = ROOT / "scripts" / "derive_unicode_gap.py"
    spec = importlib.util.spec_from_file_location("derive_unicode_gap", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_tables_are_complete_for_the_installed_tiktoken(derivation: ModuleType) -> None:
    """No character outside SPLIT_GAP is split differently by the installed gigatoken and tiktoken."""
    derived = set().union(*(derivation.split_gap(each, quick=True) for each in derivation.synthetic_tiktoken()))
    assert derived, "the engines agree on every character: the tables are no longer needed"
    assert derivation.missing({"SPLIT_GAP": derived}) == {}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("scheme", "table"), [("o200k", "SPLIT_GAP"), pytest.param("deepseek", "GAP", marks=pytest.mark.slow)]
)
def test_tables_are_complete_for_the_installed_tokenizers(derivation: ModuleType, scheme: str, table: str) -> None:
    """No character outside the table is split differently by the installed gigatoken and tokenizers."""
    engines = derivation.json_engines(scheme, derivation.synthetic_json(derivation.SPLITS[scheme]))
    assert derivation.missing({table: derivation.split_gap(engines, quick=True)}) == {}


@pytest.mark.thorough
def test_tables_are_complete_for_combining_marks(derivation: ModuleType) -> None:
    """No mark outside NFC_GAP is ordered differently by the installed gigatoken and tokenizers."""
    assert derivation.missing({"NFC_GAP": derivation.combining_gap(derivation.NormalForms())}) == {}


@pytest.mark.slow
def test_tables_are_complete_for_compositions(derivation: ModuleType) -> None:
    """No characters outside NFC_GAP are composed differently by the installed gigatoken and tokenizers."""
    table = {point for first, last in unicode_gap.NFC_GAP for point in range(first, last + 1)}
    assert derivation.composition_gap(derivation.NormalForms(), known=table) == set()
