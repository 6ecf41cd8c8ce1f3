"""What the doctor reads: errors in the words of Python and its libraries, and how processes end and wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.killing import wait_until
from tokenmill.diagnosis import waits
from tokenmill.diagnosis.watching import diagnosis, messages
from tokenmill.diagnosis.watching.deaths import Death, Killer, root_cause
from tokenmill.diagnosis.watching.processes import Process, Role
from tokenmill.system import cgroups, procfs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="watching needs Linux")


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("OSError: [Errno 28] No space left on device: '/tmp/x'", "disk-full"),
        ("OSError: [Errno 122] Disk quota exceeded", "disk-full"),
        ("thread panicked: No space left on device (os error 28)", "disk-full"),
        ("RuntimeError: current process has finished its bootstrapping phase.", "main-guard"),
        ("AttributeError: Can't pickle local object 'main.<locals>.f'", "nameless-function"),
        ("AttributeError: Can't get local object 'main.<locals>.f'", "nameless-function"),
        (
            "PicklingError: Can't pickle <function <lambda> at 0x7f>: attribute lookup <lambda> failed",
            "nameless-function",
        ),
        ("AttributeError: Can't get attribute 'f' on <module '__main__' (built-in)>", "nameless-function"),
        ("TypeError: cannot pickle '_thread.RLock' object", "captured-resource"),
        ("TypeError: cannot pickle '_io.TextIOWrapper' object", "captured-resource"),
        ("TypeError: cannot pickle 'generator' object", "captured-resource"),
        ("TypeError: cannot pickle 'sqlite3.Connection' object", "captured-resource"),
        ("TypeError: can't pickle CoreBPE objects", "captured-native-object"),
        ("TypeError: cannot pickle 'builtins.CoreBPE' object", "captured-native-object"),
        ("TypeError: no default __reduce__ due to non-trivial __cinit__", "captured-native-object"),
        ("requests.exceptions.ConnectionError: host='openaipublic.blob.core.windows.net'", "vocabulary-offline"),
        ("huggingface_hub.errors.LocalEntryNotFoundError: tokenizer.json", "vocabulary-offline"),
        ("MemoryError", "memory"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array", "memory"),
        ("memory allocation of 1048576 bytes failed", "memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "memory"),
        ("RuntimeError: DataLoader worker is killed by Bus error: insufficient shared memory (shm)", "memory"),
        ("OSError: [Errno 24] Too many open files", "too-many-processes"),
        ("RuntimeError: can't start new thread", "too-many-processes"),
        ("BlockingIOError: [Errno 11] Resource temporarily unavailable", "too-many-processes"),
    ],
)
def test_errors_are_known_by_their_words(said: str, cause: str) -> None:
    """Each library has its own words for the same cause."""
    symptom = messages.recognize(said)
    assert symptom is not None
    assert symptom.cause == cause


@pytest.mark.parametrize(
    "said",
    [
        "KeyError: 'text'",
        "requests.exceptions.ConnectionError: host='example.com'",
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "ValueError: cannot pick a column",
        "BlockingIOError: [Errno 11] write could not complete without blocking",
    ],
)
def test_other_errors_are_the_functions_own(said: str) -> None:
    """No cause is read into words that do not say it."""
    assert messages.recognize(said) is None


CHAIN = '''Map:   0%|          | 0/100 [00:00<?, ? examples/s]multiprocess.pool.RemoteTraceback:
"""
Traceback (most recent call last):
  File "/usr/lib/python3.12/multiprocess/pool.py", line 125, in worker
    result = (True, func(*args, **kwds))
                    ^^^^^^^^^^^^^^^^^^^
  File "/home/me/prepare.py", line 7, in tokenize
    return row["txt"]
KeyError: 'txt'
"""

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/home/me/prepare.py", line 12, in <module>
    rows.map(tokenize)
KeyError: 'txt'
'''


def test_a_chain_of_exceptions_is_read_to_where_it_began() -> None:
    """The worker's own line comes first, after whatever was printed before."""
    chain = messages.last_chain(f"Traceback (most recent call last):\n  garbled\n{CHAIN}")
    assert [failure.summary for failure in chain] == ["KeyError: 'txt'"] * 2
    assert str(chain[0].location) == "/home/me/prepare.py:7, in tokenize"
    assert chain[0].location is not None
    assert chain[0].location.code == 'return row["txt"]'


