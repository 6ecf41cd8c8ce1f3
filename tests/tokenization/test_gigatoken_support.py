"""A tokenizer.json that gigatoken would silently encode in its own way goes to the reference."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import tokenizers

from tests.support import DATA
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.documents import DOCUMENTS
from tokenmill.errors import UsageError
from tokenmill.tokenization.gigatoken_support import unsupported
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.split_patterns import JSON_SPLITS
from tokenmill.tokenization.tokenizer import Tokenizer, choose_engine

SMALL = json.loads(Path(SMALL_JSON).read_text())
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
TEXTS = [*DOCUMENTS, "1999 8", "\n\x0b", "<x>\u1a21", "abc\u0301 abc", "      x     y", "no    thing<|endoftext|>    "]


def split(pattern: str, **changes: Any) -> dict[str, Any]:
    """A splitter by a regex, then bytes."""
    step = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False, **changes}
    return {"type": "Sequence", "pretokenizers": [step, BYTE_LEVEL]}


def digits(byte_level: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """A splitter at digits, then bytes with GPT-2's regex."""
    step = {"type": "Digits", "individual_digits": True, **changes}
    steps = [step, {**BYTE_LEVEL, "use_regex": True, **(byte_level or {})}]
    return {"type": "Sequence", "pretokenizers": steps}


def added(content: str, **changes: Any) -> dict[str, Any]:
    """An added token that is not special."""
    token = {"id": 1200, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**token, "normalized": False, "special": False, **changes}


def changed(path: Path, **changes: Any) -> str:
    """The small tokenizer.json with some parts replaced."""
    content = copy.deepcopy(SMALL) | changes
    path.write_text(json.dumps(content))
    return str(path)


SUPPORTED: dict[str, dict[str, Any]] = {
    name: {"pre_tokenizer": split(pattern)} for name, pattern in JSON_SPLITS.items()
} | {
    "nfc": {"normalizer": {"type": "NFC"}},
    "nfc-spaces": {"normalizer": {"type": "NFC"}, "added_tokens": [added("    ", normalized=True)]},
    "two passes": {"added_tokens": [added("aabb", normalized=True), added("abbb", id=1201)]},
    "overlap": {"added_tokens": [added("xt|"), added("<|endoftext|>", id=1201, special=True)]},
    "removed, inverted": {"pre_tokenizer": split(JSON_SPLITS["llama3"], behavior="Removed", invert=True)},
    "prefix-space": {"pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True}},
}
REFUSED: dict[str, dict[str, Any]] = {
    "possessive digits": {"pre_tokenizer": split(JSON_SPLITS["llama3"].replace("{1,3}", "{1,3}+"))},
    "other pattern": {"pre_tokenizer": split(JSON_SPLITS["llama3"].replace(r"[\r\n]+|", r"[\r\n]|"))},
    "removed": {"pre_tokenizer": split(JSON_SPLITS["llama3"], behavior="Removed")},
    "inverted": {"pre_tokenizer": split(JSON_SPLITS["llama3"], invert=True)},
    "digits by number": {"pre_tokenizer": digits(individual_digits=False)},
    "digits and a space": {"pre_tokenizer": digits({"add_prefix_space": True})},
    "a word with a space added": {
        "pre_tokenizer": {**BYTE_LEVEL, "add_prefix_space": True, "use_regex": True},
        "added_tokens": [added("<x>")],
    },
    "no splitter": {"pre_tokenizer": None},
    "bytes only": {"pre_tokenizer": BYTE_LEVEL},
    "two splits": {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [*split("x")["pretokenizers"], BYTE_LEVEL]}},
    "lowercase": {"normalizer": {"type": "Lowercase"}},
    "single word": {"added_tokens": [added("<x>", single_word=True)]},
    "normalized": {"normalizer": {"type": "NFC"}, "added_tokens": [added("abc", normalized=True)]},
    "two ids": {"added_tokens": [added("t")]},
    "other id": {"added_tokens": [added("<x>", id=1300)]},
    "fallback": {"model": {**SMALL["model"], "byte_fallback": True}},
    "merge twice": {"model": {**SMALL["model"], "merges": [*SMALL["model"]["merges"], SMALL["model"]["merges"][0]]}},
    "merge of nothing": {"model": {**SMALL["model"], "merges": [*SMALL["model"]["merges"], ["z", "zz"]]}},
    "id gap": {"model": {**SMALL["model"], "vocab": {**SMALL["model"]["vocab"], "zzz": 1300}}, "added_tokens": []},
    "raw token": {"model": {**SMALL["model"], "vocab": {**SMALL["model"]["vocab"], " x": 1200}}, "added_tokens": []},
    "unknown token": {"model": {**SMALL["model"], "unk_token": "a"}},
    "unknown option": {"model": {**SMALL["model"], "something": None}},
    "lstrip": {"added_tokens": [added("<x>", lstrip=True)]},
    "rstrip": {"added_tokens": [added("<x>", rstrip=True)]},
    "unknown flag": {"added_tokens": [added("<x>", something=False)]},
    "text twice": {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {},
        }
    },
}


