"""The audit: how it cuts documents, what it draws, and that it sees a wrong token wherever it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import DATA
from tests.support.corpora import SMALL_JSON
from tokenmill.errors import EngineMismatch
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization import audit
from tokenmill.tokenization import tokenizer as tokenizer_module
from tokenmill.tokenization.audit import AuditMismatchError
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.gigatoken_support import unsupported
from tokenmill.tokenization.resolve import SCHEMES, Vocabulary, resolve
from tokenmill.tokenization.split_patterns import JSON_SPLITS
from tokenmill.tokenization.tokenizer import REFERENCES, Tokenizer

SMALL = json.loads(Path(SMALL_JSON).read_text())
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
WORDS = ["alpha", " beta", " Gamma's", " 12345", ".\n", " \u00e9t\u00e9", "\n\n", "   ", " x", "'LL", " \u4e2d\u6587"]
PARTS = st.lists(st.sampled_from([*WORDS, " ", "\t", "\r\n", "e\u0301", "/", "A", "bC", "\u00a0", "'"]), max_size=12)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | PARTS.map("".join)


def split(pattern: str) -> dict[str, Any]:
    """A splitter by a regex, then bytes."""
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [step, BYTE_LEVEL]}}


JSON_CHANGES: dict[str, dict[str, Any]] = {name: split(pattern) for name, pattern in JSON_SPLITS.items()} | {
    "gpt2.json": {},
    "nfc": {"normalizer": {"type": "NFC"}, "added_tokens": []},
    "nfc-llama3": {"normalizer": {"type": "NFC"}} | split(JSON_SPLITS["llama3"]),
    "prefix-space": {"pre_tokenizer": BYTE_LEVEL | {"add_prefix_space": True, "use_regex": True}},
    "added": {"added_tokens": [{"id": 1200, "content": "    ", **ADDED}, {"id": 1201, "content": " qx", **ADDED}]},
}
VOCABULARIES = [*(scheme for scheme in SCHEMES if scheme not in ("r50k_base", "p50k_base")), *JSON_CHANGES]


def vocabulary(name: str, folder: Path) -> Vocabulary:
    """The small vocabulary with a split pattern or a tokenizer.json's steps."""
    if name in SCHEMES:
        return resolve(f"{DATA / 'small.tiktoken'}:{name}")
    path = folder / f"{name}.json"
    path.write_text(json.dumps(SMALL | JSON_CHANGES[name]))
    return resolve(str(path))


@pytest.fixture(scope="module")
def all_tokenizers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokenizer]:
    """Every kind of vocabulary that the fast engine is used for."""
    folder = tmp_path_factory.mktemp("vocabularies")
    found = {name: vocabulary(name, folder) for name in VOCABULARIES}
    assert {name: reason for name in found if (reason := unsupported(found[name]))} == {}
    return {name: Tokenizer(each.spec, each.content, "gigatoken") for name, each in found.items()}


def encoded(tokenizer: Tokenizer, *texts: str) -> list[list[int]]:
    result = tokenizer.reference.encode(pa.array(texts, pa.large_string()))
    return [result.document(place).tolist() for place in range(len(texts))]


@pytest.mark.thorough
@pytest.mark.parametrize("name", VOCABULARIES)
@settings(deadline=None, max_examples=150)
@given(before=ANY_TEXT, letter=st.sampled_from("azAZsdmtlL"), after=ANY_TEXT)
def test_a_cut_before_a_space_after_a_letter_is_safe(
    all_tokenizers: dict[str, Tokenizer], name: str, before: str, letter: str, after: str
) -> None:
    """With every split pattern, normaliser and added token, the tokens of the two parts are those of the whole."""
    left, right = before + letter, " " + after
    whole, first, second = encoded(all_tokenizers[name], left + right, left, right)
    assert whole == first + second


def long_document(rng: np.random.Generator, size: int, words: list[str]) -> str:
    """Random words."""
    text = "".join(words[place] for place in rng.integers(len(words), size=size))
    return text[:size]


class Wrong:
    """A fast engine that gives one wrong token in one document, or none."""

    name = "gigatoken"

    def __init__(self, engine: GigatokenEngine, document: int, token: int) -> None:
        self.engine, self.document, self.token = engine, document, token
        self.gap = engine.gap

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens, one of them changed."""
        right = self.engine.encode(text)
        tokens = right.tokens.copy()
        if len(text) > self.document:
            place = right.offsets[self.document] + self.token % len(right.document(self.document))
            tokens[place] ^= 1
        return Encoded(tokens, right.offsets)


@contextmanager
def everything_is_audited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(audit, "AUDIT_FRACTION", 1e9)
        yield


@pytest.mark.parametrize("name", VOCABULARIES)
def test_all_pieces_of_right_documents_pass(
    all_tokenizers: dict[str, Tokenizer], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit of every piece of documents of all sizes, in any language, finds no difference where there is none."""
    rng = np.random.default_rng(7)
    latin, mixed = [*WORDS[:5], " qx", "    "], [*WORDS, "e\u0301", "\u4e2d" * 50, "\u212a", " caf\u00e9"]
    sizes = [0, 1, 4096, 4097, 70_000]
    documents = [long_document(rng, size, words) for size in sizes for words in (latin, mixed)]
    documents += ["\u4e2d" * 5000, "a" * 9000, " " * 9000 + "x"]
    with everything_is_audited(monkeypatch):
        all_tokenizers[name].encode(pa.array(documents, pa.large_string()))


