"""Guarantee 6, safe: keys and tokens are in no file, log, error or process list, whatever goes wrong."""

from __future__ import annotations

import base64
import os
import secrets
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import write_parquet
from tests.support.killing import wait_until, workers, write_corpus
from tests.support.remote_runs import SMALL_UNITS, TOKENIZER, Ended, end, local_files, running, tokenmill
from tests.support.servers.faults import Fault
from tests.support.servers.hub import Hub
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket

UNITS = 30


@dataclass(frozen=True)
class Revealing(Fault):
    """A refusal as AWS words it: with the token that it does not accept."""

    token: str = ""

    def answer(self, method: str) -> bytes:
        """The answer, with what it was shown in it."""
        told = f"<Code>ExpiredToken</Code><Message>It has expired.</Message><Token-0>{self.token}</Token-0>"
        body = f'<?xml version="1.0"?><Error>{told}</Error>'
        head = f"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + ("" if method == "HEAD" else body)).encode()


@dataclass
class Place:
    """Where commands run: a home, a cache and a temporary directory of their own; and all that they said."""

    directory: Path
    hidden: list[str]
    said: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What sends the files of a command here."""
        names = {"HOME": "home", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp", "HF_HOME": "hf"}
        return {name: str(self.directory / folder) for name, folder in names.items()}

    def heard(self, ended: Ended) -> Ended:
        """Take note of what a command said."""
        self.said += [ended.out, ended.err]
        return ended

    def run(self, *arguments: object, **environment: str | None) -> Ended:
        """Run a command here, with tracebacks."""
        return self.heard(tokenmill(*arguments, "--debug", **{**self.environment, **environment}))

    def leaks(self, files: Mapping[str, bytes]) -> list[str]:
        """Where a secret was found: in what was said, in the files here, in the objects of a store."""
        texts = {f"output {place}": text.encode() for place, text in enumerate(self.said)}
        everything = {**texts, **local_files(self.directory), **files}
        return [name for name, data in everything.items() for data in unpacked(name, data) if self.is_in(data)]

    def is_in(self, data: bytes) -> bool:
        """Whether a secret is in some bytes, as it is or as it would be in a URL or in Base64."""
        spelled = [form for secret in self.hidden for form in (secret, quote(secret, safe=""))]
        encoded = [base64.b64encode(secret.encode())[:-4] for secret in self.hidden]
        return any(form in data for form in [*(form.encode() for form in spelled), *encoded])


def unpacked(name: str, data: bytes) -> Iterator[bytes]:
    """A file as it is, and what is in it if it is packed."""
    yield data
    if name.endswith(".parquet"):
        table = pq.read_table(pa.BufferReader(data))
        yield str(table.to_pydict()).encode() + str(table.schema.metadata).encode()


@pytest.fixture
def place(tmp_path: Path, s3: Bucket) -> Place:
    """A place where nothing is yet; the server's keys are hidden."""
    place = Place(tmp_path / "place", [s3.server.secret_key, s3.server.access_key])
    for folder in place.environment.values():
        Path(folder).mkdir(parents=True)
    return place


@pytest.fixture
def job(s3: Bucket, tmp_path: Path) -> list[str]:
    """The words of a command from this bucket to this bucket, whose sources are there."""
    s3.server.upload(write_corpus(tmp_path / "corpus", UNITS * 10, 10), f"{s3.url}/corpus")
    return ["prepare", f"{s3.url}/corpus", *SMALL_UNITS, "--out", f"{s3.url}/run"]


def command_lines() -> bytes:
    """The command lines of all processes there are."""
    found = b""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += path.read_bytes()
        except OSError:  # it has ended
            continue
    return found


def test_the_search_finds_what_it_should(place: Place, tmp_path: Path) -> None:
    """A secret in a file, in a compressed table, in a URL, in Base64 or in the output is seen."""
    secret = place.hidden[0] = "a secret/with+signs"
    assert place.leaks({}) == []
    (place.directory / "tmp" / "file").write_text(f"key={secret}")
    write_parquet(place.directory / "tmp" / "table.parquet", [f"{secret} " * 50])
    place.said += [quote(secret, safe=""), base64.b64encode(f"{secret}".encode()).decode()]
    assert len(set(place.leaks({"object": secret.encode()}))) == 5


def test_commands_that_succeed_tell_no_secret(job: list[str], s3: Bucket, place: Place) -> None:
    """All commands, one of them with a worker that is killed, leave keys in no file, output or command line."""
    with (
        Proxy(s3.server.port, latency_seconds=0.05) as proxy,
        running(*job, "--debug", **place.environment, AWS_ENDPOINT_URL=proxy.endpoint) as run,
    ):
        assert wait_until(lambda: any("/parts/" in exchange.path for exchange in list(proxy.exchanges)))
        lines = command_lines()
        os.kill(workers(run.pid)[0], signal.SIGKILL)
        proxy.latency_seconds = 0
        ended = place.heard(end(run))
    assert ended.code == 0, ended.err
    assert "was killed (SIGKILL)" in ended.err
    assert s3.url.encode() in lines
    assert not place.is_in(lines)
    url = f"{s3.url}/run"
    for words in (["export", url, "--to", "olmo"], ["status", url], ["inspect", url], ["verify", url, "--all"]):
        assert place.run(*words, "--json").code == 0
    objects = s3.server.objects(s3.url)
    assert len(objects) > UNITS
    assert place.leaks(objects) == []


