"""Tokenize under a real Slurm, kill and requeue its tasks, and compare the store with one made in peace.

    python -m scripts.slurm_test [--store disk] [--store s3] [--store srun] [--store cancel] [--megabytes 120] ...

It starts a Slurm of its own (munged, slurmctld and slurmd of Debian's packages, in a temporary directory, on loopback)
and submits examples/slurm/prepare.sbatch as an array of four over one store, on disk and then on a SeaweedFS, with
examples/slurm/export.sbatch as the job that depends on it. While the array runs, each task is struck once:

    task 1   every process of it is killed (SIGKILL), so that it fails; then `scontrol requeue`, as an operator would
    task 2   tokenmill alone is killed, as the kernel does when it is out of memory; the script requeues itself
    task 3   `scontrol requeue` of a running task, which is what preemption and a lost node look like
    task 0   USR1, as two minutes before the end of its time; tokenmill ends, and the script requeues itself

`srun` is one job with four ranks that `srun` starts. `cancel` is an array that is cancelled in mid-run (`scancel`),
after which no task may come back, and then submitted again with two tasks. In the end every store has to be complete,
with the bytes of a run on this machine without Slurm, and so has the export. Exit code 1 if anything is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.remote_runs import differences, local_files, results
from tests.support.servers.seaweed import start_seaweed
from tests.support.servers.slurm import REQUEUE_SECONDS, JobRecord, Slurm, missing_packages, start_slurm

ROOT = Path(__file__).resolve().parents[1]
RUNS = ["disk", "s3", "srun", "cancel"]
TASKS = 4
SCRIPTS = ROOT / "examples" / "slurm"
TOKENIZER = ("--tokenizer", str(ROOT / "tests" / "data" / "small.json"), "--engine", "tokenizers")
"""The slowest engine: what is to be killed has to be running."""

EXPORT = ("--to", "nanogpt", "--shuffle", "7", "--val", "0.05")
OWN_RECORDS = "nanogpt/.tokenmill/"
"""In how many runs an export sorts depends on the memory that it has, and is recorded there."""

LONG_SECONDS = 1200.0
LOOK_SECONDS = 0.25

ENDED = re.compile(r"task (\d+), restart (\d+): tokenmill ended with exit code (\d+)")
FOUND_WRONG: list[str] = []


def check(what: str, *, holds: bool, reason: str = "") -> None:
    """Say what was found, and remember it if it is wrong."""
    print(f"{'ok  ' if holds else 'FAIL'} {what}{f': {reason}' if reason and not holds else ''}", flush=True)
    if not holds:
        FOUND_WRONG.append(what)


@dataclass(frozen=True)
class Place:
    """A store that is to be made: its address, what a client needs to reach it, its files, and its parts."""

    address: str
    environment: dict[str, str]
    files: Callable[[], dict[str, bytes]]
    count_parts: Callable[[], int]


@dataclass
class Blow:
    """What befalls a task, when so large a share of the units has its part."""

    task: int
    share: float
    words: str
    strike: Callable[[Array], object]
    units_then: int | None = None


@dataclass
class Array:
    """An array of tasks over one store, at work."""

    cluster: Slurm
    place: Place
    job: int
    units: int
    blows: list[Blow] = field(default_factory=list)
    tasks_of_pids: dict[int, int] = field(default_factory=dict)
    states: list[dict[str, object]] = field(default_factory=list)

    def follow(self) -> float:
        """Strike as ordered and wait for the end; the seconds that it took."""
        begun = time.monotonic()
        while not self.ended():
            self._look()
            done = self.place.count_parts()
            for blow in self.blows:
                if blow.units_then is None and done >= blow.share * self.units and self._at_work(blow.task):
                    blow.units_then = done
                    blow.strike(self)
                    break
            if done > 0.3 * self.units and not self.states:
                self.states.append(self.status())
            if time.monotonic() - begun > LONG_SECONDS:
                raise TimeoutError(f"job {self.job} has not ended after {LONG_SECONDS:.0f} s: {self.records()}")
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - begun

    def records(self) -> dict[int, JobRecord]:
        """What Slurm says of each task."""
        return {each.task: each for each in self.cluster.jobs(self.job) if each.task is not None}

    def ended(self) -> bool:
        """Whether nothing more will happen."""
        records = self.cluster.jobs(self.job)
        return bool(records) and all(record.ended for record in records)

    def pids(self, task: int) -> list[int]:
        """The processes of a task: the script, tokenmill, its nursery and its workers."""
        return self.cluster.processes(SLURM_ARRAY_JOB_ID=str(self.job), SLURM_ARRAY_TASK_ID=str(task))

    def units_by_task(self) -> Counter[int | None]:
        """How many units each task did, by the pids of the workers that the logs name."""
        return Counter(self.tasks_of_pids.get(done["pid"]) for done in units_done(self.place.files()))

    def status(self) -> dict[str, object]:
        """What `tokenmill status` says of the store."""
        done = tokenmill("status", self.place.address, "--json", **self.place.environment)
        return dict(json.loads(done.stdout)) if done.returncode == 0 else {"error": done.stderr}

    def _look(self) -> None:
        for task in range(TASKS):
            self.tasks_of_pids.update(dict.fromkeys(self.pids(task), task))

    def _at_work(self, task: int) -> bool:
        record = self.records().get(task)
        script_mill_nursery_worker = 4
        return record is not None and record.state == "RUNNING" and len(self.pids(task)) >= script_mill_nursery_worker


def units_done(files: dict[str, bytes]) -> list[dict[str, int]]:
    """What the logs say of each unit that was done."""
    logs = [data for name, data in files.items() if name.startswith("log")]
    events = [json.loads(line) for data in logs for line in data.splitlines()]
    return [event for event in events if event["event"] == "unit"]


def kill_all(array: Array) -> None:
    """Kill every process of task 1, the script first so that it requeues nothing; then requeue what has failed."""
    for pid in array.pids(1):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + 30
    while not array.records()[1].ended and time.monotonic() < end:
        time.sleep(0.1)
    print(f"     task 1 is {array.records()[1].state} for Slurm; requeued by hand")
    array.cluster.say("scontrol", "requeue", f"{array.job}_1")


def kill_mill(array: Array) -> None:
    """Kill tokenmill, the child of task 2's script."""
    script = array.pids(2)[0]
    children = Path(f"/proc/{script}/task/{script}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)


def blows() -> list[Blow]:
    """One for each task, early enough that all of them still have work when they are back."""
    return [
        Blow(1, 0.10, "all processes killed, requeued", kill_all),
        Blow(2, 0.20, "tokenmill killed", kill_mill),
        Blow(3, 0.30, "requeued while it ran", lambda a: a.cluster.say("scontrol", "requeue", f"{a.job}_3")),
        Blow(0, 0.40, "USR1: time is up", lambda a: a.cluster.say("scancel", "-b", "-s", "USR1", f"{a.job}_0")),
    ]


def tokenmill(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command on this machine, without Slurm."""
    command = [sys.executable, "-m", "tokenmill", *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=LONG_SECONDS, check=False
    )


def make_corpus(folder: Path, megabytes: int, units: int) -> Path:
    """Two Parquet files of made-up text with a row group for each unit, in the sum of the size that is asked for."""
    rng = random.Random(7)
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=rng.randint(1, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=megabytes * 1_000_000 // units // 6 // 4)) for _ in range(units * 4)]
    folder.mkdir()
    for number in range(2):
        table = pa.table({"text": texts[number::2]})
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=4)
    return folder


def make_reference(corpus: Path, out: Path) -> dict[str, bytes]:
    """The store and its export as this machine makes them without Slurm."""
    begun = time.monotonic()
    for words in (("prepare", str(corpus), *TOKENIZER, "--unit-bytes", "1", "--out"), ("export",)):
        done = tokenmill(*words, str(out), *(EXPORT if words == ("export",) else ()), "--quiet")
        if done.returncode != 0:
            sys.exit(f"the undisturbed run failed: {done.stderr}")
    print(f"reference: prepared and exported here without Slurm in {time.monotonic() - begun:.0f} s", flush=True)
    return local_files(out)


def environment_of_jobs() -> dict[str, str]:
    """Jobs find the tokenmill that runs this script."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run_array(cluster: Slurm, place: Place, corpus: Path, reference: dict[str, bytes], folder: Path) -> None:
    """The array with its dependent job, struck; and the verdict."""
    units = sum(name.startswith("parts/") for name in reference)
    resources = ("--cpus-per-task=1", "--mem=1500", f"--chdir={folder}")
    words = (str(corpus), *TOKENIZER, "--unit-bytes", "1", "--out", place.address, "--json", "--quiet")
    surroundings = {**environment_of_jobs(), **place.environment}
    job = cluster.submit(f"--array=0-{TASKS - 1}", *resources, str(SCRIPTS / "prepare.sbatch"), *words, **surroundings)
    after = (f"--dependency=afterany:{job}", *resources, str(SCRIPTS / "export.sbatch"), place.address, *EXPORT)
    export = Array(cluster, place, cluster.submit(*after, **surroundings), units)
    array = Array(cluster, place, job, units, blows())
    seconds = array.follow()
    waited = export.follow()
    print_table(array, folder, seconds)
    judge(array, export, reference)
    print(f"     array {seconds:.1f} s, then the export, a dependent job, {waited:.1f} s", flush=True)


def print_table(array: Array, folder: Path, seconds: float) -> None:
    """What befell each task, and what it did."""
    codes: dict[int, dict[int, str]] = defaultdict(dict)
    for log in folder.glob(f"tokenmill-{array.job}_*.log"):
        for task, restart, code in ENDED.findall(log.read_text()):
            codes[int(task)][int(restart)] = code
    units, records = array.units_by_task(), array.records()
    print(f"\nan array of {TASKS} tasks, {array.units} units, {seconds:.1f} s, store {array.place.address}")
    print("task  what befell it                   units then  restarts  exit codes    state      units done")
    for blow in sorted(array.blows, key=lambda blow: blow.task):
        record = records[blow.task]
        said = ", ".join(codes[blow.task].get(attempt, "killed") for attempt in range(record.restarts + 1))
        then = "-" if blow.units_then is None else str(blow.units_then)
        row = (blow.task, blow.words, then, record.restarts, said, record.state, units[blow.task])
        print("{:>4}  {:<31}  {:>10}  {:>8}  {:<12}  {:<9}  {:>10}".format(*row))
    logged = sum(units.values())
    print(f"{logged} units in the logs of {array.units}, {units[None]} of unknown tasks")
    print(f"status at 30 %: {json.dumps(array.states[0]) if array.states else 'not asked'}\n", flush=True)


def judge(array: Array, export: Array, reference: dict[str, bytes]) -> None:
    """Whether all is as promised."""
    records = array.records()
    for blow in array.blows:
        struck = blow.units_then is not None and blow.units_then < array.units
        check(f"task {blow.task} was struck while it was at work", holds=struck)
    check("every task was requeued once", holds=[records[task].restarts for task in range(TASKS)] == [1] * TASKS)
    states = {task: (record.state, record.exit_code) for task, record in records.items()}
    ended_well = set(states.values()) == {("COMPLETED", 0)}
    check("every task ended with exit code 0", holds=ended_well, reason=str(states))
    (job,) = export.cluster.jobs(export.job)
    check("the dependent export ended with exit code 0", holds=(job.state, job.exit_code) == ("COMPLETED", 0))
    status = array.status()
    check("the store is complete", holds=status.get("state") == "complete", reason=json.dumps(status))
    compare(array.place, reference)


def compare(place: Place, reference: dict[str, bytes]) -> None:
    """Whether the files are those of the reference."""
    found = place.files()
    wrong = [name for name in differences(found, reference) if not name.startswith(OWN_RECORDS)]
    same = f"{len(results(reference))} files have the bytes of the reference"
    check(same, holds=not wrong, reason=", ".join(wrong[:10]))
    again = [unit for unit, times in Counter(done["unit"] for done in units_done(found)).items() if times > 1]
    check("no unit was committed twice", holds=not again, reason=str(again[:10]))
    left = [name for name in found if name.endswith(".tmp")]
    check("nothing temporary is left", holds=not left, reason=", ".join(left[:10]))


def run_srun(cluster: Slurm, place: Place, corpus: Path, reference: dict[str, bytes], folder: Path) -> None:
    """Four ranks that `srun` starts in one job."""
    command = ["srun", "tokenmill", "prepare", str(corpus), *TOKENIZER, "--unit-bytes", "1", "--out", place.address]
    resources = (f"--ntasks={TASKS}", "--cpus-per-task=1", "--mem-per-cpu=1500", f"--chdir={folder}")
    job = cluster.submit(*resources, "--wrap", " ".join([*command, "--quiet"]), **environment_of_jobs())
    ranks = Array(cluster, place, job, sum(name.startswith("parts/") for name in reference))
    seconds = ranks.follow()
    (record,) = cluster.jobs(job)
    print(f"\n{TASKS} ranks by srun in one job: {seconds:.1f} s, {record.state}, exit code {record.exit_code}")
    said = (folder / f"slurm-{job}.out").read_text()
    check("srun ended with exit code 0", holds=(record.state, record.exit_code) == ("COMPLETED", 0), reason=said)
    pids = Counter(done["pid"] for done in units_done(place.files()))
    check("four ranks had a share in it", holds=len(pids) == TASKS, reason=str(pids))
    compare(place, {name: data for name, data in reference.items() if not name.startswith("nanogpt/")})


def run_cancelled(cluster: Slurm, place: Place, corpus: Path, reference: dict[str, bytes], folder: Path) -> None:
    """An array that is cancelled, and submitted again with fewer tasks."""
    units = sum(name.startswith("parts/") for name in reference)
    words = (str(SCRIPTS / "prepare.sbatch"), str(corpus), *TOKENIZER, "--unit-bytes", "1", "--out", place.address)
    resources = ("--cpus-per-task=1", "--mem=1500", f"--chdir={folder}")
    first = cluster.submit(f"--array=0-{TASKS - 1}", *resources, *words, "--quiet", **environment_of_jobs())
    array = Array(cluster, place, first, units)
    while place.count_parts() < 0.3 * units and not array.ended():
        time.sleep(LOOK_SECONDS)
    cluster.say("scancel", str(first))
    array.follow()
    time.sleep(2 * REQUEUE_SECONDS)  # if a task had asked to come back, it would be here now
    states = {record.state for record in cluster.jobs(first)}
    there = place.count_parts()
    print(f"\ncancelled with {there} of {units} units; then an array of 2, numbered 10 and 20")
    check("cancelled tasks stay cancelled", holds=states == {"CANCELLED"} and there < units, reason=str(states))
    second = cluster.submit("--array=10,20", *resources, *words, "--quiet", **environment_of_jobs())
    Array(cluster, place, second, units).follow()
    ended = {(record.state, record.exit_code) for record in cluster.jobs(second)}
    check("the second array ended with exit code 0", holds=ended == {("COMPLETED", 0)}, reason=str(ended))
    compare(place, {name: data for name, data in reference.items() if not name.startswith("nanogpt/")})


def on_disk(out: Path) -> Place:
    """A store on the file system that the tasks share."""

    def count() -> int:
        with suppress(FileNotFoundError):
            return sum(not name.startswith(".") for name in os.listdir(out / "parts"))
        return 0

    return Place(str(out), {}, lambda: local_files(out), count)


@contextmanager
def on_s3(folder: Path) -> Iterator[Place]:
    """A store in a bucket of a SeaweedFS that is there for as long as the block."""
    server = start_seaweed(folder, f"ACCESS{secrets.token_hex(8)}", secrets.token_hex(20))
    try:
        url = f"{server.bucket('bucket')}/run"
        bucket = server.store(url)

        def count() -> int:
            return sum(len(page) for page in bucket.list("parts/"))

        yield Place(url, server.environment(), lambda: server.objects(url), count)
    finally:
        server.stop()


def main() -> int:
    """Read the options, start the cluster, run, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="append", choices=RUNS, help="only these runs")
    parser.add_argument("--megabytes", type=int, default=120, help="of text")
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--keep", action="store_true", help="keep the directory of it all")
    options = parser.parse_args()
    if missing := missing_packages():
        sys.exit(f"error: Slurm is not installed here: {', '.join(missing)}\n  apt-get install slurm-wlm munge")
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-slurm-"))
    corpus = make_corpus(folder / "corpus", options.megabytes, options.units)
    reference = make_reference(corpus, folder / "reference")
    cluster = start_slurm(folder / "cluster", TASKS)
    try:
        for store in options.store or RUNS:
            (folder / f"logs-{store}").mkdir()
            rest = (corpus, reference, folder / f"logs-{store}")
            if store == "s3":
                with on_s3(folder / "seaweed") as place:
                    run_array(cluster, place, *rest)
            else:
                run = {"disk": run_array, "srun": run_srun, "cancel": run_cancelled}[store]
                run(cluster, on_disk(folder / store), *rest)
    finally:
        cluster.stop()
    print(f"{len(FOUND_WRONG)} things are wrong" if FOUND_WRONG else "all as promised")
    if FOUND_WRONG or options.keep:
        print(f"all of it is kept in {folder}")
    else:
        shutil.rmtree(folder)
    return 1 if FOUND_WRONG else 0


if __name__ == "__main__":
    sys.exit(main())
