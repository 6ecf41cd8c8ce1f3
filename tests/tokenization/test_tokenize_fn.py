"""The function for `datasets.map`: small to send, exact everywhere, built once in each process, safe after a fork."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import datasets
import dill
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import tiktoken
import tokenizers

import tokenmill
from tests.support import DATA, TESTS
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tests.support.mapping_matrix import TEXTS
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.tokenization import tokenize_fn
from tokenmill.tokenization.engines import huggingface
from tokenmill.tokenization.engines.tiktoken import parse_ranks
from tokenmill.tokenization.resolve import resolve

DOCUMENTS = [*TEXTS[:6], "a\ud800b", "x" * 3000]
SECONDS = 240
MATRIX_SECONDS = 540
"""Some 80 s where nothing else runs; a hang is for ever."""


@pytest.fixture(autouse=True)
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shelf of the test's own, and nothing loaded by the test before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenize_fn, "_loaded", {})
    return tmp_path / "cache"


def reference(tokenizer: str, texts: list[str]) -> list[list[int]]:
    """The tokens as the reference library itself gives them, with the end token."""
    spec, end = resolve(tokenizer).spec, end_of(tokenizer)
    if spec.kind == "tiktoken":
        if tokenizer == SMALL_TIKTOKEN:
            ranks = parse_ranks((DATA / "small.tiktoken").read_bytes(), "small")
            assert spec.pattern is not None
            encoding = tiktoken.Encoding("small", pat_str=spec.pattern, mergeable_ranks=ranks, special_tokens={})
        else:
            encoding = tiktoken.get_encoding(tokenizer)
        return [[*encoding.encode_ordinary(text), *end] for text in texts]
    engine = tokenizers.Tokenizer.from_file(tokenizer)
    engine.encode_special_tokens = True
    return [[*engine.encode(text, add_special_tokens=False).ids, *end] for text in texts]


def end_of(tokenizer: str) -> list[int]:
    spec = resolve(tokenizer).spec
    return [] if spec.end_of_text is None else [spec.end_of_text]


def made(tokenizer: str, **keywords: Any) -> Any:
    return tokenmill.tokenize_fn(tokenizer, eot=None if end_of(tokenizer) else "none", **keywords)


@pytest.mark.parametrize("tokenizer", [SMALL_TIKTOKEN, SMALL_JSON])
def test_every_way_to_call_it_gives_the_reference_tokens(tokenizer: str) -> None:
    """A row, a batch, a string, a list and a table all give the tokens of the reference, and their number."""
    function, texts = made(tokenizer), [text for text in DOCUMENTS if "\ud800" not in text]
    expected = reference(tokenizer, texts)
    for text, ids in zip(texts, expected, strict=True):
        row = function({"text": text, "id": 7})
        assert row["ids"].tolist() == function(text)["ids"].tolist() == ids
        assert row["len"] == len(ids)
    batch = function({"text": texts})
    assert [ids.tolist() for ids in batch["ids"]] == [ids.tolist() for ids in function(texts)["ids"]] == expected
    assert batch["len"] == [len(ids) for ids in expected]
    table = function(pa.table({"text": pa.chunked_array([texts[:2], texts[2:]])}))
    assert table.to_pydict() == {"ids": expected, "len": [len(ids) for ids in expected]}


def test_frames_come_back_as_frames() -> None:
    """In the formats of pandas and polars, for a batch and for one row, which is a frame too."""
    import datasets

    function = made(SMALL_TIKTOKEN)
    expected = reference(SMALL_TIKTOKEN, TEXTS)
    for kind in ("pandas", "polars")[: 1 + getattr(datasets.config, "POLARS_AVAILABLE", False)]:
        for batched in (False, True):
            rows = datasets.Dataset.from_dict({"text": TEXTS}).with_format(kind)
            mapped = rows.map(function, batched=batched).with_format(None)
            assert mapped["ids"][:] == expected
            assert mapped.features["ids"].feature.dtype == "uint16"


@pytest.mark.parametrize("kind", ["S", "U", "O"])
def test_arrays_of_numpy_are_not_padded(kind: str) -> None:
    """NumPy fills strings of a fixed width with NUL."""
    encode = tokenmill.tokenize_fn(SMALL_TIKTOKEN, eot="none")
    texts = [b"a", b"longer text"] if kind == "S" else ["a", "longer text"]
    assert [list(ids) for ids in encode({"text": np.array(texts, kind)})["ids"]] == [
        list(ids) for ids in encode({"text": ["a", "longer text"]})["ids"]
    ]


def test_lone_surrogates_are_read_as_tiktoken_reads_them() -> None:
    """Half a surrogate pair becomes U+FFFD, in a row and in a batch."""
    function = made(SMALL_TIKTOKEN)
    expected = reference(SMALL_TIKTOKEN, ["a\ufffdb"])[0]
    assert function("a\ud800b")["ids"].tolist() == expected
    assert function(["x", "a\ud800b"])["ids"][1].tolist() == expected


def test_a_row_without_text_is_an_error_that_says_what_to_do() -> None:
    """A null is refused, not skipped: rows and tokens would no longer belong together."""
    with pytest.raises(ValueError, match=r"row 1 .*dataset\.filter"):
        made(SMALL_TIKTOKEN)({"text": ["x", None]})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (["x", 5], "row 1 of what was given holds a value of the type int"),
        (["x", ["a"]], "row 1 of what was given holds a value of the type list"),
        (["x", b"\xff"], "row 1 of what was given holds bytes that are not UTF-8"),
        (b"\xff", "row 0 of what was given holds bytes that are not UTF-8"),
        (5, "its value is of the type int"),
        ({"a": "x"}, "its value is of the type dict"),
        ({"x"}, "its value is of the type set"),
    ],
)
def test_what_is_no_text_is_named(values: Any, reason: str) -> None:
    """A number, a struct, a set or bytes that are not UTF-8 are refused with the column and the row."""
    with pytest.raises(UsageError, match=f"'text' does not hold text\n.*{reason}"):
        made(SMALL_TIKTOKEN)({"text": values})


@pytest.mark.parametrize("value", [["a", "b"], {"a": "x"}, [{"role": "user", "content": "x"}], 5])
@pytest.mark.parametrize("is_batched", [False, True])
def test_a_row_that_holds_no_text_is_no_batch(value: Any, is_batched: bool) -> None:
    """A list in one row of `datasets.map` is a value, not a batch; the keys of a struct are not tokenized."""
    rows = datasets.Dataset.from_dict({"text": [value, value]})
    with pytest.raises(UsageError, match="'text' does not hold text"):
        rows.map(made(SMALL_TIKTOKEN), batched=is_batched)


def test_a_missing_column_is_named() -> None:
    """The error lists the columns that are there, for each kind of rows."""
    rows = {"content": ["x"]}
    for given in (rows, pa.table(rows), pd.DataFrame(rows)):
        with pytest.raises(UsageError, match=r"there is no column 'text'\n.*content"):
            made(SMALL_TIKTOKEN)(given)
    with pytest.raises(UsageError, match=r"Did you mean Text\?"):
        made(SMALL_TIKTOKEN)({"Text": ["x"]})


def test_the_column_of_the_tokens_has_the_name_that_is_asked_for() -> None:
    """With `output` there is one column; a column that is there already is never replaced."""
    rows: dict[str, Any] = {"text": ["x y", "z"], "ids": [1, 2]}
    for given in (rows, pa.table(rows), pd.DataFrame(rows)):
        with pytest.raises(UsageError, match=r"'ids' is there already(?s:.*)output='input_ids'"):
            made(SMALL_TIKTOKEN)(given)
        found = made(SMALL_TIKTOKEN, output="input_ids")(given)
        assert list(found if isinstance(found, dict) else getattr(found, "column_names", found)) == ["input_ids"]
        assert [list(row) for row in _plain(found["input_ids"])] == reference(SMALL_TIKTOKEN, rows["text"])
    with pytest.raises(UsageError, match="'text' is there already"):
        made(SMALL_TIKTOKEN, output="text")(rows)


def _plain(column: Any) -> Any:
    return column.to_pylist() if isinstance(column, pa.ChunkedArray) else column


def test_it_is_small_to_send_and_equal_if_it_does_the_same() -> None:
    """A few hundred bytes by every pickler; the same bytes after use, and others for another end token."""
    function = made(SMALL_JSON)
    before = [pickler.dumps(function) for pickler in (pickle, dill, cloudpickle)]
    function("The encoder is built now.")
    assert before == [pickler.dumps(function) for pickler in (pickle, dill, cloudpickle)]
    assert all(len(sent) < 400 for sent in before)
    assert pickle.loads(before[0])("x")["ids"].tolist() == function("x")["ids"].tolist()
    assert pickle.dumps(tokenmill.tokenize_fn(SMALL_JSON, eot="none")) != before[0]


def test_one_encoder_for_a_process() -> None:
    """Two functions that name the same tokenizer share what they build, and build it on first use."""
    first, second = made(SMALL_TIKTOKEN), made(SMALL_TIKTOKEN)
    assert not tokenize_fn._loaded
    first("x")
    loaded = dict(tokenize_fn._loaded)
    second("x")
    assert tokenize_fn._loaded == loaded


def test_the_tokenizer_is_found_by_hash_where_the_file_is_gone(tmp_path: Path) -> None:
    """A process needs neither the file nor the network once the function was made on its machine."""
    moved = tmp_path / "mine.json"
    moved.write_bytes(Path(SMALL_JSON).read_bytes())
    function = made(str(moved))
    moved.unlink()
    assert function("x")["ids"].tolist() == reference(SMALL_JSON, ["x"])[0]


def test_another_tokenizer_of_the_same_name_is_refused(tmp_path: Path, shelf: Path) -> None:
    """On a machine whose file has other content, the function fails instead of giving other tokens."""
    file = tmp_path / "mine.json"
    file.write_bytes(Path(SMALL_JSON).read_bytes())
    sent = pickle.dumps(made(str(file)))
    content = json.loads(file.read_text())
    content["added_tokens"] = content["added_tokens"][:-1]
    file.write_text(json.dumps(content))
    for kept in shelf.rglob("*.json"):
        kept.unlink()
    with pytest.raises(TokenizerError, match="not the one that the function was made with"):
        pickle.loads(sent)("x")


def test_a_damaged_shelf_is_not_believed(shelf: Path) -> None:
    """What was kept is used only if its hash is right; otherwise it is made anew."""
    function = made(SMALL_TIKTOKEN)
    kept = [*shelf.rglob("*.tiktoken"), *shelf.rglob("*.json")]
    assert len(kept) == 2
    for file in kept:
        file.write_bytes(file.read_bytes()[:-5])
    assert function("Hello")["ids"].tolist() == reference(SMALL_TIKTOKEN, ["Hello"])[0]


def test_a_home_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary is kept in the temporary directory then."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert made(SMALL_TIKTOKEN)("x")["len"] == len(reference(SMALL_TIKTOKEN, ["x"])[0])
    assert list(tmp_path.glob("tokenmill-*/tokenizers/*.tiktoken"))


def test_what_could_not_work_in_a_worker_is_refused_where_it_is_made() -> None:
    """A wrong name, engine or end token is an error of the call, not of each worker."""
    with pytest.raises(UsageError, match="no tokenizer called"):
        tokenmill.tokenize_fn("gpt-two")
    with pytest.raises(UsageError, match="tokenizers cannot read"):
        tokenmill.tokenize_fn(SMALL_TIKTOKEN, engine="tokenizers", eot="none")
    with pytest.raises(UsageError, match="not a token of"):
        tokenmill.tokenize_fn(SMALL_JSON, eot=10**9)


@pytest.mark.parametrize("tokenizer", [SMALL_TIKTOKEN, SMALL_JSON])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_plain_pool_can_use_it(method: str, tokenizer: str) -> None:
    """The standard library's own Pool, with every start method, after the parent has used it."""
    function = made(tokenizer)
    function("The parent has encoded something.")
    with multiprocessing.get_context(method).Pool(2) as pool:
        results = pool.map_async(function, TEXTS).get(SECONDS)
    assert [result["ids"].tolist() for result in results] == reference(tokenizer, TEXTS)


