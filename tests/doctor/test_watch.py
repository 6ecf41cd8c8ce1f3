"""The doctor that watches: the right cause for what dies or hangs, silence for what is well, nothing changed."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import dying
from tests.support.corpora import SMALL_JSON

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watching needs Linux")

DOCTOR = (sys.executable, "-m", "tokenmill", "doctor")
STOP = ("--hang-seconds", "2", "--stop-hung")
ENDED_BY_DOCTOR = 128 + signal.SIGABRT
MEMORY_BYTES = 600 << 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the scripts of a test, with a cache for datasets that nobody else uses."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    return tmp_path


def examine(*command: str | Path, options: tuple[str, ...] = (), cgroup: Path | None = None) -> dict[str, Any]:
    """What the doctor says of a command, as JSON; the doctor's own exit code is the command's."""
    ending = dying.run(*DOCTOR, "--json", *options, "--", *command, cgroup=cgroup)
    report: dict[str, Any] = json.loads(ending.output.splitlines()[-1])
    report["output"] = ending.output
    assert ending.exit_code == report["exit_code"]
    return report


def python(code: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a piece of Python."""
    return sys.executable, "-c", code, *arguments


def causes(report: dict[str, Any]) -> list[tuple[str, str]]:
    """Level and cause of each finding, the first to mend first."""
    return [(found["level"], found["cause"]) for found in report["findings"]]


@pytest.mark.parametrize(
    ("name", "cause", "shown"),
    [
        ("captured_lock", "captured-resource", ["_thread.lock"]),
        ("captured_encoder", "captured-native-object", ["CoreBPE"]),
        ("lambda_spawn", "nameless-function", ["<lambda>", "lambda_spawn.py:9"]),
        ("memory_rlimit", "memory", ["268 MB of addresses (ulimit -v)", "memory_rlimit.py:11, in tokenize"]),
        ("num_proc_512", "too-many-processes", ["1,024 open files (ulimit -n)"]),
        ("segfault", "native-crash", ["SIGSEGV", "segfault.py:11, in tokenize"]),
        ("vocabulary_offline", "vocabulary-offline", ["openaipublic.blob.core.windows.net"]),
        ("own_exception", "own-exception", ["KeyError: 'Ü'", "own_exception.py:10"]),
        ("exits", "exit", ["exit code 3"]),
    ],
)
def test_a_command_that_dies_is_told_why(name: str, cause: str, shown: list[str]) -> None:
    """Each script of examples/why_it_dies gets its one cause, with what shows it, the line, and what to change."""
    report = examine(*dying.script(name))
    assert report["exit_code"] == 1
    assert causes(report) == [("problem", cause)]
    evidence = "\n".join(report["findings"][0]["evidence"])
    assert all(each in evidence for each in shown), evidence
    assert report["findings"][0]["fix"]
    assert not report["left_behind"]


def test_a_worker_killed_for_lack_of_memory_is_told_from_one_that_was_just_killed() -> None:
    """In a cgroup that is too small, the death is the kernel's, with the limit, and the fix is a number."""
    with dying.memory_cgroup(MEMORY_BYTES) as cgroup:
        report = examine(*dying.script("too_much_memory"), cgroup=cgroup)
    assert causes(report) == [("problem", "memory")]
    death = next(each for each in report["deaths"] if each["killer"] == "kernel")
    assert (death["signal"], death["role"], death["limit_bytes"]) == ("SIGKILL", "worker", MEMORY_BYTES)
    assert 50e6 < death["peak_bytes"] < MEMORY_BYTES
    # Pages of libraries that were in the page cache before are part of the tree, but not of its cgroup.
    assert 200e6 < death["tree_bytes"] < MEMORY_BYTES * 1.3
    # Whether fewer workers would fit is told from what was seen of them before the kernel struck, which may be little.
    assert report["findings"][0]["fix"][0].startswith(("Use num_proc=", "Give it more memory."))
    assert "doctor: process" in report["output"]


def test_a_full_disk_is_recognised(folder: Path) -> None:
    """ENOSPC in a worker, under a pile of tracebacks."""
    with dying.small_disk(folder / "small", 8 << 20) as disk:
        report = examine(*dying.script("disk_full", disk))
    assert causes(report) == [("problem", "disk-full")]
    assert "disk_full.py:" in "\n".join(report["findings"][0]["evidence"])


def test_a_command_killed_for_lack_of_memory_is_not_excused_by_its_workers() -> None:
    """Workers whose parent was killed end with an exception, which is not the cause."""
    code = """
import multiprocessing
def make(_): return bytes(16_000_000).replace(b"\\0", b"x")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: kept = list(pool.imap(make, range(200)))
"""
    with dying.memory_cgroup(MEMORY_BYTES) as cgroup:
        report = examine(*python(code), cgroup=cgroup)
    assert causes(report) == [("problem", "memory")]
    assert "the command itself" in report["findings"][0]["evidence"][0]
    assert "num_proc" not in " ".join(report["findings"][0]["fix"])


