"""What a worker does in the experiments: it is made ready, called on each form of input, and measured on a sample."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenmill.doctor.examining.answers import Called, Form, MeasuredCall, Place, Raised
from tokenmill.doctor.examining.inside import sample
from tokenmill.doctor.examining.inside.network import Refusal
from tokenmill.doctor.examining.inside.raising import raised
from tokenmill.doctor.examining.memory import growth, own_peak_bytes
from tokenmill.system import machine

BATCH_TEXTS = 32
FIRST_TEXTS = 4
WALL_TIMES = 3
SAMPLE_BYTES = 8 << 20
ENOUGH_GROWTH_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class ProbedWorker:
    """A function as a worker has it. `make_ready` is what its pool runs first in each process."""

    function: Callable[..., Any]
    script: str
    column: str
    refusal: Refusal
    make_ready: Callable[[], None]

    def begin(self, place: Place, forms: tuple[Form, ...]) -> Called:
        """Call it on each form of input until one is taken."""
        try:
            self.make_ready()
        except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the answer
            unready = raised(error, self.script)
            return Called(place, None, hosts=tuple(self.refusal.hosts), proxy=self.refusal.proxy, unready=unready)
        failures: list[Raised] = []
        for form in forms:
            started = time.perf_counter()
            failure = self.fails(form, list(itertools.islice(sample.texts(), FIRST_TEXTS)))
            if failure is None:
                return Called(place, form, time.perf_counter() - started, tuple(failures), tuple(self.refusal.hosts))
            failures.append(failure)
            if self.refusal.hosts or failure.type == "MemoryError":
                break
        return Called(place, None, 0.0, tuple(failures), tuple(self.refusal.hosts), self.refusal.proxy)

    def fails(self, form: Form, texts: list[str]) -> Raised | None:
        """What it raises on these texts, if it does."""
        try:
            for _ in self._calls(form, texts):
                pass
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is the answer
            return raised(error, self.script)
        return None

    def measure(self, place: Place, form: Form, seconds: float) -> MeasuredCall:
        """Its memory on some megabytes of text, or on what it does in so many seconds."""
        readings = [(0, machine.resident_bytes())]
        failure, busy = None, 0.0
        supply = sample.texts(seed=11)
        until = time.monotonic() + WALL_TIMES * seconds
        while failure is None and busy < seconds and time.monotonic() < until and not _is_enough(readings):
            texts = list(itertools.islice(supply, BATCH_TEXTS))
            started = time.perf_counter()
            failure = self._read(form, texts, readings)
            busy += time.perf_counter() - started
        grown = growth(readings)
        return MeasuredCall(place, readings[-1][0], busy, own_peak_bytes(), grown.rate, grown.power, failure)

    def _read(self, form: Form, texts: list[str], readings: list[tuple[int, int]]) -> Raised | None:
        try:
            for size in self._calls(form, texts):
                readings.append((readings[-1][0] + size, machine.resident_bytes()))
                if _is_enough(readings):
                    break
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the user's code raises is the answer
            return raised(error, self.script)
        return None

    def _calls(self, form: Form, texts: list[str]) -> Iterator[int]:
        """Call it, and give the size of the text after each call."""
        extra = _further_arguments(self.function)
        if form == "batch":
            _use_up(self.function({self.column: texts}, *([list(range(len(texts)))] * extra)))
            yield sum(map(len, texts))
            return
        for index, text in enumerate(texts):
            _use_up(self.function({self.column: text} if form == "row" else text, *([index] * extra)))
            yield len(text)


def _is_enough(readings: list[tuple[int, int]]) -> bool:
    return readings[-1][0] >= SAMPLE_BYTES or readings[-1][1] - readings[0][1] > ENOUGH_GROWTH_BYTES


def _use_up(result: Any) -> None:
    """A generator does its work only when it is read."""
    if isinstance(result, Iterator):
        for _ in result:
            pass


def _further_arguments(function: Callable[..., Any]) -> int:
    """How many arguments it needs besides the input: an index, as with `with_indices`, or none."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [each for each in parameters if each.kind in positional and each.default is inspect.Parameter.empty]
    return min(2, max(0, len(needed) - 1))
