"""Metrics of a run, made from its heartbeats: a file for Prometheus, or OTLP by the OpenTelemetry SDK."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tokenmill.errors import UsageError
from tokenmill.storage import absolute, folder_at, scheme
from tokenmill.system.arguments import check_text

if TYPE_CHECKING:
    from tokenmill.store.heartbeats import HeartbeatRecord
    from tokenmill.store.job import Run

# The value of `--metrics` that sends metrics to a collector instead of writing a file.
OTLP = "otlp"


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


class MetricsSink(Protocol):
    """Receives each heartbeat of a driver, the last one included."""

    def update(self, beat: HeartbeatRecord) -> None:
        """Take the values of a heartbeat."""
        ...


def labels(beat: HeartbeatRecord, run: Run, store: str) -> dict[str, str]:
    """The labels of all metrics of a driver. They stay the same when a run is resumed."""
    rank = {} if beat.rank is None else {"rank": str(beat.rank)}
    return {"store": store, "tokenizer": run.job.tokenizer.name, **rank}


def prometheus_text(beat: HeartbeatRecord, run: Run, store: str) -> str:
    """The metrics in the text format of Prometheus."""
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in labels(beat, run, store).items())
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


class OtlpMetrics:
    """Sends metrics by the OpenTelemetry SDK. The variables OTEL_EXPORTER_OTLP_* set the address and the protocol."""

    def __init__(self, run: Run, store: str, reader: Any = None) -> None:
        metrics, sdk, resources, otlp_reader = _opentelemetry()
        self._run, self._store = run, store
        self._beat: HeartbeatRecord | None = None
        self._observation = metrics.Observation
        self._provider = sdk.MeterProvider(
            [reader or otlp_reader()], resource=resources.Resource.create({"service.name": "tokenmill"})
        )
        meter = self._provider.get_meter("tokenmill")
        for metric in METRICS:
            is_counter = metric.kind == "counter"
            create = meter.create_observable_counter if is_counter else meter.create_observable_gauge
            create(f"tokenmill.{metric.name.removesuffix('_total')}", [self._callback(metric)], "", metric.help)

    def update(self, beat: HeartbeatRecord) -> None:
        """Keep the values for the next export; export the last ones at once."""
        self._beat = beat
        if beat.ended:
            self._provider.force_flush()
            self._provider.shutdown()

    def _callback(self, metric: Metric) -> Callable[[Any], Iterable[Any]]:
        def observe(_options: Any) -> Iterable[Any]:
            beat = self._beat
            value = None if beat is None else metric.value(beat, self._run)
            if beat is None or value is None:
                return []
            return [self._observation(value, labels(beat, self._run, self._store))]

        return observe


def check_metrics(metrics: str | None) -> str | None:
    """The absolute path of the metrics file, or `otlp`. Raises UsageError before any work if it cannot be used."""
    if metrics is None:
        return None
    if metrics == OTLP:
        _opentelemetry()
        return metrics
    path = absolute(metrics)
    check_text(path)
    if scheme(path) or os.path.isdir(path) or not os.path.isdir(os.path.dirname(path)):
        raise UsageError(f"--metrics {metrics} is not a file of an existing local directory")
    try:
        tempfile.TemporaryFile(dir=os.path.dirname(path)).close()
    except OSError as error:
        raise UsageError(f"--metrics {metrics} cannot be written", f"reason       {error.strerror}") from error
    return path


def open_metrics(metrics: str | None, run: Run, store: str) -> MetricsSink | None:
    """The receiver of a run's heartbeats for a value that `check_metrics` gave."""
    if metrics is None:
        return None
    return OtlpMetrics(run, store) if metrics == OTLP else MetricsFile(metrics, run, store)


def _opentelemetry() -> tuple[Any, Any, Any, Callable[[], Any]]:
    """The modules of the SDK, and a function that makes a reader which sends metrics by OTLP."""
    try:
        from opentelemetry import metrics  # noqa: PLC0415 - an extra
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk import metrics as sdk  # noqa: PLC0415
        from opentelemetry.sdk import resources  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(
            f"--metrics {OTLP} needs the OpenTelemetry SDK and its OTLP exporter",
            "Install them: pip install 'tokenmill[otel]'",
        ) from error
    return metrics, sdk, resources, lambda: PeriodicExportingMetricReader(OTLPMetricExporter())
