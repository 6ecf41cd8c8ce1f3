"""Metrics of a run, made from its heartbeats: a file for Prometheus."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from tokenmill.errors import UsageError
from tokenmill.storage import absolute, folder_at, scheme
from tokenmill.store.heartbeats import HeartbeatRecord
from tokenmill.store.job import Run
from tokenmill.system.arguments import check_text


class Metric(NamedTuple):
    """A number of a run: its name without the prefix, its type, its description, and how a heartbeat gives it."""

    name: str
    kind: str
    help: str
    value: Callable[[HeartbeatRecord, Run], float | None]


METRICS = (
    Metric("units", "gauge", "Units of the plan.", lambda _, run: run.units),
    Metric("units_done", "gauge", "Units that have a part, by all drivers.", lambda beat, _: beat.units_done),
    Metric("planned_bytes", "gauge", "Bytes of text in the plan.", lambda _, run: run.text_bytes),
    Metric("planned_bytes_done", "gauge", "Planned bytes of done units.", lambda beat, _: beat.planned_bytes_done),
    Metric("tokens_total", "counter", "Tokens written by this driver.", lambda beat, _: beat.tokens),
    Metric("text_bytes_total", "counter", "Bytes of text tokenized by this driver.", lambda beat, _: beat.text_bytes),
    Metric("worker_deaths_total", "counter", "Workers that died.", lambda beat, _: beat.deaths),
    Metric("retries_total", "counter", "Units that were tried again.", lambda beat, _: beat.retries),
    Metric("failures_total", "counter", "Units that raised an error.", lambda beat, _: beat.failures),
    Metric("tokens_per_second", "gauge", "Tokens in the last minute.", lambda beat, _: beat.tokens_per_second),
    Metric("bytes_per_second", "gauge", "Bytes of text in the last minute.", lambda beat, _: beat.bytes_per_second),
    Metric("workers", "gauge", "Worker processes.", lambda beat, _: beat.workers),
    Metric("running", "gauge", "1 while the driver works, 0 after its end.", lambda beat, _: int(not beat.ended)),
    Metric("start_time_seconds", "gauge", "Unix time of the start.", lambda beat, _: beat.started),
    Metric("heartbeat_time_seconds", "gauge", "Unix time of these values.", lambda beat, _: beat.time),
    Metric(
        "exit_code",
        "gauge",
        "Exit code of the run, after its end.",
        lambda beat, _: None if beat.end is None else beat.end.exit_code,
    ),
)


def prometheus_text(beat: HeartbeatRecord, run: Run, store: str) -> str:
    """The metrics in the text format of Prometheus. Their labels stay the same when a run is resumed."""
    rank = {} if beat.rank is None else {"rank": str(beat.rank)}
    labels = {"store": store, "tokenizer": run.job.tokenizer.name, **rank}
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items())
    lines = []
    for metric in METRICS:
        value = metric.value(beat, run)
        if value is not None:
            name = f"tokenmill_{metric.name}"
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}", f"{name}{{{pairs}}} {value}"]
    return "\n".join([*lines, ""])


def _escape(value: str) -> str:
    text = value.encode(errors="backslashreplace").decode()  # a file name may not be UTF-8
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """A file for the textfile collector of the node exporter. Each heartbeat replaces it at once."""

    path: str
    run: Run
    store: str

    def update(self, beat: HeartbeatRecord) -> None:
        """Replace the file."""
        folder, _, name = self.path.rpartition("/")
        with folder_at(folder or "/").publish(name, durable=False) as file:
            file.write(prometheus_text(beat, self.run, self.store).encode())


def check_metrics(metrics: str | None) -> str | None:
    """The absolute path of the metrics file. Raises UsageError before any work if it cannot be used."""
    if metrics is None:
        return None
    path = absolute(metrics)
    check_text(path)
    if scheme(path) or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        raise UsageError(f"--metrics {metrics} is not a file of an existing local directory")
    try:
        tempfile.TemporaryFile(dir=os.path.dirname(path)).close()
    except OSError as error:
        raise UsageError(f"--metrics {metrics} cannot be written", f"reason       {error.strerror}") from error
    return path
