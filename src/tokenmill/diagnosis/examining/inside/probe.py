"""The main program of a probe process: reads a request, runs it and appends answers to a file.

Each process loads the script itself. Answers are written at once, so that they survive the death of the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import resource
import sys
import traceback
import warnings
from typing import Any

import msgspec

from tokenmill.diagnosis.examining.answers import (
    INTERNAL_ERROR,
    Answer,
    Ended,
    Forked,
    Pickled,
    ProbeRequest,
    Trying,
    describe_exception,
)
from tokenmill.diagnosis.examining.inside import pickling
from tokenmill.diagnosis.examining.inside.loading import MAIN, SPAWNED_MAIN, LoadedScript, NetworkBlock
from tokenmill.diagnosis.examining.inside.worker import ODD_TEXTS, ProbedWorker
from tokenmill.system import machine

# Tried if the text of the script does not show which library sends the function.
PICKLERS = ("pickle", "dill")
# The part of a pickled function that makes it heavy is looked for from this size on.
HEAVY_BYTES = 1_000_000


class Probe:
    """One probe process."""

    def __init__(self, request: ProbeRequest) -> None:
        self.request = request

    def report(self, answer: Answer) -> None:
        """Appends an answer. The file is reopened each time, because a script may close open files."""
        with open(self.request.file("answers"), "ab", buffering=0) as file:
            file.write(msgspec.json.encode(answer) + b"\n")

    def run_main(self) -> None:
        """Loads the script as the main process, pickles the function, and calls it in a forked child."""
        script = LoadedScript(self.request, MAIN)
        self.report(script.answer([]))
        function = script.function
        if not callable(function):
            return
        self.pickle(function)
        if self.request.script.forks and not self.is_parent_of_fork():
            self.work(function, script, NetworkBlock())

    def run_spawned(self) -> None:
        """Loads the script as a spawned child, without network, then unpickles, calls and measures the function."""
        network = NetworkBlock()
        script = LoadedScript(self.request, SPAWNED_MAIN)
        self.report(script.answer(network.hosts))
        if script.raised is not None or script.process_line is not None:
            return
        network.remove_proxies()  # the script may have set some
        try:
            function = self.unpickle(script.function)
        except Exception as error:  # noqa: BLE001 - the exception is the answer
            self.report(network.failure((describe_exception(error, self.request.path),), "unpickles it"))
        else:
            self.work(function, script, network)

    def is_parent_of_fork(self) -> bool:
        """Forks. Returns False in the child, and True in the parent when the child has ended."""
        threads = machine.threads()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads at a fork, which is what this tests
            pid = os.fork()
        if pid == 0:
            dump_stack_on_crash(self.request.file("stack"))
            return False
        self.report(Forked(pid, threads))
        self.report(Ended(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
        return True

    def work(self, function: Any, script: LoadedScript, network: NetworkBlock) -> None:
        """Does what a worker does. Odd texts may raise; only the death of the process on one counts."""
        worker = ProbedWorker(function, self.request, network, script.run_initializer)
        called = worker.try_forms()
        self.report(called)
        if called.form is not None:
            self.report(worker.measure(called.form))
            for text in ODD_TEXTS:
                self.report(Trying(text[:20]))
                worker.failure_on(called.form, [text])

    def pickle(self, function: Any) -> None:
        """Pickles the function with each pickler and saves the bytes for the spawned process."""
        for pickler in pickling.installed_picklers(self.request.script.picklers or PICKLERS):
            try:
                data = pickler.dumps(function)
            except Exception as error:  # noqa: BLE001 - the exception is the answer
                raised = describe_exception(error, self.request.path)
                obstacle = pickling.obstacle(pickler, function, self.request.function)
                self.report(Pickled(pickler.name, raised=raised, obstacle=obstacle))
                continue
            with open(os.path.join(self.request.folder, pickler.name), "wb") as file:
                file.write(data)
            is_heavy = len(data) > HEAVY_BYTES
            part = pickling.largest(pickler, function, self.request.function) if is_heavy else None
            self.report(Pickled(pickler.name, len(data), largest=part))

    def unpickle(self, function: Any) -> Any:
        """Returns the function as it arrives in a worker, or as it is if no pickler could send it."""
        for name in self.request.script.picklers or PICKLERS:
            with contextlib.suppress(FileNotFoundError), open(os.path.join(self.request.folder, name), "rb") as file:
                return importlib.import_module(name).load(file)
        return function


def dump_stack_on_crash(stack: str) -> None:
    """Writes the Python stack to a file, and no core file, when this process crashes or is aborted."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(open(stack, "wb", buffering=0), all_threads=False)  # noqa: SIM115 - open until the end


def main() -> None:
    """Runs the request in the first argument."""
    probe = Probe(msgspec.json.decode(sys.argv[1], type=ProbeRequest))
    dump_stack_on_crash(probe.request.file("stack"))
    machine.set_oom_score(500)
    try:
        probe.run_main() if probe.request.role == "main" else probe.run_spawned()
    except BaseException:  # noqa: BLE001 - a forked child must never continue as a copy of its parent
        traceback.print_exc()
        os._exit(INTERNAL_ERROR)
    sys.stderr.flush()
    os._exit(0)  # does not wait for the script's threads and exit handlers