def test_the_memory_of_many_short_lived_workers_is_counted() -> None:
    """Each of 40 holds 8 MB for half a second."""
    code = """
import multiprocessing, time
def hold(_):
    kept = bytearray(8_000_000)
    kept[::4096] = b"x" * len(kept[::4096])
    time.sleep(0.7)
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(40) as pool: pool.map(hold, range(40), chunksize=1)
"""
    report = examine(*python(code))
    assert 300e6 < report["peak_bytes"] < 700e6


def test_a_random_hash_is_a_warning() -> None:
    """What does not die but does its work twice is told so, and its exit code stays 0."""
    report = examine(*dying.script("unstable_fingerprint"))
    assert report["exit_code"] == 0
    assert causes(report) == [("warning", "unstable-fingerprint")]


@pytest.mark.parametrize(
    ("name", "cause", "shown"),
    [
        ("threads_before_fork", "threads-before-fork", ["ran 2 threads", "threads_before_fork.py:20, in tokenize"]),
        ("killed", "killed", ["SIGKILL from outside"]),
        ("no_main_guard", "main-guard", ["no_main_guard.py:11, in <module>"]),
    ],
)
def test_a_command_that_hangs_is_ended_if_asked(name: str, cause: str, shown: list[str]) -> None:
    """With --stop-hung, what waits for ever or starts workers for ever is stopped, and its cause is told."""
    report = examine(*dying.script(name), options=STOP)
    # Python's faulthandler can crash while it shows the stack of a thread that runs.
    assert report["exit_code"] in (ENDED_BY_DOCTOR, 128 + signal.SIGSEGV)
    assert report["hung"]
    assert causes(report) == [("problem", cause)]
    evidence = "\n".join(report["findings"][0]["evidence"])
    assert all(each in evidence for each in shown), evidence
    assert not report["left_behind"]


def test_a_command_that_hangs_is_left_alone_unless_asked() -> None:
    """It is only told that nothing moves; whoever then ends it gets the report."""
    command = (*DOCTOR, "--json", "--hang-seconds", "1", "--", *dying.script("threads_before_fork"))
    with dying.running(*command) as doctor:
        assert doctor.until(lambda: "has no other thread to release it" in doctor.output(), 30)
        time.sleep(1)
        assert doctor.alive
        doctor.process.send_signal(signal.SIGINT)
        doctor.process.wait(30)
        report = json.loads(doctor.output().splitlines()[-1])
    assert causes(report) == [("problem", "threads-before-fork")]
    assert report["interrupted"]