FORKS = """
import faulthandler, os, sys, threading, time, warnings, tokenmill
warnings.simplefilter("ignore")
function = tokenmill.tokenize_fn(sys.argv[1], eot="none")
texts = ["some words " * 2000] * 4
threads = [threading.Thread(target=lambda: [function(texts) for _ in range(60)]) for _ in range(2)]
for thread in threads:
    thread.start()
children = []
while any(thread.is_alive() for thread in threads):
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(60, exit=True)
        function("x")
        os._exit(0)
    children.append(pid)
    time.sleep(0.01)
assert children, "no fork"
ends = [os.waitpid(pid, 0)[1] for pid in children]
assert not any(ends), ends
"""


def test_a_fork_in_the_middle_of_an_encoding_does_not_hang() -> None:
    """Children forked while threads of the parent load and use the encoder can use it too."""
    assert subprocess.run([sys.executable, "-c", FORKS, SMALL_TIKTOKEN], check=False, timeout=SECONDS).returncode == 0


def test_threads_may_share_it() -> None:
    """Several threads at once, as in a data loader: each gets its own text's tokens."""
    function = made(SMALL_TIKTOKEN)
    expected = reference(SMALL_TIKTOKEN, TEXTS)
    wrong: list[bool] = []

    def work() -> None:
        for _ in range(20):
            wrong.extend(function(text)["ids"].tolist() != ids for text, ids in zip(TEXTS, expected, strict=True))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(wrong)


