"""The gate of the fast engine: a vocabulary that is changed in any way is refused, or both engines agree on it."""

from __future__ import annotations

import base64
import copy
import itertools
import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support import DATA
from tests.support.corpora import SMALL_JSON
from tests.support.documents import DOCUMENTS
from tests.support.families import byte_fallback_families
from tokenmill.errors import TokenizerError
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine
from tokenmill.tokenization.gigatoken_support import unsupported
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.split_patterns import JSON_SPLITS
from tokenmill.tokenization.tokenizer import choose_engine
from tokenmill.tokenization.unicode_gap import documents_with_gap

SMALL = json.loads(Path(SMALL_JSON).read_text())
PER_MUTATION = int(os.environ.get("TOKENMILL_GATE_CASES", "3"))
OPTIONS = {
    "unk_token": "a",
    "fuse_unk": True,
    "byte_fallback": True,
    "end_of_word_suffix": "e",
    "continuing_subword_prefix": "t",
    "ignore_merges": True,
    "cache_capacity": 0,
    "type": "WordPiece",
}
Mutation = Callable[[dict[str, Any], random.Random], None]


def texts(vocabulary: list[str], rng: random.Random) -> pa.LargeStringArray:
    """Words of the vocabulary in random order and spacing, and the small corpus."""
    spaced = [word.replace("\u0120", " ").replace("\u2581", " ") for word in vocabulary]
    words = [word for word in spaced if word.isascii()]
    mixed = ["".join(rng.choice(["", " ", "  ", "\n"]) + rng.choice(words) for _ in range(60)) for _ in range(60)]
    tight = ["".join(rng.choices(words, k=8)) for _ in range(60)]
    tricky = ["the the", "the  the\t the", "a" * 40, "abab" * 10, "    x     ", "K\u212a;\u037e<x>", "e\u0301\u00e9"]
    same_unicode = [text for text in DOCUMENTS if text and not has_gap(text)]
    return pa.array([*same_unicode, *mixed, *tight, *tricky], pa.large_string())


def has_gap(text: str) -> bool:
    """Whether a document goes to the reference for one of its characters."""
    data = np.frombuffer(text.encode(), np.uint8)
    return len(documents_with_gap(data, np.array([0, len(data)]))) > 0


def merge_twice(content: dict[str, Any], rng: random.Random) -> None:
    merges = content["model"]["merges"]
    merges.insert(rng.randrange(len(merges)), rng.choice(merges))


def merges_shuffled(content: dict[str, Any], rng: random.Random) -> None:
    merges = content["model"]["merges"]
    first = rng.randrange(len(merges) - 40)
    merges[first : first + 40] = rng.sample(merges[first : first + 40], 40)


def merge_in_another_way(content: dict[str, Any], rng: random.Random) -> None:
    """Another pair that makes a token that there is, at its place or anywhere."""
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    splits = [
        (t[:n], t[n:]) for t in vocabulary for n in range(1, len(t)) if t[:n] in vocabulary and t[n:] in vocabulary
    ]
    new = [list(pair) for pair in rng.sample(splits, 20) if list(pair) not in merges]
    merges.extend(new)
    if rng.random() < 0.5:
        merges.sort(key=lambda pair: vocabulary["".join(pair)])


def merge_of_nothing(content: dict[str, Any], rng: random.Random) -> None:
    content["model"]["merges"].insert(rng.randrange(900), ["z", "\u0120\u0120z"])


def merge_removed(content: dict[str, Any], rng: random.Random) -> None:
    merges = content["model"]["merges"]
    for _ in range(5):
        merges.pop(rng.randrange(len(merges)))
    content["model"]["ignore_merges"] = rng.choice([False, True])


def ids_swapped(content: dict[str, Any], rng: random.Random) -> None:
    vocabulary = content["model"]["vocab"]
    for _ in range(5):
        first, second = rng.sample(list(vocabulary), 2)
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]


def id_twice(content: dict[str, Any], rng: random.Random) -> None:
    first, second = rng.sample(list(content["model"]["vocab"]), 2)
    content["model"]["vocab"][first] = content["model"]["vocab"][second]


def id_with_gap(content: dict[str, Any], rng: random.Random) -> None:
    content["model"]["vocab"][rng.choice(list(content["model"]["vocab"]))] = 1250


def token_not_in_bytes(content: dict[str, Any], rng: random.Random) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary[rng.choice([" ", " the", "", "\u4e2d", "the the"])] = len(vocabulary)
    content["model"]["ignore_merges"] = rng.choice([False, True])
    content["added_tokens"] = []


def token_without_merge(content: dict[str, Any], rng: random.Random) -> None:
    vocabulary = content["model"]["vocab"]
    vocabulary["".join(rng.choices("aehinorst", k=4))] = len(vocabulary)
    content["model"]["ignore_merges"] = rng.choice([False, True])
    content["added_tokens"] = []


