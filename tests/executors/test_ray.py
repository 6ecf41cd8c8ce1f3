"""The contract of executors on a Ray cluster of one node, what is special to it, and commands with `--on ray`.

One cluster serves all tests. test_cluster.py has one of several nodes.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import ROOT

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

from tests.executors.test_contract import (  # noqa: F401 - the contract, run here with the fixtures of this module
    test_a_death_costs_only_the_item_that_had_it,
    test_a_huge_value_comes_back_whole,
    test_a_run_that_is_abandoned_does_not_speak_in_the_next,
    test_a_worker_that_does_not_move_on_is_stopped,
    test_an_explained_error_is_told_as_it_is,
    test_an_item_that_dies_once_is_done_at_the_second_attempt,
    test_any_other_error_comes_with_its_traceback,
    test_every_value_comes_back_once,
    test_last_words_are_kept,
    test_no_items_give_no_outcomes,
    test_the_largest_worker_gives_way_when_memory_runs_out,
    values,
)
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.documents import DOCUMENTS
from tests.support.executor_functions import announce_and_wait, double, endpoint, fail, pid
from tests.support.killing import wait_until
from tests.support.remote_runs import differences, local_files
from tests.support.servers.seaweed import UNSIGNED, Bucket
from tokenmill.errors import RunFailed, UsageError
from tokenmill.executors.outcomes import Cause, Died, Done, RetryPolicy
from tokenmill.executors.ray import node_actor
from tokenmill.executors.ray.executor import GATHER_SECONDS, RayExecutor
from tokenmill.executors.ray.node_actor import NodeActor, NodeConfig, NodeOrder
from tokenmill.system.storage_settings import DEFAULT, Shared, StorageSettings

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray cluster of this process's own, whose nodes can import the functions of these tests."""
    before = dict(os.environ)
    path = os.pathsep.join(filter(None, [str(ROOT), before.get("PYTHONPATH")]))
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONPATH": path, "RAY_AUTH_MODE": "disabled"}
    import ray

    quiet = {"include_dashboard": False, "log_to_driver": False, "configure_logging": False}
    ray.init(address="local", num_cpus=16, object_store_memory=100_000_000, **quiet)
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ |= before


Make = Callable[..., RayExecutor]


@pytest.fixture(scope="module")
def shared(cluster: None) -> Iterator[Callable[[int], RayExecutor]]:
    """Gives an executor with so many workers, the same for all tests: Ray takes seconds to start an actor."""
    with ExitStack() as stack:
        yield cache(lambda workers: stack.enter_context(RayExecutor().start(workers)))


@pytest.fixture
def make(shared: Callable[[int], RayExecutor]) -> Iterator[Make]:
    """Gives an executor; one with a memory budget is for one test, and is closed after it."""
    with ExitStack() as stack:

        def executor(workers: int, memory_bytes: int | None = None) -> RayExecutor:
            if memory_bytes is None:
                return shared(workers)
            return stack.enter_context(RayExecutor().start(workers, None, memory_bytes))

        yield executor


def test_workers_are_named_with_their_node(make: Make) -> None:
    """What a worker of a cluster did, and its death, are told with its node."""
    executor = make(2)
    outcomes = [outcome for outcome in executor.run(pid, range(20)) if isinstance(outcome, Done)]
    assert len(outcomes) == 20
    assert {outcome.worker.node for outcome in outcomes} == set(executor.nodes)
    assert executor.workers == 2
    assert {outcome.value for outcome in outcomes} == {outcome.worker.pid for outcome in outcomes}
    assert all(" on " in str(outcome.worker) for outcome in outcomes)


def test_a_killed_actor_costs_a_retry_of_what_it_had(make: Make, tmp_path: Path) -> None:
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


def test_work_can_be_left_when_it_is_done_elsewhere(make: Make, tmp_path: Path) -> None:
    """When the terms say that it is enough, nobody waits for what is under way."""
    executor, marker = make(1), tmp_path / "worker"
    assert list(executor.run(announce_and_wait, [str(marker)], RetryPolicy(should_stop=marker.exists))) == []
    assert values(executor.run(double, range(5))) == [0, 2, 4, 6, 8]


