"""The main program of a probe process: reads a request, runs it and appends answers to a file.

Each process loads the script itself. Answers are written at once, so that they survive the death of the process.
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

from tokenmill.doctor.examining.answers import Answer, Parts, Pickled, ProbeRequest, Unpickled, describe_exception
from tokenmill.doctor.examining.forking import dump_stack_on_crash, raise_oom_score, stack_path
from tokenmill.doctor.examining.inside import fingerprints, pickling
from tokenmill.doctor.examining.inside.fork_trials import ForkTrials
from tokenmill.doctor.examining.inside.loading import MAIN, SPAWNED_MAIN, ScriptLoader, load
from tokenmill.doctor.examining.inside.network import NetworkBlock
from tokenmill.doctor.examining.inside.worker import ProbedWorker

CALL_SECONDS = 30.0
REFERENCE_SECONDS = 4.0
HEAVY_BYTES = 1_000_000


class Probe:
    """One probe process."""

    def __init__(self, request: ProbeRequest) -> None:
        self.request = request
        self.stack_path = stack_path(request.folder, request.role)

    def report(self, answer: Answer) -> None:
        """Appends an answer. The file is reopened each time, because a script may close open files."""
        with open(os.path.join(self.request.folder, "answers"), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(answer) + b"\n")

    def run_parent(self) -> None:
        """Loads the script as the main process, pickles and hashes the function, and calls it in forked children."""
        loader = load(self.request, MAIN, tuple, self.report)
        if not loader.exists:
            return
        function = loader.function()
        self.pickle(function)
        self.hash(function, after_call=False)
        if self.request.fork:
            network = NetworkBlock()
            network.remove_proxies()
            trials = ForkTrials(self.request, self.worker(function, loader, network), self.report)
            outcome = trials.call_in_child()
            if self.request.initializer is None and outcome in {"done", "hung", "slow"}:
                with self.time_limit(CALL_SECONDS if outcome == "done" else REFERENCE_SECONDS):
                    form = trials.call_in_parent()
                if form is not None and outcome == "done":
                    trials.call_in_child_after_parent(form)
                    self.hash(function, after_call=True)

    def run_spawned(self) -> None:
        """Loads the script as a spawned child, without network, then unpickles, calls and measures the function."""
        network = NetworkBlock()
        network.remove_proxies()
        loader = ScriptLoader(self.request)
        if self.request.imports_main:
            loader = load(self.request, SPAWNED_MAIN, lambda: tuple(network.hosts), self.report)
            if loader.raised is not None or loader.stopped:
                return
        network.remove_proxies()
        function = self.unpickle(loader)
        if function is None:
            return
        worker = self.worker(function, loader, network)
        with self.time_limit():
            called = worker.try_forms("spawned", self.request.forms)
        self.report(called)
        if called.form is not None:
            self.report(worker.measure("spawned", called.form, self.request.sample_seconds))
            ForkTrials(self.request, worker, self.report).try_odd_texts(called.form)

    def hash_again(self) -> None:
        """Loads the script and hashes the function, to compare with another process."""
        self.hash(load(self.request, MAIN, tuple, self.report).function(), after_call=False)

    def hash_parts(self) -> None:
        """Loads the script and hashes what the function holds."""
        loader = load(self.request, MAIN, tuple, self.report)
        self.report(Parts(fingerprints.parts(loader.function(), self.request.function)))

    def worker(self, function: Callable[..., Any], loader: ScriptLoader, network: NetworkBlock) -> ProbedWorker:
        """Returns the function as a worker has it."""
        return ProbedWorker(function, self.request.script, self.request.column, network, loader.run_initializer)

    def pickle(self, function: Any) -> None:
        """Pickles the function with each pickler and saves the bytes for the spawned process."""
        for pickler in pickling.installed_picklers(self.request.picklers):
            try:
                data = pickler.dumps(function)
            except Exception as error:  # noqa: BLE001 - the exception is the answer
                raised = describe_exception(error, self.request.script)
                obstacle = pickling.obstacle(pickler, function, self.request.function)
                self.report(Pickled(pickler.name, raised=raised, obstacle=obstacle))
                continue
            with open(os.path.join(self.request.pickles, pickler.name), "wb") as file:
                file.write(data)
            is_heavy = len(data) > HEAVY_BYTES
            part = pickling.largest(pickler, function, self.request.function) if is_heavy else None
            self.report(Pickled(pickler.name, len(data), largest=part))

    def unpickle(self, loader: ScriptLoader) -> Any:
        """Returns the function as it arrives in a worker, or by its name if no pickler could send it."""
        for name in self.request.picklers:
            path = os.path.join(self.request.pickles, name)
            if os.path.exists(path):
                try:
                    function = _load_pickle(name, path)
                except Exception as error:  # noqa: BLE001 - the exception is the answer
                    self.report(Unpickled(describe_exception(error, self.request.script)))
                    return None
                self.report(Unpickled())
                return function
        with contextlib.suppress(AttributeError):
            return loader.function()
        return None

    def hash(self, function: Any, after_call: bool) -> None:
        """Reports the function's fingerprint, if requested and datasets is installed."""
        if not self.request.hashes:
            return
        with contextlib.suppress(ImportError):
            self.report(fingerprints.fingerprint(function, self.request.function, self.request.script, after_call))

    @contextlib.contextmanager
    def time_limit(self, seconds: float = CALL_SECONDS) -> Iterator[None]:
        """Ends this process, with its stack in a file, if the block takes longer than `seconds`."""
        with open(self.stack_path, "ab", buffering=0) as file:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
            try:
                yield
            finally:
                faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Runs the request in the first argument."""
    probe = Probe(msgspec.json.decode(sys.argv[1], type=ProbeRequest))
    dump_stack_on_crash(probe.stack_path)
    raise_oom_score()
    {"parent": probe.run_parent, "spawned": probe.run_spawned, "hash": probe.hash_again, "parts": probe.hash_parts}[
        probe.request.role
    ]()
    sys.stderr.flush()
    os._exit(0)  # does not wait for the script's threads and exit handlers


def _load_pickle(pickler: str, path: str) -> Any:
    module: Any = importlib.import_module("dill") if pickler == "dill" else pickle
    with open(path, "rb") as file:
        return module.load(file)
