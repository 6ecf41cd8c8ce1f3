"""The fork server loads the tokenizer, and its workers use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.small_stores import prepare, write_source
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.unit import documents as units
from tokenmill.storage import folder_at
from tokenmill.store.job import require_run
from tokenmill.tokenization.resolve import resolve_offline


def preloaded_tokenizers(directory: str) -> tuple[int, bool]:
    """How many tokenizers this worker has inherited, and whether a store uses one of them."""
    job = require_run(folder_at(directory)).job
    inherited = list(units._preloaded)
    used = units.loaded_tokenizer(directory, job, "gigatoken")
    return len(inherited), any(used is each for each in inherited)


@pytest.mark.thorough
@pytest.mark.parametrize("tokenizer", [SMALL_JSON, SMALL_TIKTOKEN])
def test_workers_inherit_the_tokenizer(tokenizer: str, tmp_path: Path) -> None:
    """A worker takes the tokenizer from the fork server, which forks it: a new interpreter would have none."""
    prepare(write_source(tmp_path / "a.parquet", "word"), tmp_path / "out", tokenizer=tokenizer, eot="none")
    with LocalExecutor(worker_modules("auto", [tokenizer])) as pool:
        outcome = next(pool.start(1).run(preloaded_tokenizers, [str(tmp_path / "out")]))
    assert outcome.value == (1, True)  # type: ignore[union-attr]


@pytest.mark.thorough
def test_another_tokenizer_of_the_store_is_not_taken_from_the_fork_server(tmp_path: Path) -> None:
    """A tokenizer that is not that of the store is not used, whatever the fork server has loaded."""
    prepare(write_source(tmp_path / "a.parquet", "word"), tmp_path / "out", tokenizer=SMALL_TIKTOKEN, eot="none")
    with LocalExecutor(worker_modules("auto", [SMALL_JSON])) as pool:
        outcome = next(pool.start(1).run(preloaded_tokenizers, [str(tmp_path / "out")]))
    assert outcome.value == (1, False)  # type: ignore[union-attr]


def test_the_network_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A vocabulary that is not on this machine is not fetched by the fork server."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert resolve_offline("some/model") is None
    with pytest.raises(Exception, match=r"is not in the cache|could not be loaded"):
        resolve_offline("cl100k_base")
    assert not list(tmp_path.iterdir())
