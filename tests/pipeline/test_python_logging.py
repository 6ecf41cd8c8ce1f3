"""The logger `tokenmill` gets the events of the run's log."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from tests.support.small_stores import UNITS, prepare, write_source
from tokenmill.errors import UsageError


def test_the_logger_gets_the_events_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each line of the log is a record with the same fields; units are for debugging."""
    with caplog.at_level(logging.DEBUG, "tokenmill"):
        prepare(write_source(tmp_path / "source.parquet", "mill"), tmp_path / "store")
    lines = [json.loads(line) for line in (tmp_path / "store" / "log.jsonl").read_text().splitlines()]
    records = [vars(record) for record in caplog.records]
    logged = [{"event": record["event"], **record["fields"]} for record in records]
    assert sorted(map(str, logged)) == sorted(str({k: v for k, v in line.items() if k != "time"}) for line in lines)
    assert [record["levelname"] for record in records].count("DEBUG") == UNITS
    assert {record["event"]: record["levelname"] for record in records}["start"] == "INFO"


def test_nothing_is_printed_unless_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A program that sets up no logging sees no log line on stderr."""
    source = write_source(tmp_path / "source.parquet", "mill")
    prepare(source, tmp_path / "store")
    with pytest.raises(UsageError):
        prepare(source, tmp_path / "other", workers=0)
    assert capfd.readouterr().err == ""
