"""The doctor that watches: the right cause for what dies or hangs, silence for what is well, nothing changed.

The scripts of examples/why_it_dies die or hang here as docs/why-it-dies.md says. The doctor runs in the test's process
but where a test is about the doctor's own process: signals, pipes, terminals.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import resource
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import command, dying
from tests.support.corpora import SMALL_JSON
from tests.support.killing import wait_until
from tokenmill.diagnosis.examining import examination
from tokenmill.diagnosis.watching import command as watching
from tokenmill.diagnosis.watching.deaths import DeathExaminer
from tokenmill.diagnosis.watching.processes import Process
from tokenmill.diagnosis.watching.tree import ProcessTree
from tokenmill.system import machine

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watching needs Linux")

DOCTOR = (sys.executable, "-m", "tokenmill", "doctor")
STOP = ("--hang-seconds", "1", "--stop-hung")
ENDED_BY_DOCTOR = 128 + signal.SIGABRT
MEMORY_BYTES = 600 << 20
ABRUPTLY = "RuntimeError: One of the subprocesses has abruptly died during map operation."
OOM_COUNTERS = {"memory.oom_control", "memory.events"}
LONG_SECONDS = 60.0

# A process that ends within milliseconds may never be seen. Here each begins when the doctor has made its file.
BEGIN_WHEN_SEEN = """
import os, time

def wait():
    own, pause = f"{os.environ['SEEN']}/{os.getpid()}" if "SEEN" in os.environ else "/", 0.001
    while not os.path.exists(own) and pause < 5:
        time.sleep(pause)
        pause *= 1.5

os.register_at_fork(after_in_child=wait)
wait()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for the scripts of a test, with a cache for datasets that nobody else uses; no process outlives it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv(dying.MARK, mark := uuid.uuid4().hex)
    yield tmp_path
    left = dying.marked(mark)
    dying.end_marked(mark)
    for pid in left:
        with contextlib.suppress(ChildProcessError):  # the doctor has adopted it
            os.waitpid(pid, 0)


Doctor = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def doctor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Runs the doctor in this process. Python processes that it watches begin when it has seen them."""
    (seen := folder / "seen").mkdir()
    (site := folder / "site").mkdir()
    (site / "sitecustomize.py").write_text(BEGIN_WHEN_SEEN)
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    register = ProcessTree._register

    def note(tree: ProcessTree, process: Process) -> None:
        register(tree, process)
        (seen / str(process.pid)).touch()

    monkeypatch.setattr(ProcessTree, "_register", note)
    monkeypatch.setattr(watching, "LEFTOVER_SECONDS", LONG_SECONDS)

    def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
        return command.run("doctor", *words, code=None, SEEN=str(seen), PYTHONPATH=path)

    return run


Watch = Callable[..., dict[str, Any]]


@pytest.fixture
def watch(doctor: Doctor) -> Watch:
    """Gives what the doctor says of a command, as JSON; the doctor's own exit code is the command's."""

    def run(*words: str | Path, options: tuple[str, ...] = ()) -> dict[str, Any]:
        done = doctor("--json", *options, "--", *words)
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == report["exit_code"]
        return report | {"output": done.stderr}

    return run


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a piece of Python."""
    return sys.executable, "-c", code, *arguments


