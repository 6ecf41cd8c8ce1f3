"""The tokenizer of ids is found by decoding and encoding them; what cannot be told apart is said."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import SMALL_JSON
from tests.support.documents import DOCUMENTS
from tests.support.families import byte_fallback_families
from tokenmill.errors import SourceError, UsageError
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.recognize import IdSample, Recognizer, vocabularies_at_hand
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.round_trip import check_tokens, refuse_tokens, require_ids
from tokenmill.tokenization.tokenizer import Tokenizer
from tokenmill.tokenization.vocabularies import from_tokenizer_json

TEXTS = [
    f"{text} {number}  and {word}\n" for number in range(3) for word, text in enumerate(DOCUMENTS) if len(text) > 8
]


def encode(vocabulary: Vocabulary, texts: Sequence[str] = TEXTS) -> list[Tokens]:
    """The ids of each text by the reference."""
    encoded = Tokenizer(vocabulary.spec, vocabulary.content, "reference").encode(pa.array(texts, pa.large_string()))
    return [encoded.document(index).astype(np.uint32) for index in range(len(texts))]


def sample_of(documents: Sequence[Tokens], end: int | None = None) -> IdSample:
    """Documents, each with an end token."""
    framed = [ids if end is None else np.append(ids, np.uint32(end)) for ids in documents]
    return IdSample(framed, largest=max(int(ids.max()) for ids in framed))


def stream_of(pieces: Sequence[Tokens]) -> IdSample:
    """A whole file of these tokens."""
    joined = np.concatenate(pieces)
    return IdSample([joined], is_stream=True, at_start=True, at_end=True, largest=int(joined.max()))


def names(found: Sequence[object]) -> list[str]:
    return [each.names[0] for each in found]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def small() -> Vocabulary:
    return resolve(SMALL_JSON)


@pytest.fixture(scope="module")
def other() -> Vocabulary:
    """A vocabulary with other tokens."""
    content = byte_fallback_families(TEXTS)["Llama 2, TinyLlama"]()
    return from_tokenizer_json("other", "other", json.dumps(content).encode(), None)


def test_the_right_vocabulary_is_found(small: Vocabulary, other: Vocabulary) -> None:
    """It gives all documents equal. Another one gives next to none."""
    found = Recognizer([other, small]).recognize(sample_of(encode(small), small.spec.end_of_text))
    assert (names(found.likely), names(found.others), found.is_sure) == (["small"], ["other"], True)
    best = found.likely[0]
    assert (best.check.equal, best.check.differs) == (len(TEXTS), 0)
    assert (best.frame.begin, best.frame.end) == (None, small.spec.end_of_text)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_stream_is_cut_at_its_end_token(small: Vocabulary, is_first: bool) -> None:
    """The end token stands before or after each document; the start and the end of the file tell which."""
    end = np.array([small.spec.end_of_text], np.uint32)
    pieces = [np.concatenate((end, ids) if is_first else (ids, end)) for ids in encode(small)]
    best = Recognizer([small]).recognize(stream_of(pieces)).likely[0]
    assert (best.frame.end, best.frame.is_first, best.frame.documents) == (end[0], is_first, len(TEXTS))
    assert best.check.equal == best.check.documents == len(TEXTS) - 1
    within = Recognizer([small]).recognize(stream_of([pieces[0][5:], *pieces[1:-1], pieces[-1][:-5]])).likely[0]
    assert within.frame.is_first is None


def test_a_stream_without_an_end_token_is_read_in_windows(small: Vocabulary, other: Vocabulary) -> None:
    """Windows begin and end within words and characters; there the tokens may differ."""
    ids = encode(small, ["\n".join(TEXTS)])
    found = Recognizer([other, small]).recognize(stream_of(ids))
    assert names(found.likely) == ["small"]
    assert found.likely[0].check.equal == found.likely[0].check.documents > 1
    assert found.likely[0].frame.end is None


def test_few_documents_are_never_sure(small: Vocabulary) -> None:
    """The evidence says how many could be compared."""
    found = Recognizer([small]).recognize(sample_of(encode(small)[:5]))
    assert (names(found.likely), found.is_sure) == (["small"], False)
    assert found.evidence == ["only 5 documents could be compared"]
    assert Recognizer([small]).recognize(sample_of(encode(small))).is_sure


def test_one_tokenizer_in_two_files(small: Vocabulary) -> None:
    """Both are named, because nothing tells them apart."""
    content = small.content.replace(b'"version":"1.0"', b'"version": "1.0"')
    copy = from_tokenizer_json("copy", "copy", content, None)
    found = Recognizer([small, copy]).recognize(sample_of(encode(small)))
    assert (names(found.likely), found.is_sure) == (["small", "copy"], False)
    assert found.evidence[0].startswith("small or copy: they have the same tokens")


def test_a_relative_is_not_sure(small: Vocabulary) -> None:
    """A tokenizer with the same tokens and other cuts of words gives many documents equal, and not all."""
    content = json.loads(small.content)
    digits = {"type": "Digits", "individual_digits": True}
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, content["pre_tokenizer"]]}
    relative = from_tokenizer_json("relative", "relative", json.dumps(content).encode(), None)
    plain = ["".join(character for character in text if not character.isnumeric()) for text in TEXTS]
    texts = [*plain, *(f"{text} 1234567" for text in plain[:5])]
    found = Recognizer([small]).recognize(sample_of(encode(relative, texts)))
    assert (names(found.likely), found.is_sure) == (["small"], False)
    assert "differ: their text was changed, or the tokenizer is a relative of small" in found.evidence[0]
    both = Recognizer([small, relative]).recognize(sample_of(encode(relative, texts)))
    assert (names(both.likely), both.is_sure) == (["relative"], True)


def test_nothing_fits_noise(small: Vocabulary, other: Vocabulary) -> None:
    """Random ids are of no tokenizer."""
    ids = np.random.default_rng(1).integers(0, small.spec.vocabulary_size, (40, 60), np.uint32)
    found = Recognizer([small, other]).recognize(sample_of(list(ids)))
    assert (found.likely, found.is_sure) == ([], False)


def test_control_tokens_within_documents_are_equal(small: Vocabulary) -> None:
    """A conversation has the ids of control tokens, which their spelling does not give as text."""
    end = np.array([small.spec.end_of_text], np.uint32)
    first, *others = encode(small)
    check = check_tokens(small, [np.concatenate((first, end, ids)) for ids in others])
    assert check.equal == check.documents == len(others)


def test_byte_fallback_is_decoded_without_its_first_space() -> None:
    """A tokenizer that puts a space before each text gives the ids again."""
    for name, build in byte_fallback_families(TEXTS).items():
        vocabulary = from_tokenizer_json(name, name, json.dumps(build()).encode(), None)
        assert check_tokens(vocabulary, encode(vocabulary)).equal_share > 0.95


def test_a_wrong_tokenizer_is_refused(small: Vocabulary, other: Vocabulary) -> None:
    """The message has the shares with an example of each, and what to do."""
    ids = [ids[ids < other.spec.vocabulary_size] for ids in encode(small)]
    check = check_tokens(other, ids)
    assert check.is_refused
    assert check.equal + check.differs + check.not_utf8 + check.outside == check.documents
    with pytest.raises(UsageError, match="not those of other") as refused:
        refuse_tokens(check, "a.bin")
    assert "--trust-tokens" in refused.value.details[-1]
    assert f"equal        {check.equal} of {check.documents} sampled documents" in refused.value.details
    right = check_tokens(small, encode(small))
    assert (right.is_refused, right.equal_share) == (False, 1.0)
    refuse_tokens(right, "a.bin")


def test_a_tenth_of_the_documents_may_differ(small: Vocabulary) -> None:
    """Pipelines cut text after encoding it. Fewer than 3 documents say nothing."""
    documents = encode(small)[:40]
    broken = [np.repeat(ids, 2) for ids in documents]
    assert not check_tokens(small, documents[:36] + broken[:4]).is_refused
    assert check_tokens(small, documents[:35] + broken[:5]).is_refused
    assert not check_tokens(small, documents[:5] + broken[:5]).is_refused
    assert check_tokens(small, documents[:2] + broken[:3]).is_refused
    assert not check_tokens(small, broken[:2]).is_refused


def test_bytes_that_are_no_text_are_counted(small: Vocabulary) -> None:
    """A document that is cut within a character is not UTF-8."""
    documents = encode(small, ["水車は文章" * 4] * 30)
    check = check_tokens(small, [ids[1:] for ids in documents])
    assert (check.not_utf8, check.equal) == (30, 0)
    assert "\\x" in check.not_utf8_example


def test_ids_beyond_the_vocabulary_are_refused(small: Vocabulary) -> None:
    """The file, the place and the id are named. Such a vocabulary is not tried."""
    size = small.spec.vocabulary_size
    ids = np.array([1, size - 1, size, 3], np.uint32)
    require_ids(small.spec, ids[:2], "a.bin", 0)
    with pytest.raises(SourceError, match="an id that small does not have") as refused:
        require_ids(small.spec, ids, "a.bin", 1000)
    assert refused.value.details[:3] == ("file         a.bin", "token        1,002", f"id           {size:,}")
    check = check_tokens(small, [*encode(small)[:30], ids])
    assert (check.outside, check.outside_example, check.is_refused) == (1, size, True)
    found = Recognizer([small]).recognize(sample_of([*encode(small), ids]))
    assert (found.likely, found.others[0].check.documents) == ([], 0)


def test_gpt2_and_p50k_base_are_told_apart_by_spaces(test_data: Path) -> None:
    """They share a prefix: runs of spaces tell them apart, and prose does not."""
    texts = pq.read_table(test_data / "corpus/en/000.parquet", columns=["text"])["text"].slice(0, 60).to_pylist()
    prose = [re.sub(r"\s+", " ", text) for text in texts]
    gpt2, p50k = resolve("gpt2"), resolve("p50k_base")
    recognizer = Recognizer([gpt2, p50k])
    for vocabulary in (gpt2, p50k):
        found = recognizer.recognize(sample_of(encode(vocabulary, texts), 50256))
        assert (names(found.likely), found.is_sure) == ([vocabulary.spec.name], True)
        both = recognizer.recognize(sample_of(encode(vocabulary, prose), 50256))
        assert (names(both.likely), both.is_sure) == (["gpt2", "p50k_base"], False)
        assert "24 tokens that only p50k_base has, such as 50257 '  '" in both.evidence[0]
    alone = Recognizer([gpt2], missing=["p50k_base"]).recognize(sample_of(encode(gpt2, texts), 50256))
    assert (names(alone.likely), alone.is_sure) == (["gpt2"], False)
    assert alone.evidence == ["p50k_base was not tried: its vocabulary is not on this machine"]


def test_vocabularies_at_hand_need_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encodings that are not in the cache are named, and not fetched."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found, missing = vocabularies_at_hand()
    assert {"gpt2", "cl100k_base"} <= set(missing)
    assert not {each.spec.name for each in found} & set(missing)
