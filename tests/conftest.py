"""Fixtures: a small corpus, small vocabularies, and the large test data where it is."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import hypothesis
import pytest

from tests.support import TESTS
from tests.support.corpora import write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.inline_executor import InlineExecutor, executors
from tests.support.kept_forkservers import kept_forkservers
from tests.support.servers.azure import AzureServer, find_azurite, start_azurite
from tests.support.servers.hub import Hub
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket, S3Server, start_seaweed
from tokenmill.executors.local import LocalExecutor
from tokenmill.storage.hub import files as hub_files

SERVER_FIXTURES = {"s3_server", "azure_server", "hub", "cluster"}

# The time of an example says nothing on a machine that runs other tests.
hypothesis.settings.register_profile("tokenmill", deadline=None)
hypothesis.settings.load_profile("tokenmill")

# The tests of these files start processes, wait, or take long. Those among them that do not are marked fast one by one.
SLOW_FILES = {
    "analysis/test_card.py",
    "analysis/test_report.py",
    "analysis/test_statistics.py",
    "api/test_bench.py",
    "api/test_locate.py",
    "api/test_map_dataset.py",
    "api/test_status_cost.py",
    "cli/test_attacked_operator.py",
    "cli/test_screens.py",
    "diagnosis/test_examine.py",
    "diagnosis/test_watch.py",
    "diagnosis/test_why_it_dies.py",
    "erasure/test_erase.py",
    "erasure/test_selection.py",
    "erasure/test_kills.py",
    "erasure/test_races.py",
    "erasure/test_removed_files.py",
    "erasure/test_restored.py",
    "executors/test_cluster.py",
    "executors/test_contract.py",
    "executors/test_node_versions.py",
    "executors/test_join_cluster.py",
    "executors/test_prefetch.py",
    "executors/test_ray.py",
    "exports/test_begun_exports.py",
    "exports/test_exchanged_files.py",
    "exports/test_export.py",
    "exports/test_merges.py",
    "exports/test_ranks.py",
    "exports/test_recipe.py",
    "exports/test_several_stores.py",
    "exports/test_unfinished_files.py",
    "guarantees/test_deterministic.py",
    "guarantees/test_exact.py",
    "guarantees/test_exactly_once.py",
    "guarantees/test_kept_columns_killed.py",
    "guarantees/test_safe.py",
    "training/test_example.py",
    "training/test_remote.py",
    "training/test_torch.py",
    "training/test_trainers.py",
    "pipeline/test_changed_sources.py",
    "pipeline/test_denied_rows.py",
    "pipeline/test_dedup.py",
    "pipeline/test_token_limits.py",
    "pipeline/test_where.py",
    "pipeline/test_growth_by_ranks.py",
    "pipeline/test_lost_tables.py",
    "pipeline/test_poison.py",
    "pipeline/test_ranks.py",
    "pipeline/test_several_tokenizers.py",
    "pipeline/test_slurm.py",
    "pipeline/test_surroundings.py",
    "project/test_docs.py",
    "project/test_examples.py",
    "project/test_notebook_example.py",
    "project/test_oldest.py",
    "project/test_servers.py",
    "sources/test_catalog.py",
    "sources/test_contract.py",
    "sources/test_damaged_files.py",
    "sources/test_json_neighbours.py",
    "storage/test_caches.py",
    "storage/test_hub_runs.py",
    "storage/test_remote.py",
    "storage/test_remote_faults.py",
    "storage/test_several_machines.py",
    "store/test_changed_files.py",
    "store/test_damaged_files.py",
    "store/test_kept_columns.py",
    "tokenization/test_audit.py",
    "tokenization/test_families.py",
    "tokenization/test_gate_mutations.py",
    "tokenization/test_reference_decides.py",
    "tokenization/test_tokenize_fn.py",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow` runs the tests that take long."""
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    """Let what tests start be interrupted: a shell starts what it puts into the background with SIGINT ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_FailedNames(config))


class _FailedNames:
    """Prints the name of a failed test at once: a run that is cut off has no summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.write_line(f"\nFAILED {report.nodeid} ({report.when})")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the fast tests, and skip, with a reason, what cannot run here."""
    data = os.environ.get("TOKENMILL_TEST_DATA")
    items.sort(key=lambda item: not _is_in_slow_file(item))  # short files come last, so that all cores end together
    for item in items:
        if _is_fast(item):
            item.add_marker(pytest.mark.fast)
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if "data" in item.keywords and not data:
            item.add_marker(pytest.mark.skip(reason="TOKENMILL_TEST_DATA is not set"))


def _is_fast(item: pytest.Item) -> bool:
    """Whether a test takes little time: it needs no server and is not in a file of processes."""
    needs_server = not SERVER_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
    takes_long = any(mark in item.keywords for mark in ("slow", "thorough", "processes"))
    return not _is_in_slow_file(item) and not takes_long and not needs_server


def _is_in_slow_file(item: pytest.Item) -> bool:
    return item.path.relative_to(TESTS).as_posix() in SLOW_FILES


@pytest.fixture(scope="session", autouse=True)
def _inline_workers() -> Iterator[None]:
    """Let calls work in the test's process, and those that start processes share fork servers."""
    with kept_forkservers(), executors(InlineExecutor):
        yield


