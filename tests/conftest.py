"""Fixtures: a small corpus, small vocabularies, and the large test data where it is."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

DATA = Path(__file__).parent / "data"
sys.path.insert(0, str(DATA))

from documents import DOCUMENTS  # noqa: E402

SMALL_TIKTOKEN = f"{DATA / 'small.tiktoken'}:gpt2"
SMALL_JSON = str(DATA / "small.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow` runs the tests that take long."""
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip, with a reason, what cannot run here."""
    data = os.environ.get("TOKENMILL_TEST_DATA")
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if "data" in item.keywords and not data:
            item.add_marker(pytest.mark.skip(reason="TOKENMILL_TEST_DATA is not set"))


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """The documents of the small corpus."""
    return list(DOCUMENTS)


@pytest.fixture
def parquet(tmp_path: Path, documents: list[str]) -> str:
    """The small corpus as one Parquet file of row groups of three."""
    return write_parquet(tmp_path / "corpus.parquet", documents, row_group_size=3)


@pytest.fixture
def test_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of large test data, with the OpenAI vocabularies made known to tiktoken."""
    folder = Path(os.environ["TOKENMILL_TEST_DATA"])
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder / "vocab"))
    return folder


def write_parquet(path: Path, texts: list[str | None], row_group_size: int = 100) -> str:
    """Write texts as a Parquet file with a text and an id column."""
    table = pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.string())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_size)
    return str(path)


def part_bytes(directory: str | Path) -> dict[str, bytes]:
    """The parts of a store, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory, "parts").iterdir())}


Prepare = Callable[..., object]
