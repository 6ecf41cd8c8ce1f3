"""Guarantee 1: a document's tokens are the reference's, plus the declared begin and end tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import tiktoken
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from scripts import check_exactness
from tests.support import DATA
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.documents import DOCUMENTS
from tokenmill.choices import EngineName
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.system import machine
from tokenmill.tokenization.audit import AuditMismatchError
from tokenmill.tokenization.engines.gigatoken import GigatokenEngine
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.engines.tiktoken import parse_ranks
from tokenmill.tokenization.resolve import SCHEMES, resolve
from tokenmill.tokenization.tokenizer import Tokenizer
from tokenmill.tokenization.unicode_gap import GAP

PATTERNS = {"gpt2": "gpt2", "cl100k": "cl100k_base", "o200k": "o200k_base"}
END = 1199

ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
TRICKY_TEXT = st.lists(
    st.sampled_from(
        [
            "'s",
            "'LL",
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "a",
            "B",
            "é",
            "e\u0301",
            "1",
            "12345",
            "。",
            "👩‍👩‍👧",
            "<|endoftext|>",
        ]
        + [chr(first) for first, _ in GAP]
        + [chr(last) for _, last in GAP]
    ),
    max_size=30,
).map("".join)


def small_tokenizer(scheme: str) -> Tokenizer:
    """The small vocabulary under one of OpenAI's split patterns, on the fast engine."""
    vocabulary = resolve(f"{DATA / 'small.tiktoken'}:{scheme}")
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    assert tokenizer.engine == "gigatoken", tokenizer.notices
    return tokenizer


FAST = {name: small_tokenizer(scheme) for name, scheme in PATTERNS.items()}
RANKS = parse_ranks((DATA / "small.tiktoken").read_bytes(), "small")
REFERENCE = {
    name: tiktoken.Encoding(name, pat_str=SCHEMES[scheme].pattern, mergeable_ranks=RANKS, special_tokens={})
    for name, scheme in PATTERNS.items()
}


@pytest.fixture(scope="module")
def reference_json() -> tokenizers.Tokenizer:
    """The reference for a tokenizer.json: special spellings are text."""
    tokenizer = tokenizers.Tokenizer.from_file(SMALL_JSON)
    tokenizer.encode_special_tokens = True
    return tokenizer


@pytest.fixture(scope="module")
def fast_json() -> Tokenizer:
    """The same tokenizer on the fast engine."""
    vocabulary = resolve(SMALL_JSON)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    assert tokenizer.engine == "gigatoken"
    return tokenizer