ENVIRONMENT = os.environ


@pytest.fixture(autouse=True)
def _one_environment() -> None:
    """Restore os.environ, which `datasets.map` replaces by a copy: libraries that hold the first one see no changes."""
    if os.environ is not ENVIRONMENT:
        ENVIRONMENT.clear()
        ENVIRONMENT.update(os.environ)
        os.environ = ENVIRONMENT  # noqa: B003 - it has the same content


@pytest.fixture(autouse=True)
def _worker_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let the calls of a test that is marked `processes` start worker processes."""
    with executors(LocalExecutor) if "processes" in request.keywords else nullcontext():
        yield


@pytest.fixture(scope="session")
def documents() -> list[str]:
    """The documents of the small corpus."""
    return list(DOCUMENTS)


@pytest.fixture
def parquet(tmp_path: Path, documents: list[str]) -> str:
    """The small corpus as one Parquet file of row groups of three."""
    return write_parquet(tmp_path / "corpus.parquet", documents, row_group_size=3)


@pytest.fixture
def test_data(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of large test data, with the OpenAI vocabularies made known to tiktoken."""
    folder = Path(os.environ["TOKENMILL_TEST_DATA"])
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder / "vocab"))
    return folder


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """SeaweedFS, with keys of its own, for all tests of the session. Who kills it has to start it again."""
    server = start_seaweed(tmp_path_factory.mktemp("seaweed"), f"ACCESS{secrets.token_hex(8)}", secrets.token_hex(20))
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A fresh bucket, with the environment that clients need. To go through a proxy, set AWS_ENDPOINT_URL to it."""
    _set_environment(monkeypatch, s3_server.environment(), clear="AWS_")
    return Bucket(s3_server, s3_server.fresh_bucket())


@pytest.fixture(scope="session")
def azure_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    """Azurite, with an account of its own, for all tests of the session; they are skipped where it is not installed."""
    if not find_azurite():
        pytest.skip("azurite-blob is not on PATH, and AZURITE does not name it (npm install azurite)")
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    server = start_azurite(tmp_path_factory.mktemp("azurite"), f"account{secrets.token_hex(4)}", key)
    yield server
    server.stop()


@pytest.fixture
def azure(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a fresh container, with the environment that clients need."""
    _set_environment(monkeypatch, azure_server.environment(), clear="AZURE_")
    return azure_server.container(f"container-{secrets.token_hex(6)}")


@pytest.fixture(scope="session")
def hub_server() -> Iterator[Hub]:
    """A hub for all tests of the session."""
    with Hub() as served:
        yield served


@pytest.fixture
def hub(hub_server: Hub, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub without repositories (`hub.add` one), with the environment that clients need, and an empty HF_HOME.

    huggingface_hub reads that environment when it is imported, which may have happened: run a command, or give the
    endpoint, as in `HfApi(endpoint=hub.endpoint)`.
    """
    hub_server.reset()
    hub_files._entries.clear()  # of repositories that may have had the same commit
    home = tmp_path_factory.getbasetemp() / "hf_home"
    shutil.rmtree(home, ignore_errors=True)
    _set_environment(monkeypatch, hub_server.environment(home), clear="HF_")
    return hub_server


def _set_environment(monkeypatch: pytest.MonkeyPatch, wanted: dict[str, str], clear: str) -> None:
    """Set variables, without those of the same family that the machine happens to have: they might name other keys."""
    for name in [name for name in os.environ if name.startswith(clear)]:
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def proxy(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the server, which commands go through."""
    with Proxy(s3.server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
