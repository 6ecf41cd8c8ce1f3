"""What docs/why-it-dies.md says of libraries is so, and it shows the scripts and the doctor as they are."""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import dill
import gigatoken
import pytest
import tiktoken
import tiktoken.load
import tiktoken.registry

from tests.support import DATA, ROOT, dying
from tests.support.corpora import SMALL_JSON
from tokenmill.diagnosis.causes import CAUSES

PAGE = ROOT / "docs" / "why-it-dies.md"
PICKLERS = [pickle, dill, cloudpickle]
OFFLINE = {"TIKTOKEN_CACHE_DIR": "/nowhere", "https_proxy": "http://127.0.0.1:9"}
BYTES = {bytes([byte]): byte for byte in range(256)}


@pytest.fixture(autouse=True)
def _vocabularies(request: pytest.FixtureRequest) -> None:
    """Tests and cases that are marked so have the published vocabularies."""
    if "data" in request.keywords:
        request.getfixturevalue("test_data")


def byte_encoding() -> tiktoken.Encoding:
    """An encoding of our own, which tiktoken does not know by name."""
    return tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=BYTES, special_tokens={})


def open_files() -> list[str]:
    """What the open descriptors of this process lead to."""
    descriptors = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path) for path in descriptors if os.path.lexists(path))


# What docs/why-it-dies.md says of the scripts; test_watch.py has the rest.


def test_a_segfault_is_not_told_unless_asked(tmp_path: Path) -> None:
    """All that `map` says is that a process died. With PYTHONFAULTHANDLER, which the doctor sets, Python says where."""
    ending = dying.run(*dying.script("segfault"), cwd=tmp_path)
    assert ending.exit_code == 1
    assert "RuntimeError: One of the subprocesses has abruptly died during map operation." in ending.output
    assert "Segmentation fault" not in ending.output


# What docs/why-it-dies.md says of the libraries.


def test_an_encoding_holds_no_open_file() -> None:
    """After a vocabulary was read from a file, no more files are open than before."""
    before = open_files()
    ranks = tiktoken.load.load_tiktoken_bpe(str(DATA / "small.tiktoken"))
    encoding = tiktoken.Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={})
    assert encoding.encode_ordinary("some text")
    assert open_files() == before


@pytest.mark.data
def test_a_published_encoding_holds_no_open_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor after an encoding was asked for by name."""
    monkeypatch.delitem(tiktoken.registry.ENCODINGS, "gpt2", raising=False)
    before = open_files()
    assert tiktoken.get_encoding("gpt2").encode_ordinary("some text")
    assert open_files() == before


@pytest.mark.data
@pytest.mark.parametrize("pickler", PICKLERS, ids=lambda pickler: pickler.__name__)
def test_a_published_encoding_pickles_by_its_name(pickler: Any) -> None:
    """52 bytes, in the protocol that this Python uses unless told otherwise; what comes back is as good."""
    encoding = tiktoken.get_encoding("gpt2")
    sent = pickler.dumps(encoding, protocol=pickle.DEFAULT_PROTOCOL)
    assert len(sent) == 52
    assert pickler.loads(sent).encode_ordinary("some text") == encoding.encode_ordinary("some text")


@pytest.mark.data
def test_an_encoding_of_the_size_of_gpt2_pickles_as_622_kb() -> None:
    """One that tiktoken does not know by name carries its whole vocabulary."""
    gpt2 = tiktoken.get_encoding("gpt2")
    own = tiktoken.Encoding("own", pat_str=".", mergeable_ranks=gpt2._mergeable_ranks, special_tokens={})
    assert 621_500 < len(pickle.dumps(own)) < 622_500


@pytest.mark.parametrize("pickler", PICKLERS, ids=lambda pickler: pickler.__name__)
def test_an_encoding_of_ones_own_pickles_by_value(pickler: Any) -> None:
    """It needs nothing from outside to come back."""
    encoding = pickler.loads(pickler.dumps(byte_encoding()))
    assert encoding.encode_ordinary("text") == list(b"text")


@pytest.mark.parametrize("pickler", PICKLERS, ids=lambda pickler: pickler.__name__)
def test_native_tokenizers_cannot_be_pickled(pickler: Any) -> None:
    """Neither tiktoken's bare core nor a gigatoken tokenizer, in any of its forms."""
    with pytest.raises(TypeError, match=r"cannot pickle 'builtins.CoreBPE' object"):
        pickler.dumps(byte_encoding()._core_bpe)
    fast = gigatoken.Tokenizer(SMALL_JSON)
    for tokenizer in (fast, fast.as_hf(), fast.as_tiktoken()):
        with pytest.raises(TypeError, match=r"cannot pickle 'builtins.BPETokenizer' object"):
            pickler.dumps(tokenizer)