@pytest.mark.parametrize("name", ["gpt2", "gpt2.json", "nfc", "prefix-space"])
def test_a_wrong_token_anywhere_in_a_long_document_is_found(
    all_tokenizers: dict[str, Tokenizer], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a document of 200 kB, every token is compared if all pieces are audited: the first, the last, any other."""
    tokenizer = all_tokenizers[name]
    text = long_document(np.random.default_rng(8), 200_000, WORDS[:5])
    documents = pa.array(["short", text], pa.large_string())
    for token in (0, 1, 4_321, 40_000, -1) if name != "prefix-space" else (0, 500):
        monkeypatch.setattr(tokenizer, "_fast", Wrong(GigatokenEngine(tokenizer.spec, tokenizer._content), 1, token))
        with everything_is_audited(monkeypatch), pytest.raises(AuditMismatchError) as caught:
            tokenizer.encode(documents)
        assert caught.value.position == 1


@pytest.mark.thorough
def test_the_budget_is_spent_whatever_the_size_of_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of 100 bytes and of a megabyte are audited in the same share, after the first 256 kB."""
    found = resolve(f"{DATA / 'small.tiktoken'}:gpt2")
    seen: list[int] = []
    for size in (100, 3000, 1 << 20):
        tokenizer = Tokenizer(found.spec, found.content, "gigatoken")
        reference = REFERENCES["tiktoken"](found.spec, found.content)
        encode = reference.encode
        audited = [0]

        def counted(text: pa.LargeStringArray, encode: Any = encode, audited: list[int] = audited) -> Encoded:
            audited[0] += len(text_buffers(text)[0])
            return encode(text)

        monkeypatch.setattr(reference, "encode", counted)
        tokenizer._reference = reference
        batch = pa.array([long_document(np.random.default_rng(9), size, WORDS[:5])] * (2_000_000 // size + 1))
        for _ in range(3):
            tokenizer.encode(batch.cast(pa.large_string()))
        first, audited[0] = audited[0], 0
        assert first == pytest.approx(256_000 + 6_000, rel=0.1)
        for _ in range(15):
            tokenizer.encode(batch.cast(pa.large_string()))
        seen.append(audited[0])
    assert seen == pytest.approx([30_000] * 3, rel=0.35)


def test_what_is_drawn_depends_on_the_batch() -> None:
    """Two batches of equal sizes have other documents audited; the same batch has the same ones."""
    found = resolve(f"{DATA / 'small.tiktoken'}:gpt2")

    def drawn(text: str) -> list[tuple[int, int]]:
        data, offsets = text_buffers(pa.array([text] * 20_000, pa.large_string()))
        tokens = Encoded(np.empty(0, np.uint16), np.zeros(20_001, np.int64))
        return audit.Audit(found.spec, found.content)._draw(audit.Batch(tokens, data, offsets, np.empty(0, np.int64)))

    assert drawn("one" * 30) == drawn("one" * 30)
    first, second = ({document for document, _ in drawn(text)} for text in ("one" * 30, "two" * 30))
    assert len(first) > 2000
    assert len(first & second) < len(first) / 2
    assert max(first) > 19_000


def test_a_mismatch_is_kept_and_a_failed_probe_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an audit failed, the tokenizer has its text; a failed probe gives up the engine without one."""
    found = resolve(f"{DATA / 'small.tiktoken'}:gpt2")
    tokenizer = Tokenizer(found.spec, found.content, "gigatoken")
    text = pa.array(["alpha beta"], pa.large_string())
    assert tokenizer.mismatch is None
    monkeypatch.setattr(tokenizer, "_fast", Wrong(GigatokenEngine(found.spec, found.content), 0, 0))

    def named() -> Encoded:
        try:
            return tokenizer.encode(text)
        except AuditMismatchError as mismatch:
            raise EngineMismatch(f"{mismatch.headline} (file a.txt, row 3)") from None

    result = tokenizer.retry_with_reference(named)
    assert result.tokens.tolist() == tokenizer.reference.encode(text).tokens.tolist()
    assert (tokenizer.engine, "row 3" in (tokenizer.mismatch or "")) == ("tiktoken", True)
    build = GigatokenEngine
    monkeypatch.setattr(tokenizer_module, "GigatokenEngine", lambda *given: Wrong(build(*given), 2, 0))
    probed = Tokenizer(found.spec, found.content, "gigatoken")
    assert (probed.engine, probed.mismatch) == ("tiktoken", None)
