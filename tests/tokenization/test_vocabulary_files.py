"""Vocabularies other than tokenizer.json: Mistral's tekken.json, Kimi's tiktoken.model, objects of Python libraries."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import tiktoken
import tokenizers

import tokenmill
from tests.support import DATA
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.documents import DOCUMENTS
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.storage.digest import canonical
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine, parse_ranks
from tokenmill.tokenization.resolve import SCHEMES, Vocabulary, resolve
from tokenmill.tokenization.tiktoken_model import PATTERNS

RANKS = parse_ranks((DATA / "small.tiktoken").read_bytes(), "small")
KIMI = "tokenization_kimi.TikTokenTokenizer"
RESERVED = 50


def encode(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    """The tokens of texts by the reference."""
    encoded = TiktokenEngine(vocabulary.spec, vocabulary.content).encode(pa.array(texts, pa.large_string()))
    bounds = encoded.offsets.tolist()
    return [encoded.tokens[start:stop].tolist() for start, stop in itertools.pairwise(bounds)]


def tekken(**parts: Any) -> dict[str, Any]:
    """A tekken.json with the small vocabulary, of which the last 100 tokens are not used."""
    ordered = sorted(RANKS, key=RANKS.__getitem__)
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ordered)
    ]
    config = {
        "pattern": SCHEMES["o200k_base"].pattern,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) - 100 + RESERVED,
        "default_num_special_tokens": RESERVED,
        "version": "v3",
    }
    return {"config": {**config, **parts.pop("config", {})}, "vocab": vocab, **parts}


def write(path: Path, content: object) -> str:
    """A JSON file."""
    path.write_text(json.dumps(content))
    return str(path)


def test_tekken_ids_follow_the_special_tokens(tmp_path: Path) -> None:
    """The ids are those of tiktoken with the same ranks and pattern, plus the number of special tokens."""
    write(tmp_path / "tekken.json", tekken())
    vocabulary = resolve(str(tmp_path))
    assert vocabulary == resolve(str(tmp_path / "tekken.json"))
    used = {token: rank for token, rank in RANKS.items() if rank < len(RANKS) - 100}
    plain = tiktoken.Encoding("x", pat_str=vocabulary.spec.pattern or "", mergeable_ranks=used, special_tokens={})
    texts = [*DOCUMENTS, "</s> [INST] spelled", ""]
    assert encode(vocabulary, texts) == [[n + RESERVED for n in plain.encode_ordinary(text)] for text in texts]
    assert (vocabulary.spec.end_of_text, vocabulary.spec.special_tokens["[INST]"]) == (2, 3)
    assert vocabulary.spec.vocabulary_size == len(used) + RESERVED


def test_tekken_lists_its_special_tokens_since_version_8(tmp_path: Path) -> None:
    """Reserved names are left out."""
    listed = [
        {"rank": 0, "token_str": "<unk>"},
        {"rank": 4, "token_str": "</s>"},
        {"rank": 9, "token_str": "<SPECIAL_9>"},
    ]
    path = write(tmp_path / "tekken.json", tekken(config={"version": "v13"}, special_tokens=listed))
    assert resolve(path).spec.special_tokens == {"<unk>": 0, "</s>": 4}
    assert resolve(path).spec.end_of_text == 4


@pytest.mark.parametrize(
    ("parts", "found"),
    [
        ({"config": {"version": "v13"}}, "lists no special tokens"),
        ({"config": {"default_vocab_size": 10**6}}, "its config states"),
        ({"special_tokens": [{"rank": RESERVED, "token_str": "<s>"}]}, "are ids of text"),
        ({"vocab": [{"rank": 0, "token_bytes": "?"}] * 2000}, "base64|Only"),
        ({"vocab": [{"rank": 0, "token_bytes": "AA=="}] * 2000}, "not unique"),
        ({"vocab": 3}, "vocab"),
    ],
)
def test_a_damaged_tekken_file_is_refused(tmp_path: Path, parts: dict[str, object], found: str) -> None:
    """The message names the file and what is wrong."""
    path = write(tmp_path / "tekken.json", {**tekken(), **tekken(**parts)})
    with pytest.raises(TokenizerError, match=r"tekken\.json") as raised:
        resolve(path)
    assert any(word in str(raised.value) for word in found.split("|"))


@pytest.fixture
def kimi(tmp_path: Path) -> Path:
    """A model with a tiktoken.model, its configuration, and code that assigns the pattern."""
    (tmp_path / "tiktoken.model").write_bytes((DATA / "small.tiktoken").read_bytes())
    added = {"1200": {"content": "[BOS]", "special": True}, "1201": {"content": "[EOS]", "special": True}}
    config = {"auto_map": {"AutoTokenizer": [KIMI, None]}, "eos_token": "[EOS]", "added_tokens_decoder": added}
    write(tmp_path / "tokenizer_config.json", config)
    alternatives = ",".join(f'r"""{alternative}"""' for alternative in PATTERNS[KIMI])
    code = f"raise SystemExit\nclass TikTokenTokenizer:\n    pat_str = '|'.join([{alternatives}])\n"
    (tmp_path / "tokenization_kimi.py").write_text(code)
    return tmp_path


def test_a_known_tiktoken_model_is_read(kimi: Path) -> None:
    """The tokens are tiktoken's with the pattern of the code, which is not run."""
    vocabulary = resolve(str(kimi))
    assert vocabulary == resolve(str(kimi / "tiktoken.model"))
    assert vocabulary.spec.special_tokens == {"[BOS]": 1200, "[EOS]": 1201}
    assert vocabulary.spec.end_of_text == 1201
    plain = tiktoken.Encoding("x", pat_str="|".join(PATTERNS[KIMI]), mergeable_ranks=RANKS, special_tokens={})
    texts = [*DOCUMENTS, "[EOS]汉字 abc 漢字123456"]
    assert encode(vocabulary, texts) == [plain.encode_ordinary(text) for text in texts]


