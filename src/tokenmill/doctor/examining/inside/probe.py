"""What runs in the processes of an examination. Each is given a request and answers into a file.

Each loads the script for itself, and answers as it goes, so that what it dies of leaves the answers before it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tokenmill.doctor.examining.answers import Answer, Parts, Pickled, ProbeRequest, Unpickled
from tokenmill.doctor.examining.forking import die_first, stack_path, watch_this_process
from tokenmill.doctor.examining.inside import fingerprints, pickling
from tokenmill.doctor.examining.inside.fork_trials import ForkTrials
from tokenmill.doctor.examining.inside.loading import MAIN, SPAWNED_MAIN, Loading, load
from tokenmill.doctor.examining.inside.network import Refusal
from tokenmill.doctor.examining.inside.raising import raised
from tokenmill.doctor.examining.inside.worker import ProbedWorker

CALL_SECONDS = 30.0
REFERENCE_SECONDS = 4.0
HEAVY_BYTES = 1_000_000


class Probe:
    """One process of an examination."""

    def __init__(self, request: ProbeRequest) -> None:
        self.request = request
        self.stack = stack_path(request.folder, request.role)

    def report(self, answer: Answer) -> None:
        """Append an answer. The file is opened anew, for a script may have closed what it found open."""
        with open(os.path.join(self.request.folder, "answers"), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(answer) + b"\n")

    def be_parent(self) -> None:
        """Load the script as its own process; pickle the function, hash it, and call it in forked children."""
        loading = load(self.request, MAIN, tuple, self.report)
        if not loading.exists:
            return
        function = loading.function()
        self.pickle(function)
        self.hash(function, after_call=False)
        if self.request.fork:
            refusal = Refusal()
            refusal.forget_proxies()
            trials = ForkTrials(self.request, self.worker(function, loading, refusal), self.report)
            outcome = trials.fork()
            if self.request.initializer is None and outcome in {"done", "hung", "slow"}:
                with self.time_limit(CALL_SECONDS if outcome == "done" else REFERENCE_SECONDS):
                    form = trials.call()
                if form is not None and outcome == "done":
                    trials.fork_after_call(form)
                    self.hash(function, after_call=True)

    def be_spawned(self) -> None:
        """Load the script as a spawned child does, without a network; find the function, call it and measure."""
        refusal = Refusal()
        refusal.forget_proxies()
        loading = Loading(self.request)
        if self.request.imports_main:
            loading = load(self.request, SPAWNED_MAIN, lambda: tuple(refusal.hosts), self.report)
            if loading.raised is not None or loading.stopped:
                return
        refusal.forget_proxies()
        function = self.unpickle(loading)
        if function is None:
            return
        worker = self.worker(function, loading, refusal)
        with self.time_limit():
            called = worker.begin("spawned", self.request.forms)
        self.report(called)
        if called.form is not None:
            self.report(worker.measure("spawned", called.form, self.request.sample_seconds))
            ForkTrials(self.request, worker, self.report).try_odd_texts(called.form)

    def hash_again(self) -> None:
        """Load the script and hash the function, to compare with another process."""
        self.hash(load(self.request, MAIN, tuple, self.report).function(), after_call=False)

    def hash_parts(self) -> None:
        """Load the script and hash what the function holds."""
        loading = load(self.request, MAIN, tuple, self.report)
        self.report(Parts(fingerprints.parts(loading.function(), self.request.function)))

    def worker(self, function: Callable[..., Any], loading: Loading, refusal: Refusal) -> ProbedWorker:
        """The function as a worker will have it."""
        return ProbedWorker(function, self.request.script, self.request.column, refusal, loading.make_ready)

    def pickle(self, function: Any) -> None:
        """Pickle the function in each way, and leave the bytes for who unpickles them."""
        for way in pickling.ways(self.request.picklers):
            try:
                data = way.dumps(function)
            except Exception as error:  # noqa: BLE001 - whatever pickling raises is the answer
                why = raised(error, self.request.script)
                obstacle = pickling.obstacle(way, function, self.request.function)
                self.report(Pickled(way.name, raised=why, obstacle=obstacle))
                continue
            with open(os.path.join(self.request.pickles, way.name), "wb") as file:
                file.write(data)
            heavy = len(data) > HEAVY_BYTES
            part = pickling.largest(way, function, self.request.function) if heavy else None
            self.report(Pickled(way.name, len(data), largest=part))

    def unpickle(self, loading: Loading) -> Any:
        """The function as it arrives in a worker, or by its name where no way of pickling brings it there."""
        for name in self.request.picklers:
            path = os.path.join(self.request.pickles, name)
            if os.path.exists(path):
                try:
                    function = _unpickled(name, path)
                except Exception as error:  # noqa: BLE001 - whatever unpickling raises is the answer
                    self.report(Unpickled(raised(error, self.request.script)))
                    return None
                self.report(Unpickled())
                return function
        with contextlib.suppress(AttributeError):
            return loading.function()
        return None

    def hash(self, function: Any, after_call: bool) -> None:
        """The function's fingerprint, if it is asked for and datasets is there."""
        if not self.request.hashes:
            return
        with contextlib.suppress(ImportError):
            self.report(fingerprints.fingerprint(function, self.request.function, self.request.script, after_call))

    @contextlib.contextmanager
    def time_limit(self, seconds: float = CALL_SECONDS) -> Iterator[None]:
        """End this process if the block does not end in time, and leave its stack."""
        with open(self.stack, "ab", buffering=0) as file:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Do what the request in the first argument asks."""
    probe = Probe(msgspec.json.decode(sys.argv[1], type=ProbeRequest))
    watch_this_process(probe.stack)
    die_first()
    {"parent": probe.be_parent, "spawned": probe.be_spawned, "hash": probe.hash_again, "parts": probe.hash_parts}[
        probe.request.role
    ]()
    sys.stderr.flush()
    os._exit(0)  # threads and exit handlers of the script are not waited for


def _unpickled(way: str, path: str) -> Any:
    loader: Any = importlib.import_module("dill") if way == "dill" else pickle
    with open(path, "rb") as file:
        return loader.load(file)
