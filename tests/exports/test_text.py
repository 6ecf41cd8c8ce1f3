"""Exports of text: what was encoded comes back, and what cannot is said."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.erasing import CALL, END, contents, erase_rows, make_store, write_source
from tests.support.families import adversarial, byte_fallback_families
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import RunFailed, UsageError
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.engines.protocol import framed
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.token_text import NotText, TokenText, lost_text

AWKWARD = [
    *adversarial(300, 5),
    "",
    " ",
    "  two",
    "\ufeffmark",
    "a\r\nb\x00",
    "<|endoftext|> spelled",
    "e\u0301 \u212b",
]


def export(stores: Any, to: Any = "text", **options: Any) -> Any:
    return tokenmill.export(stores, to=to, executor=InlineExecutor(), **options)


def rows_of(directory: str, *, pattern: str = "*.parquet") -> list[dict[str, Any]]:
    return [row for path in sorted(Path(directory).glob(pattern)) for row in pq.read_table(path).to_pylist()]


def prepared(tmp_path: Path, texts: list[str], name: str = "store", **options: Any) -> Any:
    path = tmp_path / f"{name}.parquet"
    pq.write_table(pa.table({"text": texts, "id": list(range(len(texts)))}), path, row_group_size=50)
    return tokenmill.prepare(path, out=tmp_path / name, executor=InlineExecutor(), **options)


def small_json(tmp_path: Path, special: tuple[str, ...] = (), **parts: Any) -> str:
    """The small byte-level vocabulary with other parts and more special tokens."""
    content = {**json.loads(Path(SMALL_JSON).read_text()), **parts}
    (added,) = (token for token in content["added_tokens"] if token["special"])
    content["added_tokens"] += [{**added, "id": 1202 + n, "content": text} for n, text in enumerate(special)]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    return str(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("kind", ["tiktoken", "json", "NFC"])
@pytest.mark.parametrize("options", [{}, {"shuffle": 3, "val": 0.2}], ids=["in order", "shuffled"])
def test_the_text_is_that_of_the_sources(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    """Byte-level vocabularies keep every byte, between begin and end tokens. A normalizer is named."""
    tokenizer = SMALL_TIKTOKEN if kind == "tiktoken" else small_json(tmp_path, normalizer={"type": "NFC"})
    tokenizer = SMALL_JSON if kind == "json" else tokenizer
    done = prepared(tmp_path, AWKWARD, tokenizer=tokenizer, keep="id", unit_bytes=4000, bos=END, eot=END)
    result = export(done, with_columns="id", shard_tokens=1500, **options)
    rows = rows_of(result.directory)
    expected = [unicodedata.normalize("NFC", text) if kind == "NFC" else text for text in AWKWARD]
    assert {row["id"]: row["text"] for row in rows} == dict(enumerate(expected))
    assert all((row["source"], row["row"]) == (str(tmp_path / "store.parquet"), row["id"]) for row in rows)
    assert [row["id"] for row in rows] == list(range(len(rows))) or options
    assert len(list(Path(result.directory).glob("train-*"))) > 1
    assert ["does not keep what NFC changes" in notice for notice in result.notices] == [True] * (kind == "NFC")
    assert tokenmill.verify(done, workers=1).exports["text"] == result.files


@pytest.mark.data
def test_published_vocabularies_give_the_text_back(test_data: Path) -> None:
    """Those of OpenAI and gpt2.json keep all of it, also in text without sense; GPT-NeoX normalizes it."""
    texts = pa.array(AWKWARD, pa.large_string())
    for name in ("gpt2", "o200k_base", *map(str, (test_data / "vocab/hf").glob("*.json"))):
        vocabulary = resolve(name)
        spec, end = vocabulary.spec, vocabulary.spec.end_of_text
        engine = (TiktokenEngine if spec.kind == "tiktoken" else HuggingFaceEngine)(spec, vocabulary.content)
        encoded = framed(engine.encode(texts), end, end)
        found = TokenText(spec, vocabulary.content, end, end)(encoded.tokens, np.diff(encoded.offsets)).to_pylist()
        is_nfc = "neox" in name
        assert found == [unicodedata.normalize("NFC", text) if is_nfc else text for text in AWKWARD]
        assert lost_text(spec, vocabulary.content) == ("gpt-neox-20b does not keep what NFC changes" if is_nfc else "")


@pytest.mark.parametrize("family", ["Llama 2, TinyLlama", "Mistral 7B v0.3", "Gemma 3"])
def test_tokens_with_byte_fallback_are_bytes(tmp_path: Path, family: str) -> None:
    """The space that the tokenizer adds is removed. Mistral's does not add it before a space, so that one is lost."""
    content = byte_fallback_families(AWKWARD[:200])[family]()
    space = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    steps = [space, {"type": "ByteFallback"}, {"type": "Fuse"}]
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    vocabulary = resolve(str(path))
    spec = vocabulary.spec
    begin, end = (spec.special_tokens[name] for name in ("<s>", "</s>"))
    encoded = framed(
        HuggingFaceEngine(spec, vocabulary.content).encode(pa.array(AWKWARD, pa.large_string())), begin, end
    )
    decode = TokenText(spec, vocabulary.content, begin, end)
    found = decode(encoded.tokens, np.diff(encoded.offsets)).to_pylist()
    is_lossy = family.startswith("Mistral")
    expected = [text.removeprefix(" ") if is_lossy else text for text in AWKWARD]
    assert [text.replace("\u2581", " ") for text in expected] == found
    lost = lost_text(spec, vocabulary.content)
    assert lost == (f"{spec.name} does not keep a space before a document" if is_lossy else "")