def test_quick_items_share_calls(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Items that take no time are given and told in lots."""
    executor = make(2)
    calls: list[object] = []
    real = executor._cluster.answer

    def answer(call: Any) -> object:
        calls.append(call)
        return real(call)

    monkeypatch.setattr(executor._cluster, "answer", answer)
    assert len(list(executor.run(double, range(2000)))) == 2000
    assert len(calls) < 300


def test_a_node_with_another_version_says_so(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """If no node can work, that ends the run, with the reason."""
    monkeypatch.setattr("tokenmill.executors.ray.executor.own_version", lambda: "0.0.1")
    monkeypatch.setattr("tokenmill.executors.ray.executor.MAX_START_FAILURES", 1)
    with RayExecutor().start(1) as executor, pytest.raises(RunFailed, match=r"it has tokenmill .* tokenmill 0\.0\.1"):
        list(executor.run(double, range(3)))


def test_whoever_waits_for_room_is_told(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without room for a worker is waited for, and that is said."""
    monkeypatch.setattr("tokenmill.executors.ray.executor.PATIENCE_SECONDS", 1.0)
    said: list[str] = []
    with RayExecutor(None, (), said.append).start(1, None, 1 << 50) as executor:
        assert list(executor.run(double, [1], RetryPolicy(should_stop=lambda: bool(said)))) == []
    assert said[0].startswith("waiting for a node of the cluster that has 1 processor and")


def test_an_address_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Ray is asked."""
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.delattr("ray.init")
    with pytest.raises(UsageError, match='on="ray://nowhere" is not the address of a cluster'):
        RayExecutor("ray://nowhere")


def test_an_actor_works_without_a_cluster() -> None:
    """Items are given and outcomes are told by calls; one that has nothing to tell answers all the same."""
    actor = NodeActor(
        NodeConfig(node_actor.own_version(), (), 2, ({"AWS_REGION": "nowhere-1", "OTHER": "kept out"}, DEFAULT))
    )
    assert os.environ.pop("AWS_REGION") == "nowhere-1"
    assert "OTHER" not in os.environ
    actor.begin(NodeOrder(double, RetryPolicy(), ({}, DEFAULT)))
    same = 1000
    told = actor.exchange([(1, 7), (2, same), (3, same)], GATHER_SECONDS)
    found = list(told.outcomes)
    while len(found) < 3:
        found += actor.exchange([], GATHER_SECONDS).outcomes
    assert all(isinstance(outcome, Done) for outcome in found), found
    answers = [(outcome.item, outcome.value) for outcome in found if isinstance(outcome, Done)]
    assert sorted(answers) == [(1, 14), (2, 2000), (3, 2000)]
    started = time.monotonic()
    assert actor.exchange([], GATHER_SECONDS).outcomes == []
    actor.begin(NodeOrder(time.sleep, RetryPolicy(), ({}, DEFAULT)))
    assert actor.exchange([(4, 60.0)], GATHER_SECONDS).outcomes == []
    assert time.monotonic() - started < 10
    actor.begin(NodeOrder(fail, RetryPolicy(), ({}, DEFAULT)))
    assert actor.exchange([(5, "explained")], GATHER_SECONDS).outcomes[0].item == 5
    actor._executor.__exit__()


def test_an_actor_follows_the_settings_of_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers on other machines use the endpoint of the call they work for, and else that of their machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://own:1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    names, found = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"), []
    actor = NodeActor(NodeConfig(node_actor.own_version(), (), 1, ({"AWS_ENDPOINT_URL": "http://first:1"}, DEFAULT)))
    for given in ({"AWS_ENDPOINT_URL": "http://one:1"}, {"AWS_ENDPOINT_URL": "http://other:1"}, {}):
        actor.begin(NodeOrder(os.getenv, RetryPolicy(), (given, DEFAULT)))
        values: dict[int, str | None] = {}
        outcomes = actor.exchange(list(enumerate(names)), GATHER_SECONDS).outcomes
        while len(values) < 2:
            assert all(isinstance(outcome, Done) for outcome in outcomes), outcomes
            values |= {outcome.item: outcome.value for outcome in outcomes if isinstance(outcome, Done)}
            outcomes = actor.exchange([], GATHER_SECONDS).outcomes
        found.append((values[0], values[1]))
    actor._executor.__exit__()
    assert found == [("http://one:1", None), ("http://other:1", None), (None, "http://own:1")]


def test_an_actor_gives_its_workers_the_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint of `using` reaches the workers as a value, also one that replaces a dead worker."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://own:1")
    given: Shared = ({}, StorageSettings(endpoint="http://given:1"))
    actor = NodeActor(NodeConfig(node_actor.own_version(), (), 1, given))
    found: list[Any] = []
    for number in (1, 2):
        actor.begin(NodeOrder(endpoint, RetryPolicy(), given))
        outcomes = list(actor.exchange([(number, None)], GATHER_SECONDS).outcomes)
        while not any(isinstance(outcome, Done) for outcome in outcomes):
            outcomes += actor.exchange([], GATHER_SECONDS).outcomes
        found += [outcome.value for outcome in outcomes if isinstance(outcome, Done)]
        for process in actor._executor.pids:
            os.kill(process, signal.SIGKILL)
    actor._executor.__exit__()
    assert found == [("http://given:1", "http://own:1")] * 2
    assert os.environ["AWS_ENDPOINT_URL"] == "http://own:1"


def test_workers_on_ray_write_to_the_endpoint_of_the_caller(
    cluster: None, s3: Bucket, parquet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`using` on Ray: actors and workers read and write the bucket, and the environment stays as it is."""
    bucket = s3.server.bucket(f"{UNSIGNED}ray")  # keys are not sent to nodes
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    s3.server.upload(Path(parquet).parent, f"{bucket}/corpus")
    before = dict(os.environ)
    with tokenmill.using(endpoint=s3.server.endpoint), RayExecutor() as executor:
        store = f"{bucket}/store"
        arguments: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "executor": executor}
        tokenmill.prepare(f"{bucket}/corpus", out=store, **arguments)
        assert dict(os.environ) == before
        assert tokenmill.open(store).text(0) == DOCUMENTS[0]


