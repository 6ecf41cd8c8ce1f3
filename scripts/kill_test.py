"""Kill `tokenmill prepare` at random moments, run it again, and check that it does everything exactly once.

    python -m scripts.kill_test [--corpus DIR] [--tokenizer gpt2] [--group-kills 30] [--worker-kills 30] [--seed N]

First the whole process group is killed, several times for each output directory, so that resumed runs are killed too;
then single workers. In the end every directory has to hold the same bytes as that of an undisturbed run, without any
unit done again that was committed when a later run began: by the log, and by the parts' inodes and times. Exit code 1
if not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.killing import (
    Job,
    Round,
    Run,
    events,
    part_files,
    regroup_corpus,
    result_files,
    wait_until,
    workers,
    write_corpus,
)

ROWS_IN_UNIT = 64
MAX_GROUP_KILLS = 5
"""Kills of one directory's runs, before the one that is left alone."""

MAX_WORKER_KILLS = 2
"""Kills in one run: a unit is tried three times, and they could all hit the same one."""

LONG_SECONDS = 3600.0
HEADINGS = (
    *("directory", "killed", "kills", "units committed at each kill"),
    *("after", "deaths", "same bytes", "done again"),
)
COLUMNS = "{:>9}  {:<7}  {:>5}  {:<30}  {:>5}  {:>6}  {:>10}  {:>10}"


@dataclass
class Trial:
    """The killing: what is killed, for how long it would run, and what has been found."""

    job: Job
    folder: Path
    rng: random.Random
    undisturbed: dict[str, bytes]
    units: int
    seconds: float
    directories: int = 0
    violations: list[str] = field(default_factory=list)

    def kill_groups(self, kills: int) -> int:
        """Kill whole process groups, several in a row, then finish; how many were hit."""
        trial, committed = self._round(), []
        for _ in range(min(kills, self.rng.randint(2, MAX_GROUP_KILLS))):
            run = self.job.start(trial.out)
            self._wait_at_random(run)
            run.signal_group(signal.SIGKILL)
            run.wait()
            if trial.end(run).exit_code != -signal.SIGKILL:
                break  # it was faster: this directory is done
            committed.append(len(trial.snapshots[-1].parts))
        self._finish(trial, "groups", committed)
        return len(committed)

    def kill_workers(self, kills: int) -> int:
        """Kill single workers of a run that has to survive it; how many were hit."""
        trial, committed = self._round(), []
        run = self.job.start(trial.out)
        for _ in range(min(kills, MAX_WORKER_KILLS)):
            self._wait_at_random(run)
            wait_until(lambda: bool(workers(run.process.pid)) or not run.going)
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(self.rng.choice(workers(run.process.pid)), signal.SIGKILL)
                committed.append(len(part_files(trial.out)))
        run.wait(LONG_SECONDS)
        ending = trial.end(run)
        if ending.exit_code != 0:
            self._complain(trial, f"the run did not survive the death of a worker: {ending.stderr}")
        self._finish(trial, "workers", committed)
        return len(committed)

    def _round(self) -> Round:
        self.directories += 1
        return Round(self.job, self.folder / f"out-{self.directories}")

    def _wait_at_random(self, run: Run) -> None:
        """Wait for any moment of the run, its start included, or, more often, for one while units are being done."""
        if self.rng.random() < 0.3:
            run.until(time.monotonic() + self.rng.uniform(0, self.seconds))
            return
        there = len(part_files(run.out))
        run.until_units(self.rng.randint(there, self.units))
        run.until(time.monotonic() + self.rng.uniform(0, 0.05))

    def _finish(self, trial: Round, killed: str, committed: list[int]) -> None:
        """Run to the end, judge, print a line, and remove the directory if all is well."""
        run = self.job.start(trial.out)
        run.wait(LONG_SECONDS)
        ending = trial.end(run)
        if ending.exit_code != 0:
            self._complain(trial, f"the rerun failed: {ending.stderr}")
        found = trial.violations(self.undisturbed)
        for violation in found:
            self._complain(trial, violation)
        same = result_files(trial.out) == self.undisturbed
        deaths = sum(event["event"] == "death" for event in events(trial.out))
        before = ", ".join(map(str, committed)) or "-"
        after, again = len(part_files(trial.out)), len(trial.done_again())
        line = (self.directories, killed, len(committed), before, after, deaths, "yes" if same else "NO", again)
        print(COLUMNS.format(*line), flush=True)
        if not found and ending.exit_code == 0:
            shutil.rmtree(trial.out)

    def _complain(self, trial: Round, violation: str) -> None:
        self.violations.append(f"{trial.out}: {violation}")


def main() -> int:
    """Read the options, kill, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, help="a directory of Parquet files (default: made-up text)")
    parser.add_argument("--tokenizer", default="gpt2")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--group-kills", type=int, default=30)
    parser.add_argument("--worker-kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-kill-"))
    trial = _prepare(options, folder)
    print(COLUMNS.format(*HEADINGS))
    groups = workers = 0
    while groups < options.group_kills:
        groups += trial.kill_groups(options.group_kills - groups)
    while workers < options.worker_kills:
        workers += trial.kill_workers(options.worker_kills - workers)
    print(f"{groups} kills of the whole group, {workers} of single workers, {trial.directories} directories: ", end="")
    print(f"{len(trial.violations)} violations" if trial.violations else "all as promised")
    print("\n".join(trial.violations))
    if trial.violations:
        print(f"The directories are kept. To kill in the same way again: --seed {options.seed}")
        return 1
    shutil.rmtree(folder)
    return 0


def _prepare(options: argparse.Namespace, folder: Path) -> Trial:
    """Make the corpus, and run once undisturbed."""
    if options.corpus is None:
        corpus = write_corpus(folder / "corpus", documents=20_000, rows_per_group=ROWS_IN_UNIT, seed=options.seed)
    else:
        corpus = regroup_corpus(options.corpus, folder / "corpus", ROWS_IN_UNIT)
    job = Job(corpus, (options.tokenizer,), options.engine)
    started = time.monotonic()
    ending = job.finish(folder / "undisturbed", LONG_SECONDS)
    seconds = time.monotonic() - started
    if ending.exit_code != 0:
        sys.exit(f"the undisturbed run failed: {ending.stderr}")
    units = len(part_files(folder / "undisturbed"))
    print(f"corpus {options.corpus or 'made up'}, {units} units, tokenizer {options.tokenizer}, seed {options.seed}")
    print(f"undisturbed run: {seconds:.1f} s", flush=True)
    return Trial(job, folder, random.Random(options.seed), result_files(folder / "undisturbed"), units, seconds)


if __name__ == "__main__":
    sys.exit(main())
