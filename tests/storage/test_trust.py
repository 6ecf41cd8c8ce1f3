"""What is not trusted: endpoints without encryption, and directories that another user has made."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import huggingface_hub.constants
import pytest

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.remote_runs import TOKENIZER
from tests.support.remote_runs import tokenmill as command
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.storage import folder_at
from tokenmill.storage.hub import listing
from tokenmill.storage.objects import credentials
from tokenmill.system import storage_settings
from tokenmill.tokenization import vocabulary_cache
from tokenmill.tokenization.resolve import Vocabulary, resolve

ELSEWHERE = "http://192.0.2.1:9000"
"""An address that is reserved for documentation: nothing answers there."""

ANOTHER_USER = 54_321

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def elsewhere(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, and an endpoint of another machine without encryption; nothing allows that."""
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", ELSEWHERE)


def test_keys_are_not_sent_without_encryption(elsewhere: None) -> None:
    """An http:// endpoint of another machine is refused before any request, with the ways to allow it."""
    with pytest.raises(UsageError, match="is not encrypted") as raised:
        folder_at("s3://bucket/run")
    for word in (ELSEWHERE, "--allow-http", "TOKENMILL_ALLOW_HTTP=1"):
        assert word in raised.value.text
    assert "allow_http=True" in str(raised.value)


