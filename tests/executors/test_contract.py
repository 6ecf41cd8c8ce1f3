"""The contract of executors, the same for every kind, with real processes that really die."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.executor_functions import (
    announce_and_wait,
    be_killed,
    be_refused,
    die_at_first,
    die_talking,
    double,
    double_or_die,
    fail,
    has_thread,
    hoard,
    hold,
    linger,
    mark_and_announce,
    mark_and_sleep,
    mark_or_not,
    negate,
    pandas_after_use_of_arrow,
    pid,
    unsendable,
    wait_for,
    zeros,
)
from tests.support.killing import alive, wait_until
from tokenmill.executors import forkserver, worker_process
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Cause, Died, Done, Failed, RetryPolicy

pytestmark = pytest.mark.timeout(60)

TESTS = str(ROOT)
GONE_SECONDS = 20.0
MEGABYTE = 1 << 20


def local_executor(
    workers: int, worker_bytes: int | None = None, memory_bytes: int | None = None, preload: tuple[str, ...] = ()
) -> LocalExecutor:
    """The local executor, with its workers."""
    return LocalExecutor(preload).start(workers, worker_bytes, memory_bytes)


EXECUTORS = {"local": local_executor}

Make = Callable[..., Any]


@pytest.fixture(params=EXECUTORS)
def kind(request: pytest.FixtureRequest) -> Make:
    """Each kind of executor in turn, to be closed by the test."""
    return EXECUTORS[request.param]


@pytest.fixture
def make(kind: Make) -> Iterator[Make]:
    """Makes executors of each kind in turn, and closes them after the test."""
    with ExitStack() as stack:
        yield lambda *args, **kwargs: stack.enter_context(kind(*args, **kwargs))


def values(outcomes: Any) -> list[Any]:
    """The values of outcomes that are all done, ordered by item."""
    found = sorted(outcomes, key=lambda outcome: outcome.item)
    assert all(isinstance(outcome, Done) for outcome in found), found
    return [outcome.value for outcome in found]


def test_every_value_comes_back_once(make: Make) -> None:
    """Each item comes back once, with its own value, whatever the number of workers."""
    for workers in (1, 3):
        outcomes = list(make(workers).run(double, range(100)))
        assert sorted(outcome.item for outcome in outcomes) == list(range(100))
        assert values(outcomes) == [2 * item for item in range(100)]


def test_work_is_done_in_other_processes(make: Make) -> None:
    """The function runs in the executor's processes, each of which is named by the outcome."""
    executor = make(2)
    outcomes = list(executor.run(pid, range(20)))
    assert {outcome.value for outcome in outcomes} <= set(executor.pids)
    assert all(outcome.value == outcome.worker.pid != os.getpid() for outcome in outcomes)
    assert all(outcome.worker.peak_bytes > 5 * MEGABYTE and outcome.seconds >= 0 for outcome in outcomes)


def test_no_items_give_no_outcomes(make: Make) -> None:
    """Nothing to do is no error."""
    assert list(make(2).run(double, [])) == []


def test_a_second_function_can_be_run(make: Make) -> None:
    """An executor outlives a run: the next function gets the next items, in the same processes."""
    executor = make(2)
    before = executor.pids
    assert values(executor.run(double, range(10))) == [2 * item for item in range(10)]
    assert values(executor.run(negate, range(10))) == [-item for item in range(10)]
    assert executor.pids == before


def test_a_run_that_is_abandoned_does_not_speak_in_the_next(make: Make) -> None:
    """When a run is left before its end, the next one gets its own outcomes and none of the old ones."""
    executor = make(2)
    for outcome in executor.run(double, range(1000, 1100)):
        assert outcome.value == 2 * outcome.item
        break
    assert values(executor.run(negate, range(10))) == [-item for item in range(10)]


