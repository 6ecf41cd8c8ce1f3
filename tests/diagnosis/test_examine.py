"""A function that would die is found out before the run, and one that would not is left in peace."""

from __future__ import annotations

import ast
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from pathlib import Path

import msgspec
import pytest

from tests.support import dying
from tests.support.doctor_scripts import DEADLY, HEALTHY, POOL, SPAWN, UNTRIED
from tests.support.killing import wait_until
from tokenmill.diagnosis import waits
from tokenmill.diagnosis.examining import examination, probing, script
from tokenmill.diagnosis.examining.examination import Examination, examine
from tokenmill.diagnosis.examining.inside import worker
from tokenmill.errors import UsageError


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are short where memory is not what a test is about."""
    monkeypatch.setattr(examination, "SAMPLE_SECONDS", 0.1)


@pytest.fixture
def write(tmp_path: Path):
    """Writes a script and gives its target."""

    def write_script(body: str, end: str = POOL, name: str = "tokenize") -> str:
        path = tmp_path / "script.py"
        path.write_text(f"import multiprocessing\n{textwrap.dedent(body)}\n{end}")
        return f"{path}:{name}"

    return write_script


def example(name: str) -> str:
    return f"{dying.SCRIPTS / name}.py:tokenize"


def causes(examined: Examination) -> list[str]:
    return [found.cause for found in examined.findings]


def seen(examined: Examination, name: str) -> str:
    return next(check.seen for check in examined.checks if check.name == name)


def assert_silent(examined: Examination) -> None:
    assert examined.findings == []
    assert {check.level for check in examined.checks} == {"ok"}, examined.checks


# The scripts that die.


@pytest.mark.parametrize(
    ("name", "cause", "level", "told"),
    [
        ("captured_lock", "captured-resource", "problem", "tokenize.lock is a _thread.lock"),
        ("lambda_spawn", "nameless-function", "problem", "tokenize is a lambda"),
        ("no_main_guard", "main-guard", "problem", "no_main_guard.py:11: with multiprocessing.get_context"),
        ("threads_before_fork", "threads-before-fork", "problem", "threads_before_fork.py:20: with lock:"),
        ("vocabulary_offline", "vocabulary-offline", "problem", "openaipublic.blob.core.windows.net:443"),
        ("memory_rlimit", "memory", "problem", "one worker"),
        (
            "captured_encoder",
            "captured-native-object",
            "problem",
            "encoder.core is a CoreBPE",
        ),
        ("num_proc_512", "too-many-processes", "problem", "512 for "),
        ("own_exception", "own-exception", "warning", "KeyError"),
        ("exits", "exit", "problem", "exits with code 3 on the text ''"),
    ],
)
def test_the_cause_is_named_for_each_script_that_dies(request, name, cause, level, told):
    """The cause is the only one named, with what shows it."""
    if cause != "memory":
        request.getfixturevalue("quick")
    examined = examine(example(name))
    assert causes(examined) == [cause]
    assert examined.findings[0].level == level
    assert any(told in line for line in examined.findings[0].evidence), examined.findings
    drop_in = any("tokenmill.tokenize_fn" in line for line in examined.findings[0].fix)
    assert drop_in == (cause == "captured-native-object")


EXAMINE = """
import sys, msgspec
from tokenmill.diagnosis.examining import examination
print(msgspec.json.encode(examination.examine(sys.argv[1])).decode())
"""


def test_memory_is_held_against_the_limit_of_the_control_group():
    """In a small cgroup the cache of a worker is too large long before it is for the machine."""
    with dying.memory_cgroup(600 << 20) as cgroup:
        ending = dying.run(sys.executable, "-c", EXAMINE, example("too_much_memory"), cgroup=cgroup, seconds=200)
    assert ending.exit_code == 0, ending.output
    examined = msgspec.json.decode(ending.output.splitlines()[-1], type=Examination)
    assert causes(examined) == ["memory"]
    assert examined.findings[0].level == "problem"
    assert any("each of 4" in line for line in examined.findings[0].evidence)


# The scripts that do not.


@pytest.mark.parametrize(
    "name",
    [
        "healthy/spawn_with_guard",
        "healthy/worker_initializer",
        pytest.param("healthy/drop_in", marks=pytest.mark.data),
        pytest.param("healthy/tiktoken_by_name", marks=pytest.mark.data),
    ],
)
def test_nothing_is_found_in_healthy_scripts(name, request):
    """No finding at all, and every check is well."""
    if "data" in request.keywords:
        request.getfixturevalue("test_data")
    assert_silent(examine(example(name)))


@pytest.mark.parametrize("name", ["healthy/failing_helper", "healthy/threads_in_children", "killed", "segfault"])
def test_nothing_is_found_where_nothing_can_be_known(name, quick):
    """Nor in scripts whose death is no function's fault, or comes with a row that only the corpus has."""
    assert_silent(examine(example(name)))


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_found_where_it_only_looks_bad(write, quick, name):
    """What works in the script's own surroundings is no finding, however it looks from outside."""
    body, end = HEALTHY[name]
    examined = examine(write(body, end))
    assert examined.findings == []
    unsure = {check.name for check in examined.checks if check.level != "ok"}
    assert unsure == ({"call", "memory"} if name in UNTRIED else set()), examined.checks