def encoded(tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
    result = tokenizer.encode(pa.array(texts, pa.large_string()))
    return [result.document(place).tolist() for place in range(len(texts))]


@pytest.mark.parametrize("scheme", PATTERNS)
@settings(deadline=None, max_examples=150)
@given(texts=st.lists(ANY_TEXT | TRICKY_TEXT, max_size=6))
def test_any_unicode_gives_the_reference_tokens(scheme: str, texts: list[str]) -> None:
    """Any Unicode text, assigned or not, in any batch, gives tiktoken's ordinary tokens."""
    assert encoded(FAST[scheme], texts) == [REFERENCE[scheme].encode_ordinary(text) for text in texts]


@settings(deadline=None, max_examples=150)
@given(texts=st.lists(ANY_TEXT | TRICKY_TEXT, max_size=6))
def test_any_unicode_gives_the_tokens_of_a_tokenizer_json(
    fast_json: Tokenizer, reference_json: tokenizers.Tokenizer, texts: list[str]
) -> None:
    """The same holds for a tokenizer.json: special spellings are text, other added tokens are matched."""
    expected = [reference_json.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(fast_json, texts) == expected


@pytest.mark.parametrize("scheme", PATTERNS)
@pytest.mark.parametrize(
    "text",
    [
        " " * 100_000,
        "\n" * 100_000,
        " \n" * 50_000,
        " " * 100_000 + "x",
        "a" * 1_000_000,
        "." * 1_000_000,
        "é" * 300_000,
    ],
    ids=["spaces", "newlines", "mixed", "spaces-x", "letters", "dots", "accents"],
)
def test_long_runs_give_the_reference_tokens(scheme: str, text: str) -> None:
    """Runs of 100,000 white space characters and of a million equal letters come out like the reference's."""
    assert encoded(FAST[scheme], [text]) == [REFERENCE[scheme].encode_ordinary(text)]


@pytest.mark.fast
@pytest.mark.parametrize("scheme", PATTERNS)
def test_characters_on_which_engines_disagree_go_to_the_reference(scheme: str) -> None:
    """Every character that the engines' Unicode versions classify differently still gives the reference's tokens."""
    characters = [chr(point) for first, last in GAP for point in range(first, last + 1)]
    texts = [context.format(character) for character in characters for context in ("{}.a", "a{}1", "'{}b", " {} ")]
    assert encoded(FAST[scheme], texts) == [REFERENCE[scheme].encode_ordinary(text) for text in texts]


@pytest.mark.parametrize("engine", ["gigatoken", "tiktoken"])
@pytest.mark.parametrize("bos", [None, 7])
@pytest.mark.parametrize("eot", ["none", END])
def test_store_holds_reference_tokens_with_boundaries(
    tmp_path: Path, parquet: str, engine: EngineName, bos: int | None, eot: str | int
) -> None:
    """Each document of the store is the reference's tokens between the declared begin and end tokens."""
    tokenmill.prepare(
        parquet, tokenizer=SMALL_TIKTOKEN, out=str(tmp_path / "out"), engine=engine, bos=bos, eot=eot, workers=1
    )
    store = tokenmill.open(str(tmp_path / "out"))
    begin, end = [bos] if bos is not None else [], [eot] if eot != "none" else []
    expected = [[*begin, *REFERENCE["gpt2"].encode_ordinary(text), *end] for text in DOCUMENTS]
    assert [tokens.tolist() for tokens in store] == expected


@pytest.mark.parametrize("engine", ["gigatoken", "tokenizers"])
def test_store_holds_the_tokens_of_a_tokenizer_json(
    tmp_path: Path, parquet: str, reference_json: tokenizers.Tokenizer, engine: EngineName
) -> None:
    """A tokenizer.json gives its own tokens and its own end token, found by its spelling."""
    result = tokenmill.prepare(parquet, tokenizer=SMALL_JSON, out=str(tmp_path / "out"), engine=engine, workers=1)
    assert result.engine == engine
    expected = [[*reference_json.encode(text, add_special_tokens=False).ids, 1201] for text in DOCUMENTS]
    assert [tokens.tolist() for tokens in tokenmill.open(str(tmp_path / "out"))] == expected


def test_an_end_token_is_never_guessed(tmp_path: Path, parquet: str) -> None:
    """A vocabulary without an end token asks for one."""
    with pytest.raises(UsageError, match="eot="):
        tokenmill.prepare(parquet, tokenizer=SMALL_TIKTOKEN, out=str(tmp_path / "out"))


def test_empty_documents_stay_and_nulls_are_named(tmp_path: Path) -> None:
    """An empty document has its end token only; a null row is counted and named, never silently dropped."""
    path = write_parquet(tmp_path / "a.parquet", ["one", None, "", None, None, "two"], row_group_size=4)
    result = tokenmill.prepare(path, tokenizer=SMALL_TIKTOKEN, eot=END, out=str(tmp_path / "out"), workers=1)
    store = tokenmill.open(str(tmp_path / "out"))
    assert [store.document(place).row for place in range(3)] == [0, 2, 5]
    assert store[1].tolist() == [END]
    assert (result.documents, result.skipped_rows, result.skipped_reasons) == (3, 3, {"null": 3})
    rows = [row for skipped in store.skipped() for row in range(skipped.first, skipped.last + 1)]
    assert rows == [1, 3, 4]


@pytest.mark.fast
def test_a_failed_audit_names_the_document_and_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong answer of the fast engine is caught by the audit, and the reference takes over."""
    tokenizer = small_tokenizer("gpt2")
    text = pa.array(["alpha beta"], pa.large_string())
    wrong = Encoded(np.array([1, 2, 3], np.uint32), np.array([0, 3]))
    monkeypatch.setattr(tokenizer._fast, "encode", lambda _: wrong)
    with pytest.raises(AuditMismatchError) as caught:
        tokenizer.encode(text)
    assert caught.value.position == 0
    tokenizer.use_reference("because")
    assert tokenizer.engine == "tiktoken"
    assert encoded(tokenizer, ["alpha beta"]) == [REFERENCE["gpt2"].encode_ordinary("alpha beta")]


@pytest.mark.fast
def test_a_failed_probe_falls_back_with_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that fails its probe is not used, and that is said."""
    monkeypatch.setattr(
        GigatokenEngine,
        "encode",
        lambda self, text: Encoded(np.empty(0, np.uint16), np.zeros(len(text) + 1, np.int64)),
    )
    vocabulary = resolve(SMALL_TIKTOKEN)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    assert tokenizer.engine == "tiktoken"
    assert "probe" in tokenizer.notices[0]


@pytest.mark.data
@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base"])
def test_schemes_are_tiktokens_own(test_data: Path, name: str) -> None:
    """The split patterns and end tokens written down here are the ones tiktoken has."""
    encoding = tiktoken.get_encoding(name)
    spec = resolve(name).spec
    assert spec.pattern == encoding._pat_str == SCHEMES[name].pattern
    assert spec.end_of_text == encoding.eot_token == SCHEMES[name].end_of_text
    assert spec.sha256 == SCHEMES[name].sha256
    assert spec.vocabulary_size == encoding.n_vocab


@pytest.mark.data
@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base", "gpt2.json", "gpt-neox-20b.json"])
def test_real_corpora_equal_the_reference(test_data: Path, tmp_path: Path, name: str) -> None:
    """Some real text gives the reference's tokens, document by document (all of it: scripts/check_exactness.py)."""
    tokenizer = check_exactness.address(test_data, name)
    files = check_exactness.cut(check_exactness.corpora(test_data, 1), 100, str(tmp_path))
    tokenmill.prepare(files, tokenizer=tokenizer, out=tmp_path / "out")
    expected = (check_exactness.reference(tokenizer, file) for file in files)
    documents, tokens, differences = check_exactness.compare(tokenmill.open(tmp_path / "out"), files, expected)
    assert (documents, differences) == (200, 0)
    assert tokens > documents


@pytest.mark.fast
def test_the_word_cache_is_emptied_when_it_is_large_and_not_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache goes when the process has grown by its limit or beyond its share, and then only after new growth."""
    tokenizer = small_tokenizer("gpt2")
    emptied: list[int] = []
    megabyte, resident = 1 << 20, 0
    monkeypatch.setattr(tokenizer._fast, "clear_cache", lambda: emptied.append(resident // megabyte))
    monkeypatch.setattr(machine, "private_bytes", lambda: resident)
    share = 700 * megabyte
    sizes = [200, 300, 510, 530, 545, 560, 590, 600]  # the limit is 200 + 320; emptied at 530, then after 32 more
    for size in sizes:
        resident = size * megabyte
        tokenizer.trim(share)
    assert emptied == [530, 590]
    share = 450 * megabyte
    tokenizer._emptied_bytes = 0
    resident = 460 * megabyte
    tokenizer.trim(share)
    assert emptied[2:] == [460]


def test_a_vocabulary_that_is_none_is_refused(tmp_path: Path) -> None:
    """A rank file with a bad line, a missing byte or a rank given twice says which."""
    lines = (DATA / "small.tiktoken").read_text().splitlines(keepends=True)
    broken = {
        "line 3 of": [*lines[:2], "not base64!\n", *lines[3:]],
        "has no token": lines[1:],
        "same rank": [*lines[:-1], lines[-1].replace(" 1199", " 7")],
    }
    for message, content in broken.items():
        path = tmp_path / "broken.tiktoken"
        path.write_text("".join(content))
        with pytest.raises(TokenmillError, match=message):
            resolve(f"{path}:gpt2")
    (tmp_path / "broken.json").write_text('{"model": {}}')
    with pytest.raises(TokenmillError, match=r"tokenizer\.json"):
        resolve(str(tmp_path / "broken.json"))


@pytest.mark.fast
def test_the_scheme_of_a_rank_file_is_never_guessed(tmp_path: Path) -> None:
    """A rank file of another name asks for the scheme it was made for, as something to paste."""
    with pytest.raises(UsageError, match=r"small\.tiktoken:cl100k_base"):
        resolve(str(DATA / "small.tiktoken"))


def test_a_directory_names_its_end_token(tmp_path: Path) -> None:
    """Beside a tokenizer.json, tokenizer_config.json tells the end token."""
    (tmp_path / "tokenizer.json").write_text(Path(SMALL_JSON).read_text())
    assert resolve(str(tmp_path)).spec.end_of_text == 1201
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "    "}}')
    assert resolve(str(tmp_path)).spec.end_of_text == 1200
