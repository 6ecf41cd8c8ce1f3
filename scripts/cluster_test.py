"""Disturb `tokenmill prepare --on ray://...` on a cluster of real nodes, and check that the store is as a local run's.

    python -m scripts.cluster_test [--documents 20000] [--nodes 3] [--rate 2000000] [--only WORD]...

A head and nodes are started by `ray start` in network namespaces of this machine, the sources and the store are on
SeaweedFS. Every scenario has a fresh cluster and a store of its own, and strikes when a third of the units is
committed, or when it says. All nodes share this machine's processors and a way to the storage that lets through so many
bytes per second, which is what a run waits for: so what is lost is the time until a fault is noticed and what is done
again, not a node's share of the work, and little depends on what else the machine does. Copies of late units, made near
the end, and what a killed driver had given out are not counted as sent again. Prints a Markdown table; exit code 1 if a
store differs from that of a local run or a command fails. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support import poison
from tests.support.cluster_runs import SLOW, Run, Site, losses, site
from tests.support.corpora import SMALL_JSON
from tests.support.killing import write_corpus
from tests.support.remote_runs import Ended, end, kill, tokenmill
from tests.support.servers import ray_nodes
from tests.support.servers.seaweed import S3Server, start_seaweed

CPUS = 2
ROWS_IN_UNIT = 100
LONG_SECONDS = 1800.0
FIRST, SECOND = 2, 3
"""Nodes; 1 is the head."""

CUT_SECONDS = 20.0
HEADINGS = ("scenario", "undisturbed", "with the fault", "lost", "units sent again", "identical")


@dataclass
class Trial:
    """The storage, the corpora, what a local run has made of them, and what was found."""

    server: S3Server
    bucket: str
    site_variables: dict[str, str]
    nodes: int
    rate: float
    units: int = 0
    results: list[Result] = field(default_factory=list)

    def prepare(self, corpus: str, store: str) -> tuple[object, ...]:
        """The command, without where it runs."""
        return "prepare", f"{self.bucket}/{corpus}", *SLOW, "--json", "--out", store

    def run_locally(self, corpus: str) -> None:
        """Make the store that the others are compared with."""
        words = ("--tokenizer", SMALL_JSON, "--unit-bytes", "1", "--json", "--out", f"{self.bucket}/local-{corpus}")
        variables = {**self.server.environment(), **self.site_variables}
        told = tokenmill("prepare", f"{self.bucket}/{corpus}", *words, **variables).result()
        self.units = told["units"]
        print(f"{corpus}: {told['documents']:,} documents, {told['tokens']:,} tokens, {self.units} units", flush=True)

    def run(self, scenario: Scenario) -> None:
        """Run on a fresh cluster, disturbed, and judge."""
        store = f"{self.bucket}/store-{secrets.token_hex(4)}"
        command = self.prepare(scenario.corpus, store)
        with site(self.server, self.nodes - scenario.fewer, CPUS, self.site_variables) as place:
            place.way.bytes_per_second = self.rate
            started = time.monotonic()
            try:
                ended = self._disturbed(scenario, place, command, store)
            except AssertionError as error:
                ended = Ended(1, "", str(error))
            seconds = time.monotonic() - started
            log = place.log(store)
            differ = place.differences(store, f"{self.bucket}/local-{scenario.corpus}")
        good = ended.code == 0 and not differ and json.loads(ended.out)["units"] == self.units
        if not good:
            print(f"{scenario.name}: exit code {ended.code}, different: {differ[:5]}\n{ended.err}", flush=True)
        self.results.append(Result(scenario, seconds, losses(log), good))
        print(f"{scenario.name}: {seconds:.1f} s", flush=True)

    def _disturbed(self, scenario: Scenario, place: Site, command: tuple[object, ...], store: str) -> Ended:
        with place.running(*command, *place.on) as run:
            place.wait_for_parts(store, int(self.units * scenario.moment), run, LONG_SECONDS)
            if scenario.strike is not None:
                scenario.strike(place, run, store)
            if not scenario.kills_driver:
                return end(run, LONG_SECONDS)
        return place.tokenmill(*command, *place.on, seconds=LONG_SECONDS)

    def table(self) -> str:
        """What was found, as Markdown. Time is compared with the mean of the runs that were left alone."""
        alone = statistics.fmean(each.seconds for each in self.results if each.scenario.strike is None)
        lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(each.row(alone) for each in self.results)]
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass(frozen=True)
class Scenario:
    """What happens in mid-run. A new driver is started if the first one is killed."""

    name: str
    strike: Callable[[Site, Run, str], object] | None
    corpus: str = "clean"
    fewer: int = 0
    kills_driver: bool = False
    moment: float = 0.33


@dataclass(frozen=True)
class Result:
    """What came of a scenario."""

    scenario: Scenario
    seconds: float
    again: int
    is_good: bool

    def row(self, alone_seconds: float) -> tuple[str, ...]:
        """The line of the table."""
        good = "yes" if self.is_good else "NO"
        if self.scenario.strike is None:
            return self.scenario.name, f"{self.seconds:.1f} s", "", "", str(self.again), good
        lost = f"{self.seconds - alone_seconds:+.1f} s"
        return self.scenario.name, f"{alone_seconds:.1f} s", f"{self.seconds:.1f} s", lost, str(self.again), good


def join(place: Site, run: Run, store: str) -> None:
    """Start one more node, and wait until it has done something."""
    place.wait_for_node(store, place.cluster.add_node(), run, LONG_SECONDS)


def cut_for_a_while(place: Site, *_: object) -> None:
    """Cut a link, and mend it when what its node had has been given to others; too soon for Ray to give it up."""
    place.cluster.cut(FIRST)
    time.sleep(CUT_SECONDS)
    place.cluster.mend(FIRST)


def all_at_once(place: Site, run: Run, _: str) -> None:
    """Lose two nodes, each in its own way, let one join, and kill the driver."""
    place.cluster.kill_node(FIRST)
    place.cluster.cut(SECOND)
    place.cluster.add_node()
    kill(run)


SCENARIOS = (
    Scenario("nothing happens", None),
    Scenario("SIGKILL of every process of a node", lambda place, *_: place.cluster.kill_node(FIRST)),
    Scenario("a node's link is cut, silently and for good", lambda place, *_: place.cluster.cut(FIRST)),
    Scenario("the same when 97 % is done", lambda place, *_: place.cluster.cut(FIRST), moment=0.97),
    Scenario(f"a node's link is cut for {CUT_SECONDS:.0f} s", cut_for_a_while),
    Scenario("the driver is killed, and a new one started", lambda _, run, __: kill(run), kills_driver=True),
    Scenario("a document kills its worker (SIGSEGV)", lambda *_: None, corpus="poisoned"),
    Scenario("one node less, and one joins", join, fewer=1),
    Scenario("a node killed, another cut, one joins, the driver killed", all_at_once, kills_driver=True),
    Scenario("nothing happens, once more", None),
)


def main() -> int:
    """Read the options, disturb, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2e6, help="bytes per second between nodes and storage")
    parser.add_argument(
        "--only",
        action="append",
        help="only scenarios with this word in their names, and those in which nothing happens",
    )
    options = parser.parse_args()
    if reason := ray_nodes.missing():
        sys.exit(reason)
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-cluster-"))
    server = start_seaweed(folder / "seaweed", secrets.token_hex(8), secrets.token_hex(20))
    try:
        trial = _prepare(server, folder, options)
        words = ["nothing", *(options.only or [""])]
        wanted = [each for each in SCENARIOS if any(word in each.name for word in words)]
        for scenario in wanted:
            trial.run(scenario)
    finally:
        server.stop()
        shutil.rmtree(folder)
    print(f"\n{trial.table()}")
    return 0 if all(each.is_good for each in trial.results) else 1


def _prepare(server: S3Server, folder: Path, options: argparse.Namespace) -> Trial:
    """Make the corpora, and prepare them without a cluster. All processes have the engine that can be poisoned."""
    clean = write_corpus(folder / "corpora" / "clean", options.documents, ROWS_IN_UNIT)
    shutil.copytree(clean, clean.with_name("poisoned"))
    first = next(iter(sorted(clean.with_name("poisoned").iterdir())))
    texts = pq.read_table(first)["text"].to_pylist()
    texts[len(texts) // 2] += " POISON:SEGFAULT"
    pq.write_table(pa.table({"text": texts}), first, row_group_size=ROWS_IN_UNIT)
    bucket = server.bucket("cluster")
    server.upload(folder / "corpora", bucket)
    variables = {"PYTHONPATH": poison.environment(folder / "site")["PYTHONPATH"]}
    trial = Trial(server, bucket, variables, options.nodes, options.rate)
    for corpus in ("poisoned", "clean"):
        trial.run_locally(corpus)
    return trial


if __name__ == "__main__":
    sys.exit(main())