def test_usage_of_places() -> None:
    """A place that is none is refused with those that there are."""
    from tokenmill.executors.fan_out import check_executor

    with pytest.raises(UsageError, match="on= is local, ray or"):
        check_executor("dask")


def test_stores_that_grow_on_ray(cluster: None, tmp_path: Path) -> None:
    """keep, deny, like, exports of two stores, an erasure and a check equal those of local calls."""
    sources = []
    for name in ("a", "b"):
        texts = [f"{name} {text}" for text in DOCUMENTS]
        urls = [f"https://host{row % 4}.example/{name}/{row}" for row in range(len(texts))]
        sources.append(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table({"text": texts, "url": urls}), sources[-1], row_group_size=8)
    (deny := tmp_path / "deny.jsonl").write_text(json.dumps({"column": "url", "host": "host1.example"}) + "\n")
    checks = []
    with RayExecutor() as on_ray:
        for place, executor in (("local", None), ("ray", on_ray)):
            a, b, out = tmp_path / place / "a", tmp_path / place / "b", tmp_path / place
            where: Any = {"workers": 2, "executor": executor}
            tokenmill.prepare(sources[0], tokenizer=SMALL_JSON, unit_bytes=1, keep=["url"], deny=deny, out=a, **where)
            tokenmill.prepare(sources[1], like=a, unit_bytes=1, out=b, **where)
            tokenmill.export([a, b], to="megatron", val=0.1, out=out / "megatron", **where)
            tokenmill.export([a, b], to="llmc", shuffle=7, shard_tokens=900, out=out / "llmc", **where)
            tokenmill.erase(a, column="url", hosts=["host2.example"], request="r", **where)
            told = json.dumps(msgspec.to_builtins(tokenmill.verify([a, b], all=True, **where)))
            checks.append(json.loads(told.replace(str(out), "")) | {"seconds": 0})
    assert checks[0] == checks[1]
    for name in ("a", "b"):
        there, here = (local_files(tmp_path / place / name) for place in ("ray", "local"))
        found = differences(there, here)  # the records of exports elsewhere have their paths
        assert [file for file in found if not file.startswith(("exports/", "changes/"))] == []
    assert json.loads((tmp_path / "ray/a/changes/00000001.json").read_text())["history"][0]["documents"] > 0
    for name in ("megatron", "llmc"):
        there, here = (local_files(tmp_path / place / name) for place in ("ray", "local"))
        shards = [file for file in here if not file.startswith(".tokenmill/")]
        assert len(shards) > 1
        assert {file: there[file] for file in shards} == {file: here[file] for file in shards}
