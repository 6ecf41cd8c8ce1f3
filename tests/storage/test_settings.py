"""Settings of storage are a value: the environment is not written, and threads, workers and pickles have them."""

from __future__ import annotations

import contextvars
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.executor_functions import endpoint
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tokenmill import storage
from tokenmill.errors import UsageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Done
from tokenmill.storage.objects import credentials
from tokenmill.system import storage_settings
from tokenmill.system.storage_settings import DEFAULT, StorageSettings

JOB: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1}
OPTIONS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--workers", "1", "--quiet")
ONE, OTHER = "http://one.example:1", "http://other.example:2"


@contextmanager
def watched() -> Iterator[None]:
    """Fails if a variable of the environment is written or removed in the block, even if it is restored."""
    before, writes = dict(os.environ), []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("putenv", "unsetenv"):
            patch.setattr(os, name, lambda *arguments: writes.append(arguments[0]))
        yield
    assert writes == []
    assert dict(os.environ) == before


@pytest.fixture
def bucket(s3: Bucket, parquet: str, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket with the small corpus. No variable names its server."""
    s3.server.upload(Path(parquet).parent, f"{s3.url}/corpus")
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", "2")  # requests to another server fail soon
    return s3


@pytest.fixture
def store(bucket: Bucket) -> str:
    """A store in the bucket."""
    with tokenmill.using(endpoint=bucket.server.endpoint, region="us-east-1"):
        tokenmill.prepare(f"{bucket.url}/corpus", out=f"{bucket.url}/store", **JOB)
    return f"{bucket.url}/store"


def in_new_context(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function as a new thread or process would: without settings."""
    return contextvars.Context().run(function, *arguments)


def test_blocks_nest_and_write_no_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner block changes what it names; the end of a block, also by an error, restores what was before."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", OTHER)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", OTHER)
    with watched():
        with tokenmill.using(endpoint=ONE, cache=tmp_path):
            outer = storage_settings.current()
            assert outer == StorageSettings(endpoint=ONE, cache=str(tmp_path))
            with tokenmill.using(region="eu-1", endpoint=OTHER, allow_http=False):
                assert storage_settings.current() == StorageSettings(OTHER, "eu-1", str(tmp_path), False)
            with pytest.raises(ZeroDivisionError), tokenmill.using(endpoint=OTHER):
                divmod(1, 0)
            assert storage_settings.current() == outer
            seen = "import os; print(os.environ['AWS_ENDPOINT_URL'], os.environ.get('TOKENMILL_CACHE'))"
            started = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
            assert started.stdout.split() == [OTHER, "None"]
        assert storage_settings.current() == DEFAULT


