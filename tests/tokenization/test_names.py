"""Tokenizers by the names of models on the Hub: fetched, pinned to a commit, kept in the run, and refused well."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

import tokenmill
from tests.support import DATA
from tests.support.command import run
from tests.support.conversations import random_conversations, write, write_model
from tests.support.corpora import write_parquet
from tests.support.killing import wait_until
from tests.support.servers.hub import Hub
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.storage import folder_at
from tokenmill.store.job import require_run
from tokenmill.tokenization.boundary_tokens import begin_note
from tokenmill.tokenization.chat_files import ChatFiles, chat_files
from tokenmill.tokenization.hub_models import HubModel, is_local, parse
from tokenmill.tokenization.resolve import absolute_name, resolve

NAME = "lab/small-1B"
END = 1199


def changed_json(**parts: object) -> bytes:
    """The small tokenizer.json with other parts."""
    return json.dumps({**json.loads((DATA / "small.json").read_bytes()), **parts}).encode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files of a model."""
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(DATA / "small.json", model / "tokenizer.json")
    spelling = next(token["content"] for token in json.loads((DATA / "small.json").read_bytes())["added_tokens"])
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": spelling}}))
    (model / "README.md").write_text("A model.")
    return model


@pytest.fixture
def served(hub: Hub, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with that model, which this process takes for the Hub, and an empty cache."""
    hub.add(NAME, folder)
    _set_endpoint(monkeypatch, hub.endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", f"{os.environ['HF_HOME']}/hub")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.chdir(tmp_path)
    return hub


@pytest.fixture
def gone(served: Hub, monkeypatch: pytest.MonkeyPatch) -> str:
    """An endpoint at which no server listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
    _set_endpoint(monkeypatch, endpoint)
    return endpoint


def _set_endpoint(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """huggingface_hub reads the environment when it is imported."""
    template = f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.mark.parametrize(
    "name", [NAME, f"{NAME}@main", f"hf://{NAME}", f"hf://{NAME}@main", f"HF://{NAME}/tokenizer.json"]
)
def test_a_model_of_the_hub_is_the_same_tokenizer_as_its_files(served: Hub, folder: Path, name: str) -> None:
    """Same bytes, same end token; the name is the model's, and the commit is recorded."""
    found, local = resolve(name), resolve(str(folder))
    assert found.content == local.content
    assert found.spec.end_of_text == local.spec.end_of_text is not None
    assert (found.spec.name, found.spec.commit) == (NAME, served.repositories[NAME].sha)
    assert found.spec.sha256 == local.spec.sha256
    assert not local.spec.commit


def test_a_commit_is_a_revision_and_needs_no_second_request(served: Hub) -> None:
    """A commit whose files are in the cache is read without the Hub."""
    pinned = f"{NAME}@{served.repositories[NAME].sha}"
    first = resolve(pinned)
    served.log.clear()
    assert resolve(pinned) == first
    assert not served.log.requests


def test_a_moved_branch_is_another_commit(served: Hub, folder: Path) -> None:
    """The name gives the branch as it is now; the old commit still gives the old tokenizer, from the cache."""
    before = resolve(NAME)
    (folder / "tokenizer.json").write_bytes(changed_json(version="1.1"))
    served.add(NAME, folder)
    now = resolve(NAME)
    assert now.content != before.content
    assert now.spec.commit != before.spec.commit
    assert resolve(absolute_name(NAME, before)).content == before.content


def test_an_unknown_model_is_refused_with_similar_names(served: Hub) -> None:
    """The Hub is asked for models of the same organization."""
    with pytest.raises(TokenizerError) as raised:
        resolve("lab/smal-1B")
    assert "no such path, and no such model on the Hub: lab/smal-1B" in str(raised.value)
    assert f"Did you mean {NAME}?" in str(raised.value)
    assert raised.value.exit_code == 2


def test_an_unknown_revision_is_refused(served: Hub) -> None:
    """The message names the model and the revision."""
    with pytest.raises(TokenizerError, match=f"{NAME} has no revision v9"):
        resolve(f"{NAME}@v9")


@pytest.mark.parametrize("token", [None, "hf_wrong"])
def test_a_gated_model_says_where_to_accept_its_terms(
    served: Hub, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    """Without a token (401) and with one that may not read it (403); the message does not show the token."""
    served.repositories[NAME].gate = "hf_right"
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(TokenizerError) as raised:
        resolve(NAME)
    assert f"Accept its terms at {served.endpoint}/{NAME}" in str(raised.value)
    assert "HF_TOKEN" in str(raised.value)
    assert "hf_wrong" not in str(raised.value)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert resolve(NAME).spec.name == NAME


def test_a_private_model_is_read_with_a_token(served: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, the Hub does not say that the model exists."""
    served.add("lab/private", folder, token="hf_right")
    with pytest.raises(TokenizerError, match="set HF_TOKEN"):
        resolve("lab/private")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert resolve("lab/private").spec.name == "lab/private"
    assert not served.log.leaked_tokens


def test_without_a_network_the_error_comes_at_once(gone: str) -> None:
    """One sentence, and no minutes of retries."""
    started = time.monotonic()
    with pytest.raises(
        TokenizerError, match="the Hub cannot be reached, and its cache does not have lab/small-1B"
    ) as raised:
        resolve(NAME)
    assert time.monotonic() - started < 5
    assert raised.value.exit_code == 75


def test_without_a_network_the_cache_is_used(served: Hub, request: pytest.FixtureRequest) -> None:
    """The commit is the one that the branch had."""
    before = resolve(NAME)
    request.getfixturevalue("gone")
    assert resolve(NAME) == before


def test_offline_mode_uses_the_cache_only(served: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is sent; a model that the cache does not have is refused with the command that fetches it."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TokenizerError, match="offline mode is on") as raised:
        resolve(NAME)
    assert f"hf download {NAME} tokenizer.json" in str(raised.value)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    before = resolve(NAME)
    served.log.clear()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert resolve(NAME) == before
    assert not served.log.requests


def test_a_model_without_a_vocabulary_says_what_it_has(served: Hub, folder: Path) -> None:
    """The files that could be meant are named; SentencePiece gets the command that converts it."""
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")
    served.add(NAME, folder)
    with pytest.raises(TokenizerError, match=r"lab/small-1B has no tokenizer\.json") as raised:
        resolve(NAME)
    assert "found        tokenizer_config.json, vocab.json" in str(raised.value)
    (folder / "tokenizer.model").write_bytes(b"\n\x0e\n\x05<unk>\x15\x00\x00\x00\x00\x18\x02")
    served.add(NAME, folder)
    with pytest.raises(TokenizerError, match="SentencePiece") as raised:
        resolve(NAME)
    assert f"T.from_pretrained('{NAME}').save_pretrained('converted')" in str(raised.value)


def test_a_path_that_exists_is_used_before_the_hub(served: Hub, folder: Path, tmp_path: Path) -> None:
    """A directory of the same name, and any name that begins with ./ or /."""
    with pytest.raises(TokenizerError, match="no such tokenizer file"):
        resolve(f"./{NAME}")
    shutil.copytree(folder, tmp_path / NAME)
    assert not resolve(NAME).spec.commit
    assert resolve(f"hf://{NAME}").spec.commit
    assert [is_local(name) for name in (NAME, "./a/b", "../a/b", "/a/b", "~/a", "org/other", f"hf://{NAME}")] == [
        *[True] * 5,
        False,
        False,
    ]


def test_names_are_parsed() -> None:
    """A revision may contain slashes; a dataset's address is no model."""
    assert parse("org/model") == HubModel("org/model")
    assert parse("org/model@v1.0") == HubModel("org/model", "v1.0")
    assert parse("org/model@refs/pr/3") == HubModel("org/model", "refs/pr/3")
    assert parse("hf://org/model@refs/pr/3/a/tokenizer.json") == HubModel("org/model", "refs/pr/3", "a/tokenizer.json")
    assert parse("gpt2") is None
    assert parse("a/b/c") is None
    for address in ("hf://datasets/org/name", "hf://org", "hf://org/model/../x"):
        with pytest.raises(UsageError, match="not an address of a model"):
            parse(address)


@pytest.fixture
def killed(served: Hub, tmp_path: Path) -> tuple[Path, list[object]]:
    """The store that a killed run with a tokenizer of the Hub leaves, and the arguments of the command."""
    texts = [f"Document {number} of a corpus, which has some words." for number in range(12)]
    source = write_parquet(tmp_path / "corpus.parquet", texts, row_group_size=2)
    out = tmp_path / "out"
    arguments: list[object] = ["prepare", source, "-t", NAME, "--out", out, "--unit-bytes", "1"]
    run(*arguments)
    for path in (out / "manifest.parquet", out / "log.jsonl", *sorted(out.glob("parts/*"))[2:]):
        path.unlink()
    return out, arguments


def test_a_killed_run_is_resumed_without_the_hub_and_its_cache(
    killed: tuple[Path, list[object]], served: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vocabulary and the commit are those of the store."""
    out, arguments = killed
    commit = require_run(folder_at(str(out))).job.tokenizer.commit
    assert commit == served.repositories[NAME].sha
    shutil.rmtree(os.environ["HF_HOME"])
    served.log.clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    done = run(*arguments)
    assert "resuming" in done.stderr
    assert f"commit {commit}" in done.stderr
    run("verify", out, "--all")
    other = ["other/model" if word == NAME else word for word in arguments]
    assert "the Hub cannot be reached" in run(*other, code=75).stderr
    assert not served.log.requests


def test_a_killed_run_keeps_its_commit_when_the_branch_moves(
    killed: tuple[Path, list[object]], served: Hub, folder: Path
) -> None:
    """The same command finishes the run with the tokenizer it was started with. The new commit by name is refused."""
    out, arguments = killed
    commit = require_run(folder_at(str(out))).job.tokenizer.commit
    (folder / "tokenizer.json").write_bytes(changed_json(version="1.1"))
    moved = served.add(NAME, folder).sha
    named = [f"{NAME}@{moved}" if word == NAME else word for word in arguments]
    assert "this directory holds a run with another tokenizer" in run(*named, code=1).stderr
    run(*arguments)
    assert require_run(folder_at(str(out))).job.tokenizer.commit == commit != moved
    run("verify", out, "--all")


def test_a_lost_vocabulary_is_fetched_at_the_commit_of_the_run(
    killed: tuple[Path, list[object]], served: Hub, folder: Path
) -> None:
    """Not at the branch, which has moved since."""
    out, arguments = killed
    shutil.rmtree(out / "tokenizer")
    (folder / "tokenizer.json").write_bytes(changed_json(version="1.1"))
    served.add(NAME, folder)
    run(*arguments)
    run("verify", out, "--all")


@pytest.mark.data
def test_the_shared_fake_hub_answers_as_well(
    test_data: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server, started as a process on a free port; the vocabulary comes over its redirects."""
    program = test_data / "tools" / "fakehub.py"
    if not program.exists():
        pytest.skip(f"there is no {program}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    (folder / "tokenizer.json").write_bytes(changed_json(padding_of_the_test="x" * 200_000))
    command = [sys.executable, str(program), str(port), str(folder), NAME]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            assert wait_until(lambda: _listens(port))
            _set_endpoint(monkeypatch, f"http://127.0.0.1:{port}")
            monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
            found = resolve(NAME)
            assert found.content == (folder / "tokenizer.json").read_bytes()
            with pytest.raises(TokenizerError, match="no such model on the Hub"):
                resolve("lab/other")
        finally:
            server.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


TEMPLATE: dict[str, Any] = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [],
    "special_tokens": {"<|begin|>": {"id": "<|begin|>", "ids": [7], "tokens": ["<|begin|>"]}},
}


@pytest.mark.parametrize(
    ("post_processor", "is_noted"),
    [
        (None, False),
        ({"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}, False),
        (TEMPLATE, True),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel", "trim_offsets": False}, TEMPLATE]}, True),
        ({**TEMPLATE, "single": TEMPLATE["single"][::-1]}, False),
        ({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<|begin|>", 7]}, True),
    ],
)
def test_the_begin_token_of_a_template_is_pointed_out(tmp_path: Path, post_processor: object, is_noted: bool) -> None:
    """Only if --bos is not given: `none` is a choice, too."""
    (tmp_path / "tokenizer.json").write_bytes(changed_json(post_processor=post_processor))
    vocabulary = resolve(str(tmp_path))
    note = begin_note(vocabulary, None)
    assert (note is not None) == is_noted
    assert note is None or ("<|begin|>" in note and "--bos 7" in note)
    assert begin_note(vocabulary, "none") is None
    assert begin_note(vocabulary, 7) is None


def test_the_note_is_in_the_output_and_the_result(tmp_path: Path) -> None:
    """`plan` and `prepare` show it."""
    (tmp_path / "tokenizer.json").write_bytes(changed_json(post_processor=TEMPLATE))
    source = write_parquet(tmp_path / "corpus.parquet", ["a text"], row_group_size=1)
    words = (source, "-t", tmp_path, "--eot", END)
    assert "begins each document with <|begin|>" in run("plan", *words).stdout
    assert "begins each document with <|begin|>" in run("prepare", *words, "--out", tmp_path / "out").stderr
    assert "begins each document" not in run("prepare", *words, "--bos", 7, "--out", tmp_path / "other").stderr


def test_the_chat_templates_of_a_model_on_the_hub(served: Hub, folder: Path, request: pytest.FixtureRequest) -> None:
    """At the commit of the vocabulary, also from the cache. Files of templates replace those of the configuration."""
    config = {"chat_template": "config", "bos_token": "<b>", "pad_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    served.add(NAME, folder)
    first = resolve(NAME).spec
    assert chat_files(NAME, first) == ChatFiles({"default": "config"}, {"bos_token": "<b>"})
    (folder / "chat_template.jinja").write_text("file")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<e>"}, "bos_token": "<old>"}))
    served.add(NAME, folder)
    expected = ChatFiles({"default": "file", "tool_use": "tools"}, {"bos_token": "<b>", "eos_token": "<e>"})
    second = resolve(NAME).spec
    assert chat_files(NAME, second) == chat_files(str(folder), resolve(str(folder)).spec) == expected
    request.getfixturevalue("gone")
    assert chat_files(NAME, second) == expected


def test_a_killed_run_of_conversations_is_resumed_without_the_hub(served: Hub, folder: Path, tmp_path: Path) -> None:
    """Its template is the one that the run was started with."""
    served.add(NAME, Path(write_model(folder)))
    source, out = write(tmp_path / "chats.jsonl", random_conversations(40, 3)), tmp_path / "chats"
    arguments = ["prepare", source, "-t", NAME, "--messages", "messages", "--out", out, "--unit-bytes", "1500"]
    run(*arguments)
    digest = tokenmill.open(out).digest
    for path in (out / "manifest.parquet", out / "log.jsonl", *sorted(out.glob("parts/*"))[2:]):
        path.unlink()
    shutil.rmtree(os.environ["HF_HOME"])
    assert "resuming" in run(*arguments, HF_ENDPOINT="http://127.0.0.1:9").stderr
    assert tokenmill.open(out).digest == digest