@pytest.mark.parametrize("name", SUPPORTED)
def test_supported_files_give_the_reference_tokens(tmp_path: Path, name: str) -> None:
    """What is let through to gigatoken comes out as Hugging Face would have it."""
    path = changed(tmp_path / "t.json", **SUPPORTED[name])
    vocabulary = resolve(path)
    assert unsupported(vocabulary) is None
    reference = tokenizers.Tokenizer.from_file(path)
    reference.encode_special_tokens = True
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    result = tokenizer.encode(pa.array(TEXTS, pa.large_string()))
    assert tokenizer.engine == "gigatoken", tokenizer.notices
    for place, text in enumerate(TEXTS):
        assert result.document(place).tolist() == reference.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize("name", REFUSED)
def test_other_files_go_to_the_reference(tmp_path: Path, name: str) -> None:
    """Anything that was not compared is encoded by the reference, with the reason told; by name it is refused."""
    vocabulary = resolve(changed(tmp_path / "t.json", **REFUSED[name]))
    choice = choose_engine(vocabulary, "auto")
    assert choice.engine == "tokenizers"
    assert choice.reason
    with pytest.raises(UsageError, match="gigatoken cannot encode"):
        choose_engine(vocabulary, "gigatoken")


@pytest.mark.parametrize(
    ("tokenizer", "wanted", "engine"),
    [
        (SMALL_TIKTOKEN, "auto", "gigatoken"),
        (SMALL_JSON, "auto", "gigatoken"),
        (SMALL_JSON, "tokenizers", "tokenizers"),
    ],
)
def test_the_fast_engine_is_the_default(tokenizer: str, wanted: str, engine: str) -> None:
    """Gigatoken is used where it is known to be right, unless another engine is asked for."""
    assert choose_engine(resolve(tokenizer), wanted).engine == engine


@pytest.mark.parametrize(("tokenizer", "wanted"), [(SMALL_TIKTOKEN, "tokenizers"), (SMALL_JSON, "tiktoken")])
def test_an_engine_that_cannot_read_the_vocabulary_is_refused(tokenizer: str, wanted: str) -> None:
    """Tiktoken reads no tokenizer.json, and tokenizers no rank file."""
    with pytest.raises(UsageError, match="cannot read"):
        choose_engine(resolve(tokenizer), wanted)


def test_ranks_with_gaps_go_to_the_reference(tmp_path: Path) -> None:
    """p50k_base leaves a rank out, which gigatoken does not load; tiktoken does."""
    lines = (DATA / "small.tiktoken").read_text().splitlines(keepends=True)
    path = tmp_path / "gap.tiktoken"
    path.write_text("".join(lines[:-1]) + lines[-1].replace(" 1199", " 1205"))
    assert choose_engine(resolve(f"{path}:gpt2"), "auto").engine == "tiktoken"
