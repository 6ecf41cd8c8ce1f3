"""Restore, kill, race and copy stores with erasures at random, and check what readers get and what repairs leave.

    python -m scripts.restore_fuzz [--count 200] [--seed N] [--on disk|bucket|s3] [--first N] [--shrink] [--out FILE]

Each trial begins with two stores that have exports in them and elsewhere, of which up to two requests are erased. Then
up to four steps follow: files of an earlier copy come back, an erasure is killed at one of its changes, calls take
turns, a store is copied. At last files may be lost, or the store may be replaced by an earlier copy, or by one that
diverged. Then the commands that the messages name are run, else the same erasures again. One line of JSON is printed
for each trial, and a summary of the findings:

leak        a reader or loader got an erased document
hole        `verify` passes while erased text is in a file (witness: after a store was replaced as a whole)
dead end    a command or `verify` still fails after the repair
left        erased text is in a file after the repair
wrong       a reader got other tokens for a document that was not erased
alarm       a call failed as if a file were damaged, while another one changed the store
trespass    an erasure in a copy of a store changed files outside of the copy
crash       an exception that is no TokenmillError

`bucket` serves a directory as a bucket, without a server; `s3` is a SeaweedFS of this script. `--first` begins with
that trial of the seed. `--shrink` looks for the fewest steps and files that lead to the same finding. Exit code 1 if
there are findings.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TextIO

import pytest

from tests.support.inline_executor import InlineExecutor, executors
from tests.support.restores.places import DirectoryPlace, Place, ServerPlace, served_bucket
from tests.support.restores.stage import Stage
from tests.support.restores.trial import Outcome, Plan, Trial, choose, outcome_kinds
from tests.support.restores.world import LAYOUTS, World
from tests.support.servers.seaweed import start_seaweed


class Fuzz:
    """Worlds at one place, made when a trial needs them."""

    def __init__(self, place: Place, sources: Path, stage: Stage) -> None:
        self.place, self.sources, self.stage = place, sources, stage
        self._worlds: dict[int, World] = {}

    def run(self, plan: Plan) -> Outcome:
        """Run a trial."""
        return Trial(self.world(plan.layout), self.stage, plan).run()

    def world(self, layout: int) -> World:
        """The stores of a layout."""
        if layout not in self._worlds:
            world = World(self.place, self.sources, LAYOUTS[layout])
            world.build(self.stage)
            self._worlds[layout] = world
        return self._worlds[layout]

    def shrink(self, outcome: Outcome) -> Outcome:
        """The trial with the fewest steps and files that has one of its kinds of findings."""
        kind = min(outcome_kinds(outcome))
        is_smaller = True
        while is_smaller:
            is_smaller = False
            for plan in _smaller(outcome.plan):
                again = self.run(plan)
                if kind in outcome_kinds(again):
                    outcome, is_smaller = again, True
                    break
        return outcome


def _smaller(plan: Plan) -> Iterator[Plan]:
    """The same plan without one of its steps, or without half of the files of one, or without one of them."""
    for place, step in enumerate(plan.steps):
        others = plan.steps[:place], plan.steps[place + 1 :]
        yield replace(plan, steps=(*others[0], *others[1]))
        names = step.names or ()
        for size in sorted({-(-len(names) // 2), 1}, reverse=True) if len(names) > 1 else []:
            for start in range(0, len(names), size):
                kept = replace(step, names=names[:start] + names[start + size :])
                yield replace(plan, steps=(*others[0], kept, *others[1]))


@contextlib.contextmanager
def opened(on: str, folder: Path) -> Iterator[Place]:
    """The place of the trials."""
    if on == "bucket":
        with served_bucket(folder) as place:
            yield place
    elif on == "s3":
        server = start_seaweed(folder / "seaweed", secrets.token_hex(8), secrets.token_hex(16))
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name, value in server.environment().items():
                    patch.setenv(name, value)
                yield ServerPlace(server, server.bucket("fuzz"))
        finally:
            server.stop()
    else:
        yield DirectoryPlace(folder / "place")


def show(seed: int, number: int, outcome: Outcome, file: TextIO) -> None:
    """Print a trial as a line of JSON."""
    steps = [asdict(step) for step in outcome.plan.steps]
    plan = {"layout": outcome.plan.layout, "level": outcome.plan.level, "steps": steps}
    findings = [asdict(finding) for finding in outcome.findings]
    line = {"seed": seed, "trial": number, "cpu": round(outcome.seconds, 2), "findings": findings}
    print(json.dumps({**line, "notes": outcome.notes, **plan}), file=file, flush=True)


def main() -> int:
    """Run the trials, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--on", choices=("disk", "bucket", "s3"), default="disk")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--shrink", action="store_true")
    parser.add_argument("--out", type=Path, help="a file for the lines of the trials (default: standard output)")
    options = parser.parse_args()
    kinds, seconds = Counter[str](), 0.0
    stage = Stage()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tokenmill-restore-")))
        file = stack.enter_context(options.out.open("a")) if options.out else sys.stdout
        place = stack.enter_context(opened(options.on, folder))
        stack.enter_context(executors(InlineExecutor))
        stack.enter_context(stage.open())
        fuzz = Fuzz(place, folder / "in", stage)
        for number in range(options.first, options.first + options.count):
            outcome = fuzz.run(choose(options.seed, number, has_processes=options.on == "disk"))
            kinds.update(outcome_kinds(outcome))
            seconds += outcome.seconds
            show(options.seed, number, outcome, file)
            if options.shrink and outcome.findings:
                show(options.seed, number, fuzz.shrink(outcome), file)
    summary = {"seed": options.seed, "on": options.on, "trials": options.count, "cpu": round(seconds, 1)}
    print(json.dumps({**summary, "findings": dict(sorted(kinds.items()))}))
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