def test_an_explained_error_is_told_as_it_is(make: Make) -> None:
    """An error made for people comes with its whole message and is marked as explained."""
    (outcome,) = make(1).run(fail, ["explained"])
    assert isinstance(outcome, Failed)
    assert (outcome.item, outcome.kind, outcome.explained) == ("explained", "SourceError", True)
    assert outcome.message == "the source is gone\n  file         a.parquet"
    assert outcome.worker.peak_bytes > 5 * MEGABYTE


def test_any_other_error_comes_with_its_traceback(make: Make) -> None:
    """An unforeseen error comes with its kind, message and traceback; it is not tried again."""
    (outcome,) = make(1).run(fail, ["other"])
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.message, outcome.explained) == ("ValueError", "seven is no number", False)
    assert "executor_functions.py" in outcome.traceback
    assert outcome.traceback.rstrip().endswith("ValueError: seven is no number")


def test_a_value_that_cannot_be_sent_is_an_error(make: Make) -> None:
    """A value that cannot travel is a failure with a reason, not a death, and the worker goes on."""
    executor = make(1)
    before = executor.pids
    (outcome,) = executor.run(unsendable, [1])
    assert isinstance(outcome, Failed)
    assert "lock" in outcome.message
    assert not outcome.explained
    assert values(executor.run(double, [1])) == [2]
    assert executor.pids == before


WAYS = {
    "SIGKILL": (-signal.SIGKILL, "was killed (SIGKILL)"),
    "SIGSEGV": (-signal.SIGSEGV, "was killed (SIGSEGV)"),
    "SIGABRT": (-signal.SIGABRT, "was killed (SIGABRT)"),
    "3": (3, "exited with code 3"),
    "0": (0, "exited with code 0"),
    "sys.exit(5)": (5, "exited with code 5"),
}


def test_a_death_costs_only_the_item_that_had_it(make: Make) -> None:
    """A deadly item is tried three times, each death is told in full, and all other items are done once."""
    outcomes = list(make(2).run(double_or_die, [*range(10), *WAYS, *range(10, 20)]))
    died = [outcome for outcome in outcomes if isinstance(outcome, Died)]
    assert values(outcome for outcome in outcomes if outcome not in died) == [2 * item for item in range(20)]
    for way, expected in WAYS.items():
        deaths = [death for death in died if death.item == way]
        assert [(death.attempt, death.final) for death in deaths] == [(1, False), (2, False), (3, True)]
        assert all((death.end.exit_code, str(death.end)) == expected for death in deaths)
    assert len({death.worker.pid for death in died}) == len(died) == 18
    assert all(death.worker.peak_bytes > 0 and death.seconds >= 0 for death in died)
    assert not any(death.end.by_kernel for death in died)


def test_an_item_that_dies_once_is_done_at_the_second_attempt(make: Make, tmp_path: Path) -> None:
    """A death that does not repeat ends well, in another process."""
    death, done = make(1).run(die_at_first, [str(tmp_path / "marker")])
    assert isinstance(death, Died)
    assert (death.attempt, death.final) == (1, False)
    assert isinstance(done, Done)
    assert done.value == "alive"
    assert done.worker.pid != death.worker.pid


def test_a_worker_that_dies_idle_is_replaced(make: Make) -> None:
    """Workers that are killed between two runs cost no item."""
    executor = make(2)
    assert values(executor.run(double, range(4))) == [0, 2, 4, 6]
    killed = executor.pids
    for worker in killed:
        os.kill(worker, signal.SIGKILL)
    outcomes = list(executor.run(double, range(10)))
    assert values(outcome for outcome in outcomes if isinstance(outcome, Done)) == [2 * item for item in range(10)]
    assert not any(outcome.final for outcome in outcomes if isinstance(outcome, Died))
    assert not set(killed) & set(executor.pids)


