"""Runs on a Ray cluster of real nodes, with the store on SeaweedFS: nodes are killed and join, and the driver dies.

scripts/cluster_test.py is the long form, with links that are cut.
"""

from __future__ import annotations

import contextlib
import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.cluster_runs import SLOW, Site, losses, nodes_of, site, units_of
from tests.support.corpora import SMALL_JSON
from tests.support.killing import wait_until, write_corpus
from tests.support.remote_runs import end, kill, tokenmill
from tests.support.servers import networks, ray_nodes
from tests.support.servers.networks import GATEWAY, Network
from tests.support.servers.seaweed import S3Server

pytestmark = pytest.mark.timeout(400)

FIRST = 2
"""The first node with processors; 1 is the head."""

SLOW_WAY = 2e5
"""Bytes per second between nodes and storage while a run waits to be disturbed: it must not be over before."""


NO_NETWORK = networks.missing()


@pytest.mark.skipif(NO_NETWORK is not None, reason=str(NO_NETWORK))
def test_links_can_be_cut() -> None:
    """The machines of a network hear each other unless a link is cut, and nothing is left of them."""
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.closing(Network()) as network:
        port = server.getsockname()[1]
        network.forward(port)
        machines = [network.add_machine(), network.add_machine()]
        sleeper = subprocess.Popen(network.command(machines[1], "sleep", "600"))
        reach = f"import socket; socket.create_connection(('{GATEWAY}', {port}), timeout=2)"

        def reached() -> list[bool]:
            commands = [network.command(machine, sys.executable, "-c", reach) for machine in machines]
            return [subprocess.run(each, stderr=subprocess.DEVNULL, check=False).returncode == 0 for each in commands]

        assert reached() == [True, True]
        network.cut(machines[1])
        assert reached() == [True, False]
        network.mend(machines[1])
        assert wait_until(lambda: reached() == [True, True])
        network.kill(machines[1])
        assert sleeper.wait(60) == -signal.SIGKILL
    assert not _left_of(network.name)


@pytest.mark.skipif(NO_NETWORK is not None, reason=str(NO_NETWORK))
def test_a_killed_test_leaves_no_network() -> None:
    """Whoever makes a network and is killed leaves no process, namespace or directory behind."""
    script = """if True:
        import os, subprocess
        from tests.support.servers.networks import Network
        network = Network()
        subprocess.Popen(network.command(network.add_machine(), "sleep", "600"))
        print(network.name, flush=True)
        os.kill(os.getpid(), 9)
    """
    words = [sys.executable, "-c", script]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.stdout.startswith(networks.PREFIX), ended.stderr
    assert wait_until(lambda: not _left_of(ended.stdout.strip()))


def _left_of(network: str) -> list[Path]:
    """The namespaces and the directory of a network. A namespace that can be removed has no process."""
    return [*networks.NAMESPACES.glob(f"{network}-*"), *networks.directory_of(network).parent.glob(network)]


@dataclass(frozen=True)
class Mill:
    """A cluster, a corpus, and the store that a local run has made of it."""

    site: Site
    bucket: str

    def prepare(self, out: str) -> tuple[object, ...]:
        """The command that prepares the corpus on the cluster."""
        return "prepare", f"{self.bucket}/corpus", *SLOW, "--out", f"{self.bucket}/{out}", "--json", *self.site.on

    def differences(self, out: str) -> list[str]:
        """The files of a store that are not as in the local one."""
        return self.site.differences(f"{self.bucket}/{out}", f"{self.bucket}/local")


@pytest.fixture(scope="module")
def mill(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    """The cluster. The same is done without it, with another engine: all have to give the same."""
    if reason := ray_nodes.missing():
        pytest.skip(reason)
    bucket, folder = s3_server.bucket("cluster"), tmp_path_factory.mktemp("corpus")
    write_corpus(folder / "corpus", documents=2000, rows_per_group=30)
    s3_server.upload(folder, bucket)
    options = ("--tokenizer", SMALL_JSON, "--unit-bytes", "1", "--quiet", "--out", f"{bucket}/local")
    assert tokenmill("prepare", f"{bucket}/corpus", *options, **s3_server.environment()).code == 0
    with site(s3_server, nodes=2, cpus=1) as cluster:
        yield Mill(cluster, bucket)


def test_nodes_come_and_go(mill: Mill) -> None:
    """A node that joins in mid-run gets work, one that is killed costs a retry of what it had, and nothing differs."""
    cluster, store = mill.site.cluster, f"{mill.bucket}/nodes"
    mill.site.way.bytes_per_second = SLOW_WAY
    with mill.site.running(*mill.prepare("nodes")) as run:
        mill.site.wait_for_parts(store, 4, run)
        mill.site.wait_for_node(store, cluster.add_node(), run)
        cluster.kill_node(FIRST)
        mill.site.way.bytes_per_second = math.inf
        told = end(run).result()
    log = mill.site.log(store)
    assert nodes_of(log) == {cluster.network.address(node) for node in (FIRST, FIRST + 1, FIRST + 2)}
    # What the node had was lost, or committed and not told.
    assert losses(log) > 0 or len(units_of(log)) < told["units"], "the node had nothing to do when it was killed"
    # What the killed node had committed and not told is found: also units of its reserve, which may be many.
    assert told["units"] // 2 < told["units_done_now"] <= told["units"]
    assert mill.differences("nodes") == []


def test_the_driver_dies(mill: Mill) -> None:
    """A new driver does what the killed one has not; what is committed is neither done again nor touched."""
    store = f"{mill.bucket}/drivers"
    mill.site.way.bytes_per_second = 2 * SLOW_WAY
    with mill.site.running(*mill.prepare("drivers")) as run:
        mill.site.wait_for_parts(store, 8, run)
        kill(run)
    before, killed = mill.site.parts(store), time.time()
    mill.site.way.bytes_per_second = math.inf
    ended = mill.site.tokenmill(*mill.prepare("drivers")).result()
    assert 8 <= len(before) < ended["units"], "the driver was killed too late"
    after = mill.site.parts(store)
    assert {unit: after[unit] for unit in before} == before
    assert 0 < ended["units_done_now"] <= ended["units"] - len(before)
    again = units_of([event for event in mill.site.log(store) if event["time"] > killed])
    assert again
    assert not again.keys() & before.keys()
    assert mill.differences("drivers") == []


def test_an_export(mill: Mill) -> None:
    """An export on the cluster gives what it gives on one machine."""
    mill.site.way.bytes_per_second = math.inf
    export = ("export", f"{mill.bucket}/local", "--to", "llmc", "--shuffle", "1", "--shard-tokens", "500k", "--json")
    here, there = f"{mill.bucket}/exports/here", f"{mill.bucket}/exports/there"
    one_machine = tokenmill(*export, "--out", here, **mill.site.server.environment()).result()
    cluster = mill.site.tokenmill(*export, "--out", there, *mill.site.on).result()
    differing = {name for name in one_machine if one_machine[name] != cluster[name]}
    # A worker may have died with the node that an earlier test killed.
    assert differing <= {"seconds", "tokens_per_second", "directory", "use", "deaths"}
    assert _shards(mill.site, here) == _shards(mill.site, there) != {}


def _shards(cluster: Site, url: str) -> dict[str, bytes]:
    """The files of an export, without those that tell how they came about."""
    return {name: data for name, data in cluster.server.objects(url).items() if not name.startswith(".tokenmill/")}