# Scripts that die of other causes.


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "a hang" else name for name in DEADLY]
)
def test_other_ways_to_die_are_found(write, quick, name):
    """Each is named by the experiment that shows it."""
    body, end, cause, told = DEADLY[name]
    examined = examine(write(body, end))
    assert causes(examined) == [cause]
    assert any(told in line for line in examined.findings[0].evidence), examined.findings


CAN_SEE_LOCKS = pytest.mark.skipif(platform.machine() not in waits.SYSCALLS, reason="its system calls are not known")


def acquire_twice() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@CAN_SEE_LOCKS
@pytest.mark.parametrize(
    ("work", "hangs"),
    [
        (lambda: time.sleep(60), False),
        (lambda: threading.Event().wait(60), False),
        (lambda: subprocess.run(["sleep", "60"], check=True), False),
        (acquire_twice, True),
    ],
    ids=["sleeps", "waits for a while", "waits for a program", "waits for a lock"],
)
def test_only_who_waits_for_a_lock_hangs(work, hangs):
    """To be idle is not enough."""
    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    assert wait_until(lambda: waits.waits_for_lock(worker.pid or 0), 5 if hangs else 1) == hangs
    worker.kill()
    worker.join()


@pytest.mark.slow
@pytest.mark.parametrize("end", [POOL, SPAWN], ids=["forked", "spawned"])
def test_a_slow_first_call_is_no_hang(write, quick, end):
    """A function that sleeps for longer than a hang takes to be found is waited for."""
    body = "import functools, time\nsleep = functools.cache(time.sleep)\ndef tokenize(text):\n    sleep(5)"
    assert_silent(examine(write(body, end)))


@pytest.mark.slow
def test_a_function_that_sleeps_for_ever_is_a_warning(write, quick):
    """It may only be slow: what is known is that it gave no answer, and where it was."""
    examined = examine(write("import time\ndef tokenize(text):\n    while True:\n        time.sleep(1)"))
    (found,) = examined.findings
    assert (found.cause, found.level) == ("hang", "warning")
    assert "hangs at script.py:5: time.sleep(1)" in found.evidence[0]
    assert {check.name for check in examined.checks if check.level == "warning"} == {"call", "memory"}


def test_what_only_pickle_cannot_send_is_a_warning_where_it_may_not_be_used(tmp_path, quick):
    """The script names no library that would send it so."""
    path = tmp_path / "script.py"
    path.write_text("tokenize = lambda text: text.split()\n")
    (found,) = examine(f"{path}:tokenize").findings
    assert (found.cause, found.level) == ("nameless-function", "warning")


