"""Does what a worker does: runs the initializer, calls the function on each form of input, and measures a sample."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.doctor.examining.answers import Called, Form, MeasuredCall, Raised, Trial, describe_exception
from tokenmill.doctor.examining.inside import sample
from tokenmill.doctor.examining.inside.network import NetworkBlock
from tokenmill.doctor.examining.memory import growth, own_peak_bytes
from tokenmill.system import machine

BATCH_TEXTS = 32
FIRST_TEXTS = 4
# Measuring ends after this many times its limit, including the time to generate texts.
WALL_FACTOR = 3
SAMPLE_BYTES = 8 << 20
ENOUGH_GROWTH_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ProbedWorker:
    """A function as a worker has it. `initialize` is what its pool runs first in each process."""

    function: Callable[..., Any]
    script: str
    column: str
    network: NetworkBlock
    initialize: Callable[[], None]

    def try_forms(self, trial: Trial, forms: tuple[Form, ...]) -> Called:
        """Runs the initializer and calls the function on each form of input until one is accepted."""
        try:
            self.initialize()
        except Exception as error:  # noqa: BLE001 - the exception is the answer
            unready = describe_exception(error, self.script)
            return Called(trial, None, hosts=tuple(self.network.hosts), proxy=self.network.proxy, unready=unready)
        failures: list[Raised] = []
        for form in forms:
            started = time.perf_counter()
            failure = self.failure_on(form, list(itertools.islice(sample.texts(), FIRST_TEXTS)))
            if failure is None:
                return Called(trial, form, time.perf_counter() - started, tuple(failures), tuple(self.network.hosts))
            failures.append(failure)
            if self.network.hosts or failure.type == "MemoryError":
                break
        return Called(trial, None, 0.0, tuple(failures), tuple(self.network.hosts), self.network.proxy)

    def failure_on(self, form: Form, texts: list[str]) -> Raised | None:
        """Returns what the function raises on these texts, or None."""
        try:
            for _ in self._calls(form, texts):
                pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the exception is the answer
            return describe_exception(error, self.script)
        return None

    def measure(self, trial: Trial, form: Form, seconds: float) -> MeasuredCall:
        """Measures memory on SAMPLE_BYTES of text, or on what the function processes in `seconds`."""
        readings = [(0, machine.resident_bytes())]
        failure, call_seconds = None, 0.0
        all_texts = sample.texts(seed=11)
        until = time.monotonic() + WALL_FACTOR * seconds
        while failure is None and call_seconds < seconds and time.monotonic() < until and not _is_enough(readings):
            texts = list(itertools.islice(all_texts, BATCH_TEXTS))
            started = time.perf_counter()
            failure = self._measure_batch(form, texts, readings)
            call_seconds += time.perf_counter() - started
        grown = growth(readings)
        return MeasuredCall(trial, readings[-1][0], call_seconds, own_peak_bytes(), grown.rate, grown.power, failure)

    def _measure_batch(self, form: Form, texts: list[str], readings: list[tuple[int, int]]) -> Raised | None:
        try:
            for size in self._calls(form, texts):
                readings.append((readings[-1][0] + size, machine.resident_bytes()))
                if _is_enough(readings):
                    break
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the exception is the answer
            return describe_exception(error, self.script)
        return None

    def _calls(self, form: Form, texts: list[str]) -> Iterator[int]:
        """Calls the function and yields the size of the text after each call."""
        extra = _extra_arguments(self.function)
        if form == "batch":
            result = self.function({self.column: texts}, *([list(range(len(texts)))] * extra))
            _exhaust(result)
            _check_batch(result)
            yield sum(map(len, texts))
            return
        for index, text in enumerate(texts):
            _exhaust(self.function({self.column: text} if form == "row" else text, *([index] * extra)))
            yield len(text)


def _is_enough(readings: list[tuple[int, int]]) -> bool:
    return readings[-1][0] >= SAMPLE_BYTES or readings[-1][1] - readings[0][1] > ENOUGH_GROWTH_BYTES


def _exhaust(result: Any) -> None:
    """Reads a generator to its end, because it does its work only when read."""
    if isinstance(result, Iterator):
        for _ in result:
            pass


def _check_batch(result: Any) -> None:
    """Raises, as `datasets` does, if the result is that of a row: a column of a batch is a list."""
    for name, values in result.items() if isinstance(result, Mapping) else ():
        if isinstance(values, str | bytes) or not hasattr(values, "__len__"):
            raise TypeError(f"the column {name!r} of a batch is no list")


def _extra_arguments(function: Callable[..., Any]) -> int:
    """Returns how many arguments the function needs besides the input, such as an index for `with_indices`."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p for p in parameters if p.kind in positional and p.default is inspect.Parameter.empty]
    return min(2, max(0, len(required) - 1))
