"""Paths may be `pathlib.Path` objects wherever a path is a parameter, and have to be UTF-8 for outputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, write_parquet
from tokenmill.errors import UsageError


def test_path_objects_work(tmp_path: Path, documents: list[str]) -> None:
    """A source, a tokenizer, a store and an export given as Path objects are those given as strings."""
    source = Path(write_parquet(tmp_path / "source.parquet", documents))
    plan = tokenmill.plan([source], tokenizer=Path(SMALL_JSON), workers=1)
    result = tokenmill.prepare([source], tokenizer=Path(SMALL_JSON), out=tmp_path / "store", workers=1)
    store = Path(result.directory)
    assert plan.sources == result.sources == 1
    assert tokenmill.status(store).state == "complete"
    exported = tokenmill.export(store, to="parquet", out=tmp_path / "export", val="none", workers=1)
    assert exported.directory == str(tmp_path / "export")
    assert tokenmill.locate(store, source=source, row=0).documents[0].source == str(source)
    assert tokenmill.locate(tmp_path / "export", source=source, row=0, store=store).exports is not None
    assert tokenmill.finish(store).written_now is False
    assert tokenmill.tokenize_fn(Path(SMALL_JSON))(["text"])["len"] == [
        len(tokenmill.tokenize_fn(SMALL_JSON)("text")["ids"])
    ]


BYTES = os.fsdecode(b"t\xffk")


@pytest.mark.parametrize("name", [BYTES, f"{BYTES}/below"])
def test_an_output_that_is_not_utf8_is_refused_at_the_start(tmp_path: Path, documents: list[str], name: str) -> None:
    """No record could name it, so nothing could open it afterwards. The message shows the bytes."""
    source = write_parquet(tmp_path / "source.parquet", documents)
    store = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "store", workers=1).directory
    recipe = tmp_path / "recipe.json"
    stages = [{"sequence_tokens": 2, "batch_sequences": 1, "tokens": {"web": "all"}}]
    recipe.write_text(json.dumps({"sources": {"web": store}, "stages": stages, "grain": 2}))
    path = f"{tmp_path}/{name}"
    calls: dict[str, Callable[[], object]] = {
        "prepare": lambda: tokenmill.prepare(f"{tmp_path}/missing", tokenizer=SMALL_JSON, out=path),
        "like": lambda: tokenmill.prepare(source, like=path, out=tmp_path / "other"),
        "export": lambda: tokenmill.export(store, to="nanogpt", out=path),
        "metrics": lambda: tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "other", metrics=path),
        "report": lambda: tokenmill.report(store, out=f"{path}.html"),
        "card": lambda: tokenmill.report(store, card=path),
        "mix": lambda: tokenmill.mix(recipe, html=f"{path}.html"),
        "bench": lambda: tokenmill.bench(source, tokenizer=SMALL_JSON, out=path),
        "cache": lambda: tokenmill.using(cache=path).__enter__(),
    }
    before = sorted(tmp_path.iterdir())
    for what, call in calls.items():
        with pytest.raises(UsageError, match="a path is not valid UTF-8") as refused:
            call()
        assert r"t\xffk" in str(refused.value), what
    assert sorted(tmp_path.iterdir()) == before


def test_the_command_refuses_bytes_that_are_not_utf8(
    tmp_path: Path, documents: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given as --out, or as the working directory of a relative path."""
    source = write_parquet(tmp_path / "source.parquet", documents)
    options = ("prepare", source, "--tokenizer", SMALL_JSON, "--workers", "1", "--out")
    assert r"t\xffk" in command.run(*options, f"{tmp_path}/{BYTES}", code=2).stderr
    cached = (*options, tmp_path / "store", "--cache", f"{tmp_path}/{BYTES}")
    assert r"t\xffk" in command.run(*cached, code=2).stderr
    (tmp_path / BYTES).mkdir()
    monkeypatch.chdir(tmp_path / BYTES)
    assert r"t\xffk/store" in command.run(*options, "store", code=2).stderr
    assert not list((tmp_path / BYTES).iterdir())
