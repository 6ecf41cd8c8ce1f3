"""The types that a user sees: a script against the built wheel passes `mypy --strict`, and mistakes in it do not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tokenmill
from tests.support import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Every public name is used once, as a user would. `assert_type` fails if a result is Any.
SCRIPT = """
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import tokenmill
from tokenmill.results import (
    BenchResult,
    Document,
    ExportResult,
    FinishResult,
    LocateResult,
    PlanResult,
    PrepareResult,
    ReportResult,
    Statistics,
    StatusResult,
    StoreSlice,
    VerifyResult,
)


def summary(result: PrepareResult) -> str:
    return f"{result.documents:,} documents, {result.exports[0].splits['val'].tokens:,} held out"


def longest(store: tokenmill.Store) -> int:
    return max(len(tokens) for tokens in store[::100])


def main(corpus: Path, folder: str) -> None:
    assert_type(tokenmill.bench([corpus], seconds=1.0, workers=[1, 2]), BenchResult)
    assert_type(tokenmill.plan(corpus, tokenizer="gpt2", engine="tiktoken"), PlanResult)
    with tokenmill.using(endpoint="http://localhost:9000", cache=corpus.parent):
        result = tokenmill.prepare(
            [corpus, "s3://bucket/more"], tokenizer=Path("tokenizer.json"), out=folder, to=["nanogpt", "llmc"],
            on_bad="fail", memory="8GB", val=0.01, tail="keep",
        )
    assert_type(result, PrepareResult)
    print(summary(result))
    assert_type(tokenmill.results.PrepareResult, type[PrepareResult])
    exported = tokenmill.export(folder, to="megatron", dtype="int32", eot_position="appended", shuffle=1337)
    assert_type(exported, ExportResult)
    assert_type(tokenmill.status(folder), StatusResult)
    assert_type(tokenmill.status(folder).seconds_left, float | None)
    assert_type(tokenmill.finish(Path(folder)), FinishResult)
    assert_type(tokenmill.verify(folder, all=True), VerifyResult)
    assert_type(tokenmill.locate(folder, 7), LocateResult)
    loader = tokenmill.loader([folder, Path("more")], sequence_tokens=1024, val="1%", shuffle="window")
    assert_type(loader, tokenmill.Loader)
    assert_type(loader[3]["input_ids"], npt.NDArray[Any])
    assert_type(tokenmill.stats(folder, by="language"), Statistics)
    assert_type(tokenmill.report(folder, out=Path("page.html")), ReportResult)
    store = tokenmill.open(Path(folder))
    assert_type(store, tokenmill.Store)
    assert_type(store[0], npt.NDArray[np.unsignedinteger[Any]])
    assert_type(store[np.int64(0)], npt.NDArray[np.unsignedinteger[Any]])
    assert_type(store[2:5], StoreSlice)
    assert_type(store[2:5][1:], StoreSlice)
    assert_type(store.document(0), Document)
    assert_type(store.decode(0), str)
    assert_type(len(store) + store.token_count + longest(store), int)
    tokenize: Callable[[Any], Any] = tokenmill.tokenize_fn("gpt2", column="content", eot="none")
    print(tokenize, tokenmill.map_dataset(object(), "gpt2", 8), tokenmill.__version__)


try:
    main(Path("corpus.jsonl"), os.fspath("tokens"))
except tokenmill.TokenmillError as error:
    print(error)
"""

# Each line is a mistake that a type checker has to find.
MISTAKES = """
import tokenmill
tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", engine="tiktokn")
tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", to="nanogptt")
tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", worker=2)
tokenmill.export("tokens", to="megatron", tail="cut")
tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens").document
tokenmill.open("tokens")["0"]
tokenmill.nothing()
"""


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with an environment that has mypy and the wheel, installed as a user installs it."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on PATH")
    folder = tmp_path_factory.mktemp("user")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str) -> None:
        ended = subprocess.run([uv, *command], cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended.stderr

    run("build", "--wheel", "--quiet", "--out-dir", str(folder / "dist"), str(ROOT))
    run("venv", "--quiet", "--python", sys.executable, str(folder / "venv"))
    wheel = next((folder / "dist").glob("*.whl"))
    run("pip", "install", "--quiet", "--python", str(folder / "venv/bin/python"), "mypy", str(wheel))
    return folder


def mypy(user: Path, text: str) -> str:
    """What `mypy --strict` prints for a script of the user."""
    (user / "script.py").write_text(text)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")}
    command = [str(user / "venv/bin/python"), "-m", "mypy", "--strict", "--no-error-summary", "script.py"]
    ended = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


def test_the_wheel_says_that_it_is_typed(user: Path) -> None:
    """py.typed is in the wheel, and neither tests nor scripts are."""
    names = zipfile.ZipFile(next((user / "dist").glob("*.whl"))).namelist()
    assert "tokenmill/py.typed" in names
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"tokenmill"}


def test_a_script_of_a_user_is_typed(user: Path) -> None:
    """A script that uses every public name has no errors, and no result in it is Any."""
    assert [name for name in tokenmill.__all__ if not re.search(rf"tokenmill\.{name}\b", SCRIPT)] == []
    assert mypy(user, SCRIPT) == ""


def test_mistakes_of_a_user_are_found(user: Path) -> None:
    """A misspelled choice, keyword, field or name is an error in its line."""
    lines = [number for number, line in enumerate(MISTAKES.splitlines(), 1) if line.startswith("tokenmill.")]
    found = {int(number) for number in re.findall(r"^script\.py:(\d+): error", mypy(user, MISTAKES), re.MULTILINE)}
    assert found == set(lines)