def test_a_worker_that_will_not_end_is_killed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stopped answering but does not come to its end does not hold up the run."""
    monkeypatch.setattr(forkserver, "END_SECONDS", 0.2)
    outcomes = list(make(1).run(linger, [1]))
    assert [(outcome.attempt, outcome.end.exit_code) for outcome in outcomes] == [
        (n, -signal.SIGKILL) for n in (1, 2, 3)
    ]


def test_last_words_are_kept(make: Make) -> None:
    """What a dying worker wrote is kept, its end if it was much."""
    outcomes = list(make(1).run(die_talking, ["terminate called: bad_alloc", "a" * 5000 + " the end"]))
    words = {outcome.item[:9]: outcome.output_tail for outcome in outcomes if outcome.final}
    assert words["terminate"] == "printed\nterminate called: bad_alloc"
    assert words["a" * 9].endswith("aaaaa the end")
    assert len(words["a" * 9]) <= 2000


def test_a_worker_over_its_share_is_replaced_between_items(make: Make) -> None:
    """A worker that holds more than its share gives way to a new one, without any item being lost."""
    executor = make(1, worker_bytes=100 * MEGABYTE)
    outcomes = list(executor.run(hoard, [1, 1, 200 * MEGABYTE, 1]))
    assert all(isinstance(outcome, Done) for outcome in outcomes)
    first, second, third, fourth = (outcome.value for outcome in outcomes)
    assert first == second == third != fourth
    assert executor.pids == [fourth]
    assert wait_until(lambda: not alive([first]), GONE_SECONDS)


def test_items_are_taken_when_a_worker_is_free(make: Make) -> None:
    """Of a million items, no more are taken than are done or being done."""
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(1_000_000):
            taken += 1
            yield item

    outcomes = make(3).run(double, items())
    for done in range(1, 50):
        next(outcomes)
        assert taken <= done + 3 + 1


def test_an_item_can_depend_on_an_outcome_before_it(make: Make) -> None:
    """Outcomes come while items are still being made, so that the caller can decide what comes next."""
    seen: list[int] = []

    def items() -> Iterator[int]:
        item = 1
        while item < 1000:
            yield item
            item = seen[-1]

    for outcome in make(1).run(double, items()):
        seen.append(outcome.value)  # noqa: PERF401 - each at once: the items read it
    assert seen == [2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]


def test_a_slow_item_does_not_hold_up_the_others(make: Make, tmp_path: Path) -> None:
    """Outcomes come as they are ready: an item that waits for a later one gets it."""
    (tmp_path / "there").touch()
    for outcome in make(2).run(wait_for, [str(tmp_path / "late"), *[str(tmp_path / "there")] * 3]):
        assert isinstance(outcome, Done)
        if outcome.item.endswith("late"):
            break
        (tmp_path / "late").touch()
    assert (tmp_path / "late").exists()


def test_a_huge_value_comes_back_whole(make: Make) -> None:
    """Megabytes pass through the pipe, several at once."""
    outcomes = list(make(2).run(zeros, [10_000_000, 10_000_001, 3]))
    assert all(outcome.value == bytes(outcome.item) for outcome in outcomes)
    assert len(outcomes) == 3


def test_closing_in_the_middle_ends_all_workers(kind: Make, tmp_path: Path) -> None:
    """Closing an executor does not wait for its items: no process is left."""
    (tmp_path / "0").touch()
    markers = [str(tmp_path / str(number)) for number in range(4)]
    with kind(4) as executor:
        next(executor.run(announce_and_wait, markers))
        at_work = {int(wait_for(marker)) for marker in markers[1:]}
        workers = executor.pids
        assert at_work < set(alive(workers)) == set(workers)
    assert alive(workers) == []


def test_executors_work_beside_busy_threads(kind: Make) -> None:
    """Threads that run, print and hold locks while workers are started do not disturb them, nor do other executors."""
    stop, lock = threading.Event(), threading.Lock()
    results: dict[int, list[int]] = {}

    def disturb() -> None:
        while not stop.is_set():
            with lock:
                sys.stderr.write("")

    def use(number: int) -> None:
        with kind(2) as executor:
            results[number] = values(executor.run(double, range(20)))

    disturbing = [threading.Thread(target=disturb) for _ in range(3)]
    using = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in [*disturbing, *using]:
        thread.start()
    for thread in using:
        thread.join()
    stop.set()
    for thread in disturbing:
        thread.join()
    assert results == {number: [2 * item for item in range(20)] for number in range(3)}


LOCAL_PARENT = """
import os, sys
from tests.support import executor_functions
from tokenmill.executors.local import LocalExecutor

