"""The examples do what their pages say, run as a user would run them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tests.support import ROOT
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet

NANOGPT = ROOT / "examples" / "nanogpt"
END = 1199
SMALL = ("--tokenizer", SMALL_TIKTOKEN, "--eot", str(END))

needs_torch = pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="torch is not installed")


def run(*command: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a user would: by name, with this Python first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PATH": path, **environment},
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def example(name: str, *arguments: str | Path, code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one of the Python scripts of examples/nanogpt."""
    return run(sys.executable, NANOGPT / name, *arguments, code=code, **environment)


def documents_of(tokens: np.ndarray) -> list[bytes]:
    """The documents of a stream, each with its end token, as bytes that compare and sort."""
    return [document.tobytes() for document in np.split(tokens, np.flatnonzero(tokens == END) + 1)[:-1]]


def test_fineweb_sample_becomes_train_and_val(tmp_path: Path, documents: list[str]) -> None:
    """The two files of a local sample hold each document of the store once, and the script tells their sizes."""
    texts = [f"{number}. {documents[number % 2]}" for number in range(6000)]  # 1199 is not in these two
    sample = write_parquet(tmp_path / "013_00000.parquet", texts, row_group_size=1000)
    done = example("prepare_fineweb.py", "--sample", sample, "--out", tmp_path / "out", *SMALL)
    store = tokenmill.open(str(tmp_path / "out"))
    train, val = (np.fromfile(tmp_path / "out" / "nanogpt" / name, np.uint16) for name in ("train.bin", "val.bin"))
    assert len(store) == len(texts)
    assert len(train) + len(val) == store.token_count
    assert 0 < len(documents_of(val)) < len(documents_of(train)) / 100
    assert documents_of(train) != [document.tobytes() for document in store][: len(documents_of(train))]
    both = documents_of(train) + documents_of(val)
    assert sorted(both) == sorted(document.tobytes() for document in store)
    for name, tokens in (("train.bin", train), ("val.bin", val)):
        assert f"{tmp_path / 'out' / 'nanogpt' / name}  {len(tokens):,} tokens" in done.stdout


def test_fineweb_sample_of_few_documents_says_what_is_missing(tmp_path: Path, parquet: str) -> None:
    """Where no document is held out, the script ends well and says that there is no val.bin."""
    done = example("prepare_fineweb.py", "--sample", parquet, "--out", tmp_path / "out", *SMALL)
    tokens = tokenmill.open(str(tmp_path / "out")).token_count
    assert f"train.bin  {tokens:,} tokens" in done.stdout
    assert "val.bin  not written" in done.stdout


def test_fineweb_without_the_hub_says_what_works(tmp_path: Path) -> None:
    """Where the Hub cannot be read, the message is the error and the way to run on local files."""
    nowhere = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": "http://localhost:9"}
    done = example("prepare_fineweb.py", "--version", "10B", "--out", tmp_path / "out", *SMALL, code=1, **nowhere)
    assert done.stderr.startswith("error: ")
    assert "--sample FILE" in done.stderr


def test_training_without_torch_says_how_to_get_it(tmp_path: Path) -> None:
    """Without PyTorch, train.py ends with one line."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = example("train.py", "--data", tmp_path, code=1, PYTHONPATH=str(tmp_path))
    assert done.stderr == "train.py needs PyTorch: pip install torch\n"


@needs_torch
def test_the_whole_example_learns(tmp_path: Path) -> None:
    """run.sh goes from text to a validation loss that has gone down, and once more without tokenizing again."""
    command = ("bash", NANOGPT / "run.sh", tmp_path / "out", SMALL_TIKTOKEN, "--eot", str(END))
    first, second = run(*command), run(*command)
    assert "it learns" in first.stdout
    assert "0 of " in second.stdout


@needs_torch
def test_training_on_noise_fails(tmp_path: Path) -> None:
    """Tokens in which there is nothing to learn give exit code 1."""
    random = np.random.default_rng(1)
    for name, count in (("train.bin", 20_000), ("val.bin", 4_000)):
        random.integers(0, 50257, count).astype(np.uint16).tofile(tmp_path / name)
    done = example("train.py", "--data", tmp_path, "--steps", "10", code=1)
    assert "it did not learn" in done.stdout
