"""Tokenizer families that people train with: the fast engine encodes each of them exactly as `tokenizers` does."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from tests.support.corpora import SMALL_JSON
from tests.support.documents import DOCUMENTS
from tests.support.families import FAMILIES, GPT2_LEVEL, adversarial, byte_fallback_families, shape
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization import cutting
from tokenmill.tokenization.cutting import Cutter
from tokenmill.tokenization.engines import gigatoken
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.engines.protocol import CannotEncode
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.tokenizer import Tokenizer, choose_engine
from tokenmill.tokenization.unicode_gap import documents_with_gap

MODEL = json.loads(Path(SMALL_JSON).read_text())["model"]
# The release candidate of version 1 splits otherwise at this text, and refuses some patterns.
IS_NEXT = tokenizers.__version__.startswith("1.")
NEXT_DIFFERS = "'\u017f"
NEXT_REFUSES = "needs a system-regex backend"
# The long version, with every code point and both corpora: python -m scripts.tokenizer_families
SEED = int(os.environ.get("TOKENMILL_FAMILY_SEED", "5"))
ALL_TEXTS = [*DOCUMENTS, *adversarial(600, SEED), "<think>" * 50, "1" * 301, "9 " * 200, "", "<think>", "7", "", "42"]
TEXTS = [text for text in ALL_TEXTS if not IS_NEXT or NEXT_DIFFERS not in text]


def vocabulary_of(path: Path, content: dict[str, Any]) -> Vocabulary:
    """Write a tokenizer.json and resolve it."""
    path.write_text(json.dumps(content))
    vocabulary = resolve(str(path))
    if IS_NEXT:
        try:
            HuggingFaceEngine(vocabulary.spec, vocabulary.content).encode(pa.array(["a b"], pa.large_string()))
        except CannotEncode as refusal:
            if NEXT_REFUSES not in str(refusal):
                raise
            pytest.skip(str(refusal))
    return vocabulary


def encoded(engine: HuggingFaceEngine | GigatokenEngine | Tokenizer, texts: list[str]) -> list[list[int]]:
    """The tokens of each text."""
    result = engine.encode(pa.array(texts, pa.large_string()))
    return [result.document(place).tolist() for place in range(len(texts))]


def assert_equal_tokens(vocabulary: Vocabulary, texts: list[str], tokenizer: GigatokenEngine | Tokenizer) -> None:
    """Every text's tokens are the reference's."""
    assert_same(texts, encoded(tokenizer, texts), encoded(reference_of(vocabulary), texts))


def reference_of(vocabulary: Vocabulary) -> HuggingFaceEngine:
    """The library that decides."""
    return HuggingFaceEngine(vocabulary.spec, vocabulary.content)


def assert_same(texts: list[str], found: list[list[int]], expected: list[list[int]]) -> None:
    """Two engines agree on every text."""
    wrong = [text for text, one, other in zip(texts, found, expected, strict=True) if one != other]
    assert not wrong, wrong[:3]


# Their vocabulary is trained on half of the texts, so that the others have characters without a token.
FALLBACK_FAMILIES = byte_fallback_families(TEXTS[::2])
PLAIN = ["<think>", "\n\n", "\u2581\u2581", "<s>x"]


def content_of(name: str) -> dict[str, Any]:
    """The tokenizer.json of a family; of one "with tokens", with added tokens that are not special."""
    if name in FAMILIES:
        return FAMILIES[name](MODEL)
    if IS_NEXT:
        pytest.skip("the release candidate of version 1 trains no vocabulary")
    family, _, with_tokens = name.partition(" with ")
    content = FALLBACK_FAMILIES[family]()
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    ids = dict(content["model"]["vocab"])
    tokens = [{"id": ids.setdefault(text, len(ids)), "content": text, **flags} for text in PLAIN]
    return {**content, "added_tokens": content["added_tokens"] + tokens * bool(with_tokens)}


@pytest.mark.parametrize(
    "name", [*FAMILIES, *FALLBACK_FAMILIES, "Llama 2, TinyLlama with tokens", "Gemma 3 with tokens"]
)
def test_a_family_is_encoded_by_the_fast_engine(tmp_path: Path, name: str) -> None:
    """The family's shape is recognized, and all texts get the tokens of `tokenizers`, in a batch and one by one.

    Where no character is in a table, the engine alone gives them, without the tables and the audit.
    """
    vocabulary = vocabulary_of(tmp_path / "t.json", content_of(name))
    assert choose_engine(vocabulary, "auto").engine == "gigatoken", choose_engine(vocabulary, "auto").reason
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    assert tokenizer.engine == "gigatoken", tokenizer.notices
    expected = encoded(reference_of(vocabulary), TEXTS)
    assert_same(TEXTS, encoded(tokenizer, TEXTS), expected)
    assert_same(TEXTS[-8:], [encoded(tokenizer, [text])[0] for text in TEXTS[-8:]], expected[-8:])
    assert tokenizer.mismatch is None
    engine = GigatokenEngine(vocabulary.spec, vocabulary.content)
    data, offsets = text_buffers(pa.array(TEXTS, pa.large_string()))
    with_gap = set(documents_with_gap(data, offsets, engine.gap).tolist())
    places = [place for place in range(len(TEXTS)) if place not in with_gap]
    assert len(places) > 0.75 * len(TEXTS)
    texts = [TEXTS[place] for place in places]
    assert_same(texts, encoded(engine, texts), [expected[place] for place in places])


@pytest.mark.skipif(not IS_NEXT, reason="needs version 1 of tokenizers")
def test_version_1_is_not_yet_equal(tmp_path: Path) -> None:
    """When this fails, the range of `tokenizers` in pyproject.toml can be widened."""
    vocabulary = vocabulary_of(tmp_path / "t.json", FAMILIES["Llama 3"](MODEL))
    texts = [text for text in ALL_TEXTS if NEXT_DIFFERS in text]
    with pytest.raises(AssertionError):
        assert_equal_tokens(vocabulary, texts, GigatokenEngine(vocabulary.spec, vocabulary.content))


OVERLAPS = {
    "tokens that overlap": [("aab", False, False), ("abb", False, False), ("bb", False, False), ("b", False, False)],
    "prefixes": [("ab", False, False), ("abba", False, False), ("a", False, False)],
    "two passes": [("aabb", False, True), ("abbb", False, False), ("ba", False, True)],
    "hidden by special": [("abb", True, False), ("bba", False, False), ("aa", False, False)],
    "special in the second pass": [("abb", True, True), ("bba", False, True), ("aba", False, False)],
    "with spaces": [("a b", False, False), (" ab", False, False), ("b ", False, False)],
    "other bytes": [("é", False, False), ("日本", False, False), ("é日", False, False)],
    "regex characters": [("a.b", False, False), ("(a|b)", False, False), ("[ab]+", False, False)],
}


@pytest.mark.parametrize("name", OVERLAPS)
def test_added_tokens_are_cut_as_tokenizers_cuts_them(tmp_path: Path, name: str) -> None:
    """Overlapping tokens, both passes and special tokens: the leftmost and longest token wins, special ones hide."""
    rng = random.Random(7)
    pieces = [*"aabbb ", "é", "日", "本", ".", "(a|b)", "[ab]+", "x", *[text for text, _, _ in OVERLAPS[name]]]
    texts = ["".join(rng.choices(pieces, k=rng.randint(0, 12))) for _ in range(800)]
    vocabulary = vocabulary_of(tmp_path / "t.json", shape(GPT2_LEVEL, None, OVERLAPS[name])(MODEL))
    assert choose_engine(vocabulary, "auto").engine == "gigatoken", choose_engine(vocabulary, "auto").reason
    assert_equal_tokens(vocabulary, texts, GigatokenEngine(vocabulary.spec, vocabulary.content))


def test_numbers_outside_of_ascii_go_to_the_reference(tmp_path: Path) -> None:
    """Every number of Unicode that the Digits step isolates is in the table, and its document is encoded right."""
    vocabulary = vocabulary_of(tmp_path / "t.json", FAMILIES["StarCoder 2"](MODEL))
    engine = GigatokenEngine(vocabulary.spec, vocabulary.content)
    points = [point for point in range(0x80, 0x110000) if not 0xD800 <= point < 0xE000]
    texts = [f"a{chr(point)}{chr(point)}b" for point in points]
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    with_gap = set(documents_with_gap(data, offsets, engine.gap).tolist())
    numbers = [index for index, point in enumerate(points) if chr(point).isnumeric() and _is_number(chr(point))]
    assert len(numbers) > 1000
    assert [hex(points[index]) for index in numbers if index not in with_gap] == []


def _is_number(character: str) -> bool:
    import unicodedata

    return unicodedata.category(character).startswith("N")


def test_a_document_without_cuts_is_passed_on_whole() -> None:
    """The cutter adds nothing to a batch without added tokens and digits."""
    cutter = Cutter([{"content": "<think>", "id": 7, "special": False, "normalized": False}], None)
    offsets = np.array([0, 3, 3, 10])
    seen = []

    def encode(slices: np.ndarray) -> Any:
        seen.append(slices)
        raise StopIteration

    with pytest.raises(StopIteration):
        cutter.encode(np.frombuffer(b"abcdefghij", np.uint8), offsets, encode)
    assert seen[0] is offsets


@pytest.mark.parametrize("name", [*random.Random(SEED).sample(sorted(FAMILIES), 4), *FALLBACK_FAMILIES])
def test_threads_share_long_documents(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents that threads encode in pieces get the tokens of `tokenizers`."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")
    monkeypatch.setattr(gigatoken, "PIECE_BYTES", 64)
    monkeypatch.setattr(cutting, "MAX_CUT_BYTES", 48)
    vocabulary = vocabulary_of(tmp_path / "t.json", content_of(name))
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    tokenizer.use_threads(2)
    joined = [" ".join(TEXTS[first : first + 40]) for first in range(0, len(TEXTS), 40)] + [" ".join(TEXTS)]
    assert_equal_tokens(vocabulary, joined, tokenizer)
    assert_equal_tokens(vocabulary, TEXTS, tokenizer)


@given(
    texts=st.lists(st.lists(st.sampled_from(["word", " ", "a b", "\u00e9", "12", "x "])).map("".join), min_size=1),
    piece=st.integers(1, 30),
    cut=st.integers(2, 12),
)
def test_long_documents_are_cut_at_safe_positions_only(texts: list[str], piece: int, cut: int) -> None:
    """The offsets stay, every other cut is before a space after a letter of the same document."""
    data, offsets = text_buffers(pa.array(texts, pa.large_string()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "MAX_CUT_BYTES", cut)
        pieces = cutting.cut_long_documents(data, offsets, piece)
    assert set(offsets.tolist()) <= set(pieces.tolist())
    whole = data.tobytes()
    for position in set(pieces.tolist()) - set(offsets.tolist()):
        assert whole[position - 1 : position].isalpha()
        assert whole[position : position + 1] == b" "
    if sum(map(len, texts)) and max(map(len, texts)) < cut:
        assert len(pieces) == len(np.unique(offsets))
