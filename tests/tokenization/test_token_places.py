"""The tokens that overlap ranges of a text, compared with the places that `tokenizers` and `tiktoken` tell."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tokenizers

from tests.support import DATA
from tests.support.corpora import SMALL_JSON
from tests.support.documents import DOCUMENTS
from tests.support.families import adversarial, byte_fallback_families
from tokenmill.spans import Spans
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.token_bytes import token_bytes_lookup
from tokenmill.tokenization.tokenizer import Tokenizer, choose_engine

TEXTS = [*DOCUMENTS[:40], *adversarial(120, 3), "", "a", "e\u0301 \u212b \u0958", "▁ a ▁", "👩‍👩‍👧‍👦" * 3]


def random_ranges(text: str, rng: random.Random) -> list[tuple[int, int]]:
    """Some ranges of characters, in order, that do not touch."""
    edges = sorted(rng.sample(range(len(text) + 1), k=2 * min(rng.randint(0, 4), (len(text) + 1) // 2)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def as_bytes(text: str, ranges: list[tuple[int, int]]) -> list[int]:
    return [len(text[:edge].encode()) for both in ranges for edge in both]


def spans_of(ranges: list[list[int]]) -> Spans:
    offsets = np.cumsum([0, *map(len, ranges)])
    return Spans(np.array([edge for each in ranges for edge in each], np.uint32), offsets)


def is_trained(spans: Spans, document: int, tokens: int) -> list[bool]:
    """Whether each token is in a span."""
    marks = [False] * tokens
    edges = spans.document(document).tolist()
    for begin, end in zip(edges[::2], edges[1::2], strict=True):
        marks[begin:end] = [True] * (end - begin)
    return marks


def overlaps(place: tuple[int, int], ranges: list[tuple[int, int]]) -> bool:
    return any(place[0] < end and begin < place[1] for begin, end in ranges)


def families(tmp_path: Path) -> dict[str, str]:
    """Vocabularies whose tokens are the bytes of the text, and others."""
    made = {name: make() for name, make in byte_fallback_families(TEXTS).items()}
    small = json.loads(Path(SMALL_JSON).read_text())
    made["nfc"] = {**small, "normalizer": {"type": "NFC"}}
    made["lower"] = {**small, "normalizer": {"type": "Lowercase"}}
    paths = {"small": SMALL_JSON, "tiktoken": f"{DATA / 'small.tiktoken'}:cl100k_base"}
    for name, content in made.items():
        paths[name] = str(tmp_path / f"{name}.json")
        Path(paths[name]).write_text(json.dumps(content))
    return paths


@pytest.mark.skipif(tokenizers.__version__.startswith("1."), reason="version 1 does not tell where tokens are")
def test_a_token_is_trained_if_it_overlaps_a_range(tmp_path: Path) -> None:
    """For vocabularies of bytes, with byte fallback, a prefix, or a normalizer that changes lengths; in any batch."""
    rng, checked = random.Random(11), 0
    for name, path in families(tmp_path).items():
        vocabulary = resolve(path)
        tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, choose_engine(vocabulary, "auto").engine).load()
        chosen = [random_ranges(text, rng) for text in TEXTS]
        spans = spans_of([as_bytes(text, ranges) for text, ranges in zip(TEXTS, chosen, strict=True)])
        encoded = tokenizer.encode_pieces(pa.array(TEXTS, pa.large_string()), spans)
        assert encoded.train is not None
        assert encoded.train.fit(encoded.offsets), name
        places = places_of(path, vocabulary)
        for number, (text, ranges) in enumerate(zip(TEXTS, chosen, strict=True)):
            expected = [overlaps(place, ranges) for place in places(text)]
            assert is_trained(encoded.train, number, len(encoded.document(number))) == expected, (name, text, ranges)
            checked += sum(expected)
        # One document by itself gives the same as among others.
        one = tokenizer.encode_pieces(pa.array(TEXTS[3:4], pa.large_string()), spans.slice(3, 4)).train
        assert one is not None
        assert one.values.tolist() == encoded.train.document(3).tolist()
    assert checked > 1000


def places_of(path: str, vocabulary: Any) -> Any:
    """A function that tells the characters (of bytes: as fractions of them) of each token of a text."""
    if path.endswith(".json") and Path(path).name != "small.json":
        content = {**json.loads(Path(path).read_text()), "post_processor": None}
        library = tokenizers.Tokenizer.from_str(json.dumps(content))
        library.encode_special_tokens = True
        return lambda text: library.encode(text, add_special_tokens=False).offsets
    lookup = token_bytes_lookup(vocabulary.spec, vocabulary.content)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "reference").load()

    def places(text: str) -> list[tuple[int, int]]:
        """In characters: the one that a byte belongs to begins the range, and is within it."""
        owner = [number for number, character in enumerate(text) for _ in character.encode()]
        found, position = [], 0
        for token in tokenizer.encode(pa.array([text], pa.large_string())).tokens.tolist():
            stop = position + len(lookup(token))
            found.append((owner[position], owner[stop - 1] + 1))
            position = stop
        assert position == len(text.encode())
        return found

    return places


def test_documents_of_a_slice_of_an_array() -> None:
    """The offsets of an array that is a slice of another do not begin at 0."""
    vocabulary = resolve(SMALL_JSON)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken").load()
    whole = pa.array(["ab cd", "ef gh ij", "", "kl"], pa.large_string())
    spans = spans_of([[0, 2], [3, 5], [], [0, 2]])
    part = tokenizer.encode_pieces(whole.slice(1), spans.slice(1, 4))
    again = tokenizer.encode_pieces(pa.array(whole.slice(1).to_pylist(), pa.large_string()), spans.slice(1, 4))
    assert part.train is not None
    assert again.train is not None
    assert part.train.array().to_pylist() == again.train.array().to_pylist()
    assert text_buffers(whole.slice(1))[1][0] == 0
