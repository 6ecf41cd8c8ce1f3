"""The contract of executors on a Ray cluster of one node, and what is special to it; test_cluster.py has several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

from tests.executors.test_contract import (  # noqa: F401 - the contract, run here with the fixtures of this module
    make,
    test_a_death_costs_only_the_item_that_had_it,
    test_a_huge_value_comes_back_whole,
    test_a_run_that_is_abandoned_does_not_speak_in_the_next,
    test_a_worker_that_does_not_move_on_is_stopped,
    test_an_explained_error_is_told_as_it_is,
    test_an_item_that_dies_once_is_done_at_the_second_attempt,
    test_any_other_error_comes_with_its_traceback,
    test_every_value_comes_back_once,
    test_every_worker_can_die,
    test_last_words_are_kept,
    test_no_items_give_no_outcomes,
    test_the_largest_worker_gives_way_when_memory_runs_out,
    values,
)
from tests.support.executor_functions import announce_and_wait, double, fail, pid
from tests.support.killing import wait_until
from tokenmill.errors import RunFailed, UsageError
from tokenmill.executors.outcomes import Cause, Died, Done
from tokenmill.executors.ray import node_actor as crews
from tokenmill.executors.ray.executor import RayExecutor
from tokenmill.executors.ray.node_actor import NodeActor, NodeConfig
from tokenmill.executors.retry_policy import RetryPolicy

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Ray cluster of this process's own, whose nodes can import the functions of these tests."""
    before = dict(os.environ)
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(address="local", num_cpus=4, object_store_memory=100_000_000, **quiet)
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ |= before


@pytest.fixture
def kind(cluster: None) -> Any:
    """Makes the executor, to be closed by the test."""

    def ray_executor(
        workers: int, worker_bytes: int | None = None, memory_bytes: int | None = None, preload: tuple[str, ...] = ()
    ) -> RayExecutor:
        return RayExecutor(None, preload).start(workers, worker_bytes, memory_bytes)

    return ray_executor


def test_workers_are_named_with_their_node(make: Any) -> None:  # noqa: F811
    """What a worker of a cluster did, and its death, are told with its node."""
    executor = make(2)
    outcomes = list(executor.run(pid, range(20)))
    assert {outcome.worker.node for outcome in outcomes} == set(executor.nodes)
    assert executor.workers == 2
    assert {outcome.value for outcome in outcomes} == {outcome.worker.pid for outcome in outcomes}
    assert all(" on " in str(outcome.worker) for outcome in outcomes)