@pytest.mark.parametrize(
    "name", ["drop_in", "worker_initializer", "spawn_with_guard", "threads_in_children", "failing_helper"]
)
def test_a_healthy_command_gets_one_line(name: str) -> None:
    """Nothing is said but that nothing died, and the command's output is as it was."""
    arguments = (SMALL_JSON,) if name == "drop_in" else ()
    done = subprocess.run(
        [*DOCTOR, "--", *dying.script(f"healthy/{name}", *arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "doctor" in line]
    assert len(lines) == 1
    assert lines[0].startswith("doctor       nothing died: ")
    assert "num_rows: 100" in done.stdout or "tokens" in done.stdout


@pytest.mark.data
def test_a_healthy_command_with_a_vocabulary_gets_one_line(test_data: Path) -> None:
    """A tiktoken encoding in a global is well."""
    report = examine(*dying.script("healthy/tiktoken_by_name"))
    assert (report["exit_code"], report["findings"]) == (0, [])


def test_what_a_script_handles_itself_is_not_told() -> None:
    """Workers that are killed and helpers that fail on purpose are no findings where the script ends well."""
    code = """
import multiprocessing, subprocess, sys, time
workers = [multiprocessing.Process(target=time.sleep, args=(60,)) for _ in range(2)]
for worker in workers: worker.start()
time.sleep(0.2)
workers[0].kill(); workers[1].terminate()
for worker in workers: worker.join()
subprocess.run([sys.executable, "-c", "1 / 0"], stderr=subprocess.DEVNULL)
"""
    report = examine(*python(code))
    assert (report["exit_code"], report["findings"]) == (0, [])
    assert {death["signal"] for death in report["deaths"]} == {"SIGKILL", "SIGTERM", None}


def test_a_death_that_a_script_survives_is_counted() -> None:
    """The last line does not deny what a line before it has told."""
    code = """
import multiprocessing, time
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
worker.start(); time.sleep(0.3); worker.kill(); worker.join()
"""
    done = subprocess.run([*DOCTOR, "--", *python(code)], capture_output=True, text=True, timeout=60, check=True)
    assert "1 process died, and the command continued: 2 processes" in done.stderr


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


def test_an_alarm_is_the_functions_own() -> None:
    """No parent sends it."""
    code = """
import concurrent.futures, multiprocessing, signal, time
def work(_): signal.setitimer(signal.ITIMER_REAL, 0.3); time.sleep(30)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool: list(pool.map(work, range(2)))
"""
    report = examine(*python(code))
    assert causes(report) == [("problem", "exit")]
    assert "SIGALRM: an alarm that the function set" in report["findings"][0]["evidence"][0]


def test_a_pool_whose_own_thread_died_is_told_why() -> None:
    """An exception that cannot be built again in the parent; no idle worker is blamed."""
    code = """
import multiprocessing
class Bad(Exception):
    def __init__(self, row, why): super().__init__(row)
def fail(row): raise Bad(row, "no")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(fail, range(4))
"""
    report = examine(*python(code), options=STOP)
    assert causes(report) == [("problem", "hang")]
    assert "Bad.__init__() missing 1 required positional argument" in report["findings"][0]["evidence"][-1]
    assert "__reduce__" in report["findings"][0]["fix"][-1]


def test_a_command_that_waits_for_workers_that_are_gone_hangs() -> None:
    """Nobody is left who could work."""
    code = """
import multiprocessing, threading, time
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(0.3,))
worker.start(); worker.join()
threading.Event().wait(30)
"""
    report = examine(*python(code), options=STOP)
    assert (report["hung"], causes(report)) == (True, [("problem", "hang")])


def test_a_crash_that_a_script_survives_is_a_warning() -> None:
    """Nobody plans a segmentation fault."""
    code = """
import ctypes, multiprocessing, time
def crash():
    time.sleep(0.1)
    ctypes.string_at(0)
worker = multiprocessing.get_context("fork").Process(target=crash)
worker.start(); worker.join()
"""
    report = examine(*python(code))
    assert report["exit_code"] == 0
    assert causes(report) == [("warning", "native-crash")]


def test_a_missing_guard_is_found_where_the_parent_only_sees_a_broken_pool(folder: Path) -> None:
    """The parent's last words are BrokenProcessPool; those of its workers count."""
    script = folder / "unguarded.py"
    script.write_text(
        "import concurrent.futures, multiprocessing\n"
        "context = multiprocessing.get_context('spawn')\n"
        "with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:\n"
        "    print(list(pool.map(abs, range(10))))\n"
    )
    assert causes(examine(sys.executable, script)) == [("problem", "main-guard")]


def test_workers_that_fail_to_start_for_ever_are_noticed() -> None:
    """An initializer that raises makes a Pool start new workers for ever."""
    code = """
import multiprocessing
def fail(): raise ValueError("no model here")
if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2, fail) as pool: pool.map(abs, range(10))
"""
    report = examine(*python(code), options=STOP)
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
def test_the_exit_code_is_the_commands_own(code: str, exit_code: int, cause: str) -> None:
    """128 + n for a signal, as a shell has it."""
    report = examine(*python(code))
    assert (report["exit_code"], causes(report)) == (exit_code, [("problem", cause)])


def test_a_command_behind_a_shell_is_watched_too() -> None:
    """The death of a process below a shell is the cause, whatever the shell makes of it."""
    program = f"{sys.executable} -c 'import os; os.kill(os.getpid(), 11)'"
    report = examine("bash", "-c", f"{program}; exit 5")
    assert (report["exit_code"], causes(report)) == (5, [("problem", "native-crash")])
    assert examine("bash", "-c", "exec true")["findings"] == []


def test_a_function_can_be_examined_too() -> None:
    """FILE.py:FUNCTION is the other mode: a table on stdout that ends with what to change first; 1 for a problem."""
    target = f"{dying.SCRIPTS / 'captured_lock.py'}:tokenize"
    done = subprocess.run([*DOCTOR, target, "--num-proc", "2"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "PROBLEM      the function holds a lock" in done.stdout
    assert done.stdout.split("\n\n")[-1].startswith("first        ")
    done = subprocess.run([*DOCTOR, target, "--json"], capture_output=True, text=True, timeout=60, check=False)
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
    done = subprocess.run([*DOCTOR, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_options_after_the_command_are_the_commands() -> None:
    """Also without a -- before it."""
    done = subprocess.run(
        [*DOCTOR, *python("import sys; print(sys.argv[1:])", "--json", "--stop-hung")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "['--json', '--stop-hung']\n"


def test_both_outputs_pass_through_unchanged() -> None:
    """Twenty megabytes of any bytes on stderr, and stdout untouched by the report; with --json it holds only that."""
    code = """
import os, random, sys
random.seed(7)
block = random.randbytes(1 << 20)
os.write(1, b"to stdout")
for _ in range(20):
    rest = memoryview(block)
    while rest: rest = rest[os.write(2, rest):]
"""
    alone = subprocess.run(python(code), capture_output=True, timeout=60, check=True)
    done = subprocess.run([*DOCTOR, "--", *python(code)], capture_output=True, timeout=60, check=True)
    assert done.stdout == alone.stdout == b"to stdout"
    assert done.stderr.startswith(alone.stderr)
    assert done.stderr[len(alone.stderr) :].lstrip().startswith(b"doctor       nothing died")
    done = subprocess.run([*DOCTOR, "--json", "--", *python(code)], capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["exit_code"] == 0
    assert b"to stdout" in done.stderr


def test_a_slow_reader_of_stderr_gets_all_of_it() -> None:
    """As without the doctor: the command's last words are read before the report, however long they wait."""
    code = "import sys; sys.stderr.write('x' * 999_999 + '\\n'); raise KeyError('last words')"
    command = [*DOCTOR, "--", *python(code)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as doctor:
        assert doctor.stderr is not None
        time.sleep(3)
        said = doctor.stderr.read().decode()
    assert doctor.returncode == 1
    assert said.startswith("x" * 999_999)
    assert "PROBLEM      the function raised an exception\n             KeyError: 'last words'" in said


def test_a_command_may_close_its_stderr() -> None:
    """It is watched on to its end."""
    report = examine(*python("import os, time; os.close(2); time.sleep(0.3); raise SystemExit(4)"))
    assert report["exit_code"] == 4
    assert report["seconds"] > 0.3


def test_processes_left_behind_are_named_and_left_alone() -> None:
    """A daemon that the command started is none of the doctor's business, but worth a line."""
    report = examine(*python("import subprocess; print('pid', subprocess.Popen(['sleep', '60']).pid)"))
    (left,) = report["left_behind"]
    assert f"pid {left['pid']}" in report["output"]
    assert left["name"] == "sleep 60"
    assert report["findings"] == []


def test_many_processes_and_short_ones_are_watched() -> None:
    """A pool of 300 whose doctor may open only 256 files, and workers that live for one task."""
    code = """
import multiprocessing, os, time
children = []
for _ in range(300):
    pid = os.fork()
    if not pid:
        time.sleep(60)
    children.append(pid)
time.sleep(1.5)
for pid in children: os.kill(pid, 15)
for pid in children: os.waitpid(pid, 0)
with multiprocessing.get_context("fork").Pool(2, maxtasksperchild=1) as pool:
    pool.map(abs, range(50), chunksize=1)
"""
    limited = ("bash", "-c", 'ulimit -Sn 256; exec "$@"', "limited", *DOCTOR, "--json", "--", *python(code))
    done = subprocess.run(limited, capture_output=True, text=True, timeout=60, check=True)
    report = json.loads(done.stdout)
    assert report["findings"] == []
    assert report["most_at_once"] >= 300
    assert report["processes"] > 305  # the command, the 300, and of the short ones those that were seen


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_doctor_is_passed_on(number: signal.Signals) -> None:
    """The command ends as it would by itself, and the report still comes."""
    code = "import time; print('ready', flush=True); time.sleep(60)"
    with dying.running(*DOCTOR, "--json", "--", *python(code)) as doctor:
        assert doctor.until(lambda: "ready" in doctor.output(), 30)
        doctor.process.send_signal(number)
        assert doctor.process.wait(30) == 128 + number
        report = json.loads(doctor.output().splitlines()[-1])
    assert (report["interrupted"], report["findings"]) == (True, [])


def test_a_command_outlives_a_doctor_that_is_killed(folder: Path) -> None:
    """Hours of work do not end with who watched them."""
    proof = folder / "proof"
    code = "import sys, time; print('ready', flush=True); time.sleep(1); open(sys.argv[1], 'w').close()"
    with dying.running(*DOCTOR, "--", *python(code, str(proof))) as doctor:
        assert doctor.until(lambda: "ready" in doctor.output(), 30)
        doctor.process.kill()
        end = time.monotonic() + 30
        while not proof.exists() and time.monotonic() < end:
            time.sleep(0.02)
        assert proof.exists()


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

    def wait_for(self, text: bytes, seconds: float = 30) -> bool:
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


@pytest.mark.parametrize("terminal", ["import time; print('ready', flush=True); time.sleep(60)"], indirect=True)
def test_ctrl_c_ends_the_command_once_and_not_the_doctor(terminal: Terminal) -> None:
    """The terminal has sent the signal to both; the doctor waits for the command and reports."""
    assert terminal.wait_for(b"ready")
    terminal.type(b"\x03")
    assert terminal.wait_for(b"interrupted,")  # the line is folded where the path of Python is long
    assert terminal.process.wait(30) == 130
    assert terminal.shown.count(b"KeyboardInterrupt") == 1
