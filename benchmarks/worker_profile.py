"""Where the time of `tokenmill prepare` goes: the phases of one command by its log, and the steps of one worker."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from benchmarks.processes import Timed
from tokenmill.executors.local import LocalExecutor
from tokenmill.options import JobOptions
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.planning.freeze import FrozenRun, freeze
from tokenmill.pipeline.planning.request import find_sources, make_request
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.tokenize import Tokenize
from tokenmill.storage import folder_at
from tokenmill.store import layout


@dataclass
class Stopwatch:
    """Time by label, that of a wrapped function inside another one taken from the outer."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inside: list[float] = field(default_factory=list)

    def call(self, label: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function on the clock."""
        started = time.perf_counter()
        self._inside.append(0.0)
        try:
            return function(*args, **kwargs)
        finally:
            spent = time.perf_counter() - started
            self.seconds[label] += spent - self._inside.pop()
            if self._inside:
                self._inside[-1] += spent

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Put a function of a module or class on the clock."""
        function = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            return self.call(label, function, *args, **kwargs)

        setattr(owner, name, timed)

    def wrap_generator(self, owner: Any, name: str, label: str) -> None:
        """Put the steps of a generator on the clock."""
        function = getattr(owner, name)

        def generate(*args: Any) -> Iterator[Any]:
            items = function(*args)
            end = object()
            while (item := self.call(label, next, items, end)) is not end:
                yield item

        setattr(owner, name, generate)


STEPS = {
    "load engine, probe": [("tokenmill.pipeline.unit.tokenize", "loaded_tokenizer")],
    "UTF-8 validation": [
        ("tokenmill.sources.columnar", "split_valid"),
        ("tokenmill.sources.text", "split_valid"),
        ("tokenmill.sources.jsonl", "split_valid"),
    ],
    "gap scan": [("tokenmill.tokenization.tokenizer", "documents_with_gap")],
    "encode": [("tokenmill.tokenization.engines.gigatoken:GigatokenEngine", "encode")],
    "encode gap documents": [("tokenmill.tokenization.tokenizer:Tokenizer", "_replace")],
    "white space scan": [("tokenmill.tokenization.tokenizer", "documents_with_long_white_space")],
    "audit": [("tokenmill.tokenization.audit:Audit", "check")],
    "bound (begin, end)": [("tokenmill.pipeline.unit.encode", "framed")],
    "hash text, collect columns": [("tokenmill.pipeline.unit.part_builder:PartBuilder", "add")],
    "join columns": [("tokenmill.pipeline.unit.part_builder:PartBuilder", "finish")],
    "checksums": [("tokenmill.pipeline.unit.part_builder", "with_checksum")],
    "write": [("tokenmill.pipeline.unit.part_builder", "publish_part")],
    "fsync": [("os", "fsync")],
}
"""The functions of one worker, by what they do; a name after a colon is a class."""

READING = ("tokenmill.pipeline.unit.documents", "unit_documents")
"""The generator that reads the documents of a unit."""


def profile_worker(files: list[str], tokenizer: str, workers: int, directory: str, target_bytes: int) -> dict[str, Any]:
    """Do units in this process until they hold enough text; the seconds of each step."""
    frozen = freeze_run(files, tokenizer, directory)
    for module in worker_modules("auto"):  # as a worker does before its first unit
        importlib.import_module(str(module))
    watch = Stopwatch()
    for label, functions in STEPS.items():
        for owner, name in functions:
            watch.wrap(named(owner), name, label)
    watch.wrap_generator(named(READING[0]), READING[1], "read, decode")
    limits = WorkerLimits(plan_resources(workers, None, workers).worker_bytes)
    tokenize = Tokenize(directory, frozen.run.job, frozen.run.engine, limits)
    text_bytes = 0
    started = time.perf_counter()
    for task in plan.tasks(frozen.plan, frozen.sources, range(frozen.run.units)):
        committed = tokenize(task)
        assert isinstance(committed, Future)  # no other process makes these units
        text_bytes += committed.result().summary.text_bytes
        if text_bytes >= target_bytes:
            break
    seconds = time.perf_counter() - started
    steps = dict(watch.seconds) | {"other": seconds - sum(watch.seconds.values())}
    return {"megabytes": text_bytes / 1e6, "seconds": seconds, "engine": frozen.run.engine, "steps": steps}


def freeze_run(sources: list[str], tokenizer: str, directory: str) -> FrozenRun:
    """A run that is ready to be worked on."""
    words = JobOptions(tokenizer=tokenizer)
    request = make_request(words, find_sources(sources))
    folder = folder_at(directory)
    folder.create()
    with LocalExecutor() as executor:
        return freeze(folder, request, executor.start(1))


def named(owner: str) -> Any:
    """The module or class with this name."""
    module, _, name = owner.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def profile_command(timed: Timed, store: str, workers: int) -> dict[str, float]:
    """The course of one command, in seconds since its process was started, and how busy its workers were."""
    with open(os.path.join(store, layout.LOG), encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    units = [event for event in events if event["event"] == "unit"]
    first = min(event["time"] - event["seconds"] for event in units)
    last = max(event["time"] for event in units)
    given_out = next(event["time"] for event in events if event["event"] == "start")
    complete = next(event["time"] for event in events if event["event"] == "complete")
    busy = sum(event["seconds"] for event in units)
    return {
        "plan frozen, units given out": given_out - timed.began,
        "first unit starts": first - timed.began,
        "last unit ends": last - timed.began,
        "manifest written": complete - timed.began,
        "process ends": timed.seconds,
        "workers busy between first and last": busy / workers / (last - first),
    }


def print_profile(command: dict[str, float], worker: dict[str, Any]) -> None:
    """Both profiles for people."""
    print("\none command, seconds since its process was started")
    for name, value in command.items():
        print(f"  {name:<38}{value:8.2f}" if "busy" not in name else f"  {name:<38}{value:8.1%}")
    megabytes, seconds = worker["megabytes"], worker["seconds"]
    print(f"\none worker in this process: {megabytes:.0f} MB in {seconds:.2f} s, {megabytes / seconds:.1f} MB/s")
    for name, value in sorted(worker["steps"].items(), key=lambda step: -step[1]):
        print(f"  {name:<26}{value:8.3f} s{value / seconds:8.1%}")
