"""Sources and stores in object storage give what local ones give, byte for byte, on real servers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill as package
from tests.support.killing import wait_until, write_corpus
from tests.support.remote_runs import (
    SMALL_UNITS,
    TOKENIZER,
    Ended,
    differences,
    end,
    kill,
    local_files,
    prepared,
    put_directory,
    running,
    start,
    tokenmill,
)
from tests.support.servers.azure import AzureServer
from tests.support.servers.faults import Fault
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tests.support.source_files import KINDS, SEPARATOR
from tokenmill import storage
from tokenmill.errors import StorageError
from tokenmill.sources.discovery import StoreGuard
from tokenmill.storage import publish_new
from tokenmill.storage.objects import bucket, clients
from tokenmill.store import layout
from tokenmill.token_files import FORMATS

UNITS = 24
EXPORTS = [word for name in FORMATS for word in ("--to", name)]
SHUFFLED = ("--shuffle", "3", "--val", "0.1", "--shard-tokens", "30k")
LATENCY_SECONDS = 0.06
"""What makes a run slow enough to do something to it meanwhile."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of many small row groups."""
    return write_corpus(tmp_path_factory.mktemp("remote") / "corpus", documents=UNITS * 5, rows_per_group=5)


@pytest.fixture(scope="module")
def local(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a local run."""
    out = tmp_path_factory.mktemp("local") / "run"
    prepared(corpus, *SMALL_UNITS, "--out", out)
    return local_files(out)


@pytest.fixture(scope="module")
def local_exports(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, bytes]]:
    """The files of local runs with exports in all formats, in order and shuffled."""
    found: dict[tuple[str, ...], dict[str, bytes]] = {}
    for options in ((), SHUFFLED):
        out = tmp_path_factory.mktemp("exports") / "run"
        prepared(corpus, *SMALL_UNITS, "--out", out, *EXPORTS, *options)
        found[options] = local_files(out)
    return found


@pytest.fixture
def remote(s3: Bucket, corpus: Path) -> str:
    """The same corpus in a fresh bucket."""
    s3.server.upload(corpus, f"{s3.url}/corpus")
    return f"{s3.url}/corpus"


def parts(s3: Bucket, run: str = "run") -> int:
    """How many parts a store has."""
    return sum(len(page) for page in s3.server.store(f"{s3.url}/{run}/parts").list())


NAMES_SOURCES = re.compile(
    r"olmo/.*\.csv\.gz|(parquet|text)/.*\.parquet|(olmo|parquet|text)/\.tokenmill/(manifest|shards/).*"
)
"""Files of exports that hold the addresses of the sources, and the hashes of such files."""


def anonymous(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files that do not depend on where the sources are."""
    return {name: data for name, data in files.items() if not NAMES_SOURCES.match(name)}


def test_sources_in_object_storage_give_the_same_bytes(
    corpus: Path, remote: str, s3: Bucket, local_exports: dict[tuple[str, ...], dict[str, bytes]], tmp_path: Path
) -> None:
    """Shuffled, parts and all formats are the same from S3 to S3, from S3 to a disk, and from a disk to a disk."""
    for out in (f"{s3.url}/run", tmp_path / "run"):
        told = prepared(remote, *SMALL_UNITS, "--out", out, *EXPORTS, *SHUFFLED)
        assert (told["units"], told["units_done_now"], len(told["exports"])) == (UNITS, UNITS, len(FORMATS))
    far, near, expected = s3.server.objects(f"{s3.url}/run"), local_files(tmp_path / "run"), local_exports[SHUFFLED]
    assert differences(far, near) == []
    assert [data for name, data in far.items() if name.startswith("sources-")] == [near["sources.parquet"]]
    assert differences(anonymous(far), anonymous(expected)) == []
    for name in (name for name in expected if re.fullmatch(r"parquet/[^.].*", name)):
        there, here = (pq.read_table(pa.BufferReader(files[name])) for files in (far, expected))
        assert there.to_pylist() == [
            {**row, "source": row["source"].replace(str(corpus), remote)} for row in here.to_pylist()
        ]


def test_a_store_in_object_storage_holds_the_same_bytes(
    corpus: Path, s3: Bucket, local_exports: dict[tuple[str, ...], dict[str, bytes]]
) -> None:
    """Of local sources the store in S3, its exports in all formats included, has the bytes of a local one."""
    prepared(corpus, *SMALL_UNITS, "--out", f"{s3.url}/run", *EXPORTS)
    found = s3.server.objects(f"{s3.url}/run")
    assert differences(found, local_exports[()]) == []
    assert not [name for name in found if ".pieces" in name or name.endswith(".tmp")]


def test_a_store_is_exported_from_and_to_object_storage(
    remote: str, s3: Bucket, local_exports: dict[tuple[str, ...], dict[str, bytes]], tmp_path: Path
) -> None:
    """`export --out` reads a remote store, and writes a remote or a local directory, with the same bytes.

    Their tokens lead back to the rows of the remote store.
    """
    prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    expected = {name[9:]: data for name, data in local_exports[SHUFFLED].items() if name.startswith("megatron/")}
    expected.pop(".tokenmill/lock")
    job = json.loads(expected.pop(".tokenmill/export.json"))["job"]
    for out in (f"{s3.url}/elsewhere", str(tmp_path / "elsewhere")):
        tokenmill("export", f"{s3.url}/run", "--to", "megatron", "--out", out, *SHUFFLED, "--json").result()
        found = s3.server.objects(out) if out.startswith("s3:") else local_files(tmp_path / "elsewhere")
        found.pop(".tokenmill/lock", None)
        frozen = json.loads(found.pop(".tokenmill/export.json"))
        assert [one["directory"] for one in frozen["stores"]] == [f"{s3.url}/run"]
        assert frozen["job"] == job
        assert found == expected
    assert tokenmill("verify", f"{s3.url}/elsewhere").code == 0
    shard = next(name for name in expected if name.endswith(".bin") and not name.startswith("."))
    where = f"{s3.url}/elsewhere/{shard}"
    (found,) = tokenmill("locate", where, "100", "--store", f"{s3.url}/run", "--json").result()["documents"]
    token = np.frombuffer(expected[shard], np.uint16)[100]
    assert package.open(f"{s3.url}/run")[found["document"]][found["offset"]] == token
    row = ["--source", found["source"], "--row", str(found["row"])]
    (spot,) = tokenmill("locate", f"{s3.url}/elsewhere", "--store", f"{s3.url}/run", *row, "--json").result()[
        "exports"
    ]["megatron"]
    assert (spot["file"], spot["token"] <= 100 < spot["token"] + spot["tokens"]) == (where, True)


NAMES = ["a b", "per%20cent 100%", "snow ☃ ü", "hash#tag", "plus+and&equals=", "quo'te\"s", "brackets[1]", "10", "9"]


def write_kinds(directory: Path, documents: list[str]) -> None:
    """Sources of every kind under unusual names, empty ones, and many small ones."""
    for number, (kind, name) in enumerate(zip([*KINDS.values(), KINDS["parquet"]], NAMES, strict=True)):
        folder = directory / f"{name} folder"
        folder.mkdir(parents=True)
        kind.write(str(folder / f"{name}{kind.ending}"), documents[number:], 3)
    for name in ("empty.txt", "empty.jsonl"):
        (directory / name).write_bytes(b"")
    for name in ("empty.parquet", "empty.arrow"):
        KINDS["parquet" if name.endswith("parquet") else "arrow file"].write(str(directory / name), [], 3)
    (directory / "small").mkdir()
    for number in range(40):
        (directory / "small" / f"{number}.txt").write_text(f"Document {number}. {SEPARATOR} {documents[number % 10]}")


@pytest.mark.parametrize("options", [(), ("--separator", SEPARATOR)])
def test_every_kind_of_source_under_every_name(
    options: tuple[str, ...], documents: list[str], s3: Bucket, tmp_path: Path
) -> None:
    """Sources of all kinds, empty ones and many small ones, with unusual characters in their names: the same store."""
    write_kinds(tmp_path / "corpus", documents)
    s3.server.upload(tmp_path / "corpus", f"{s3.url}/corpus")
    common = (*TOKENIZER, "--workers", "2", "--unit-bytes", "2k", *options)
    here = prepared(tmp_path / "corpus", *common, "--out", tmp_path / "run")
    there = prepared(f"{s3.url}/corpus", *common, "--out", f"{s3.url}/run")
    assert here["documents"] == there["documents"] > 40
    assert differences(s3.server.objects(f"{s3.url}/run"), local_files(tmp_path / "run")) == []
    assert tokenmill("verify", f"{s3.url}/run", "--all").code == 0


PATTERNS = [
    "",
    "one",
    "*",
    "*/*.txt",
    "**",
    "**/*.txt",
    "one/a?.txt",
    "one/[ab]1.txt",
    "one/**",
    "*/deep/*",
    ".hidden/*",
]
FILES = ["top.txt", "one/a1.txt", "one/b1.txt", "one/a12.txt", "one/deep/c.txt", "two/deep/d.md", "one/.e.txt"]


def test_globs_and_directories_find_what_they_find_on_a_disk(s3: Bucket, tmp_path: Path) -> None:
    """A directory, `*`, `?`, `[..]` and `**` over keys find the same files as over paths, hidden ones alike."""
    for name in [*FILES, ".hidden/f.txt", "one2/g.txt"]:
        (tmp_path / "root" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / name).write_text("x")
    s3.server.upload(tmp_path / "root", f"{s3.url}/root")
    for directory in ("root/", "root/one/", "root/one/deep/"):
        put_directory(s3.server, f"{s3.url}/{directory}")
    for pattern in PATTERNS:
        found = []
        for root in (str(tmp_path / "root"), f"{s3.url}/root"):
            listing = storage.find(f"{root}/{pattern}", StoreGuard())
            found.append((listing.is_named, sorted(file.path[len(root) :] for file in listing.files)))
        assert found[0] == found[1], pattern
    put_directory(s3.server, f"{s3.url}/root/none/")
    assert [file.path for file in storage.find(f"{s3.url}/root/*", StoreGuard()).files] == [f"{s3.url}/root/top.txt"]
    with pytest.raises(package.TokenmillError, match="no object matches"):
        storage.find(f"{s3.url}/root/*.parquet", StoreGuard())
    with pytest.raises(package.TokenmillError, match="no object below it"):
        storage.find(f"{s3.url}/roo", StoreGuard())


@pytest.mark.parametrize("at_once", [7, 30, 1000])
def test_many_numbered_objects_are_listed_in_stretches(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Whatever stretches a listing is cut into, every number that is there is found, and no other."""
    monkeypatch.setattr(bucket, "LISTED_PER_BATCH", at_once)
    folder = storage.folder_at(f"{s3.url}/store")
    there = sorted(random.Random(1).sample(range(300), 90))
    strangers = [
        "parts.txt",
        "parts/.hidden",
        "parts/00000007",
        "parts/00000014.arrow.old",
        "parts/below/00000001.arrow",
    ]
    for name in (
        [f"parts/{number:08d}.arrow" for number in there] + strangers + ["parts/zebra", "quarters/00000000.arrow"]
    ):
        publish_new(folder, name, b"here")
    for count in (1, 7, 8, 210, 300, 1000):
        found = layout.numbered_files(folder, "parts", "arrow", count)
        assert np.flatnonzero(found).tolist() == [number for number in there if number < count]
    assert not layout.numbered_files(folder, "nothing", "arrow", 300).any()


def test_a_killed_run_goes_on_where_it_was(
    remote: str, s3: Bucket, proxy: Proxy, local: dict[str, bytes], tmp_path: Path
) -> None:
    """Killing all processes at random moments costs no committed unit and changes no byte."""
    seed = int(os.environ.get("TOKENMILL_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"to repeat this: TOKENMILL_KILL_SEED={seed}")  # noqa: T201 - pytest shows it for a failed test
    rng, there = random.Random(seed), 0
    proxy.latency_seconds = LATENCY_SECONDS
    for _ in range(2):
        with running("prepare", remote, *SMALL_UNITS, "--out", f"{s3.url}/run") as run:
            more = there + rng.randint(0, 5)
            # The loop's `more` and `run` are read within this round only.
            assert wait_until(lambda: proxy.written("/parts/") > more or run.poll() is not None)  # noqa: B023
            time.sleep(rng.uniform(0, 0.05))
            kill(run)
        assert run.returncode == -signal.SIGKILL
        there = parts(s3)
    proxy.latency_seconds = 0
    told = prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert told["units_done_now"] <= UNITS - there  # what was on its way may have arrived after the kill
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []
    assert tokenmill("verify", f"{s3.url}/run", "--all").code == 0
    assert prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")["units_done_now"] == 0


def test_a_run_killed_while_it_starts_leaves_nothing_to_stumble_over(
    remote: str, s3: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    """After a kill before `run.json` is there, with some files laid down, the next run freezes its own."""
    proxy.inject(Fault(stall_seconds=60), method="PUT", path="/run/sources-")
    with running("prepare", remote, *SMALL_UNITS, "--out", f"{s3.url}/run") as run:
        assert wait_until(lambda: any("/run/sources-" in exchange.path for exchange in list(proxy.exchanges)))
        kill(run)
    assert [name.split("/")[0] for name in s3.server.objects(f"{s3.url}/run")] == ["tokenizer"]
    prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []


def test_a_remote_store_is_watched_inspected_and_opened(remote: str, s3: Bucket, proxy: Proxy, corpus: Path) -> None:
    """`status` tells a run at work from a complete one; `inspect` and `tokenmill.open` read what is there."""
    url = f"{s3.url}/run"
    with running("prepare", remote, *SMALL_UNITS, "--out", url) as run:
        with proxy.held("/parts/", "PUT", after=7):
            assert wait_until(lambda: proxy.written("/parts/") == 7)
            meanwhile = tokenmill("status", url, "--json", AWS_ENDPOINT_URL=s3.server.endpoint).result()
            refused = tokenmill("inspect", url, AWS_ENDPOINT_URL=s3.server.endpoint)
            assert run.poll() is None
        assert end(run).code == 0
    assert (meanwhile["state"], meanwhile["units"]) == ("running", UNITS)
    assert meanwhile["units_done"] == 7
    assert (refused.code, "is not complete" in refused.err) == (1, True)
    assert tokenmill("status", url, "--json").result()["state"] == "complete"
    first = pq.read_table(corpus / "000.parquet")["text"][0].as_py()
    assert first[:40] in "".join(
        re.findall(r'^ *[\d,]+  "(.*)"$', tokenmill("inspect", url, "--doc", "0").out, re.MULTILINE)
    )
    assert len(package.open(url)) == UNITS * 5


TEXT_BYTES = 8_000_000


def test_a_run_reads_the_text_and_the_footers_and_little_else(s3: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    """Of a corpus with other columns at most 1.05 times the text's column chunks and the footers are read."""
    rng = random.Random(4)
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=rng.randint(1, 9))) for _ in range(20_000)]
    (tmp_path / "corpus").mkdir()
    needed = 0
    for name in ("a", "b"):
        texts = [" ".join(rng.choices(words, k=1000)) for _ in range(TEXT_BYTES // 2 // 6000)]
        other = [rng.randbytes(4000) for _ in texts]
        path = tmp_path / "corpus" / f"{name}.parquet"
        pq.write_table(pa.table({"before": other, "text": texts, "after": other}), path, row_group_size=66)
        footer = pq.read_metadata(path)
        needed += footer.serialized_size + 8
        needed += sum(footer.row_group(g).column(1).total_compressed_size for g in range(footer.num_row_groups))
    s3.server.upload(tmp_path / "corpus", f"{s3.url}/corpus")
    told = prepared(f"{s3.url}/corpus", *TOKENIZER, "--workers", "2", "--unit-bytes", "350k", "--out", tmp_path / "run")
    reads = [exchange for exchange in proxy.exchanges if exchange.method == "GET" and "/corpus/" in exchange.path]
    ratio, per_unit = proxy.bytes_down / needed, len(reads) / told["units"]
    assert told["units"] > 10
    assert ratio <= 1.05, f"{ratio:.3f} times what is needed was read, by {per_unit:.2f} requests for a unit"
    assert per_unit <= 2.5, f"{per_unit:.2f} requests for a unit ({told['units']} units), {ratio:.3f} times"


def test_a_store_costs_few_requests_for_a_unit(remote: str, s3: Bucket, proxy: Proxy) -> None:
    """Reading, looking for the part and writing it come to four requests for a unit, with all that is done once."""
    prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    of_units = [e for e in proxy.exchanges if "/parts/" in e.path or "/corpus/" in e.path]
    once = len(proxy.exchanges) - len(of_units)
    assert len(of_units) <= 4 * UNITS, f"{len(of_units) / UNITS:.2f} requests for a unit"
    assert once <= 42, f"{once} requests that are not for a unit: {proxy.requests}"


def test_a_source_replaced_in_mid_run_is_refused(
    remote: str, s3: Bucket, proxy: Proxy, corpus: Path, local: dict[str, bytes]
) -> None:
    """Another content of the same size under the same key is not read; the run ends with the key and what to do."""
    original, there = (corpus / "001.parquet").read_bytes(), s3.server.store(remote)
    replace = Fault(meanwhile=lambda: there.put("001.parquet", original[:-1] + b"x"))
    for fault in (Fault(), Fault(), replace):
        proxy.inject(fault, method="PUT", path="/parts/")
    ended = tokenmill("prepare", remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert (ended.code, proxy.orders.left) == (1, 0)
    assert "a source changed since the run was planned" in ended.err
    assert f"{remote}/001.parquet" in ended.err
    again = tokenmill("prepare", remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert (again.code, f"{remote}/001.parquet" in again.err) == (1, True)
    there.put("001.parquet", original)
    prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []


def test_a_second_driver_joins_a_run_at_work(remote: str, s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """One that comes later does only what is missing."""
    job = (remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    with running("prepare", *job) as first:
        with proxy.held("/parts/", "PUT", after=7):
            assert wait_until(lambda: proxy.written("/parts/") == 7)
            assert prepared(*job, AWS_ENDPOINT_URL=s3.server.endpoint)["units_done_now"] == UNITS - 7
        ended = end(first)
    assert ended.code == 0, ended.err
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []


def test_of_two_different_jobs_one_wins(remote: str, s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """Of two that are about to be frozen one is, and the other is refused with what changed; the store is sound."""
    job = ("prepare", remote, *SMALL_UNITS, "--out", f"{s3.url}/run")
    winners: list[Ended] = []
    win = Fault(meanwhile=lambda: winners.append(end(start(*job, AWS_ENDPOINT_URL=s3.server.endpoint))))
    proxy.inject(win, method="PUT", path="/run/run.json")
    loser = tokenmill(*("none" if word == "1199" else word for word in job))
    assert [winner.code for winner in winners] == [0], winners
    assert loser.code == 1
    assert "this directory holds a run with another --eot" in loser.err
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []
    assert tokenmill("verify", f"{s3.url}/run", "--all").code == 0


def test_bad_rows_are_named_in_the_quarantine_of_a_remote_store(s3: Bucket, tmp_path: Path) -> None:
    """A row that cannot be a document is named as it is locally, with the URL of its source, and verify knows of it."""
    lines = ['{"text": "Good."}', '{"text": 7}', "not JSON", '{"text": "Also good."}']
    (tmp_path / "corpus").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / "corpus" / name).write_text("\n".join(lines))
    s3.server.upload(tmp_path / "corpus", f"{s3.url}/corpus")
    common = (*TOKENIZER, "--max-bad", "60%")
    here = prepared(tmp_path / "corpus", *common, "--out", tmp_path / "run")
    there = prepared(f"{s3.url}/corpus", *common, "--out", f"{s3.url}/run")
    assert here["quarantined"] == there["quarantined"] == 4
    paths = (f"{tmp_path}/corpus".encode(), f"{s3.url}/corpus".encode())
    # The lines of a local file are counted, those of an object are not.
    files = local_files(tmp_path / "run").items()
    expected = {name: re.sub(rb',"line":\d+', b"", data.replace(*paths)) for name, data in files}
    assert differences(s3.server.objects(f"{s3.url}/run"), expected) == []
    assert tokenmill("verify", f"{s3.url}/run", "--all").code == 0
    strict = tokenmill("prepare", f"{s3.url}/corpus", *TOKENIZER, "--on-bad", "fail", "--out", f"{s3.url}/strict")
    assert (strict.code, f"{s3.url}/corpus/a.jsonl" in strict.err) == (1, True)


def test_what_lies_beside_a_store_is_left_alone(remote: str, s3: Bucket, local: dict[str, bytes]) -> None:
    """Objects whose keys begin like the store's, or lie in it under other names, are neither read nor removed."""
    others = {"run.txt": b"1", "run2/parts/00000000.arrow": b"2", "runs/run.json": b"3", "run/notes/README.md": b"4"}
    store = s3.server.store(s3.url)
    for name, data in others.items():
        store.put(name, data)
    prepared(remote, *SMALL_UNITS, "--out", f"{s3.url}/run", "--to", "nanogpt", "--shuffle", "1")
    found = s3.server.objects(s3.url)
    assert {name: found.get(name) for name in others} == others
    mine = {name[4:]: data for name, data in found.items() if name.startswith("run/") and name not in others}
    assert differences({n: d for n, d in mine.items() if not n.startswith("nanogpt/")}, local) == []


def test_a_server_that_is_not_there_or_says_no_is_told_at_once(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong endpoint, missing and wrong credentials each give one error with what to do, after a first attempt."""
    assert cast("timedelta", clients.FIRST_RETRIES["retry_timeout"]) < timedelta(seconds=10)
    monkeypatch.setitem(clients.FIRST_RETRIES, "retry_timeout", timedelta(seconds=1))
    nobody, keys = "http://127.0.0.1:9", ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    refused = r"the object store does not allow this process to read s3://\S+\n.*\n"
    refused += r"  Check the credentials, and what they allow"
    expected: dict[str, dict[str, str | None]] = {
        r"cannot reach s3://\S+\n.*\n  Check the network, and the address": {"AWS_ENDPOINT_URL": nobody},
        r"there are no credentials for s3://\S+\n.*\n  Set AWS_ACCESS_KEY_ID": {
            **dict.fromkeys(keys),
            "AWS_METADATA_ENDPOINT": nobody,
        },
        refused: {keys[0]: "wrong"},
        rf"{refused}.": {keys[1]: "wrong"},
        "AWS_ENDPOINT_URL is not the address of a server": {"AWS_ENDPOINT_URL": "127.0.0.1:9"},
    }
    words = ("prepare", f"{s3.url}/corpus", *TOKENIZER, "--out", f"{s3.url}/run")
    for sentence, environment in expected.items():
        ended = tokenmill(*words, HOME=str(tmp_path), **environment)
        assert ended.code in {1, 2, 75}
        assert re.match(rf"error: {sentence}.*\n", ended.err), ended.err
        assert ended.err.count("\n") <= 4


PROSE = re.compile(r"Generic|Error performing|retries|greeting|169\.254|https?://\S+/|committed")
"""What clients say to their developers, and what no reader of a store wants to know."""


@pytest.mark.parametrize(
    ("url", "environment", "said"),
    [
        ("s3://tls/run", {"AWS_ENDPOINT_URL": "https://127.0.0.1:PORT"}, "no TLS at 127.0.0.1:PORT: is it http://?"),
        ("s3://name/run", {"AWS_ENDPOINT_URL": "http://no-such-host.invalid:90"}, "the name no-such-host.invalid can"),
        ("s3://signed/run", {"AWS_SECRET_ACCESS_KEY": "no"}, "reason       403 Forbidden: SignatureDoesNotMatch"),
        ("s3://half/run", {"AWS_ACCESS_KEY_ID": None}, "no access key\n  Set AWS_ACCESS_KEY_ID."),
        (
            "s3://keys/run",
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9"},
            "reason       no keys in the environment or ~/.aws, and no role of an instance\n",
        ),
        ("az://account/run", {"AZURE_STORAGE_ACCOUNT_NAME": None}, "Set AZURE_STORAGE_ACCOUNT_NAME."),
    ],
)
def test_reasons_are_short(
    s3: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    environment: dict[str, str | None],
    said: str,
) -> None:
    """What is wrong with an address or with credentials is told at once, in one line, in the system's words."""
    monkeypatch.setenv("HOME", str(tmp_path))
    port = str(s3.server.port)
    for name, value in environment.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value.replace("PORT", port))
    started = time.monotonic()
    with pytest.raises(StorageError) as raised:
        storage.folder_at(url).exists("run.json")
    assert said.replace("PORT", port) in str(raised.value)
    assert not PROSE.search(str(raised.value))
    assert len(raised.value.details) <= 3
    assert time.monotonic() - started < cast("timedelta", clients.FIRST_RETRIES["retry_timeout"]).total_seconds()


@dataclass(frozen=True)
class Elsewhere(Fault):
    """The answer of S3 for a bucket in another region."""

    told: str = ""

    def answer(self, method: str) -> bytes:
        """The answer, with the region in it if it is told."""
        body = f'<?xml version="1.0"?><Error><Code>AuthorizationHeaderMalformed</Code>{self.told}</Error>'
        head = f"HTTP/1.1 {self.status} Sorry\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + ("" if method == "HEAD" else body)).encode()


@pytest.mark.parametrize(
    ("status", "told", "region"),
    [
        (400, "<Region>eu-west-9</Region>", "eu-west-9"),
        (400, "<Message>the region 'us-east-1' is wrong; expecting 'eu-west-9'</Message>", "eu-west-9"),
        (301, "", "NAME"),
    ],
)
def test_another_region_is_told(s3: Bucket, proxy: Proxy, status: int, told: str, region: str) -> None:
    """A bucket that is in another region is not said to be out of reach: the option to give is named."""
    proxy.inject(Elsewhere(status=status, told=told), times=100)
    with pytest.raises(StorageError, match="is in another region") as raised:
        storage.folder_at(f"{s3.url}/run")
    assert raised.value.details[-1] == f"Give --region {region}."
    assert proxy.orders.left == 99


def test_a_first_contact_can_be_interrupted() -> None:
    """Ctrl-C while a server keeps silent ends the command at once."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        with running("status", "s3://bucket/run", "--endpoint", endpoint, **keys) as run:
            connection, _ = silent.accept()
            started = time.monotonic()
            run.send_signal(signal.SIGINT)
            assert end(run).code == 130
            assert time.monotonic() - started < 4  # the request itself would be given up after five seconds
            connection.close()


def test_missing_buckets_stores_and_sources_are_told(s3: Bucket) -> None:
    """A bucket, a store or a source that is not there is named."""
    absent = tokenmill("prepare", "s3://no-such-bucket/corpus", *TOKENIZER, "--out", f"{s3.url}/run")
    assert (absent.code, "there is no bucket no-such-bucket\n" in absent.err) == (1, True)
    absent = tokenmill("status", "s3://no-such-bucket/run")
    assert (absent.code, absent.err.startswith("error: there is no bucket no-such-bucket\n")) == (1, True)
    absent = tokenmill("prepare", f"{s3.url.upper()[:5]}{s3.url[5:]}/{{a,b}}.txt", *TOKENIZER, "--out", f"{s3.url}/run")
    assert (absent.code, "{ } is no pattern here" in absent.err) == (2, True)
    absent = tokenmill("prepare", f"{s3.url}/corpus", *TOKENIZER, "--out", f"{s3.url}/run")
    assert (absent.code, f"there is no object {s3.url}/corpus, and no object below it" in absent.err) == (2, True)
    absent = tokenmill("status", f"{s3.url}/run")
    assert (absent.code, f"{s3.url}/run is not a tokenmill store" in absent.err) == (2, True)
    assert tokenmill("status", "s3://").code == 2


def test_azure_gives_the_same_bytes(
    azure: str, azure_server: AzureServer, corpus: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    """From and to Azure, with a resume and an export: the files of a local run."""
    store = azure_server.store(azure)
    for path in corpus.iterdir():
        store.put(f"corpus/{path.name}", path)
    prepared(f"{azure}/corpus", *SMALL_UNITS, "--out", f"{azure}/run", "--limit-units", "7")
    grown = prepared(f"{azure}/corpus", *SMALL_UNITS, "--out", f"{azure}/run")
    assert grown["units_done_now"] == UNITS - 7
    store.delete(["run/manifest.parquet", *(f"run/parts/{unit:08d}.arrow" for unit in range(5, UNITS))])
    resumed = (f"{azure}/corpus", *SMALL_UNITS, "--out", f"{azure}/run", "--to", "megatron", "--shuffle", "3")
    assert prepared(*resumed)["units_done_now"] == UNITS - 5
    names = [entry["path"] for page in store.list("run") for entry in page]
    files = {name[4:]: bytes(store.get(name).bytes()) for name in names if not name.startswith("run/megatron/")}
    assert differences(files, local) == []
    assert tokenmill("verify", f"{azure}/run", "--all").code == 0
    assert tokenmill("verify", f"{azure}/run/megatron").code == 0


@pytest.mark.data
@pytest.mark.slow
def test_the_multilingual_corpus_from_s3_to_s3(s3: Bucket, test_data: Path, tmp_path: Path) -> None:
    """Forty megabytes of Parquet in many scripts, with GPT-2's vocabulary: the same parts, manifest and shards."""
    s3.server.upload(test_data / "corpus" / "multi", f"{s3.url}/multi")
    common = ("--tokenizer", "gpt2", "--workers", "2", "--to", "nanogpt", "--shuffle", "1")
    prepared(test_data / "corpus" / "multi", *common, "--out", tmp_path / "run")
    prepared(f"{s3.url}/multi", *common, "--out", f"{s3.url}/run")
    assert differences(s3.server.objects(f"{s3.url}/run"), local_files(tmp_path / "run")) == []