def test_a_killed_crew_costs_a_retry_of_what_it_had(make: Any, tmp_path: Path) -> None:  # noqa: F811
    """When the process that supervises the workers of a node is killed, they go with it; others do their items."""
    executor = make(2)
    marker = tmp_path / "worker"
    outcomes = []

    def kill() -> None:
        assert wait_until(marker.exists, 60)
        assert wait_until(lambda: bool(marker.read_text()), 10)
        worker = int(marker.read_text())
        forkserver = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
        actor = int(Path(f"/proc/{forkserver}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(actor, signal.SIGKILL)
        assert wait_until(lambda: not Path(f"/proc/{worker}").exists(), 20)

    killer = threading.Thread(target=kill)
    killer.start()
    for outcome in executor.run(announce_and_wait, [str(marker)], RetryPolicy(max_kills=3)):
        outcomes.append(outcome)  # noqa: PERF402 - one by one, as they come
    killer.join()
    lost = [outcome for outcome in outcomes if isinstance(outcome, Died)]
    assert {outcome.end.cause for outcome in lost} == {Cause.NODE_LOST}
    assert [outcome.item for outcome in outcomes if isinstance(outcome, Done)] == [str(marker)]


def test_work_can_be_left_when_it_is_done_elsewhere(make: Any) -> None:  # noqa: F811
    """When the terms say that it is enough, nobody waits for what is under way."""
    started = time.monotonic()
    executor = make(1)
    assert (
        list(executor.run(time.sleep, [600.0], RetryPolicy(should_stop=lambda: time.monotonic() > started + 15))) == []
    )
    assert values(executor.run(double, range(5))) == [0, 2, 4, 6, 8]


def test_quick_items_share_calls(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """Items that take no time are given and told in lots."""
    executor = make(2)
    calls: list[object] = []
    real = executor._cluster.answer

    def answer(call: object) -> object:
        calls.append(call)
        return real(call)

    monkeypatch.setattr(executor._cluster, "answer", answer)
    assert len(list(executor.run(double, range(2000)))) == 2000
    assert len(calls) < 300


def test_a_node_with_another_version_says_so(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no node can work, that ends the run, with the reason."""
    monkeypatch.setattr("tokenmill.executors.ray.executor.own_version", lambda: "0.0.1")
    with RayExecutor().start(1) as executor, pytest.raises(RunFailed, match=r"it has tokenmill .* tokenmill 0\.0\.1"):
        list(executor.run(double, range(3)))


def test_whoever_waits_for_room_is_told(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without room for a worker is waited for, and that is said."""
    monkeypatch.setattr("tokenmill.executors.ray.executor.PATIENCE_SECONDS", 1.0)
    said: list[str] = []
    with RayExecutor(None, (), said.append).start(1, None, 1 << 50) as executor:
        assert list(executor.run(double, [1], RetryPolicy(should_stop=lambda: bool(said)))) == []
    assert said[0].startswith("waiting for a node of the cluster that has 1 processor and")


def test_an_address_that_is_none_is_refused() -> None:
    """Before Ray is asked."""
    code = "from tokenmill.executors.ray.executor import RayExecutor; RayExecutor('ray://nowhere')"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert 'on="ray://nowhere" is not the address of a cluster' in ended.stderr


def test_a_crew_works_without_a_cluster() -> None:
    """Items are given and outcomes are told by calls; one that has nothing to tell answers all the same."""
    crew = NodeActor(
        NodeConfig(crews.own_version(), (), 2, None, None, {"AWS_REGION": "nowhere-1", "OTHER": "kept out"})
    )
    assert os.environ.pop("AWS_REGION") == "nowhere-1"
    assert "OTHER" not in os.environ
    crew.begin((double, RetryPolicy(), {}))
    same = 1000
    told = crew.exchange([(1, 7), (2, same), (3, same)])
    found = list(told.outcomes)
    while len(found) < 3:
        found += crew.exchange([]).outcomes
    assert all(isinstance(outcome, Done) for outcome in found), found
    answers = [(outcome.item, outcome.value) for outcome in found if isinstance(outcome, Done)]
    assert sorted(answers) == [(1, 14), (2, 2000), (3, 2000)]
    started = time.monotonic()
    assert crew.exchange([]).outcomes == []
    crew.begin((time.sleep, RetryPolicy(), {}))
    assert crew.exchange([(4, 60.0)]).outcomes == []
    assert time.monotonic() - started < 10
    crew.begin((fail, RetryPolicy(), {}))
    assert crew.exchange([(5, "explained")]).outcomes[0].item == 5
    crew._executor.__exit__()


def test_a_crew_follows_the_settings_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on other machines use the endpoint of the call they work for, and else that of their machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://own:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    names, found = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), []
    crew = NodeActor(NodeConfig(crews.own_version(), (), 1, None, None, {"AWS_ENDPOINT_URL": "http://first:1"}))
    for given in ({"AWS_ENDPOINT_URL": "http://one:1"}, {"AWS_ENDPOINT_URL": "http://other:1"}, {}):
        crew.begin((os.getenv, RetryPolicy(), given))
        values: dict[int, str | None] = {}
        outcomes = crew.exchange(list(enumerate(names))).outcomes
        while len(values) < 2:
            assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
            values |= {outcome.item: outcome.value for outcome in outcomes if isinstance(outcome, Done)}
            outcomes = crew.exchange([]).outcomes
        found.append((values[0], values[1]))
    crew._executor.__exit__()
    assert found == [("http://one:1", None), ("http://other:1", None), (None, "http://own:1")]


def test_usage_of_places() -> None:
    """A place that is none is refused with those that there are."""
    from tokenmill.executors.session import check_executor

    with pytest.raises(UsageError, match="on= is local, ray or"):
        check_executor("dask")
