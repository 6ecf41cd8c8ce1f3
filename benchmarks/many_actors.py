"""One driver with many nodes: its calls, its CPU time and memory, and how soon it notices that a node is lost.

`tokenmill.prepare` runs whole over units of one row. The driver, the executor for Ray and the actors of nodes are those
of the product, but workers sleep as long as a unit takes, and write a part of ten made-up tokens. A node has --workers.
Every part is compared with one made here, and no unit may be in the log twice. Each command is one row:

    python -m benchmarks.many_actors --nodes 8 --workers 1 --units 1000 --seconds 0.2 --peers
    python -m benchmarks.many_actors --nodes 8 --units 2000
    python -m benchmarks.many_actors --nodes 512 --processes 8 --units 30000 --seconds 4
    python -m benchmarks.many_actors --nodes 2048 --simulate --units 60000 --seconds 20 --slow 0.05 --deaths 0.02

Each actor has a process of its own, or shares one of --processes. Rates are those between 10 and 30 % of the units.
Then one process is killed; at half of the units another one is stopped (SIGSTOP), which is silent as a node without a
network is; at 90 % the run is interrupted and called again.

With --simulate the nodes are in this process. Time is skipped where all wait. What the driver computes takes its time,
and each call as much more as Ray takes for it. The fraction --slow of the nodes takes five times as long, and the
fraction --deaths is lost each hour, silently and for good.

With --peers no process is harmed, and the same units are done by bare Ray Core tasks and by `map_batches` of Ray Data,
in as many processes as there were workers, which have started before.

Ends with exit code 1 if a part is missing or different, or a unit is in the log twice.
TIKTOKEN_CACHE_DIR has the vocabulary of gpt2. --json FILE appends the row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from typing import Any

import msgspec

import tokenmill
from benchmarks.million_units import write_corpus
from benchmarks.sleeping_nodes import SLOW_FACTOR, RealNodes, SimulatedNodes, SkippingClock, WritePart, seconds_of
from tokenmill.executors.progress import Silent, Step
from tokenmill.executors.ray import executor as ray_executor
from tokenmill.pipeline.driving import driver
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.unit import plan as planning
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.storage import Folder, folder_at
from tokenmill.store import event_log
from tokenmill.store.job import require_run
from tokenmill.store.layout import PARTS, part_name

RATES_FROM, KILL, STOP, INTERRUPT = 0.1, 0.3, 0.5, 0.9

# How long the processes of the peers may take to start.
START_SECONDS = 20.0

Figures = dict[str, float]


class AllNodes(ray_executor.RayExecutor):
    """Has workers on every node, however small the corpus is."""

    def start(self, *_: object, **__: object) -> AllNodes:
        """Start them."""
        workers = RealNodes.options.nodes * RealNodes.options.workers
        return super().start(workers, most_workers=workers)


class Watch(Silent):
    """Notes when units are done, harms processes, and hears which nodes are given up."""

    def __init__(self, nodes: RealNodes | SimulatedNodes) -> None:
        self._nodes, self._units, self._done, self._counts = nodes, nodes.options.units, 0, False
        self._steps = [RATES_FROM, KILL, *([STOP, INTERRUPT] if nodes.options.harm else [])]
        self.rates: list[tuple[float, float, int]] = []
        self.begun: list[float] = []
        self.first: list[float] = []
        self.ended = 0.0
        self.harmed: list[float] = []
        self.noticed: dict[str, float] = {}

    def begin(self, title: str, *_: object) -> None:
        """The units begin, or something else."""
        self._counts = title == "tokenize"
        self.begun += [time.monotonic()] * self._counts

    def advance(self, _planned: int, step: Step) -> None:
        """A unit is done."""
        if not self._counts or not step.units:
            return
        self.ended = time.monotonic()
        self.first += [self.ended] * (len(self.first) < len(self.begun))
        self._done += 1
        if not self._steps or self._done < self._steps[0] * self._units:
            return
        moment = self._steps.pop(0)
        self.rates.append((time.monotonic(), self._nodes.busy_seconds(), self._nodes.calls))
        if moment == INTERRUPT:
            raise KeyboardInterrupt
        if isinstance(self._nodes, RealNodes) and self._nodes.options.harm and moment != RATES_FROM:
            self._nodes.signal(len(self.harmed), signal.SIGKILL if moment == KILL else signal.SIGSTOP)
            self.harmed.append(time.monotonic())

    def say(self, message: str) -> None:
        """A node may be given up."""
        if message.startswith("node "):
            self.noticed.setdefault(message.split()[1].rstrip(":"), time.monotonic())


def drive(options: argparse.Namespace, sources: str, store: str) -> Figures:
    """Prepare a store while nodes are lost; the figures."""
    ray_executor.Cluster = SimulatedNodes if options.simulate else RealNodes  # type: ignore[attr-defined,assignment]
    driver.Tokenize = WritePart  # type: ignore[attr-defined,assignment]
    started, workers = time.monotonic(), options.nodes * options.workers
    with AllNodes() as executor:
        executor.start()
        for _ in executor.run(str, itertools.takewhile(lambda _: executor.workers < workers, itertools.count())):
            pass
        figures = {"start_seconds": time.monotonic() - started}
        nodes: Any = executor._cluster  # noqa: SLF001 - it counts the calls
        watch = Watch(nodes)
        words: dict[str, Any] = {"tokenizer": "gpt2", "unit_bytes": 1, "executor": executor, "reporter": watch}
        try:
            tokenmill.prepare(sources, out=store, **words)
        except KeyboardInterrupt:
            called = time.monotonic()
            tokenmill.prepare(sources, out=store, **words)
            figures["resume_seconds"] = watch.first[1] - called
    (began, busy, calls), (ended, more_busy, more_calls) = watch.rates[:2]
    seconds, units = ended - began, (KILL - RATES_FROM) * options.units
    slow = round(options.slow * options.nodes) * options.workers
    ideal = options.seconds / (workers - slow + slow / SLOW_FACTOR)
    figures |= {
        "units_per_second": units / seconds,
        "of_the_ideal": units / seconds * ideal,
        "calls_per_second": (more_calls - calls) / seconds,
        "driver_cores": (more_busy - busy) / seconds,
        "driver_us_per_unit": (more_busy - busy) / units * 1e6,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        "run_seconds": watch.ended - watch.begun[0],
        "ideal_seconds": options.units * ideal,
    }
    if options.simulate:
        lost = {f"node-{number}": end for number, end in enumerate(nodes.ends) if end < watch.ended}
        seconds_to_notice = [watch.noticed[name] - end for name, end in lost.items() if name in watch.noticed]
        return figures | {"lost_nodes": len(lost), "silent_seconds": max(seconds_to_notice, default=0.0)}
    for host, name in enumerate(("killed_seconds", "silent_seconds") if options.harm else ()):
        names = [f"node-{number}" for number in range(host, options.nodes, options.processes)]
        noticed = [watch.noticed.get(name, float("nan")) for name in names]
        figures[name] = max(noticed) - watch.harmed[host]
    return figures


def tasks_of(folder: Folder) -> list[UnitTask]:
    """The units of a store."""
    frozen = load_existing(folder, require_run(folder))
    return list(planning.tasks(frozen.plan, frozen.sources, range(frozen.run.units)))


def write_part_to(directory: str, folder: Folder) -> WritePart:
    """The function that writes the parts of a store to another directory."""
    folder_at(directory).create(PARTS)
    return WritePart(directory, require_run(folder).job, "")


def check_parts(directory: str, folder: Folder, tasks: list[UnitTask]) -> None:
    """Compare every part with that of the store."""
    other = folder_at(directory)
    for name in (part_name(task.unit) for task in tasks):
        if folder.read(name) != other.read(name):
            sys.exit(f"{directory}: {name} is not that of {folder.root}")


def check_store(folder: Folder, scratch: str, tasks: list[UnitTask]) -> None:
    """Compare every part with one made here, and see that the log has no unit twice."""
    for _ in map(write_part_to(scratch, folder), tasks):
        pass
    check_parts(scratch, folder, tasks)
    lines = (msgspec.json.decode(line) for name in event_log.names(folder) for line in event_log.lines(folder, name))
    counts = Counter(line["unit"] for line in lines if line["event"] == "unit")
    if twice := [unit for unit, times in counts.items() if times > 1]:
        sys.exit(f"{folder.root}: units are in the log twice: {twice[:5]}")


def run_peers(options: argparse.Namespace, folder: Folder, scratch: str, tasks: list[UnitTask]) -> dict[str, Figures]:
    """The same units as tasks of Ray Core, and by `map_batches` of Ray Data."""
    import ray.data  # noqa: PLC0415 - an extra

    seconds = options.seconds

    def work(write: WritePart, task: UnitTask) -> int:
        time.sleep(seconds_of(task, seconds))
        return write(task).summary.unit

    def with_tasks(write: WritePart) -> list[int]:
        remote = ray.remote(num_cpus=1)(work)
        return ray.get([remote.remote(write, task) for task in tasks])

    def with_data(write: WritePart) -> list[int]:
        def batch(rows: dict[str, Any]) -> dict[str, list[int]]:
            return {"unit": [work(write, pickle.loads(row)) for row in rows["task"]]}

        blocks = max(1, len(tasks) // 10)
        rows = ray.data.from_items([{"task": pickle.dumps(task)} for task in tasks], override_num_blocks=blocks)
        return [row["unit"] for row in rows.map_batches(batch, batch_size=1, num_cpus=1).iter_rows()]

    sleep = ray.remote(num_cpus=1)(lambda: time.sleep(START_SECONDS))
    ray.get([sleep.remote() for _ in range(options.nodes * options.workers)])
    figures = {}
    for name, function in (("tasks", with_tasks), ("map_batches", with_data)):
        directory = os.path.join(scratch, name)
        write = write_part_to(directory, folder)
        started, busy = time.monotonic(), time.process_time()
        units = function(write)
        taken, more_busy = time.monotonic() - started, time.process_time()
        if sorted(units) != [task.unit for task in tasks]:
            sys.exit(f"{name}: units are missing or double")
        check_parts(directory, folder, tasks)
        ideal = len(tasks) * seconds / (options.nodes * options.workers)
        per_unit = (more_busy - busy) / len(tasks) * 1e6
        figures[name] = {"run_seconds": taken, "ideal_seconds": ideal, "driver_us_per_unit": per_unit}
        show(name, figures[name])
    return figures


def show(name: str, figures: Figures) -> None:
    """Print the figures of one side."""
    print(f"{name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()), flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--workers", type=int, default=8, help="of a node (default 8)")
    parser.add_argument("--processes", type=int, help="for the actors (default: one for each)")
    parser.add_argument("--units", type=int, default=20_000, help="a multiple of 1000 (default 20000)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of a unit (default 1)")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--slow", type=float, default=0.0, help="fraction of the nodes, simulated")
    parser.add_argument("--deaths", type=float, default=0.0, help="fraction of the nodes in an hour, simulated")
    parser.add_argument("--peers", action="store_true", help="also Ray Core and Ray Data")
    parser.add_argument("--json", metavar="FILE", help="append the figures")
    options = parser.parse_args()
    options.processes = options.processes or options.nodes
    options.harm = not options.simulate and not options.peers
    RealNodes.options = SimulatedNodes.options = options
    return options


def main() -> int:
    """Measure and tell."""
    options = read_options()
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # Ray's processes import this module
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "PYTHONPATH": root}
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="tokenmill-actors-") as scratch:
        sources, store = os.path.join(scratch, "corpus"), os.path.join(scratch, "store")
        write_corpus(sources, options.units)
        if options.simulate:
            clock = SimulatedNodes.clock = SkippingClock()
            time.monotonic, time.sleep = clock.monotonic, clock.sleep  # type: ignore[assignment]
        else:
            import ray  # noqa: PLC0415 - an extra

            quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
            processors = options.nodes * options.workers
            ray.init(address="local", num_cpus=processors, object_store_memory=200_000_000, **quiet)
        figures = {"tokenmill": drive(options, sources, store)}
        show("tokenmill", figures["tokenmill"])
        folder = folder_at(store)
        tasks = tasks_of(folder)
        check_store(folder, os.path.join(scratch, "reference"), tasks)
        if options.peers:
            figures |= run_peers(options, folder, scratch, tasks)
    if options.json:
        with open(options.json, "a", encoding="utf-8") as file:
            file.write(json.dumps({"options": vars(options), "figures": figures}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