def added_token(content: dict[str, Any], rng: random.Random) -> None:
    """Added tokens with any flags: words, parts of words, spaces."""
    texts = rng.sample(["the", "th", "he", " the", "the the", "    ", "  ", " ", "K", ";", "\u00e9", "x y", "qu"], 3)
    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    tokens = [{"content": text} | {flag: rng.random() < 0.15 for flag in flags} for text in texts]
    vocabulary, free = content["model"]["vocab"], len(content["model"]["vocab"])
    for token in tokens:
        token["id"] = vocabulary.get(token["content"], free)
        free += token["id"] == free
    content["added_tokens"] = tokens
    content["normalizer"] = rng.choice([None, None, {"type": "NFC"}])
    content["pre_tokenizer"]["add_prefix_space"] = rng.choice([False, False, True])


def option(content: dict[str, Any], rng: random.Random) -> None:
    name = rng.choice([*OPTIONS])
    content["model"][name] = OPTIONS[name]


def step(content: dict[str, Any], rng: random.Random) -> None:
    split = {"type": "Split", "pattern": {"Regex": JSON_SPLITS["llama3"]}, "behavior": "Isolated", "invert": False}
    byte_level = content["pre_tokenizer"] | {"use_regex": False}
    if rng.random() < 0.5:
        content["pre_tokenizer"][rng.choice(["use_regex", "add_prefix_space", "something"])] = rng.random() < 0.5
        return
    split |= rng.choice([{"invert": True}, {"behavior": "Removed"}, {"pattern": {"String": "e"}}, {"more": 1}])
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}


def template(content: dict[str, Any], rng: random.Random) -> None:
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    times = rng.choice([1, 2])
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [piece] * times,
        "pair": [piece, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {},
    }


MUTATIONS: list[Mutation] = [
    *(merge_twice, merges_shuffled, merge_in_another_way, merge_of_nothing, merge_removed),
    *(ids_swapped, id_twice, id_with_gap, token_not_in_bytes, token_without_merge),
    *(added_token, added_token, added_token, option, step, template),
]


def differences(fast: Encoded, right: Encoded, documents: pa.LargeStringArray) -> list[str]:
    """The documents on which two engines differ."""
    return [
        documents[place].as_py()
        for place in range(len(documents))
        if not np.array_equal(fast.document(place), right.document(place))
    ]


@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=lambda number: f"{number}-{MUTATIONS[number].__name__}")
def test_a_changed_tokenizer_json_is_refused_or_encoded_alike(tmp_path: Path, number: int) -> None:
    """Whatever is changed in a tokenizer.json, gigatoken is not used, or gives the tokens that tokenizers gives."""
    for seed in range(PER_MUTATION):
        rng = random.Random(seed * 100 + number)
        content = copy.deepcopy(SMALL)
        MUTATIONS[number](content, rng)
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(content))
        vocabulary = resolve(str(path))
        if unsupported(vocabulary) is None:
            check(
                vocabulary,
                HuggingFaceEngine(vocabulary.spec, vocabulary.content),
                texts(list(content["model"]["vocab"]), rng),
            )


def byte_token_merged(content: dict[str, Any], rng: random.Random) -> None:
    """A merge with the token of a byte, which a text can spell."""
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    token, word = rng.choice(["<0x41>", "<0x0A>", "<0xE2>"]), rng.choice(["a", "<0x41>", "\u2581"])
    vocabulary[token + word] = len(vocabulary)
    merges.insert(rng.choice([0, len(merges)]), [token, word])
    content["added_tokens"] = []


def byte_token_spelled(content: dict[str, Any], rng: random.Random) -> None:
    """Merges that make the spelling of a byte's token out of characters."""
    vocabulary, merges = content["model"]["vocab"], content["model"]["merges"]
    spelling = rng.choice(["<0x41>", "<0x0A>"])
    for stop in range(2, len(spelling) + 1):
        vocabulary.setdefault(spelling[:stop], len(vocabulary))
        merges.append([spelling[: stop - 1], spelling[stop - 1]])
    content["added_tokens"] = []


def byte_token_renamed(content: dict[str, Any], rng: random.Random) -> None:
    vocabulary = content["model"]["vocab"]
    byte = f"<0x{rng.choice([0, 9, 65, 200, 240, 192, 255]):02X}>"
    vocabulary[rng.choice([byte.lower(), f"{byte}x"])] = vocabulary.pop(byte)


def plain_token(content: dict[str, Any], rng: random.Random) -> None:
    """Added tokens that are matched in the text, some with flags that change how."""
    texts = rng.sample(["the", " the", "\n\n", "\u2581", "\u2581\u2581", " ", "x y", "<0x0A>", "\u00e9"], 2)
    flags = ("lstrip", "rstrip", "single_word", "normalized")
    vocabulary = dict(content["model"]["vocab"])
    for text in texts:
        number = vocabulary.setdefault(text, len(vocabulary))
        token = {"id": number, "content": text, "special": False} | {flag: rng.random() < 0.1 for flag in flags}
        content["added_tokens"].append(token)