@pytest.mark.parametrize("harm", ["other code", "no code", "other class", "no config", "broken code"])
def test_an_unknown_pattern_is_refused(kimi: Path, harm: str) -> None:
    """The message says that the pattern is in Python code."""
    code, config = kimi / "tokenization_kimi.py", kimi / "tokenizer_config.json"
    if harm == "other code":
        code.write_text(code.read_text().replace("{1,3}", "{1,2}"))
    elif harm == "no code":
        code.unlink()
    elif harm == "broken code":
        code.write_text("class (")
    elif harm == "no config":
        config.unlink()
    else:
        config.write_text(config.read_text().replace("kimi", "other"))
    with pytest.raises(TokenizerError, match=r"split pattern of .* is not known") as raised:
        resolve(str(kimi))
    assert "Python code" in str(raised.value)


def test_a_special_token_must_not_have_the_id_of_a_text_token(kimi: Path) -> None:
    """Otherwise an end token could not be told from text."""
    config = kimi / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"1201"', '"1199"'))
    with pytest.raises(TokenizerError, match="does not fit"):
        resolve(str(kimi))


def test_sentencepiece_is_refused_with_the_command_that_converts(tmp_path: Path) -> None:
    """By its path and by its directory."""
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    for name in (tmp_path, tmp_path / "tokenizer.model"):
        with pytest.raises(TokenizerError, match="is a SentencePiece model") as raised:
            resolve(str(name))
        assert f"T.from_pretrained('{tmp_path}')" in str(raised.value)


@pytest.mark.parametrize("dropout", [None, 0.0, 0.1])
def test_random_tokens_are_refused(tmp_path: Path, dropout: float | None) -> None:
    """Dropout of merges gives other tokens each time."""
    content = json.loads(Path(SMALL_JSON).read_text())
    content["model"]["dropout"] = dropout
    path = write(tmp_path / "tokenizer.json", content)
    expectation = pytest.raises(TokenizerError, match=r"model\.dropout is 0\.1") if dropout else nullcontext()
    with expectation:
        resolve(path)


def test_a_tiktoken_encoding_is_the_file_of_its_ranks() -> None:
    """Same bytes, pattern and hash."""
    pattern = SCHEMES["gpt2"].pattern
    encoding = tiktoken.Encoding("mine", pat_str=pattern, mergeable_ranks=RANKS, special_tokens={"<|endoftext|>": 1200})
    found, file = resolve(encoding), resolve(SMALL_TIKTOKEN)
    assert (found.content, found.spec.pattern, found.spec.scheme) == (file.content, pattern, "gpt2")
    assert (found.spec.name, found.spec.end_of_text) == ("mine", 1200)


@pytest.mark.data
def test_an_encoding_of_openai_is_the_one_of_its_name(test_data: Path) -> None:
    """The whole spec is equal."""
    assert resolve(tiktoken.get_encoding("cl100k_base")) == resolve("cl100k_base")


def test_a_tokenizer_object_is_the_file_that_it_saves(tmp_path: Path) -> None:
    """Truncation and padding, which calls leave in an object, change nothing."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DATA / "small.json"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    file = resolve(str(tmp_path))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    found = resolve(tokenizer)
    assert found.content == file.content
    assert found.spec.sha256 == file.spec.sha256
    assert tokenizer.truncation is not None


def test_a_transformers_tokenizer_is_its_backend_and_its_end_token(tmp_path: Path) -> None:
    """The name is that of the model; an object without a backend is refused."""
    backend = tokenizers.Tokenizer.from_file(str(DATA / "small.json"))
    spelling = next(iter(resolve(backend).spec.special_tokens))
    members = {"name_or_path": "org/model", "save_pretrained": None, "eos_token": spelling}
    found = resolve(SimpleNamespace(**members, backend_tokenizer=backend))
    assert found.spec.name == "org/model"
    assert found.spec.end_of_text == found.spec.special_tokens[spelling]
    with pytest.raises(UsageError, match="not a fast tokenizer"):
        resolve(SimpleNamespace(**members))
    with pytest.raises(UsageError, match="a dict is not a tokenizer"):
        resolve({})


@pytest.mark.thorough
def test_objects_and_paths_go_through_the_whole_call(tmp_path: Path) -> None:
    """`prepare` is resumed with the object, and `tokenize_fn` of it can be pickled."""
    tokenizer = tokenizers.Tokenizer.from_file(str(DATA / "small.json"))
    source = write_parquet(tmp_path / "corpus.parquet", list(DOCUMENTS), row_group_size=3)
    done = tokenmill.prepare(source, tokenizer=tokenizer, out=str(tmp_path / "out"), eot=1199, workers=1)
    again = tokenmill.prepare(source, tokenizer=tokenizer, out=str(tmp_path / "out"), eot=1199, workers=1)
    assert done.tokens == again.tokens
    assert again.units_done_now == 0
    function = tokenmill.tokenize_fn(tokenizer, eot="none")
    expected = tokenizer.encode("some text", add_special_tokens=False).ids
    assert pickle.loads(pickle.dumps(function))("some text")["ids"].tolist() == expected
    assert tokenmill.tokenize_fn(DATA / "small.json", eot="none")("some text")["ids"].tolist() == expected


def test_specs_are_written_without_defaults() -> None:
    """A field that a later version adds leaves the digests of other vocabularies as they are."""
    written = json.loads(canonical(resolve(SMALL_TIKTOKEN).spec))
    assert set(written) == {
        "name",
        "kind",
        "file",
        "sha256",
        "vocabulary_size",
        "special_tokens",
        "pattern",
        "scheme",
    }
