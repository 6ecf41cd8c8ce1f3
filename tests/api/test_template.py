"""`tokenmill template`: how masks are made, and a conversation with its mask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokenmill
from tests.support.command import run
from tests.support.conversations import END, TAGGED, TEMPLATE, write, write_model
from tokenmill.errors import SourceError, UsageError

CHAT = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "This."}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


def test_how_masks_are_made(model: str, tmp_path: Path) -> None:
    """The prompt and the stop token of the template, and an example of ours."""
    info = tokenmill.template(model)
    assert (info.masks, info.stops, info.refused) == ("marks", [END], "")
    assert info.prompt.rstrip().endswith("assistant")
    (document,) = info.documents
    assert "".join(document.texts) == document.text
    trained = ["".join(document.texts[begin:end]) for begin, end in document.trained]
    assert all(text.endswith(END) for text in trained)
    tagged = tmp_path / "tagged.jinja"
    tagged.write_text(TAGGED)
    assert tokenmill.template(model, chat_template=str(tagged)).masks == "tags"
    assert tokenmill.template(model, train="all").masks == "all"


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_a_row_of_a_file(kind: str, model: str, tmp_path: Path) -> None:
    """The row's own mask is that of a store; a row that does not exist, or is null, is an error."""
    source = write(tmp_path / f"a.{kind}", [CHAT, None, [*CHAT, *CHAT]])
    (document,) = tokenmill.template(model, source, row=2).documents
    store = tokenmill.open(tokenmill.prepare(source, tokenizer=model, messages="messages", out=tmp_path / "store"))
    assert document.tokens == store[1].tolist()
    assert document.trained == [tuple(span) for span in store.trained(1) or []]
    with pytest.raises(SourceError, match="it is null"):
        tokenmill.template(model, source, row=1)
    with pytest.raises(SourceError, match="no row 3"):
        tokenmill.template(model, source, row=3)


def test_why_a_row_is_no_document(model: str, tmp_path: Path) -> None:
    """The template's words are shown, and nothing else."""
    source = write(tmp_path / "a.jsonl", [CHAT])
    refusing = tmp_path / "refusing.jinja"
    refusing.write_text("{% if messages[0].content == 'What?' %}{{ raise_exception('No.') }}{% endif %}" + TEMPLATE)
    info = tokenmill.template(model, source, chat_template=str(refusing))
    assert (info.refused, info.documents) == ("refused by the chat template: No.", [])


def test_a_template_without_turns_is_refused(model: str, tmp_path: Path) -> None:
    """It could only give a mask of nothing."""
    empty = tmp_path / "empty.jinja"
    empty.write_text("{{ messages | length }}")
    with pytest.raises(UsageError, match="no generation tags"):
        tokenmill.template(model, chat_template=str(empty))


def test_the_command(model: str, tmp_path: Path) -> None:
    """Lines, and the tokens with a star before each that is trained on."""
    source = write(tmp_path / "a.jsonl", [CHAT])
    shown = run("template", model, source).stdout
    assert "prompt" in shown
    assert f'* "{END}"' in shown
    assert json.loads(run("template", model, source, "--json").stdout)["masks"] == "marks"