def causes(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Level and cause of each finding, the first to mend first."""
    return [(found["level"], found["cause"]) for found in report["findings"]]


@pytest.mark.parametrize(
    ("name", "message", "cause", "shown"),
    [
        ("captured_lock", "TypeError: cannot pickle '_thread.lock' object", "captured-resource", ["_thread.lock"]),
        (
            "captured_encoder",
            "TypeError: cannot pickle 'builtins.CoreBPE' object",
            "captured-native-object",
            ["CoreBPE"],
        ),
        (
            "lambda_spawn",
            "PicklingError: Can't pickle <function <lambda> at ",
            "nameless-function",
            ["<lambda>", "lambda_spawn.py:9"],
        ),
        (
            "memory_rlimit",
            "\nMemoryError\n",
            "memory",
            ["268 MB of addresses (ulimit -v)", "memory_rlimit.py:11, in tokenize"],
        ),
        ("segfault", ABRUPTLY, "native-crash", ["SIGSEGV", "segfault.py:11, in tokenize"]),
        (
            "vocabulary_offline",
            "requests.exceptions.ProxyError: ",
            "vocabulary-offline",
            ["openaipublic.blob.core.windows.net"],
        ),
        ("own_exception", "KeyError: 'Ü'", "own-exception", ["KeyError: 'Ü'", "own_exception.py:10"]),
        ("exits", ABRUPTLY, "exit", ["exit code 3"]),
    ],
)
def test_a_command_that_dies_is_told_why(watch: Watch, name: str, message: str, cause: str, shown: list[str]) -> None:
    """Each script ends with the message that people report, and gets its one cause, what shows it, and a fix."""
    report = watch(*dying.script(name))
    assert report["exit_code"] == 1
    assert message in report["output"]
    assert " tokens\n" not in report["output"]
    assert causes(report) == [("problem", cause)]
    evidence = "\n".join(report["findings"][0]["evidence"])
    assert all(each in evidence for each in shown), evidence
    assert report["findings"][0]["fix"]
    assert not report["left_behind"]


def test_many_processes_run_out_of_files(watch: Watch) -> None:
    """num_proc_512.py opens two files for each process, of 1,024. Most are open here before it starts."""
    left = 2 * (2 * machine.cores() + 60)
    code = (
        "import os, sys; [os.dup2(0, 1023 - n) for n in range(int(sys.argv[1]))]; os.execv(sys.argv[2], sys.argv[2:])"
    )
    report = watch(*python(code, str(1024 - left)), *dying.script("num_proc_512"))
    assert report["exit_code"] == 1
    assert "OSError: [Errno 24] Too many open files" in report["output"]
    assert causes(report) == [("problem", "too-many-processes")]
    assert "1,024 open files (ulimit -n)" in "\n".join(report["findings"][0]["evidence"])
    assert 512 * left / report["most_at_once"] > 1024
    assert not report["left_behind"]


def test_a_worker_killed_for_lack_of_memory_is_told_from_one_that_was_just_killed(watch: Watch) -> None:
    """In a cgroup that is too small, the death is the kernel's, with the limit, and the fix is a number."""
    with dying.memory_cgroup(MEMORY_BYTES) as cgroup:
        report = watch(*dying.within(cgroup, *dying.script("too_much_memory")))
        counters = "".join((cgroup / name).read_text() for name in os.listdir(cgroup) if name in OOM_COUNTERS)
    assert re.search(r"^oom_kill [1-9]", counters, re.MULTILINE)
    assert report["exit_code"] == 1
    assert ABRUPTLY in report["output"]
    assert "MemoryError" not in report["output"]
    assert causes(report) == [("problem", "memory")]
    death = next(each for each in report["deaths"] if each["killer"] == "kernel")
    assert (death["signal"], death["role"], death["limit_bytes"]) == ("SIGKILL", "worker", MEMORY_BYTES)
    assert 50e6 < death["peak_bytes"] < MEMORY_BYTES
    assert 200e6 < report["peak_bytes"] < MEMORY_BYTES * 1.3
    # Whether fewer workers would fit is told from what was seen of them before the kernel struck, which may be little.
    fixes = ("Use num_proc=", "Give it more memory.", "Let it hold less at a time")
    assert report["findings"][0]["fix"][0].startswith(fixes)
    assert "doctor: process" in report["output"]


def test_a_full_disk_is_recognised(watch: Watch, folder: Path) -> None:
    """ENOSPC in a worker, under a pile of tracebacks."""
    with dying.small_disk(folder / "small", 1 << 20) as disk:
        report = watch(*dying.script("disk_full", disk))
    assert report["exit_code"] == 1
    assert "OSError: [Errno 28] No space left on device" in report["output"]
    assert causes(report) == [("problem", "disk-full")]
    assert "disk_full.py:" in "\n".join(report["findings"][0]["evidence"])


def test_a_command_killed_for_lack_of_memory_is_not_excused_by_its_workers(watch: Watch) -> None:
    """Workers whose parent was killed end with an exception, which is not the cause."""
    code = """
import multiprocessing
def make(_): return b"x" * 8_000_000
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: kept = list(pool.imap(make, range(200)))
"""
    with dying.memory_cgroup(MEMORY_BYTES // 3) as cgroup:
        report = watch(*dying.within(cgroup, *python(code)))
    assert causes(report) == [("problem", "memory")]
    assert "the command itself" in report["findings"][0]["evidence"][0]
    assert "num_proc" not in " ".join(report["findings"][0]["fix"])


def test_the_memory_of_many_short_lived_workers_is_counted(watch: Watch) -> None:
    """Each of 40 holds 8 MB until all have it and for half a second more."""
    code = """
import multiprocessing, time
context = multiprocessing.get_context("fork")
all_hold = context.Barrier(40)
def hold(_):
    kept = bytearray(8_000_000)
    kept[::4096] = b"x" * len(kept[::4096])
    all_hold.wait()
    time.sleep(0.6)
if __name__ == "__main__":
    with context.Pool(40) as pool: pool.map(hold, range(40), chunksize=1)
"""
    report = watch(*python(code))
    assert 300e6 < report["peak_bytes"] < 700e6


def test_a_random_hash_is_a_warning(watch: Watch) -> None:
    """What does not die but does its work twice is told so, and its exit code stays 0."""
    report = watch(*dying.script("unstable_fingerprint"))
    assert report["exit_code"] == 0
    assert "couldn't be hashed properly, a random hash was used instead" in report["output"]
    assert "computed again\n" in report["output"]
    assert causes(report) == [("warning", "unstable-fingerprint")]


@pytest.mark.parametrize(
    ("name", "hang_seconds", "cause", "shown"),
    [
        ("threads_before_fork", 1, "threads-before-fork", ["ran 2 threads", "threads_before_fork.py:20, in tokenize"]),
        ("killed", 2, "killed", ["SIGKILL from outside"]),  # it is killed after half a second of little work
        ("no_main_guard", 1, "main-guard", ["no_main_guard.py:11, in <module>"]),
    ],
)
def test_a_command_that_hangs_is_ended_if_asked(
    watch: Watch, name: str, hang_seconds: int, cause: str, shown: list[str]
) -> None:
    """With --stop-hung, what waits for ever or starts workers for ever is stopped, and its cause is told."""
    report = watch(*dying.script(name), options=("--hang-seconds", str(hang_seconds), "--stop-hung"))
    # Python's faulthandler can crash while it shows the stack of a thread that runs.
    assert report["exit_code"] in (ENDED_BY_DOCTOR, 128 + signal.SIGSEGV)
    assert report["hung"]
    assert " tokens\n" not in report["output"]
    assert (report["output"].count("its bootstrapping phase") >= 6) == (name == "no_main_guard")
    assert causes(report) == [("problem", cause)]
    evidence = "\n".join(report["findings"][0]["evidence"])
    assert all(each in evidence for each in shown), evidence
    assert not report["left_behind"]


def test_a_command_that_hangs_is_left_alone_unless_asked() -> None:
    """It is only told that nothing moves; whoever then ends it gets the report."""
    words = (*DOCTOR, "--json", "--hang-seconds", "1", "--", *dying.script("threads_before_fork"))
    with dying.running(*words) as doctor:
        assert doctor.until(lambda: "press Ctrl-C for the report" in doctor.output(), LONG_SECONDS)
        assert "has no other thread to release it" in doctor.output()
        assert len(doctor.others()) >= 3
        doctor.process.send_signal(signal.SIGINT)
        assert doctor.process.wait(LONG_SECONDS) == 128 + signal.SIGINT
        report = json.loads(doctor.output().splitlines()[-1])
    assert causes(report) == [("problem", "threads-before-fork")]
    assert report["interrupted"]


@pytest.mark.parametrize(
    "name",
    [
        "drop_in",
        "worker_initializer",
        "spawn_with_guard",
        "threads_in_children",
        "failing_helper",
        pytest.param("tiktoken_by_name", marks=pytest.mark.data),
    ],
)
def test_a_healthy_command_gets_one_line(doctor: Doctor, request: pytest.FixtureRequest, name: str) -> None:
    """Nothing is said but that nothing died, and the command's output is as it was."""
    if "data" in request.keywords:
        request.getfixturevalue("test_data")
    arguments = (SMALL_JSON,) if name == "drop_in" else ()
    done = doctor("--", *dying.script(f"healthy/{name}", *arguments))
    assert done.returncode == 0
    lines = [line for line in done.stderr.splitlines() if "doctor" in line]
    assert len(lines) == 1
    assert lines[0].startswith("doctor       nothing died: ")
    assert "Traceback" not in done.stderr
    assert "num_rows: 100" in done.stdout or "tokens" in done.stdout


@pytest.mark.fast
@pytest.mark.parametrize(("refreshes", "status", "role"), [(1, 256, "program"), (2, 256, "worker"), (1, 9, "worker")])
def test_a_program_that_is_seen_only_at_its_fork_is_no_worker(refreshes: int, status: int, role: str) -> None:
    """A helper that fails may be seen once before it runs its program, and be reaped before it is seen again."""
    process = Process(1, 2, 3, 0.0, role="worker", forked=True, program="python3", refreshes=refreshes)
    process.take_status(status)
    assert process.role == role
    assert (DeathExaminer().examine(process, 1) is None) == (role == "program")


SURVIVES = """
import multiprocessing, os, subprocess, sys, time
workers = [multiprocessing.Process(target=time.sleep, args=(60,)) for _ in range(2)]
for worker in workers: worker.start()
while not all(os.path.exists(f"{os.environ['SEEN']}/{worker.pid}") for worker in workers): time.sleep(0.01)
workers[0].kill(); workers[1].terminate()
for worker in workers: worker.join()
subprocess.run([sys.executable, "-c", "1 / 0"], stderr=subprocess.DEVNULL)
"""


def test_what_a_script_handles_itself_is_not_told(watch: Watch) -> None:
    """Workers that are killed and helpers that fail on purpose are no findings where the script ends well."""
    report = watch(*python(SURVIVES))
    assert (report["exit_code"], report["findings"]) == (0, [])
    signals = {death["signal"] for death in report["deaths"]}
    assert signals - {None} == {"SIGKILL", "SIGTERM"}  # the helper is none if it was seen only as a copy of its parent


def test_a_death_that_a_script_survives_is_counted(doctor: Doctor) -> None:
    """The last line does not deny what a line before it has told."""
    done = doctor("--", *python(SURVIVES))
    assert done.returncode == 0
    # Both workers, if the doctor has not seen who ended the second one.
    assert re.search("(1 process|2 processes) died, and the command continued: 4 processes", done.stderr)


def test_a_reader_that_went_away_is_no_death() -> None:
    """`| head` has seen enough."""
    code = "import sys\nfor i in range(200_000): print('line', i)"
    with subprocess.Popen(
        [*DOCTOR, "--", *python(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as doctor:
        assert doctor.stdout is not None
        assert doctor.stderr is not None
        assert doctor.stdout.readline() == "line 0\n"
        doctor.stdout.close()
        said = doctor.stderr.read()
    assert "BrokenPipeError" in said
    assert "PROBLEM" not in said


def test_a_pool_whose_own_thread_died_is_told_why(watch: Watch) -> None:
    """An exception that cannot be built again in the parent; no idle worker is blamed."""
    code = """
import multiprocessing
class Bad(Exception):
    def __init__(self, row, why): super().__init__(row)
def fail(row): raise Bad(row, "no")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(fail, range(4))
"""
    report = watch(*python(code), options=STOP)
    assert causes(report) == [("problem", "hang")]
    assert "Bad.__init__() missing 1 required positional argument" in report["findings"][0]["evidence"][-1]
    assert "__reduce__" in report["findings"][0]["fix"][-1]


def test_a_command_that_waits_for_workers_that_are_gone_hangs(watch: Watch) -> None:
    """Nobody is left who could work."""
    code = """
import multiprocessing, threading
worker = multiprocessing.get_context("fork").Process(target=abs, args=(1,))
worker.start(); worker.join()
threading.Event().wait(60)
"""
    report = watch(*python(code), options=STOP)
    assert (report["hung"], causes(report)) == (True, [("problem", "hang")])


def test_a_crash_that_a_script_survives_is_a_warning(watch: Watch) -> None:
    """Nobody plans a segmentation fault."""
    code = """
import ctypes, multiprocessing
worker = multiprocessing.get_context("fork").Process(target=ctypes.string_at, args=(0,))
worker.start(); worker.join()
"""
    report = watch(*python(code))
    assert report["exit_code"] == 0
    assert causes(report) == [("warning", "native-crash")]


def test_a_missing_guard_is_found_where_the_parent_only_sees_a_broken_pool(watch: Watch, folder: Path) -> None:
    """The parent's last words are BrokenProcessPool; those of its workers count."""
    script = folder / "unguarded.py"
    script.write_text(
        "import concurrent.futures, multiprocessing\n"
        "context = multiprocessing.get_context('spawn')\n"
        "with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:\n"
        "    print(list(pool.map(abs, range(10))))\n"
    )
    assert causes(watch(sys.executable, script)) == [("problem", "main-guard")]


def test_workers_that_fail_to_start_for_ever_are_noticed(watch: Watch) -> None:
    """An initializer that raises makes a Pool start new workers for ever."""
    code = """
import multiprocessing
def fail(): raise ValueError("no model here")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2, fail) as pool: pool.map(abs, range(10))
"""
    report = watch(*python(code), options=STOP)
    assert causes(report) == [("problem", "own-exception")]
    assert "ValueError: no model here" in report["findings"][0]["evidence"]


@pytest.mark.parametrize(
    ("code", "exit_code", "cause"),
    [
        ("raise SystemExit(3)", 3, "exit"),
        ("import os; os.kill(os.getpid(), 15)", 143, "killed"),
        ("import os; os.kill(os.getpid(), 9)", 137, "killed"),
        ("import os; os.abort()", 134, "native-crash"),
        ("open('/nowhere')", 1, "own-exception"),
    ],
)
def test_the_exit_code_is_the_commands_own(watch: Watch, code: str, exit_code: int, cause: str) -> None:
    """128 + n for a signal, as a shell has it."""
    report = watch(*python(code))
    assert (report["exit_code"], causes(report)) == (exit_code, [("problem", cause)])


def test_a_command_behind_a_shell_is_watched_too(watch: Watch) -> None:
    """The death of a process below a shell is the cause, whatever the shell makes of it."""
    program = f"{sys.executable} -c 'import os; os.kill(os.getpid(), 11)'"
    report = watch("bash", "-c", f"{program}; exit 5")
    assert (report["exit_code"], causes(report)) == (5, [("problem", "native-crash")])
    assert watch("bash", "-c", "exec true")["findings"] == []


def test_a_function_can_be_examined_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """FILE.py:FUNCTION is the other mode: a table on stdout that ends with what to change first; 1 for a problem."""
    monkeypatch.setattr(examination, "SAMPLE_SECONDS", 0.1)
    target = f"{dying.SCRIPTS / 'captured_lock.py'}:tokenize"
    done = command.run("doctor", target, "--num-proc", "2", code=1)
    assert "PROBLEM      the function holds a lock" in done.stdout
    assert done.stdout.split("\n\n")[-1].startswith("first        ")
    done = command.run("doctor", target, "--json", code=1)
    assert [found["cause"] for found in json.loads(done.stdout)["findings"]] == ["captured-resource"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", "no-such-command"), "No such file"),
        (("--num-proc", "2", "--", "true"), "--num-proc needs FILE.py:FUNCTION"),
        (("--stop-hung", "file.py:function"), "--stop-hung needs a COMMAND"),
        ((), "Missing argument"),
    ],
)
def test_wrong_use_is_refused(arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2 and a sentence."""
    assert said in command.run("doctor", *arguments, code=2).stderr


def test_options_after_the_command_are_the_commands(doctor: Doctor) -> None:
    """Also without a -- before it."""
    done = doctor(*python("import sys; print(sys.argv[1:])", "--json", "--stop-hung"))
    assert (done.returncode, done.stdout) == (0, "['--json', '--stop-hung']\n")


def test_both_outputs_pass_through_unchanged() -> None:
    """Megabytes of any bytes on stderr, and stdout untouched by the report."""
    code = """
import os, random
block = random.Random(7).randbytes(1 << 20)
os.write(1, b"to stdout")
for _ in range(4):
    rest = memoryview(block)
    while rest: rest = rest[os.write(2, rest):]
"""
    written = random.Random(7).randbytes(1 << 20) * 4
    done = subprocess.run([*DOCTOR, "--", *python(code)], capture_output=True, timeout=LONG_SECONDS, check=True)
    assert done.stdout == b"to stdout"
    assert done.stderr.startswith(written)
    assert done.stderr[len(written) :].lstrip().startswith(b"doctor       nothing died")


def test_a_slow_reader_of_stderr_gets_all_of_it(folder: Path) -> None:
    """As without the doctor: the command's last words are read before the report, however long they wait."""
    code = """
import os, sys
open("pid", "w").write(str(os.getpid()))
sys.stderr.write("x" * 999_999 + "\\n"); raise KeyError("last words")
"""
    with subprocess.Popen([*DOCTOR, "--", *python(code)], stderr=subprocess.PIPE) as doctor:
        assert doctor.stderr is not None
        assert wait_until(lambda: (folder / "pid").exists() and bool((folder / "pid").read_text()), LONG_SECONDS)
        ended = Path("/proc", (folder / "pid").read_text())
        assert wait_until(lambda: not ended.exists(), LONG_SECONDS)
        said = doctor.stderr.read().decode()
    assert doctor.returncode == 1
    assert said.startswith("x" * 999_999)
    assert "PROBLEM      the function raised an exception\n             KeyError: 'last words'" in said


def test_a_command_may_close_its_stderr(watch: Watch) -> None:
    """It is watched on to its end."""
    report = watch(*python("import os, time; os.close(2); time.sleep(0.3); raise SystemExit(4)"))
    assert report["exit_code"] == 4
    assert report["seconds"] > 0.3


def test_processes_left_behind_are_named_and_left_alone(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that the command started is none of the doctor's business, but worth a line."""
    monkeypatch.setattr(watching, "LEFTOVER_SECONDS", 0.3)
    report = watch(*python("import subprocess; print('pid', subprocess.Popen(['sleep', '600']).pid)"))
    (left,) = report["left_behind"]
    assert f"pid {left['pid']}" in report["output"]
    assert left["name"] == "sleep 600"
    assert report["findings"] == []
    os.kill(left["pid"], 0)


def test_many_processes_and_short_ones_are_watched(watch: Watch) -> None:
    """A pool of 300 whose doctor may open only 256 files, and workers that live for one task."""
    code = """
import multiprocessing, os, time
seen, children = os.environ.pop("SEEN"), []
for _ in range(300):
    pid = os.fork()
    if not pid:
        time.sleep(600)
    children.append(pid)
while len(os.listdir(seen)) < 301: time.sleep(0.05)
for pid in children: os.kill(pid, 15)
for pid in children: os.waitpid(pid, 0)
with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    pool.map(time.sleep, [0.05] * 20, chunksize=1)
"""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    try:
        report = watch(*python(code))
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert report["exit_code"] == 0
    assert report["findings"] == []
    assert report["most_at_once"] >= 300
    assert report["processes"] > 305  # the command, the 300, and of the short ones those that were seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_doctor_is_passed_on(number: signal.Signals) -> None:
    """The command ends as it would by itself, and the report still comes."""
    code = "import time; print('ready', flush=True); time.sleep(600)"
    with dying.running(*DOCTOR, "--json", "--", *python(code)) as doctor:
        assert doctor.until(lambda: "ready" in doctor.output(), LONG_SECONDS)
        doctor.process.send_signal(number)
        assert doctor.process.wait(LONG_SECONDS) == 128 + number
        report = json.loads(doctor.output().splitlines()[-1])
    assert (report["interrupted"], report["findings"]) == (True, [])


def test_a_command_outlives_a_doctor_that_is_killed(folder: Path) -> None:
    """Hours of work do not end with who watched them."""
    code = """
import os, time
doctor = os.getppid()
print("ready", flush=True)
while os.getppid() == doctor: time.sleep(0.01)
open("proof", "w").close()
"""
    with dying.running(*DOCTOR, "--", *python(code)) as doctor:
        assert doctor.until(lambda: "ready" in doctor.output(), LONG_SECONDS)
        doctor.process.kill()
        assert wait_until((folder / "proof").exists, LONG_SECONDS)


class Terminal:
    """A terminal of 24 lines and 97 columns with the doctor in its foreground."""

    def __init__(self, *command: str) -> None:
        self._ours, theirs = os.openpty()
        self.resize(97)
        self.process = subprocess.Popen(
            [*DOCTOR, "--", *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - no threads here
        )
        os.close(theirs)
        self.shown = b""

    def resize(self, columns: int) -> None:
        """Make it that wide."""
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def wait_for(self, text: bytes, seconds: float = LONG_SECONDS) -> bool:
        """Whether it shows the text in time."""
        end = time.monotonic() + seconds
        while text not in self.shown and time.monotonic() < end:
            if select.select([self._ours], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self._ours, 65536)
                except OSError:  # the last process that had it has ended
                    break
        return text in self.shown

    def close(self) -> None:
        """End what runs there."""
        self.process.kill()
        self.process.wait(10)
        os.close(self._ours)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    """A terminal with the doctor of the command that the test is parametrized with."""
    opened = Terminal(*python(request.param))
    yield opened
    opened.close()


WIDTHS = """
import os, sys, time
print("width", os.get_terminal_size(2).columns, file=sys.stderr)
while os.get_terminal_size(2).columns != 61: time.sleep(0.01)
print("\\x1b[31mthen", os.get_terminal_size(2).columns, file=sys.stderr)
"""


@pytest.mark.parametrize("terminal", [WIDTHS], indirect=True)
def test_on_a_terminal_the_command_has_a_terminal_of_the_same_width(terminal: Terminal) -> None:
    """So that progress bars look as always; codes and line ends pass as they are."""
    assert terminal.wait_for(b"width 97\r\n")
    terminal.resize(61)
    assert terminal.wait_for(b"\x1b[31mthen 61\r\n")
    assert terminal.wait_for(b"nothing died")


@pytest.mark.parametrize("terminal", ["import time; print('ready', flush=True); time.sleep(600)"], indirect=True)
def test_ctrl_c_ends_the_command_once_and_not_the_doctor(terminal: Terminal) -> None:
    """The terminal has sent the signal to both; the doctor waits for the command and reports."""
    assert terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    assert terminal.wait_for(b"interrupted,")  # the line is folded where the path of Python is long
    assert terminal.process.wait(LONG_SECONDS) == 130
    assert terminal.shown.count(b"KeyboardInterrupt") == 1