def test_a_later_exception_begins_a_new_chain() -> None:
    """What was logged and handled before has nothing to do with it."""
    (failure,) = messages.last_chain(
        f'{CHAIN}\nTraceback (most recent call last):\n  File "a.py", line 1, in f\nEOFError\n'
    )
    assert (failure.kind, failure.message) == ("EOFError", "")


def test_a_fatal_error_is_read_to_the_users_line() -> None:
    """The stack of the thread that crashed, wherever it stands among the others."""
    text = (
        "50%|#####     |Fatal Python error: Segmentation fault\n\nThread 0x01 (most recent call first):\n"
        '  File "/usr/lib/python3.12/threading.py", line 1 in wait\n\n'
        "Current thread 0x02 [python] (most recent call first):\n"
        '  File "/usr/lib/python3.12/site-packages/fast/core.py", line 3 in encode\n'
        '  File "/home/me/a.py", line 4 in f\n\n'
        "Extension modules: numpy\n"
    )
    (failure,) = messages.fatal_errors(text)
    assert failure.kind == "Segmentation fault"
    assert (str(failure.frames[-1]), str(failure.location)) == ("fast/core.py:3, in encode", "/home/me/a.py:4, in f")


def test_the_line_of_a_compiled_library_is_not_the_users() -> None:
    """Cython names its sources without a directory."""
    assert not messages.Frame("pyarrow/error.pxi", 89, "check_status").is_users
    assert messages.Frame("prepare.py", 1, "f").is_users


def death(pid: int, role: Role, killer: Killer, after_seconds: float, **more: int | str | None) -> Death:
    """A death among two workers of process 1, in a limit of 600 MB."""
    known: dict[str, object] = {
        "name": "python",
        "parent": 1,
        "exit_code": 1 if killer == "itself" else None,
        "signal": None if killer == "itself" else "SIGKILL",
        "why": killer,
        "seconds": 1.0,
        "peak_bytes": 200 << 20,
        "workers": 2,
        "limit_bytes": 600 << 20,
    }
    return Death(pid=pid, role=role, killer=killer, after_seconds=after_seconds, **known | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("deaths", "cause"),
    [
        ([death(2, "worker", "itself", 1.0), death(1, "command", "kernel", 1.1)], 1),
        ([death(2, "worker", "itself", 1.0), death(1, "command", "outside", 1.1)], 1),
        ([death(2, "worker", "itself", 1.0), death(1, "command", "outside", 9.0)], 2),
        ([death(2, "worker", "parent", 1.0), death(3, "worker", "crash", 1.0)], 3),
        ([death(2, "worker", "parent", 1.0), death(3, "worker", "itself", 1.0, exit_code=3)], 3),
        ([death(2, "worker", "itself", 1.0), death(3, "worker", "kernel", 1.1)], 3),
        ([death(2, "worker", "parent", 1.0)], 2),
        ([death(2, "worker", "parent", 1.0), death(3, "worker", "parent", 1.0)], None),
    ],
)
def test_the_gravest_death_is_the_cause(deaths: list[Death], cause: int | None) -> None:
    """What a parent sends, and what workers say whose parent is gone, follows from something else."""
    found = root_cause(deaths)
    assert (None if found is None else found.pid) == cause


def test_no_number_of_processes_is_promised_that_may_not_fit() -> None:
    """One that holds more than half of the limit, or is alone, is not helped by fewer processes."""
    found = diagnosis.memory_finding(death(2, "worker", "kernel", 1.0), "killed", "problem")
    assert found.fix[0].startswith("Use num_proc=1")
    assert found.title == "there is not enough memory for so many processes"
    for each in (
        death(2, "worker", "kernel", 1.0, peak_bytes=400 << 20),
        death(1, "command", "kernel", 1.0),
        death(1, "command", "kernel", 1.0, workers=0),
    ):
        found = diagnosis.memory_finding(each, "killed", "problem")
        assert "num_proc" not in " ".join(found.fix)
        assert found.title == "there is not enough memory"


def test_reading_takes_time_in_proportion_to_the_text() -> None:
    """Half a megabyte of anything is read in a moment."""
    begun = time.process_time()
    for text in ("x" * 500_000, "Traceback (most recent call last):\n" * 12_000, "\r" * 500_000, "host='" * 80_000):
        messages.recognize(text, text)
        messages.last_chain(text)
        messages.fatal_errors(text)
    assert time.process_time() - begun < 20