ending, *markers = sys.argv[1:]
executor = LocalExecutor().start(len(markers))
outcomes = executor.run(executor_functions.announce_and_wait_as_named, markers)
next(outcomes)  # the first marker is there already; the items of the others have been given out
for marker in markers[1:]:
    executor_functions.wait_for(marker)
print(*executor.pids, flush=True)
if ending == "os._exit":
    os._exit(7)
elif ending == "exception":
    raise ValueError("nobody expects this")
elif ending == "end":
    sys.exit(0)
next(outcomes)
"""


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))}


@pytest.mark.parametrize("ending", ["SIGKILL", "SIGTERM", "os._exit", "exception", "end"])
def test_no_local_worker_outlives_its_parent(tmp_path: Path, ending: str) -> None:
    """However the parent ends, its workers end: idle or at work, with the kernel's help or without, stuck or not."""
    names = ["0", "plain", "unguarded", *(["stuck"] if sys.platform == "linux" else [])]  # only Linux kills children
    (tmp_path / "0").touch()
    with subprocess.Popen(
        [sys.executable, "-c", LOCAL_PARENT, ending, *(str(tmp_path / name) for name in names)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        if ending.startswith("SIG"):
            assert sorted(alive(pids)) == sorted(pids)
            parent.send_signal(signal.Signals[ending])
        parent.wait()
    assert len(pids) == len(names)
    assert wait_until(lambda: not alive(pids), GONE_SECONDS), f"still there: {alive(pids)}"


LOCAL_SCRIPT = """
from tests.support.executor_functions import double
from tokenmill.executors.local import LocalExecutor

print("started")
with LocalExecutor().start(2) as executor:
    print(sorted(outcome.value for outcome in executor.run(double, range(5))))
"""


LOCAL_FAT_PARENT = """
import sys
from tests.support.executor_functions import die_fat, double
from tokenmill.executors.local import LocalExecutor

held = b"x" * (200 << 20)
with LocalExecutor().start(2) as executor:
    print(next(executor.run(double, [1])).worker.peak_bytes)
    deaths = executor.run(die_fat, [0, 200 << 20])
    print(*(death.worker.peak_bytes for death in sorted([next(deaths), next(deaths)], key=lambda death: death.item)))
"""


def test_peak_memory_is_that_of_the_local_worker() -> None:
    """Outcomes tell what the worker itself had held, to blame it or to acquit it, whatever its parent holds."""
    ended = subprocess.run(
        [sys.executable, "-c", LOCAL_FAT_PARENT], capture_output=True, text=True, env=_environment(), check=True
    )
    before, thin, fat = (int(word) for word in ended.stdout.split())
    assert 5 * MEGABYTE < before < 100 * MEGABYTE
    assert 5 * MEGABYTE < thin < 100 * MEGABYTE
    assert 205 * MEGABYTE < fat < 300 * MEGABYTE


@pytest.mark.parametrize("way", ["script", "stdin", "-c"])
def test_a_local_run_needs_no_main_guard(tmp_path: Path, way: str) -> None:
    """A script without a guard, one read from stdin and one given as an argument run once, top to bottom.

    A file beside the data that is named like a library is not code: workers of a script elsewhere do not import it.
    """
    script = tmp_path / "elsewhere" / "script.py"
    script.parent.mkdir()
    script.write_text(LOCAL_SCRIPT)
    if way == "script":
        (tmp_path / "json.py").write_text("raise SystemExit('this is data')")
    arguments = {"script": [str(script)], "stdin": ["-"], "-c": ["-c", LOCAL_SCRIPT]}[way]
    ended = subprocess.run(
        [sys.executable, *arguments],
        input=LOCAL_SCRIPT if way == "stdin" else "",
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=_environment(),
        check=False,
    )
    assert (ended.stdout, ended.stderr, ended.returncode) == ("started\n[0, 2, 4, 6, 8]\n", "", 0)


def test_the_death_of_the_forkserver_costs_a_retry() -> None:
    """When the process that workers come from is killed, its workers die with it and others take their place."""
    with local_executor(2) as executor:
        before = set(executor.pids)
        outcomes = executor.run(double, range(200))
        next(outcomes)
        executor._forkserver._process.kill()
        rest = list(outcomes)
    done = [outcome.item for outcome in rest if isinstance(outcome, Done)]
    assert len(set(done)) == len(done) == 199
    assert all(str(outcome.end) == "was killed (SIGKILL)" for outcome in rest if isinstance(outcome, Died))
    assert not set(alive(before))


def test_workers_are_not_forked_from_a_process_with_threads(make: Make) -> None:
    """If a library starts a thread while it is loaded, workers are started anew and have none of it."""
    threaded, plain = "tests.support.thread_at_import", "tests.support.executor_functions"
    assert next(make(1).run(has_thread, [threaded])).value == "not loaded"
    assert next(make(1, preload=(threaded,)).run(has_thread, [threaded])).value == "not loaded"
    loaded = next(make(1, preload=(plain,)).run(has_thread, [plain])).value
    assert loaded == "loaded"


def test_workers_do_not_load_pandas(make: Make) -> None:
    """pandas, which would take a second and 30 MB of each worker, stays out, although it is installed here."""
    assert importlib.util.find_spec("pandas") is not None
    assert next(make(1).run(pandas_after_use_of_arrow, [1])).value is False


def test_a_worker_that_does_not_move_on_is_stopped(make: Make) -> None:
    """A worker that takes longer than it said is stopped and told with what it was at; one that moves on is left."""
    outcomes = list(make(2).run(mark_and_sleep, [[0.8, 0.8, 0.8], [0.1, 30.0]], RetryPolicy(max_crashes=1)))
    stuck = next(outcome for outcome in outcomes if isinstance(outcome, Died))
    assert (stuck.end.cause, stuck.note, stuck.final) == (Cause.STALLED, b"step 1", True)
    assert str(stuck.end) == "was stopped: it had not moved on for 2.0 s"
    assert stuck.seconds < 20
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Done)] == ["awake"]