def test_settings_take_the_place_of_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """All variables for an endpoint give way to a given one. allow_http=False takes a permission back."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, OTHER)
    monkeypatch.setenv("AWS_REGION", "there")
    monkeypatch.setenv("TOKENMILL_ALLOW_HTTP", "1")
    settings = StorageSettings(endpoint=ONE, region="here", allow_http=False)
    assert credentials.location("s3", settings) == (f"AWS_ENDPOINT_URL={ONE}", "AWS_REGION=here", "")
    assert credentials.location("gs", settings) == ("",)
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    credentials.check_endpoints("s3", DEFAULT, {})
    with pytest.raises(UsageError, match="endpoint= is not encrypted"):
        credentials.check_endpoints("s3", settings, {})


@pytest.mark.parametrize("region", ["us east", "a\nb", os.fsdecode(b"\xff")])
def test_what_is_not_a_region_is_refused(region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would crash. Variables and profiles are looked at like the option."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UsageError, match="region= is not the name of a region"), tokenmill.using(region=region):
        pass
    with pytest.raises(UsageError, match="region of the profile is not the name of a region"):
        credentials.check_endpoints("s3", DEFAULT, {"region": region})
    monkeypatch.setenv("AWS_DEFAULT_REGION", region)
    with pytest.raises(UsageError, match="AWS_DEFAULT_REGION is not the name of a region"):
        storage.folder_at("s3://bucket/run")


def test_a_profile_gives_only_what_nothing_else_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint and the region of a profile are used unless they are given."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {OTHER}\nregion = there\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    assert credentials.profile(DEFAULT) == {"endpoint": OTHER, "region": "there"}
    assert credentials.profile(StorageSettings(region="here")) == {"endpoint": OTHER}
    assert credentials.profile(StorageSettings(endpoint=ONE)) == {"region": "there"}


def test_threads_of_the_program_have_the_settings_of_their_caller() -> None:
    """A thread of a pool has the settings of the thread that gave it work, one call after the other."""
    current = storage_settings.current
    with storage.Threads(1) as threads:
        with tokenmill.using(endpoint=ONE):
            assert threads.submit(current).result().endpoint == ONE
            with ThreadPoolExecutor(1) as plain:
                assert plain.submit(current).result() == DEFAULT
        assert threads.submit(current).result() == DEFAULT
        with tokenmill.using(endpoint=OTHER):
            assert [settings.endpoint for settings in threads.map(lambda _: current(), range(2))] == [OTHER, OTHER]


def test_workers_receive_settings_as_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call gives the running workers its own settings; their environment is that of the caller's process."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", OTHER)
    found = []
    with LocalExecutor() as executor:
        executor.start(1)
        for settings in (StorageSettings(endpoint=ONE), DEFAULT, StorageSettings(endpoint=OTHER)):
            with storage_settings.use(settings):
                found += [outcome.value for outcome in executor.run(endpoint, [0]) if isinstance(outcome, Done)]
    assert found == [(ONE, OTHER), (None, OTHER), (OTHER, OTHER)]


def test_a_block_that_ends_in_another_context_changes_nothing_there() -> None:
    """The garbage collector may end a generator, and the block in it, in any thread."""

    def steps() -> Generator[None, None, None]:
        with tokenmill.using(endpoint=ONE):
            yield

    generator = steps()
    in_new_context(next, generator)
    with tokenmill.using(endpoint=OTHER):
        generator.close()
        assert storage_settings.current().endpoint == OTHER


@pytest.mark.processes
def test_a_run_with_worker_processes_needs_no_variable(bucket: Bucket, documents: list[str]) -> None:
    """Sources, store, export, check and batches are in the bucket of `using`, and the environment is not written."""
    store = f"{bucket.url}/store"
    with watched(), tokenmill.using(endpoint=bucket.server.endpoint, region="us-east-1"):
        job: PrepareArguments = {**JOB, "unit_bytes": 1}
        tokenmill.prepare(f"{bucket.url}/corpus", out=store, **job)
        tokenmill.export(store, to="nanogpt", workers=1)
        tokenmill.verify(store, all=True, workers=1)
        loader = tokenmill.loader(store, sequence_tokens=8, grain=16, batch_sequences=2)
        opened = tokenmill.open(store)
    with watched():
        assert [opened.text(number) for number in range(3)] == documents[:3]
        assert loader[0]["input_ids"].shape == (2, 8)


@pytest.mark.processes
def test_a_command_writes_no_variable(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--endpoint` and `--region` reach the workers of a command, and nothing is left when it ends."""
    run_main = command._exit_code

    def watched_main() -> int:
        with watched():
            return run_main()

    monkeypatch.setattr(command, "_exit_code", watched_main)
    there = ("--endpoint", bucket.server.endpoint, "--region", "us-east-1")
    store = f"{bucket.url}/store"
    command.run("prepare", f"{bucket.url}/corpus", "--out", store, *OPTIONS, *there)
    shown = json.loads(command.run("inspect", store, "--doc", "0", "--json", *there).stdout)
    assert shown["store"] == store
    assert storage_settings.current() == DEFAULT
    refused = command.run("inspect", store, "--endpoint", "nowhere", code=2)
    assert "--endpoint needs http://" in refused.stderr


def test_what_was_opened_keeps_its_settings(store: str, bucket: Bucket, documents: list[str]) -> None:
    """A file, a store and a loader are read by the endpoint that they were opened with, in any thread and pickle."""
    with tokenmill.using(endpoint=bucket.server.endpoint, region="us-east-1"):
        stream = storage.open_input(storage.stat(f"{bucket.url}/corpus/corpus.parquet"))
        opened = tokenmill.open(store)
        loader = tokenmill.loader(store, sequence_tokens=8, grain=16, batch_sequences=2)
    assert len(in_new_context(pq.read_table, stream)) == len(documents)
    expected = loader[0]["input_ids"]
    for received in (opened, pickle.loads(pickle.dumps(opened))):
        assert in_new_context(received.text, 1) == documents[1]
    for received in (loader, in_new_context(pickle.loads, pickle.dumps(loader))):
        assert np.array_equal(in_new_context(received.__getitem__, 0)["input_ids"], expected)
        assert np.array_equal(in_new_context(next, iter(received))["input_ids"], expected)


def test_two_threads_have_two_endpoints(store: str, bucket: Bucket, documents: list[str]) -> None:
    """Threads that list, open, read and write at the same time talk each to the endpoint of its own block."""
    both = threading.Barrier(2)

    def work(proxy: Proxy, name: str) -> None:
        with tokenmill.using(endpoint=proxy.endpoint, region="us-east-1"):
            for number in range(3):
                both.wait()
                assert tokenmill.open(store).text(number) == documents[number]
                assert len(tokenmill.loader(store, sequence_tokens=8, grain=16, batch_sequences=2)[0]["input_ids"]) == 2
                assert storage.publish_new(storage.folder_at(f"{bucket.url}/{name}"), f"file-{number}", name.encode())
            tokenmill.prepare(f"{bucket.url}/corpus", out=f"{bucket.url}/{name}-store", **JOB)

    with Proxy(bucket.server.port) as one, Proxy(bucket.server.port) as other, ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(work, proxy, name) for proxy, name in ((one, "one"), (other, "other"))]
        for future in futures:
            future.result()
        for proxy, foreign in ((one, "/other"), (other, "/one")):
            assert any("/parts/" in exchange.path for exchange in proxy.exchanges)
            assert not any(foreign in exchange.path for exchange in proxy.exchanges)