@pytest.mark.parametrize(
    ("code", "ending"), [("raise SystemExit(7)", (7, None)), ("os.kill(os.getpid(), 11)", (None, 11))]
)
def test_how_a_process_ended_is_read_from_its_remains(code: str, ending: tuple[int | None, int | None]) -> None:
    """Without the pidfd of newer kernels, as long as nobody has collected it."""
    child = subprocess.Popen([sys.executable, "-c", f"import os; {code}"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    stat = procfs.stat(child.pid)
    assert stat is not None
    process = Process(child.pid, os.getpid(), stat.start_ticks, 0.0)
    process.read_end()
    child.wait()
    assert (process.exit_code, process.signal) == ending


def test_what_a_process_waits_for_is_told() -> None:
    """A pipe, a moment, a process, and a lock that nobody can release."""
    reader, writer = os.pipe()
    commands = {
        "waits to read from a pipe": "import os, sys; os.read(int(sys.argv[1]), 1)",
        "sleeps": "import time; time.sleep(60)",
        "waits for a process to end": "import subprocess; subprocess.run(['sleep', '60'])",
        "waits for a lock in its own memory": "import threading; a = threading.Lock(); a.acquire(); a.acquire()",
        "waits for a lock that processes share": "import multiprocessing as m; a = m.Lock(); a.acquire(); a.acquire()",
    }
    for words, code in commands.items():
        with subprocess.Popen(
            [sys.executable, "-c", code, str(reader)], pass_fds=[reader], start_new_session=True
        ) as child:
            try:
                waits_so = partial(_waits, child.pid, words)
                assert wait_until(waits_so), words
            finally:
                os.killpg(child.pid, signal.SIGKILL)
    os.close(reader)
    os.close(writer)


def _waits(pid: int, words: str) -> bool:
    return waits.wait_of(pid).description.startswith(words)


def test_the_memory_of_this_process_is_counted_somewhere() -> None:
    """Each process belongs to groups that exist, from its own to the root."""
    member = cgroups.membership(os.getpid())
    assert all(os.path.isdir(directory) for directory, _ in member)
    limit = cgroups.limit(member)
    assert limit is None or limit[1] > 0


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (
            1,
            {"memory.limit_in_bytes": "629145600", "memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3"},
        ),
        (2, {"memory.max": "629145600", "memory.events": "low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\noom_group_kill 0"}),
    ],
)
def test_the_counters_of_both_kinds_of_groups_are_read(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    """The group's own counter of kills, and the tightest limit up to the root."""
    (tmp_path / "inner").mkdir()
    for name, text in files.items():
        (tmp_path / "inner" / name).write_text(text + "\n")
        (tmp_path / name).write_text("max\n" if version == 2 else "9223372036854771712\n")
    member = ((str(tmp_path / "inner"), version), (str(tmp_path), version))
    assert cgroups.kills(member) == 3
    assert cgroups.limit(member) == (str(tmp_path / "inner"), 600 << 20)
    assert cgroups.limit(member[1:]) is None


def test_a_thread_is_no_process() -> None:
    """Its number can be looked up like a process's."""
    numbers: list[int] = []
    done = threading.Event()

    def work() -> None:
        numbers.append(threading.get_native_id())
        done.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert wait_until(lambda: bool(numbers))
    assert procfs.is_thread(numbers[0])
    assert not procfs.is_thread(os.getpid())
    done.set()
    thread.join()


@pytest.mark.parametrize("processes", [1, diagnosis.SHOWN_WAITS, diagnosis.SHOWN_WAITS + 3])
def test_the_waits_of_many_processes_are_counted(processes: int) -> None:
    """Some are listed one by one; of the rest, the number is."""
    wait = SimpleNamespace(description="waits for a lock")
    hang: Any = SimpleNamespace(
        waits=[SimpleNamespace(process=SimpleNamespace(pid=pid, role="worker"), wait=wait) for pid in range(processes)]
    )
    shown = diagnosis._wait_evidence(hang)
    assert shown[0] == "pid 0, worker, waits for a lock"
    more = ["... and 3 more"] if processes > diagnosis.SHOWN_WAITS else []
    assert shown[diagnosis.SHOWN_WAITS :] == more
