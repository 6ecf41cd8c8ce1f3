"""Does what a worker does: runs the initializer, calls the function on each form of input, and measures a sample."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.diagnosis.examining.answers import Called, Form, Measured, ProbeRequest, Raised, describe_exception
from tokenmill.diagnosis.examining.inside.loading import NetworkBlock
from tokenmill.system import machine, procfs

BATCH_TEXTS = 32
FIRST_TEXTS = 4
# Measuring ends after this many times its limit, including the time to generate texts.
WALL_FACTOR = 3
SAMPLE_BYTES = 8 << 20
ENOUGH_GROWTH_BYTES = 512 << 20
# Less growth over the last half of the sample is noise.
MIN_GROWTH_BYTES = 8 << 20
# Growth flattens out if the last quarter of the sample adds less than this fraction of the quarter before.
STEADY_FRACTION = 0.95
SYLLABLES = (
    *("the", "of", "and", "to", "in", "is", "it", "on", "as", "be", "er", "re", "ti", "en", "st", "ar", "ing", "ion"),
    *("con", "pro", "ver", "ment", "able", "data", "token", "19", "höf", "né", "ça", "ığ", "ów", "для", "の", "的"),
)
# Word n has a frequency of about n ** -1.33: twice the text has 68 % more distinct words.
RARITY = -3.0
# The first texts are short, so that runaway growth shows before it exhausts the memory.
SHORT_TEXTS = 64
ODD_TEXTS = ("", " ", "\n", "\x00", "a" * 1000, "<|endoftext|>", "Żółć 🦊\u200d", "7" * 1000)

# Text bytes so far, and the memory then.
Reading = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ProbedWorker:
    """A function as a worker has it. `initialize` is what its pool runs first in each process."""

    function: Callable[..., Any]
    request: ProbeRequest
    network: NetworkBlock
    initialize: Callable[[], None]

    def try_forms(self) -> Called:
        """Runs the initializer and calls the function on each form of input until one is accepted."""
        try:
            self.initialize()
        except Exception as error:  # noqa: BLE001 - the exception is the answer
            raised = describe_exception(error, self.request.path)
            return self.network.failure((raised,), f"runs its initializer {self.request.script.initializer}")
        failures: list[Raised] = []
        for form in self.request.script.forms:
            failure = self.failure_on(form, list(itertools.islice(_texts(), FIRST_TEXTS)))
            if failure is None:
                return Called(form, tuple(failures), tuple(self.network.hosts))
            failures.append(failure)
            if self.network.hosts or failure.type == "MemoryError":
                break
        return self.network.failure(tuple(failures))

    def failure_on(self, form: Form, texts: list[str], readings: list[Reading] | None = None) -> Raised | None:
        """Returns what the function raises on these texts, or None. Adds a reading of the memory after each call."""
        try:
            for size in self._calls(form, texts):
                if readings is not None:
                    readings.append((readings[-1][0] + size, machine.resident_bytes()))
                    if _is_enough(readings):
                        break
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the exception is the answer
            return describe_exception(error, self.request.path)
        return None

    def measure(self, form: Form) -> Measured:
        """Measures memory on SAMPLE_BYTES of text, or on what the function processes in the time for the sample."""
        readings = [(0, machine.resident_bytes())]
        failure, call_seconds = None, 0.0
        all_texts = _texts(seed=11)
        seconds = self.request.sample_seconds
        until = time.monotonic() + WALL_FACTOR * seconds
        while failure is None and call_seconds < seconds and time.monotonic() < until and not _is_enough(readings):
            texts = list(itertools.islice(all_texts, BATCH_TEXTS))
            started = time.perf_counter()
            failure = self.failure_on(form, texts, readings)
            call_seconds += time.perf_counter() - started
        return Measured(readings[-1][0], _own_peak_bytes(), growth_rate(readings), failure)

    def _calls(self, form: Form, texts: list[str]) -> Iterator[int]:
        """Calls the function and yields the size of the text after each call."""
        extra = _extra_arguments(self.function)
        if form == "batch":
            result = self.function({self.request.column: texts}, *([list(range(len(texts)))] * extra))
            _exhaust(result)
            _check_batch(result)
            yield sum(map(len, texts))
            return
        for index, text in enumerate(texts):
            _exhaust(self.function({self.request.column: text} if form == "row" else text, *([index] * extra)))
            yield len(text)


def growth_rate(readings: list[Reading]) -> float:
    """Returns the bytes of memory per byte of text in the last half of the sample, 0 if it does not grow steadily."""
    end = readings[-1][0]
    first, middle, last = (_held_at(readings, end * part) for part in (0.45, 0.7, 0.95))
    is_steady = last - middle >= STEADY_FRACTION * (middle - first)
    return 2 * (last - first) / end if is_steady and last - first >= MIN_GROWTH_BYTES else 0.0


def _held_at(readings: list[Reading], text: float) -> float:
    """Returns the memory after about `text` bytes of text."""
    width = readings[-1][0] / 20
    return statistics.median([held for done, held in readings if abs(done - text) <= width] or [readings[-1][1]])


def _is_enough(readings: list[Reading]) -> bool:
    return readings[-1][0] >= SAMPLE_BYTES or readings[-1][1] - readings[0][1] > ENOUGH_GROWTH_BYTES


def _own_peak_bytes() -> int:
    """Returns the peak of the memory that this process shares with no other."""
    lines = procfs.read("/proc/self/smaps_rollup").splitlines()
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_Dirty:"))
    if not own:
        return machine.resident_bytes()
    status = procfs.status(os.getpid())
    return own + max(0, procfs.number(status, b"VmHWM") - procfs.number(status, b"VmRSS")) * 1024


def _texts(seed: int = 7) -> Iterator[str]:
    """Yields texts without end, from a sentence to two pages. Rare and new words occur as in real text."""
    rng = random.Random(seed)  # noqa: S311 - not for security
    for number in itertools.count():
        words = 12 if number < SHORT_TEXTS else rng.randint(20, 600)
        yield " ".join(_word(int((1.0 - rng.random()) ** RARITY) % 10**9) for _ in range(words))


@functools.lru_cache(maxsize=8192)
def _word(rank: int) -> str:
    """Returns the word of a rank: the rarer, the longer."""
    rest, syllable = divmod(rank, len(SYLLABLES))
    return SYLLABLES[syllable] + (_word(rest - 1) if rest else "")


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