def test_the_users_settings_stay_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the user's keeps its own setting of the other library's threads."""
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    made(SMALL_JSON)("x")
    assert "TOKENIZERS_PARALLELISM" not in os.environ


@pytest.mark.parametrize("before", [None, "true"])
def test_the_last_thread_restores_the_users_setting(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    """Two threads that encode at the same time leave the setting that the first one found."""
    name, one, other = huggingface.PARALLELISM, contextlib.ExitStack(), contextlib.ExitStack()
    monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv(name, before)
    for block in (one, other):
        block.enter_context(huggingface._one_thread)
    one.close()
    assert os.environ[name] == "false"
    other.close()
    assert os.environ.get(name) == before


def matrix(method: str, used: str, processes: str, tokenizer_names: list[str], tmp_path: Path) -> None:
    """Run the script for one start method and compare all that it prints."""
    script = TESTS / "support" / "mapping_matrix.py"
    words = [method, used, str(tmp_path / "dataset"), processes, *tokenizer_names]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        capture_output=True,
        text=True,
        timeout=MATRIX_SECONDS,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    tokens = {tokenizer: reference(tokenizer, TEXTS) for tokenizer in tokenizer_names}
    assert len(cases) == len(tokenizer_names) * 2 * len(processes.split(","))
    for case in cases:
        expected = tokens[case["tokenizer"]]
        assert case.pop("ids") == expected, case
        assert case.pop("len") == [len(ids) for ids in expected], case
        assert case["from_cache"], case
        assert case["files"] == case["processes"], case


@pytest.mark.data
@pytest.mark.timeout(MATRIX_SECONDS + 30)
@pytest.mark.parametrize(
    ("method", "used"),
    [
        ("fork", "used"),
        ("fork", "unused"),
        ("spawn", "unused"),
        ("forkserver", "unused"),
        *(pytest.param(method, "used", marks=pytest.mark.slow) for method in ("spawn", "forkserver")),
    ],
)
def test_datasets_map_in_every_way(method: str, used: str, tmp_path: Path, test_data: Path) -> None:
    """Exact and cached: every start method, number of processes, batched or not, the parent having encoded or not."""
    # One process last, because that one may be the script's own. New ones import everything for each tokenizer.
    processes = "2" if method != "fork" and used == "unused" else "2,1"
    matrix(method, used, processes, ["gpt2", SMALL_JSON] if method == "fork" else ["gpt2"], tmp_path)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.timeout(MATRIX_SECONDS + 30)
@pytest.mark.parametrize("used", ["used", "unused"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_datasets_map_with_eight_processes(method: str, used: str, tmp_path: Path, test_data: Path) -> None:
    """The cases that take minutes."""
    matrix(method, used, "8", ["gpt2", "cl100k_base", SMALL_JSON], tmp_path)


@pytest.mark.skipif("TOKENMILL_TEST_DATA" in os.environ, reason="the test with real vocabularies covers this")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_datasets_map_in_every_way_with_a_small_vocabulary(method: str, tmp_path: Path) -> None:
    """The same where there are no other vocabularies."""
    matrix(method, "used", "2", [SMALL_JSON], tmp_path)
