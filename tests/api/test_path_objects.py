"""Paths may be `pathlib.Path` objects wherever a path is a parameter."""

from __future__ import annotations

from pathlib import Path

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet


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