def test_a_worker_that_a_server_refuses_is_left(make: Make) -> None:
    """A worker does not count as stuck while a server answers it that there are too many requests. It is counted."""
    executor = make(2)
    outcomes = list(executor.run(be_refused, [3.0]))
    assert [outcome.value for outcome in outcomes if isinstance(outcome, Done)] == ["served"]
    assert executor.waiting == 1


def test_the_largest_worker_gives_way_when_memory_runs_out(make: Make) -> None:
    """Workers that hold too much together become fewer, and all items are done."""
    executor = make(3, memory_bytes=500 * MEGABYTE)
    outcomes = list(executor.run(hold, [200] * 4, RetryPolicy(max_crashes=5)))
    deaths = [outcome for outcome in outcomes if isinstance(outcome, Died)]
    assert sum(isinstance(outcome, Done) for outcome in outcomes) == 4
    assert deaths
    assert {death.end.cause for death in deaths} == {Cause.MEMORY}
    assert str(deaths[0].end) == "was stopped: the workers held more than their 524 MB of memory"
    assert deaths[-1].workers == executor.workers == 3 - len(deaths)


def test_one_worker_is_kept_however_much_it_takes(make: Make) -> None:
    """An item that needs more than there is ends as a death each time; the others are done."""
    executor = make(2, memory_bytes=300 * MEGABYTE)
    outcomes = list(executor.run(hold, [1, 600, 1, 1]))
    deaths = [outcome for outcome in outcomes if isinstance(outcome, Died)]
    assert [(death.item, death.attempt, death.final) for death in deaths] == [
        (600, 1, False),
        (600, 2, False),
        (600, 3, True),
    ]
    assert sum(isinstance(outcome, Done) for outcome in outcomes) == 3
    assert len(executor.pids) == 1


