"""The default end token of a tokenizer: what `prepare` and `tokenizers` say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support import command
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import UsageError
from tokenmill.results import PrepareResult

pytestmark = pytest.mark.fast

SMALL_JSON = Path(__file__).parents[1] / "data" / "small.json"
TURN_END = "which chat declares. For pretraining use --eot '<|endoftext|>' (1201), which ends documents"


def model(directory: Path, end: str | None, *names: str, special: bool = True) -> str:
    """A model whose vocabulary has these added tokens, from 1201 on, and whose config declares an end token."""
    content = json.loads(SMALL_JSON.read_text())
    space, token = content["added_tokens"]
    added = [{**token, "id": 1201 + index, "content": name, "special": special} for index, name in enumerate(names)]
    content["added_tokens"] = [space, *added]
    directory.mkdir()
    (directory / "tokenizer.json").write_text(json.dumps(content))
    if end is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps({"eos_token": end}))
    return str(directory)


def prepared(tmp_path: Path, tokenizer: str, **options: Any) -> PrepareResult:
    """The store of one document."""
    (tmp_path / "a.txt").write_text("some text")
    return tokenmill.prepare(
        tmp_path / "a.txt", tokenizer=tokenizer, out=tmp_path / "store", executor=InlineExecutor(), **options
    )


@pytest.mark.parametrize("special", [True, False])
def test_the_end_of_a_turn_is_kept_and_said(tmp_path: Path, special: bool) -> None:
    """A chat model's declared end token is taken; the result has its spelling and advises the one for pretraining."""
    chat = model(tmp_path / "chat", "<|im_end|>", "<|endoftext|>", "<|im_end|>", special=special)
    result = prepared(tmp_path, chat)
    assert (result.end_token, result.end_token_text) == (1202, "<|im_end|>")
    assert result.notices == [f"the eot token is 1202 <|im_end|>, {TURN_END}"]
    assert command.run("tokenizers", chat).stdout.count(TURN_END) == 1


def test_the_summary_names_the_end_token(tmp_path: Path) -> None:
    """The summary of `prepare` has the id and the spelling of the end token, and the advice if it is quiet."""
    chat = model(tmp_path / "chat", "<|im_end|>", "<|endoftext|>", "<|im_end|>")
    (tmp_path / "a.txt").write_text("some text")
    words = ("prepare", tmp_path / "a.txt", "-t", chat, "--out", tmp_path / "store", "--workers", 1)
    summary = command.run(*words, "--quiet").stdout
    assert "eot          1202 <|im_end|>\n" in summary
    assert TURN_END in summary


@pytest.mark.parametrize(
    ("declared", "names", "options"),
    [
        ("<|endoftext|>", ("<|endoftext|>", "<|im_end|>"), {}),
        ("</s>", ("<|endoftext|>", "</s>"), {}),
        ("<|im_end|>", ("<|im_end|>",), {}),
        ("<|im_end|>", ("<|endoftext|>", "<|im_end|>"), {"eot": "<|im_end|>"}),
        ("<|im_end|>", ("<|endoftext|>", "<|im_end|>"), {"eot": "none"}),
    ],
)
def test_an_end_of_a_document_needs_no_note(
    tmp_path: Path, declared: str, names: tuple[str, ...], options: dict[str, Any]
) -> None:
    """There is no advice if the end token ends documents, is the only one, or is given."""
    result = prepared(tmp_path, model(tmp_path / "chat", declared, *names), **options)
    assert result.notices == []


def test_a_missing_end_token_has_the_same_words_everywhere(tmp_path: Path) -> None:
    """`tokenizers` says of a tokenizer without an end token what `prepare` refuses it with."""
    unclear = model(tmp_path / "unclear", None, "<|endoftext|>", "<|im_end|>")
    with pytest.raises(UsageError) as refusal:
        prepared(tmp_path, unclear)
    shown = command.run("tokenizers", unclear).stdout
    assert f"eot          {refusal.value.headline}. {refusal.value.details[-1]}\n" in shown
    assert "eot          none" not in shown


def test_both_kinds_of_added_tokens_are_listed(tmp_path: Path) -> None:
    """`tokenizers` lists the special tokens and the other added ones, in text and in JSON."""
    mixed = Path(model(tmp_path / "mixed", None, "<|endoftext|>")) / "tokenizer.json"
    content = json.loads(mixed.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 1202, "content": "<think>"})
    mixed.write_text(json.dumps(content))
    shown = command.run("tokenizers", mixed).stdout
    assert "special      <|endoftext|> 1201\n" in shown
    assert "not special  '    ' 1200, <think> 1202\n" in shown
    record = json.loads(command.run("tokenizers", mixed, "--json").stdout)
    assert (record["special_tokens"], record["plain_tokens"]["<think>"]) == ({"<|endoftext|>": 1201}, 1202)
