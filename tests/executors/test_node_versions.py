"""A node whose worker cannot load the tokenizer, as when its libraries have other versions than the run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet
from tokenmill.errors import RunFailed, TokenizerError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Failed, Worker
from tokenmill.pipeline.unit.isolate import Isolate
from tokenmill.pipeline.unit.tokenize import Tokenize

ERROR = TokenizerError(
    "this node has tokenizers 0.22.1, and the run began with 0.23.3", "Install the same version on every node."
)


class FailingNode(LocalExecutor):
    """Local workers that plan; in place of those that tokenize, a node that cannot load the tokenizer."""

    given = 0
    isolated = 0

    def run(self, function: Any, items: Any, terms: Any = None) -> Iterator[Any]:
        """Fail at every unit as a worker of that node does."""
        if not isinstance(function, Tokenize | Isolate):
            yield from super().run(function, items, *([terms] if terms is not None else []))
            return
        self.isolated += isinstance(function, Isolate)
        for item in items:
            self.given += 1
            yield Failed.of(item, ERROR, Worker(7, 0, "node-2"))


def test_a_node_that_cannot_load_the_tokenizer_ends_the_run(tmp_path: Path) -> None:
    """The first such error ends the run with its message and its node; no unit is tried again or isolated."""
    corpus = write_parquet(tmp_path / "corpus.parquet", [f"document {number}" for number in range(60)], 3)
    with FailingNode() as executor, pytest.raises(RunFailed) as raised:
        tokenmill.prepare(
            corpus, tokenizer=SMALL_JSON, out=str(tmp_path / "store"), unit_bytes=1, workers=1, executor=executor
        )
    assert (executor.given, executor.isolated) == (1, 0)
    assert "this node has tokenizers 0.22.1" in str(raised.value)
    assert "node-2" in str(raised.value)