def test_kills_by_others_are_counted_apart(make: Make, tmp_path: Path) -> None:
    """What somebody else kills may be tried more often than what dies by itself."""
    *deaths, done = make(1).run(be_killed, [str(tmp_path / "4")], RetryPolicy(max_crashes=1, max_kills=5))
    assert [(death.end.cause, death.attempt, death.final) for death in deaths] == [
        (Cause.KILLED, number, False) for number in (1, 2, 3, 4)
    ]
    assert done.value == 4


def test_the_terms_may_ask_for_fewer_workers(make: Make) -> None:
    """Items can be done by one worker of several."""
    outcomes = list(make(3).run(pid, range(20), RetryPolicy(workers=1)))
    assert len({outcome.value for outcome in outcomes}) == 1


def test_a_worker_that_cannot_die_is_left_behind(make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A worker that is killed and does not die, as one that waits for a dead disk, does not hold up the run."""
    group = Path("/sys/fs/cgroup/freezer") / f"tokenmill-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "freezer.state").write_text("THAWED")
    except OSError:
        pytest.skip("there is no freezer cgroup that may be used here")
    monkeypatch.setattr(worker_process, "END_SECONDS", 1.0)
    executor = make(1)
    assert values(executor.run(double, [1])) == [2]
    stuck = executor.pids[0]
    (group / "cgroup.procs").write_text(str(stuck))

    def freeze() -> None:
        wait_for(str(tmp_path / "marked"))
        (group / "freezer.state").write_text("FROZEN")

    freezing = threading.Thread(target=freeze)
    try:
        freezing.start()
        (death,) = executor.run(mark_and_announce, [str(tmp_path / "marked")], RetryPolicy(max_crashes=1))
        assert isinstance(death, Died)
        assert death.end.cause is Cause.STALLED
        assert alive([stuck])
        assert values(executor.run(double, [3])) == [6]
    finally:
        freezing.join()
        (group / "freezer.state").write_text("THAWED")
        assert wait_until(lambda: not alive([stuck]), GONE_SECONDS)
        group.rmdir()


def test_a_mark_is_of_one_item_only(make: Make) -> None:
    """What a worker marked for an earlier item neither stops it at the next one nor is told of it."""
    outcomes = list(make(1).run(mark_or_not, [(1.0, 0.0), (0.0, 1.6)], RetryPolicy(max_crashes=1)))
    assert [outcome.value for outcome in outcomes] == ["awake"] * 2
    executor = make(1)
    run = executor.run(mark_or_not, [(5.0, 0.0), (0.0, 30.0)], RetryPolicy(max_crashes=1, max_kills=1))
    assert isinstance(next(run), Done)
    os.kill(executor.pids[0], signal.SIGKILL)
    death = next(run)
    assert isinstance(death, Died)
    assert death.note == b""


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_worker_that_answers_too_late_is_not_used_again(make: Make, ahead: int) -> None:
    """A worker that was told to stop while its answer was on its way takes no other item into its death."""
    outcomes = []
    for outcome in make(2).run(mark_or_not, [(0.95, 0.45)] * 4, RetryPolicy(max_crashes=1, prefetch=ahead)):
        outcomes.append(outcome)
        time.sleep(1.2 if len(outcomes) < 3 else 0)  # whoever takes the outcomes is busy with something else
    assert [type(outcome) for outcome in outcomes] == [Done] * 4, outcomes