def test_commands_that_fail_tell_no_secret(job: list[str], s3: Bucket, place: Place) -> None:
    """Wrong keys, wrong tokens, missing buckets and wrong addresses are told without what was tried."""
    wrong = {name: f"{name.lower()}/{secrets.token_hex(16)}+=" for name in ("SECRET_ACCESS_KEY", "SESSION_TOKEN")}
    place.hidden += wrong.values()
    attempts = [{f"AWS_{name}": value} for name, value in wrong.items()]
    address = f"127.0.0.1:{s3.server.port}"
    attempts += [{"AWS_ENDPOINT_URL": f"http://user:{place.hidden[-1].replace('/', '_')}@{address}"}]
    place.hidden.append(place.hidden[-1].replace("/", "_"))
    for attempt in attempts:
        assert place.run(*job, **attempt).code in {1, 2}
        assert place.run("verify", f"{s3.url}/run", "--json", **attempt).code in {1, 2}
    assert place.run("prepare", "s3://no-such-bucket/corpus", *TOKENIZER, "--out", f"{s3.url}/run").code == 1
    assert place.run("status", f"{s3.url}/none", "--json").code == 2
    in_url = f"s3://{s3.server.access_key}:{s3.server.secret_key}@{s3.url[5:]}"
    for words in (["status", f"{in_url}/run"], ["prepare", f"{in_url}/corpus", *TOKENIZER, "--out", f"{s3.url}/run"]):
        assert "must not contain keys" in place.run(*words).err
    assert "Traceback" in "".join(place.said)
    assert place.leaks(s3.server.objects(s3.url)) == []


def test_a_refusal_that_repeats_the_token_is_told_without_it(job: list[str], s3: Bucket, place: Place) -> None:
    """S3 puts a session token that has expired into its answer; it is not in what is said of it, in mid-run either."""
    place.hidden.append(f"session{secrets.token_hex(30)}")
    refusal = Revealing(status=403, token=place.hidden[-1])
    with Proxy(s3.server.port, latency_seconds=0.05) as proxy:
        with running(*job, "--debug", **place.environment, AWS_ENDPOINT_URL=proxy.endpoint) as run:
            assert wait_until(lambda: any("/parts/0" in exchange.path for exchange in list(proxy.exchanges)))
            proxy.inject(refusal, times=1_000_000)
            place.heard(end(run))
        proxy.latency_seconds = 0
        for method, command in (("GET", job), ("PUT", job), ("GET", ["verify", f"{s3.url}/run"])):
            proxy.reset()
            proxy.inject(refusal, method=method, times=1_000_000)
            assert place.run(*command, AWS_ENDPOINT_URL=proxy.endpoint).code == 75
    assert sum("the credentials have expired" in text for text in place.said) == 4, place.said
    assert place.leaks(s3.server.objects(s3.url)) == []


def test_the_keys_of_a_profile_work_and_stay_there(job: list[str], s3: Bucket, place: Place, tmp_path: Path) -> None:
    """Keys, region and endpoint come from AWS profile files, the default one or a named one, and go nowhere else."""
    keys = f"aws_access_key_id = {s3.server.access_key}\naws_secret_access_key = {s3.server.secret_key}\n"
    (tmp_path / "credentials").write_text(f"[default]\n{keys}\n[mine]\n{keys}")
    where = f"region = us-east-1\nendpoint_url = {s3.server.endpoint}\n"
    (tmp_path / "config").write_text(f"[default]\n{where}\n[profile mine]\n{where}")
    unset = dict.fromkeys(["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL"])
    files = {"AWS_SHARED_CREDENTIALS_FILE": f"{tmp_path}/credentials", "AWS_CONFIG_FILE": f"{tmp_path}/config"}
    assert place.run(*job, **unset, **files).code == 0
    assert place.run("verify", f"{s3.url}/run", **unset, **files, AWS_PROFILE="mine").code == 0
    absent = place.run("status", f"{s3.url}/run", **unset, **files, AWS_PROFILE="other")
    assert (absent.code, "there is no AWS profile 'other'" in absent.err) == (1, True)
    (tmp_path / "credentials").write_text(f"[mine\n{keys}")
    assert place.run("status", f"{s3.url}/run", **unset, **files, AWS_PROFILE="mine").code == 1
    assert place.leaks(s3.server.objects(s3.url)) == []


def test_the_token_of_the_hub_stays_where_it_is(hub: Hub, s3: Bucket, place: Place, tmp_path: Path) -> None:
    """A private repository is read with HF_TOKEN, or refused without it, and the token is nowhere."""
    place.hidden.append(f"hf_{secrets.token_hex(17)}")
    write_parquet(tmp_path / "repository" / "data" / "a.parquet", ["A document."] * 50)
    hub.add("org/private", tmp_path / "repository", token=place.hidden[-1])
    source = "hf://datasets/org/private/data/*.parquet"
    endpoint = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_DISABLE_IMPLICIT_TOKEN": None}
    for token, code in ((place.hidden[-1], 0), (f"{place.hidden[-1]}x", 1), (None, 1)):
        ended = place.run("prepare", source, *TOKENIZER, "--out", f"{s3.url}/run{code}", HF_TOKEN=token, **endpoint)
        assert ended.code == code, ended.err
    assert hub.log.leaked_tokens == 0
    assert place.leaks(s3.server.objects(s3.url)) == []