def test_an_endpoint_of_a_profile_is_looked_at_too(
    elsewhere: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for the endpoint of a profile."""
    (tmp_path / "config").write_text(f"[default]\nendpoint_url = {ELSEWHERE}\n")
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    with pytest.raises(UsageError, match="is not encrypted"):
        folder_at("s3://bucket/run")


def test_the_command_refuses_it_as_well(parquet: str, elsewhere: None) -> None:
    """`--endpoint http://...` of another machine ends a command at once, with exit code 2."""
    ended = command("prepare", parquet, *TOKENIZER, "--out", "s3://bucket/run", "--endpoint", ELSEWHERE)
    assert ended.code == 2
    assert "is not encrypted" in ended.err


@pytest.mark.parametrize(
    ("name", "value"),
    [("TOKENMILL_ALLOW_HTTP", "1"), ("AWS_ALLOW_HTTP", "true"), ("AWS_SKIP_SIGNATURE", "true")],
)
def test_it_can_be_allowed(elsewhere: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """A variable allows it, and so does a request that has no signature."""
    with pytest.raises(UsageError):
        credentials.check_endpoints("s3", storage_settings.current(), {})
    monkeypatch.setenv(name, value)
    credentials.check_endpoints("s3", storage_settings.current(), {})


def test_it_can_be_allowed_for_a_block(elsewhere: None) -> None:
    """`using(allow_http=True)` allows it until its block ends."""
    with tokenmill.using(endpoint=ELSEWHERE, allow_http=True):
        credentials.check_endpoints("s3", storage_settings.current(), {})
    with pytest.raises(UsageError):
        credentials.check_endpoints("s3", storage_settings.current(), {})


@pytest.mark.parametrize("address", ["http://localhost:1", "http://127.0.0.7:1", "http://[::1]:1", "https://host"])
def test_this_machine_and_encryption_need_no_permission(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """Endpoints on loopback and with TLS are used as they are."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    credentials.check_endpoints("s3", storage_settings.current(), {})


@pytest.mark.parametrize("address", ["http://localhost.example.com", "http://127.0.0.1.example.com", "HTTP://10.0.0.1"])
def test_names_that_look_like_this_machine_do_not_count(
    elsewhere: None, monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    """A name that begins as this machine's does is another machine."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    with pytest.raises(UsageError):
        credentials.check_endpoints("s3", storage_settings.current(), {})


def test_the_token_of_the_hub_is_not_sent_without_encryption(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token is not sent to an http:// HF_ENDPOINT of another machine."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", ELSEWHERE)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with pytest.raises(UsageError, match="HF_ENDPOINT is not encrypted"):
        listing.find("hf://datasets/org/name/file.parquet")


@pytest.fixture
def shelves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The two directories in which vocabularies are kept, which do not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "cache" / "tokenmill" / "tokenizers", tmp_path / f"tokenmill-{os.getuid()}" / "tokenizers"


def keep(vocabulary: Vocabulary, shelves: tuple[Path, Path]) -> Path:
    """Put a vocabulary on the shelf; the file that holds it."""
    vocabulary_cache.save(vocabulary)
    return kept_file(vocabulary, shelves)


def kept_file(vocabulary: Vocabulary, shelves: tuple[Path, Path]) -> Path:
    """The newest file that holds a vocabulary."""
    files = [path for directory in shelves if (path := directory / vocabulary.spec.file).exists()]
    return max(files, key=lambda path: path.lstat().st_mtime_ns)


@needs_root
@pytest.mark.parametrize("level", [0, 1])
def test_a_directory_of_another_user_is_not_used(shelves: tuple[Path, Path], level: int) -> None:
    """Vocabularies are neither read from nor written to a directory that another user has made."""
    vocabulary = resolve(SMALL_TIKTOKEN)
    assert keep(vocabulary, shelves).is_relative_to(shelves[0])
    os.chown([shelves[0], shelves[0].parent][level], ANOTHER_USER, ANOTHER_USER)
    before = {path: path.stat().st_mtime_ns for path in shelves[0].iterdir()}
    assert vocabulary_cache.find(SMALL_TIKTOKEN, vocabulary_cache.vocabulary_digest(vocabulary)) == vocabulary
    assert kept_file(vocabulary, shelves).is_relative_to(shelves[1])
    assert {path: path.stat().st_mtime_ns for path in shelves[0].iterdir()} == before


@needs_root
def test_no_directory_at_all_is_an_error(shelves: tuple[Path, Path]) -> None:
    """If both directories belong to another user, that is an error, and nothing is written."""
    for directory in shelves:
        directory.mkdir(parents=True)
        os.chown(directory, ANOTHER_USER, ANOTHER_USER)
    with pytest.raises(TokenizerError, match="no directory for the vocabulary cache"):
        vocabulary_cache.save(resolve(SMALL_TIKTOKEN))
    assert [list(directory.iterdir()) for directory in shelves] == [[], []]


def test_a_link_in_place_of_a_directory_is_not_used(shelves: tuple[Path, Path], tmp_path: Path) -> None:
    """A link that leads to another directory is not used, whoever owns that."""
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    shelves[0].parent.mkdir(parents=True, mode=0o700)
    shelves[0].symlink_to(tmp_path / "elsewhere")
    assert keep(resolve(SMALL_TIKTOKEN), shelves).is_relative_to(shelves[1])
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("kind", ["link", pytest.param("owner", marks=needs_root), "mode"])
def test_a_file_that_others_can_change_is_not_used(shelves: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    """A kept vocabulary that is a link, belongs to another user or can be written by others is not used."""
    vocabulary = resolve(SMALL_TIKTOKEN)
    kept = keep(vocabulary, shelves)
    if kind == "link":
        kept.rename(kept.with_name("moved"))
        kept.symlink_to(kept.with_name("moved"))
    elif kind == "owner":
        os.chown(kept, ANOTHER_USER, ANOTHER_USER)
    else:
        kept.chmod(0o666)
    assert vocabulary_cache.find(SMALL_TIKTOKEN, vocabulary_cache.vocabulary_digest(vocabulary)) == vocabulary
    used = kept_file(vocabulary, shelves)
    assert not used.is_symlink()
    assert used.stat().st_uid == os.geteuid()
    assert not used.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def test_a_wide_umask_opens_nothing(shelves: tuple[Path, Path]) -> None:
    """Directories and files are closed to other writers, whatever the umask is, and are found again."""
    before = os.umask(0)
    try:
        shelves[0].mkdir(parents=True)
        kept = keep(resolve(SMALL_TIKTOKEN), shelves)
    finally:
        os.umask(before)
    assert kept.is_relative_to(shelves[0])
    for path in (kept, kept.parent, kept.parent.parent):
        assert not path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