def other_shape(content: dict[str, Any], rng: random.Random) -> None:
    """A step that is changed, left out, or in the place of another shape's."""
    name = rng.choice(["normalizer", "pre_tokenizer"])
    other = rng.choice(list(FALLBACK.values()))()[name]
    content[name] = rng.choice([None, other, {**(content[name] or {"type": "NFC"}), "prepend_scheme": "always"}])


FALLBACK = byte_fallback_families([text for text in DOCUMENTS if len(text) < 200])
FALLBACK_MUTATIONS: list[Mutation] = [
    *(merge_twice, merges_shuffled, merge_in_another_way, merge_of_nothing, merge_removed, ids_swapped, id_twice),
    *(id_with_gap, token_not_in_bytes, token_without_merge, option, template),
    *(byte_token_merged, byte_token_spelled, byte_token_renamed, plain_token, plain_token, other_shape, other_shape),
]


@pytest.mark.parametrize(
    "number", range(len(FALLBACK_MUTATIONS)), ids=lambda n: f"{n}-{FALLBACK_MUTATIONS[n].__name__}"
)
def test_a_changed_byte_fallback_file_is_refused_or_encoded_alike(tmp_path: Path, number: int) -> None:
    """The same for vocabularies of SentencePiece's kind, in all shapes."""
    spelled = ["<0x41>", "x<0x0A>\n", "A\x00\t\x7f\x80\u00ff", "\u2581 \u2581", "\n\n\n", "the the", "\u20ac<unk></s>"]
    for seed, name in itertools.product(range(PER_MUTATION), FALLBACK):
        rng = random.Random(seed * 100 + number)
        content = FALLBACK[name]()
        FALLBACK_MUTATIONS[number](content, rng)
        (tmp_path / "changed.json").write_text(json.dumps(content))
        vocabulary = resolve(str(tmp_path / "changed.json"))
        if unsupported(vocabulary) is None:
            documents = pa.concat_arrays(
                [texts(list(content["model"]["vocab"]), rng), pa.array(spelled, pa.large_string())]
            )
            check(vocabulary, HuggingFaceEngine(vocabulary.spec, vocabulary.content), documents)


def check(
    vocabulary: Vocabulary, reference: HuggingFaceEngine | TiktokenEngine, documents: pa.LargeStringArray
) -> None:
    """Both engines agree, or gigatoken does not load the file."""
    try:
        fast = GigatokenEngine(vocabulary.spec, vocabulary.content)
    except TokenizerError:
        return
    assert differences(fast.encode(documents), reference.encode(documents), documents) == []


@pytest.mark.parametrize("kind", ["shuffled", "bytes later", "removed", "token twice"])
def test_a_changed_rank_file_is_refused_or_encoded_alike(tmp_path: Path, kind: str) -> None:
    """Whatever is changed in a .tiktoken file, it is refused, or gigatoken gives the tokens that tiktoken gives."""
    tokens = [base64.b64decode(line.split()[0]) for line in (DATA / "small.tiktoken").read_bytes().splitlines()]
    for seed in range(PER_MUTATION):
        rng = random.Random(seed)
        changed = list(tokens)
        if kind == "shuffled":
            first = rng.randrange(256, 1100)
            changed[first : first + 60] = rng.sample(changed[first : first + 60], len(changed[first : first + 60]))
        elif kind == "bytes later":
            place = rng.randrange(256)
            changed.append(changed.pop(place))
        elif kind == "removed":
            changed.pop(rng.randrange(256, len(changed)))
        else:
            changed.insert(rng.randrange(256, 1200), rng.choice(changed))
        path = tmp_path / "changed.tiktoken"
        path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(changed)))
        try:
            vocabulary = resolve(f"{path}:gpt2")
        except TokenizerError:
            assert kind == "token twice"
            continue
        assert kind != "token twice"
        if unsupported(vocabulary) is None:
            words = [token.decode("latin-1") for token in tokens]
            check(vocabulary, TiktokenEngine(vocabulary.spec, vocabulary.content), texts(words, rng))


def test_a_key_that_is_twice_in_the_file_is_refused(tmp_path: Path) -> None:
    """A JSON object that has a key twice goes to the reference: parsers take different values."""
    text = Path(SMALL_JSON).read_text()
    path = tmp_path / "twice.json"
    path.write_text(text.replace('"vocab":', '"ignore_merges": true, "vocab":', 1))
    vocabulary = Vocabulary(resolve(SMALL_JSON).spec, path.read_bytes())
    assert "twice" in (unsupported(vocabulary) or "")


@pytest.mark.data
@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-20b.json"])
def test_real_files_stay_with_the_fast_engine(test_data: Path, name: str) -> None:
    """The published files that were compared are encoded by gigatoken."""
    assert choose_engine(resolve(str(test_data / "vocab" / "hf" / name)), "auto").engine == "gigatoken"