def test_an_encoding_sent_by_name_needs_the_vocabulary_where_it_arrives(tmp_path: Path) -> None:
    """Where there is neither a cached vocabulary nor a network, the 52 bytes cannot be turned into an encoding."""
    sent = b"\x80\x04\x95)\0\0\0\0\0\0\0\x8c\rtiktoken.core\x94\x8c\x08Encoding\x94\x93\x94)\x81\x94\x8c\x04gpt2\x94b."
    code = f"import pickle; pickle.loads({sent!r})"
    ending = dying.run(sys.executable, "-c", code, environment=OFFLINE, cwd=tmp_path)
    assert len(sent) == 52
    assert ending.exit_code == 1
    assert re.search(r"^requests.exceptions.ProxyError: .*/vocab.bpe", ending.output, re.MULTILINE)


HOLDS_ENCODINGS = """
import sys, datasets, tiktoken
ranks = {bytes([byte]): byte for byte in range(256)}
own = tiktoken.Encoding("bytes", pat_str=".", mergeable_ranks=ranks, special_tokens={})

def make(captured):
    return lambda row: {"ids": captured.encode_ordinary(row["text"])}

if __name__ == "__main__":
    for encoding in [own, *map(tiktoken.get_encoding, sys.argv[1:])]:
        done = datasets.Dataset.from_dict({"text": ["some text"] * 10}).map(make(encoding), num_proc=2)
        assert done["ids"][9] == encoding.encode_ordinary("some text")
        print("fingerprint", done._fingerprint)
"""


def test_captured_encodings_work_in_datasets(tmp_path: Path) -> None:
    """`map` over two processes gives the tokens, and every run of the script has the same fingerprints.

    One encoding is our own; gpt2, which is sent by name, is another where its vocabulary is at hand.
    """
    data = os.environ.get("TOKENMILL_TEST_DATA")
    script = tmp_path / "prepare.py"
    script.write_text(HOLDS_ENCODINGS)
    names = ["gpt2"] if data else []
    printed = []
    for seed in "12":
        environment = {"PYTHONHASHSEED": seed, "TIKTOKEN_CACHE_DIR": f"{data}/vocab"}
        ending = dying.run(sys.executable, script, *names, cwd=tmp_path, environment=environment)
        assert ending.exit_code == 0, ending.output
        printed.append(re.findall(r"^fingerprint (\w+)$", ending.output, re.MULTILINE))
    assert len(set(printed[0])) == (2 if data else 1)
    assert printed[0] == printed[1]


def test_dill_sends_a_lock_as_it_is() -> None:
    """dill, and so datasets, makes a new lock in the child, which is held for ever if the lock was held when sent."""
    lock = threading.Lock()
    assert not dill.loads(dill.dumps(lock)).locked()
    with lock:
        copy = dill.loads(dill.dumps(lock))
    assert not lock.locked()
    assert copy.locked()
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        cloudpickle.dumps(lock)


USES_GIGATOKEN_AFTER_A_FORK = """
import ast, os, sys, gigatoken
tokenizer, texts = gigatoken.Tokenizer(sys.argv[1]), ["some text " * 1000] * 1000
tokenizer.encode_batch(texts, parallel=True)
for parallel in ast.literal_eval(sys.argv[2]):
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    else:
        tokenizer.encode_batch(texts, parallel=parallel)
        print("the child is done:", parallel, flush=True)
        os._exit(0)
"""


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="with one core gigatoken starts no threads")
def test_gigatoken_after_a_fork_hangs_only_if_told_to_use_threads(tmp_path: Path) -> None:
    """Once the parent has used the thread pool, a child that asks for it waits for ever; one that does not is well."""
    command = (sys.executable, "-W", "ignore", "-c", USES_GIGATOKEN_AFTER_A_FORK, SMALL_JSON, "[False, None, True]")
    with dying.running(*command, cwd=tmp_path) as started:
        assert started.until_idle(2.0, seconds=60.0), started.output()
        assert started.output() == "the child is done: False\nthe child is done: None\n"


# The page itself.


def test_the_page_has_a_section_for_every_cause() -> None:
    """A cause's name is the anchor of a heading, so that the doctor's advice can link to it."""
    headings = re.findall(r"^##+ (.+)$", PAGE.read_text(), re.MULTILINE)
    anchors = [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings]
    assert set(CAUSES) <= set(anchors)
    assert len(set(anchors)) == len(anchors)


@pytest.mark.parametrize("path", sorted(dying.SCRIPTS.glob("*.py")), ids=lambda path: path.stem)
def test_the_page_shows_the_script_as_it_is(path: Path) -> None:
    """The page has the file's very text, and says where the file is."""
    page = PAGE.read_text()
    assert f"```py\n{path.read_text()}```\n" in page
    assert f"`{path.name}`" in page


def test_the_page_shows_what_the_doctor_says() -> None:
    """The words of each cause stand in what scripts/write_doctor_examples.py has written."""
    found = re.findall(r"<!-- doctor: ([\w-]+) -->\n\n```text\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(found) >= 14
    for name, block in found:
        assert CAUSES[name][0] in " ".join(block.split()), name
