"""Metrics of a run: Prometheus reads them; the board uses only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.small_stores import UNITS, prepare, write_source
from tokenmill.errors import UsageError
from tokenmill.pipeline.driving.metrics import METRICS, check_metrics, prometheus_text
from tokenmill.store.heartbeats import HeartbeatRecord

ROOT = Path(__file__).resolve().parents[2]
BEAT = HeartbeatRecord("driver", "host", 1, 1.0, 2.0, 2.0, units_done=3, planned_bytes_done=10, tokens=7, rank=1, of=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Store:
    """A store whose run wrote metrics."""
    folder = tmp_path_factory.mktemp("metrics")
    source = write_source(folder / "source.parquet", "mill")
    prepare(source, folder / "store", metrics=folder / "run.prom")
    return tokenmill.open(folder / "store")


def parsed(text: str) -> dict[str, Any]:
    """Names, labels and values, as the parser of Prometheus's own client reads them."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus_client is not installed")
    samples = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: sample for sample in samples}


def test_the_file_has_the_end_of_the_run(store: tokenmill.Store) -> None:
    """The last metrics are those of the complete run, and the file is alone in its directory."""
    folder = Path(store.directory).parent
    samples = parsed((folder / "run.prom").read_text())
    assert set(samples) == {f"tokenmill_{metric.name}" for metric in METRICS}
    assert samples["tokenmill_units_done"].value == samples["tokenmill_units"].value == UNITS
    assert samples["tokenmill_tokens_total"].value == store.token_count
    assert samples["tokenmill_running"].value == samples["tokenmill_exit_code"].value == 0
    assert samples["tokenmill_units"].labels["store"] == store.directory
    assert sorted(path.name for path in folder.iterdir()) == ["run.prom", "source.parquet", "store"]


def test_labels_are_escaped(store: tokenmill.Store) -> None:
    """A store may have any name."""
    name = 'a "quoted" \\ name\nof two lines'
    labels = parsed(prometheus_text(BEAT, store.run, name))["tokenmill_workers"].labels
    assert (labels["store"], labels["rank"]) == (name, "1")


def test_a_wrong_place_is_refused_before_any_work(tmp_path: Path) -> None:
    """A directory that does not exist is an error, not a run without metrics."""
    with pytest.raises(UsageError, match="metrics="):
        prepare(write_source(tmp_path / "s.parquet", "mill"), tmp_path / "store", metrics=tmp_path / "no" / "run.prom")
    assert not (tmp_path / "store").exists()


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The path of a directory, and a file of a directory in which nobody can write. No file is left."""
    with pytest.raises(UsageError, match="is not a file"):
        check_metrics(str(tmp_path))
    with pytest.raises(UsageError, match="cannot be written"):
        check_metrics("/proc/run.prom")
    assert check_metrics(str(tmp_path / "run.prom")) == str(tmp_path / "run.prom")
    assert not list(tmp_path.iterdir())


def test_the_board_uses_only_metrics_that_exist() -> None:
    """Each query of the Grafana board names metrics of a run, and the page of the docs lists them all."""
    board = json.loads((ROOT / "examples/grafana/tokenmill.json").read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in board["templating"]["list"]]
    used = {name for query in queries for name in re.findall(r"tokenmill_\w+", query)}
    names = {f"tokenmill_{metric.name}" for metric in METRICS}
    assert used
    assert used <= names
    assert names <= set(re.findall(r"tokenmill_\w+", (ROOT / "docs/operations.md").read_text()))