def test_other_vocabularies_are_decoded_by_their_library(tmp_path: Path) -> None:
    """WordPiece joins words by spaces and lower-cases them; that is said."""
    content = {
        "model": {
            "type": "WordPiece",
            "vocab": {"[UNK]": 0, "one": 1, "##s": 2, "two": 3, "[SEP]": 4},
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "added_tokens": [
            {
                "id": 4,
                "content": "[SEP]",
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
        ],
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    done = prepared(tmp_path, ["Ones\ttwo", "two"], tokenizer=str(tmp_path / "tokenizer.json"), eot="[SEP]")
    result = export(done)
    assert [row["text"] for row in rows_of(result.directory)] == ["ones two", "two"]
    (notice,) = result.notices
    assert "does not keep what Lowercase changes, characters that it does not know, white space" in notice


def test_control_tokens_become_their_spelling(tmp_path: Path) -> None:
    """They are counted, and the note is there again when the export is complete already."""
    texts = ["one<|endoftext|>two", "three", "<|endoftext|>"]
    done = prepared(tmp_path, texts, tokenizer=SMALL_JSON, special="parse", eot="<|endoftext|>")
    for _ in range(2):
        result = export(done)
        assert [row["text"] for row in rows_of(result.directory)] == texts
        assert result.notices == ["2 control tokens in the documents became text: its spelling"]


def test_rearranged_documents_stay_rearranged(tmp_path: Path) -> None:
    """Their text has the control tokens of fill-in-the-middle."""
    pieces = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
    texts = [f"line {number}\n" * 20 for number in range(8)]
    tokenizer = small_json(tmp_path, pieces)
    done = prepared(tmp_path, texts, tokenizer=tokenizer, eot="<|endoftext|>", fim_rate=1.0)
    result = export(done)
    found = [row["text"] for row in rows_of(result.directory)]
    assert all(text.count(piece) == 1 for text in found for piece in pieces)
    assert [sum(map(len, pieces)) + len(text) for text in texts] == [len(text) for text in found]
    assert "rearranged" in result.notices[0]
    assert "24 control tokens" in result.notices[1]


def test_tokens_that_are_no_text_are_refused() -> None:
    """A part of a character, or an id without a token, is named by its document; an end token inside is spelled."""
    vocabulary = resolve(SMALL_JSON)
    spec = msgspec.structs.replace(vocabulary.spec, vocabulary_size=1300)
    decode = TokenText(spec, vocabulary.content, None, 1201)
    a, part = (HuggingFaceEngine(spec, vocabulary.content).encode(pa.array(["a😀"])).tokens[:2]).tolist()
    assert decode(np.array([a, 1201, 1201, a, 1201]), np.array([0, 2, 3])).to_pylist() == ["", "a", "<|endoftext|>a"]
    for bad in (part, 1250):
        with pytest.raises(NotText, match="utf-8") as raised:
            decode(np.array([a, a, 1201, bad, a, 1201]), np.array([3, 3]))
        assert raised.value.position == 1


def test_a_document_that_is_no_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has its source and row, and says what to do."""
    out = make_store(tmp_path)
    vocabulary = resolve(CALL["tokenizer"])
    decode = TokenText(vocabulary.spec, vocabulary.content, None, END)
    decode._bytes = pa.array([b"\xff"] * (END + 2), pa.large_binary())
    monkeypatch.setattr("tokenmill.exports.text._decoder", lambda *_: decode)
    with pytest.raises(RunFailed, match="are not text") as raised:
        export(out)
    assert f"source       {tmp_path}/in/out/a.parquet" in str(raised.value)
    assert "row          0" in str(raised.value)


@pytest.mark.parametrize("to", ["text", "nanochat"])
@pytest.mark.parametrize("options", [{}, {"shuffle": 5, "val": 0.3}], ids=["in order", "shuffled"])
def test_erased_documents_leave_the_text(tmp_path: Path, to: Any, options: dict[str, Any]) -> None:
    """Their rows stay, empty and without kept columns; all other rows are as before."""
    out, columns = make_store(tmp_path, keep="url"), {"with_columns": "url"} if to == "text" else {}
    result = export(out, to, shard_tokens=300, **columns, **options)
    before, files = rows_of(result.directory), contents(Path(result.directory))
    erase_rows(out, 3, 41, request="r")
    after = rows_of(result.directory)
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 2
    assert {new["text"] for _, new in changed} == {""}
    assert all("number 3 " in old["text"] or "number 41 " in old["text"] for old, _ in changed)
    assert all(new.get("url") is None for _, new in changed)
    tokenmill.verify(out, workers=1)
    assert export(out, to, shard_tokens=300, **columns, **options).shards_done_now == 0
    for name, data in files.items():  # a copy of before is laid over the export
        if name.endswith(".parquet") and not name.startswith("."):
            Path(result.directory, name).write_bytes(data)
    erase_rows(out, request="r")
    assert rows_of(result.directory) == after


def test_rows_of_text_lead_to_the_store_and_back(tmp_path: Path) -> None:
    """A position in a file of text is a row, in both directions, also after a shuffle."""
    out = make_store(tmp_path)
    result = export(out, shuffle=3, val=0.2, shard_tokens=300)
    for path in sorted(Path(result.directory).glob("*.parquet")):
        for number, row in list(enumerate(pq.read_table(path).to_pylist()))[::5]:
            (document,) = tokenmill.locate(path, number).documents
            assert (document.source, document.row, document.file_row) == (row["source"], row["row"], number)
            back = tokenmill.locate(result.directory, source=row["source"], row=row["row"])
            (place,) = (back.exports or {})["text"]
            assert (place.file, place.file_row) == (str(path), number)
        with pytest.raises(UsageError, match="there is no row 500"):
            tokenmill.locate(path, 500)


@pytest.mark.parametrize(
    ("options", "headline"),
    [
        ({"dtype": "uint32"}, "dtype= has no effect: text holds text"),
        ({"eot_position": "appended"}, "eot_position= has no effect: text holds text"),
        ({"packed": 100}, "text has no packed rows"),
        ({"name": "web"}, "text names its files itself"),
        ({"columns": "source"}, "cannot be the column"),
        ({"to": "nanochat", "columns": "body"}, "nanochat has no columns"),
    ],
)
def test_options_without_effect_are_refused(tmp_path: Path, options: dict[str, Any], headline: str) -> None:
    """Options of tokens are not for text, and nanochat reads one column."""
    with pytest.raises(UsageError, match=headline):
        export(make_store(tmp_path), **{"to": "text", **options})


def test_nanochat_takes_the_last_file_for_validation(tmp_path: Path) -> None:
    """Documents of several stores that are held out are in one file, whose name is the last."""
    stores = [make_store(tmp_path, name, word=name) for name in "ab"]
    split = {row["text"] for row in rows_of(export(stores, out=tmp_path / "text", val=0.3).directory, pattern="val-*")}
    result = export(stores, "nanochat", out=tmp_path / "out", val=0.3, shard_tokens=400)
    names = sorted(path.name for path in (tmp_path / "out").glob("*.parquet"))
    assert names == [f"shard_{number:05d}.parquet" for number in range(len(names))]
    assert len(names) > 3
    last = pq.read_table(tmp_path / "out" / names[-1])
    assert last.column_names == ["text"]
    assert set(last["text"].to_pylist()) == split
    assert result.splits["val"].documents == len(split)
    assert result.use.startswith(f"ln -s {tmp_path}/out ")
    whole = export(stores, "nanochat", out=tmp_path / "whole", val="none")
    assert whole.notices == ["nanochat takes the last file as its validation split; --val chooses one"]


def test_nanochat_has_a_row_group_for_each_rank(tmp_path: Path) -> None:
    """A rank without one would wait for ever. Large files have groups of 1,024 rows."""
    result = export(make_store(tmp_path), "nanochat", val=0.3)
    for path in Path(result.directory).glob("*.parquet"):
        file = pq.ParquetFile(path)
        assert file.num_row_groups == file.metadata.num_rows
    texts = [f"{number}" for number in range(70_000)]
    done = prepared(tmp_path, texts, tokenizer=SMALL_TIKTOKEN, eot=END, unit_bytes="10MB")
    result = export(done, "nanochat", val=0.01)
    file = pq.ParquetFile(Path(result.directory, "shard_00000.parquet"))
    sizes = {file.metadata.row_group(index).num_rows for index in range(file.num_row_groups - 1)}
    assert sizes == {1024}


def test_masked_documents_need_a_choice(tmp_path: Path) -> None:
    """The files do not say which tokens are trained on, so the user says that this is wanted."""
    chats = [[{"text": "question", "train": False}, {"text": " answer", "train": True}]]
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"segments": chat}) + "\n" for chat in chats))
    done = tokenmill.prepare(
        path, tokenizer=SMALL_JSON, segments="segments", eot=END, out=tmp_path / "s", executor=InlineExecutor()
    )
    with pytest.raises(UsageError, match="do not say which"):
        export(done)
    assert [row["text"] for row in rows_of(export(done, mask="ignore").directory)] == ["question answer"]


def test_text_is_a_source(tmp_path: Path) -> None:
    """Prepared again, the text has the tokens that it came from."""
    source = write_source(tmp_path / "in/a.parquet")
    first = tokenmill.prepare(source, out=tmp_path / "a", **CALL)
    files = export(first, shard_tokens=500).directory
    second = tokenmill.prepare(files, out=tmp_path / "b", **CALL)
    one, two = (tokenmill.open(done.directory) for done in (first, second))
    assert [tokens.tolist() for tokens in one] == [tokens.tolist() for tokens in two]
