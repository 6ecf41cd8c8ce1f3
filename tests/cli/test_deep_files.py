"""Files that are nested deeper than a parser follows are refused with a message, and no command calls that a bug."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tokenmill.errors import UsageError

DEPTH = 5000
LIST = "[" * DEPTH + "]" * DEPTH
OBJECT = '{"a":' * DEPTH + "1" + "}" * DEPTH
TABLE = "{a=" * DEPTH + "1" + "}" * DEPTH


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one two three"}\n')
    return path


RECIPES = {
    "list.toml": f"seed = {LIST}",
    "table.toml": f"sources = {TABLE}",
    "keys.toml": f"[{'.'.join(['sources'] * DEPTH)}]\nstore = 1\n",
    "list.json": LIST,
    "object.json": OBJECT,
    "sources.json": f'{{"sources": {OBJECT}}}',
    "key.json": json.dumps({"k" * 100_000: 1}),
    "names.json": json.dumps({"sources": {"k" * 100_000: {}}, "stages": []}),
    "twice.json": '{"a": 1, "a": 2}',
    "large.toml": "seed = 1\n" + "#" * (16 << 20),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_beyond_reason_is_a_usage_error(tmp_path: Path, name: str) -> None:
    """Depth, size and names of any length: the message is short and names the recipe."""
    recipe = tmp_path / name
    recipe.write_text(RECIPES[name])
    ended = run("mix", recipe, code=2)
    assert ended.stderr.startswith(f"error: the recipe {recipe} is ")
    assert len(ended.stderr) < 1000


@pytest.mark.parametrize("content", [f"a = {LIST}", f"a = {TABLE}"])
def test_a_deep_file_of_datasets_is_a_usage_error(tmp_path: Path, content: str) -> None:
    """The environment variable names it, so the message names the file."""
    path = tmp_path / "datasets.toml"
    path.write_text(content)
    ended = run("datasets", code=2, TOKENMILL_DATASETS=str(path))
    assert f"file         {path}\n  reason       its values are nested too deep" in ended.stderr


@pytest.mark.parametrize("line", [LIST, OBJECT, f'{{"column": "url", "value": {LIST}}}'])
def test_a_deep_line_of_a_list_is_a_usage_error(tmp_path: Path, source: Path, line: str) -> None:
    """`--deny` names the line."""
    deny = tmp_path / "deny.jsonl"
    deny.write_text(line + "\n")
    words = ["prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--deny", deny, "--out", tmp_path / "o"]
    assert f"line 1 of {deny} is not a rule" in run(*words, code=2).stderr


@pytest.mark.parametrize("key", ["post_processor", "decoder", "unknown", "normalizer", "truncation"])
def test_a_deep_vocabulary_is_refused_or_read(tmp_path: Path, source: Path, key: str) -> None:
    """No part of a tokenizer.json ends a command with a bug, also with the fast engine, which looks at all parts."""
    content: dict[str, Any] = json.loads(Path(SMALL_JSON).read_text())
    deep = tmp_path / "deep.json"
    deep.write_text(json.dumps({**content, key: "DEEP"}).replace('"DEEP"', OBJECT))
    words = ["--tokenizer", deep, "--eot", "none", "--workers", "1"]
    for engine in ("auto", "reference"):
        ended = run("prepare", source, *words, "--engine", engine, "--out", tmp_path / engine, code=None)
        assert ended.returncode in (1, 2), ended.stderr
        assert "a bug" not in ended.stderr
    shown = run("tokenizers", deep, code=None)
    assert "a bug" not in shown.stderr


def test_a_deep_filter_and_a_deep_state_are_usage_errors(tmp_path: Path, source: Path) -> None:
    """What is given as text is parsed with a limit, too."""
    words = ["prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--workers", "1"]
    ended = run(*words, "--where", "(" * DEPTH + "a = 1" + ")" * DEPTH, "--out", tmp_path / "no", code=2)
    assert "parentheses inside each other" in ended.stderr
    run(*words, "--where", "not " * (2 * DEPTH) + "text != ''", "--out", tmp_path / "out")
    stage = {"sequence_tokens": 1, "batch_sequences": 1, "tokens": 1}
    recipe = {"sources": {"a": str(tmp_path / "out")}, "stages": [{**stage, "weights": {"a": 1}}], "grain": 1}
    (tmp_path / "r.json").write_text(json.dumps(recipe))
    loader = tokenmill.loader(str(tmp_path / "r.json"))
    with pytest.raises(UsageError, match="not the state of a recipe"):
        loader.load_state_dict({"format": 1, "sequences": 1, "digest": LIST, "stores": {}})


def test_a_deep_line_of_a_source_is_a_bad_row(tmp_path: Path, source: Path) -> None:
    """Only the line is bad: it is in quarantine, or its other keys are read."""
    with source.open("a") as file:
        file.write(LIST + "\n" + OBJECT + "\n" + f'{{"text": {LIST}}}\n{{"text": "four", "x": {LIST}}}\n')
    words = ["prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--workers", "1", "--max-bad", "0.9"]
    run(*words, "--out", tmp_path / "out")
    assert len(tokenmill.open(str(tmp_path / "out"))) == 2