def test_a_cache_without_bound_is_extrapolated(write):
    """What a worker keeps of every text is no danger to a sample, but to a corpus."""
    body = "kept = []\ndef tokenize(text):\n    kept.append([ord(letter) + 1000 for letter in text])"
    examined = examine(write(body), num_proc=2)
    assert causes(examined) == ["memory"]
    assert any("of text each" in line for line in examined.findings[0].evidence)


def test_the_column_can_be_named(write, quick):
    """A function that reads another column is told of --column, and is well with it."""
    target = write("def tokenize(row):\n    return row['content'].split()")
    (found,) = examine(target).findings
    assert any("'content' is the column of the text, say so with --column" in line for line in found.fix)
    assert_silent(examine(target, column="content"))


def test_a_script_that_never_ends_loading_is_stopped_at_a_line(write, monkeypatch):
    """After the time limit the line that it was at is named."""
    monkeypatch.setattr(probing, "LOAD_SECONDS", 1.5)
    examined = examine(write("import time\nwhile True:\n    time.sleep(1)\ndef tokenize(text):\n    return 1"))
    assert causes(examined) == ["work-at-import"]
    assert any("script.py:4" in line for line in examined.findings[0].evidence)


@pytest.mark.parametrize(("number", "level"), [(3, "ok"), (20, "warning"), (1000, "problem")])
def test_the_number_of_processes_is_held_against_cores_and_limits(write, quick, monkeypatch, number, level):
    """Twice the cores is a warning, many times the cores a problem."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    examined = examine(write("def tokenize(text):\n    return 1"), num_proc=number)
    assert examined.num_proc == number
    assert next(check.level for check in examined.checks if check.name == "processes") == level


@pytest.mark.slow
def test_a_hang_in_a_spawned_worker_is_found(write, quick, monkeypatch):
    """A new process that waits for ever is ended, and its line is named."""
    monkeypatch.setattr(probing, "ANSWER_SECONDS", 6.0)
    examined = examine(write("import threading\ndef tokenize(text):\n    threading.Event().wait()", SPAWN))
    assert causes(examined) == ["hang"]
    assert any("script.py:4: threading.Event().wait()" in line for line in examined.findings[0].evidence)


def test_other_libraries_may_be_absent(write, quick, tmp_path, monkeypatch):
    """Without datasets, dill, multiprocess and cloudpickle, the rest is examined."""
    absent = ("datasets", "dill", "multiprocess", "cloudpickle")
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({absent})\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "without"))
    examined = examine(write("def tokenize(text):\n    return text.split()", end=""))
    assert_silent(examined)
    assert seen(examined, "sending").startswith("pickle ")
    assert "dill" not in seen(examined, "sending")


# What the text of a script tells.

BATCH_FIRST = ("batch", "row", "text")
SPAWNED = {"start_method": "spawn", "num_proc": 2, "initializer": "start", "initargs": "(1,)"}
FACTS = [
    ("import datasets\nd.map(f, num_proc=4)", {"picklers": ("dill",), "num_proc": 4, "start_method": "fork"}),
    ("import datasets, torch\nd.map(f)", {"picklers": ("dill",), "num_proc": None}),
    ("import datasets, multiprocessing as mp\nd.map(f, num_proc=mp.cpu_count())", {"picklers": ("dill",)}),
    ("n = 5\nimport datasets\nd.map(f, num_proc=n, batched=True)", {"num_proc": 5, "forms": BATCH_FIRST}),
    ("import datasets, multiprocessing\nmultiprocessing.set_start_method('spawn')", {"start_method": "fork"}),
    ("import datasets, multiprocess\nmultiprocess.set_start_method('spawn')", {"start_method": "spawn"}),
    ("from multiprocessing import Pool\nPool(3).map(f, x)", {"picklers": ("pickle",), "num_proc": 3}),
    ("import multiprocessing as mp\nc = mp.get_context('spawn')\nc.Pool(2, start, (1,))", SPAWNED),
    ("from concurrent.futures import ProcessPoolExecutor as P\nP(max_workers=7)", {"num_proc": 7}),
    ("import torch\ntorch.utils.data.DataLoader(d, num_workers=2)", {"picklers": ("pickle",), "num_proc": 2}),
    ("def f(x): return f(x)", {"picklers": (), "num_proc": None}),
]


@pytest.mark.skipif(sys.version_info >= (3, 14) or sys.platform == "darwin", reason="fork is not the default")
@pytest.mark.parametrize(("text", "facts"), FACTS)
def test_the_text_tells_how_the_function_will_run(text, facts):
    """Imports and literals tell the pickler, the start method and the number of processes."""
    described = script.describe(ast.parse(text))
    assert {name: getattr(described, name) for name in facts} == facts


# How memory grows.


@pytest.mark.parametrize(
    ("shape", "grows"),
    [
        (lambda text: 50e6, False),
        (lambda text: 50e6 + 3 * text, True),
        (lambda text: 50e6 + 300 * text**0.75, False),
        (lambda text: 50e6 + 20e6 * math.log(1 + text), False),
        (lambda text: 50e6 + 2 ** math.floor(math.log2(1 + text)), False),
        (lambda text: 50e6 + 1e6 * (text // 2000 % 7), False),
    ],
    ids=["level", "all that was read", "a cache of words", "ever slower", "doublings", "up and down"],
)
def test_only_steady_growth_counts(shape, grows):
    """What only goes up and down, flattens out or doubles now and then is no growth."""
    readings = [(text, int(shape(text))) for text in range(0, 8_000_000, 2000)]
    assert (worker.growth_rate(readings) > 0) == grows


# The doctor's own manners.


def test_the_doctor_loads_nothing_itself_and_leaves_nothing_behind(write, quick, tmp_path, monkeypatch):
    """The script runs in other processes only, and none of them outlives the examination."""
    monkeypatch.setenv(dying.MARK, mark := uuid.uuid4().hex)
    record = tmp_path / "pids"
    body = f"""
        import os, subprocess, threading
        with open({str(record)!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        subprocess.Popen(["sleep", "600"])
        threading.Thread(target=threading.Event().wait).start()

        def tokenize(text):
            return text.split()
    """
    assert_silent(examine(write(body)))
    pids = {int(line) for line in record.read_text().split()}
    assert pids
    assert os.getpid() not in pids
    assert wait_until(lambda: not dying.marked(mark))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nowhere.py:tokenize", "there is no script"),
        ("{script}:nothing", "it has    tokenize, other"),
        ("{script}", "{script}:tokenize, {script}:other, {script}:main"),
        ("{script}:number", "number cannot be called"),
        ("{script}:inner", "inner is defined inside main"),
        ("{broken}:tokenize", "line 2"),
        ("{failing}:tokenize", "ZeroDivisionError"),
        ("{arguments}:tokenize", "said      arguments.py: error: the following arguments are required: path"),
    ],
)
def test_errors_of_use_say_what_to_do(tmp_path, quick, target, told):
    """What is asked wrongly is an error of use, with the names that there are."""
    files = {
        "script": "number = 1\ndef tokenize(text): ...\ndef other(text): ...\ndef main():\n    def inner(text): ...\n",
        "broken": "def tokenize(text): ...\ndef def\n",
        "failing": "1 / 0\ndef tokenize(text): ...\n",
        "arguments": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('path')\n"
        "parser.parse_args()\ndef tokenize(text): ...\n",
    }
    paths = {name: str(tmp_path / f"{name}.py") for name in files}
    for name, text in files.items():
        Path(paths[name]).write_text(text)
    with pytest.raises(UsageError) as caught:
        examine(target.format(**paths))
    assert told.format(**paths) in str(caught.value)
