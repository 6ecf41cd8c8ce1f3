"""One trial: a few random steps on stores with erasures, then their repair. A plan is repeated by its seeds."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import tokenmill
from tests.support.inline_executor import InlineExecutor
from tests.support.restores import places
from tests.support.restores.judge import Finding, Judge
from tests.support.restores.places import Files
from tests.support.restores.remembering import forget
from tests.support.restores.stage import Actor, Killed, Stage
from tests.support.restores.world import LATE_EXPORT, LAYOUTS, REQUESTS, STORED, World
from tokenmill.errors import TRY_AGAIN, IncompleteStore, TokenmillError

STEPS = {"restore": 6, "killed": 4, "race": 4, "erase": 2, "copy": 1, "processes": 1}
"""What may happen, and how often."""

ENDS = {"": 20, "lost": 3, "mirror": 2, "diverged": 2}
"""What may happen at last. Then commands alone need not repair a store: a backup of its records may be needed."""

HASH = re.compile("[0-9a-f]{16,}")
REAL_KILLS = 0.1
FRACTIONS = (0.15, 0.5, 0.85, 1.0)


@dataclass(frozen=True)
class Step:
    """One event: its kind, the seed of its choices, and the files that a smaller reproduction restores."""

    kind: str
    seed: str
    names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What a trial does: its exports, how many requests came before, and its steps."""

    layout: int
    level: int
    steps: tuple[Step, ...]

    @property
    def end(self) -> str:
        """What happens at last."""
        return self.steps[-1].kind if self.steps and self.steps[-1].kind in ENDS else ""


def choose(seed: int, number: int, *, has_processes: bool) -> Plan:
    """A plan that follows from the seed and the number of the trial."""
    rng = random.Random(f"{seed}/{number}")
    kinds = {kind: weight for kind, weight in STEPS.items() if kind != "processes" or has_processes}
    steps = rng.choices([*kinds], [*kinds.values()], k=rng.randint(1, 4))
    steps += [end for end in rng.choices([*ENDS], [*ENDS.values()]) if end]
    numbered = tuple(Step(kind, f"{seed}/{number}/{place}") for place, kind in enumerate(steps))
    return Plan(rng.randrange(len(LAYOUTS)), rng.choice([0, 1, 2, 2]), numbered)


@dataclass
class Outcome:
    """What a trial did and found, and its CPU seconds."""

    plan: Plan
    notes: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0


class Trial:
    """The course of a plan on the stores of a world."""

    def __init__(self, world: World, stage: Stage, plan: Plan) -> None:
        self.world, self.stage, self.place = world, stage, world.place
        self.judge = Judge(world, begun=[*"ab"][: plan.level], ended={*"ab"[: plan.level]})
        self.snapshots: list[Files] = world.versions[: plan.level + 1]
        self.outcome = Outcome(plan, findings=self.judge.findings)
        self.is_clean = True  # nothing was restored, so nothing may be reported as damaged
        self.lost: Files = {}

    def run(self) -> Outcome:
        """Do the steps, judge after each, repair at last, and judge again."""
        started = time.process_time()
        places.replace(self.place, self.snapshots[-1])
        forget()
        steps = []
        for step in self.outcome.plan.steps:
            self._note(step.kind)
            steps.append(replace(step, names=getattr(self, f"_{step.kind}")(step, random.Random(step.seed))))
            if not self.outcome.plan.end or step is not self.outcome.plan.steps[-1]:
                self.judge.read()
        self.outcome.plan = replace(self.outcome.plan, steps=tuple(steps))
        self._repair()
        self.outcome.seconds = time.process_time() - started
        return self.outcome

    def _note(self, text: str) -> None:
        self.outcome.notes.append(text)

    def _repair(self) -> None:
        forget()
        end = self.outcome.plan.end
        is_replaced = end in ("mirror", "diverged")
        refused = self.judge.repair(self.judge.complaints(is_replaced=is_replaced), is_replaced=is_replaced)
        if refused and end:
            self._note("put back")
            self._remove([] if end == "lost" else ["one/changes/"])
            self.place.write(self.lost)
            refused = self.judge.repair(self.judge.complaints(), is_restored=True)
        for message in refused:
            self.judge.report("dead end", message)
        if not refused:
            self.judge.check_repaired()

    # What may happen.

    def _erase(self, _: Step, rng: random.Random) -> None:
        """An erasure that nothing disturbs."""
        self._end(self.stage.call(self._eraser(rng.choice([*REQUESTS]))))
        self.snapshots.append(self.place.read())

    def _killed(self, _: Step, rng: random.Random) -> None:
        """An erasure that is killed at one of its changes, by an exception or by a signal."""
        actor = self._eraser(rng.choice([*REQUESTS]), rng.randint(1, self.world.changes + 2))
        self._note(f"{actor.name} killed at change {actor.kill_at}")
        if rng.random() < REAL_KILLS and not self._is_remote:
            self._note("by SIGKILL")
            os.waitpid(self.stage.fork(actor), 0)
        else:
            self._end(self.stage.call(actor))
        self.snapshots.append(self.place.read())

    def _processes(self, _: Step, rng: random.Random) -> None:
        """Two erasures at once in processes of their own, one of which may be killed."""
        actors = [
            self._eraser(rng.choice([*REQUESTS]), rng.choice([0, rng.randint(1, self.world.changes)])) for _ in "12"
        ]
        self._note(", ".join(f"{actor.name} killed at change {actor.kill_at}" for actor in actors))
        for process, actor in [(self.stage.fork(actor), actor) for actor in actors]:
            if os.waitpid(process, 0)[1] == 0:
                self.judge.ended.add(actor.name)

    def _race(self, _: Step, rng: random.Random) -> None:
        """Two or three calls in turns: erasures, readers, `verify` and an export. Some are killed, some pause."""
        before = set(self.judge.ended)
        actors = [self._eraser(name) for name in rng.choices([*REQUESTS], k=rng.randint(1, 2))]
        others = [
            Actor("read", partial(self.judge.read_store, "one", before)),
            Actor("load", partial(self.judge.load, before)),
            Actor("verify", self._verify),
            Actor(LATE_EXPORT, partial(self.world.export, LATE_EXPORT)),
        ]
        actors += rng.sample(others, 2 if len(actors) == 1 else rng.randint(0, 1))
        for actor in actors:
            if rng.random() < 0.25:
                actor.kill_at = rng.randint(1, self.world.changes)
            if rng.random() < 0.35:
                actor.pause_at = rng.randint(1, 4 * self.world.changes)
        self._note(", ".join(f"{one.name} (kill {one.kill_at}, pause {one.pause_at})" for one in actors))
        self.stage.race(actors, rng)
        for actor in actors:
            self._end(actor)
        self.snapshots.append(self.place.read())

    def _restore(self, step: Step, rng: random.Random) -> tuple[str, ...]:
        """Random files of an earlier copy are laid over those that are there."""
        snapshot, scope = rng.choice(self.snapshots), rng.choice(["store", "store", "export", "all"])
        self._note(f"{scope} of copy {self.snapshots.index(snapshot)} of {len(self.snapshots)}")
        files = {
            name: data
            for name, data in snapshot.items()
            if scope == "all" or self.world.is_export(name) == (scope == "export")
        }
        return self._lay(_pick(files, rng) if step.names is None else step.names, snapshot)

    def _copy(self, _: Step, rng: random.Random) -> None:
        """`cp -r` of a store, and an erasure in the copy: it changes no export of the original."""
        self.place.write({f"copy/{name}": data for name, data in _of_one(self.place.read()).items()})
        name, before = rng.choice("abc"), self._without_copy()
        self._note(f"{name} in the copy")
        self.judge.tried(f"erase {name} in the copy", self.world.erase, name, "copy/one")
        after = self._without_copy()
        changed = [file for file in before.keys() | after.keys() if before.get(file) != after.get(file)]
        if changed:
            self.judge.report("trespass", f"an erasure in a copy changed {sorted(changed)}")

    def _lost(self, step: Step, rng: random.Random) -> tuple[str, ...]:
        """Files of the store are lost, after they may have been restored."""
        files = {name: data for name, data in self.place.read().items() if name.startswith(STORED)}
        names = step.names or tuple(rng.sample(_sorted(files), rng.choice([1, 1, 2, 4])))
        self.lost = {name: files[name] for name in names if name in files}
        self.place.remove(self.lost)
        self._note(f"lost {names}")
        return names

    def _mirror(self, _: Step, rng: random.Random) -> None:
        """The store is replaced by an earlier copy. Its exports elsewhere and loaders know better."""
        there, snapshot = self.place.read(), rng.choice(self.snapshots)
        self._note(f"copy {self.snapshots.index(snapshot)} of {len(self.snapshots)}")
        self.lost = _of_one(self._records(there))
        elsewhere = {name: data for name, data in there.items() if not name.startswith("one/")}
        inside = _of_one(snapshot)
        places.replace(self.place, {**elsewhere, **inside})
        self.judge.begun = self.judge.begun or ["a"]

    def _diverged(self, step: Step, rng: random.Random) -> tuple[str, ...]:
        """Another request is erased in a copy, and files of the copy are laid over the original."""
        snapshot, name = rng.choice(self.snapshots), rng.choice("abc")
        self._note(f"{name} in copy {self.snapshots.index(snapshot)} of {len(self.snapshots)}")
        self.judge.mixed.add(name)
        self.lost = _of_one(self._stored(self.place.read()))
        self._remove(["copy/"])
        self.place.write({f"copy/{file}": data for file, data in _of_one(snapshot).items()})
        self.judge.tried(f"erase {name} in the copy", self.world.erase, name, "copy/one")
        copy = {file.removeprefix("copy/"): data for file, data in self._remove(["copy/"]).items()}
        return self._lay(_pick(copy, rng) if step.names is None else step.names, copy)

    # Parts of them.

    @property
    def _is_remote(self) -> bool:
        return "://" in self.place.address("")

    def _eraser(self, name: str, kill_at: int = 0) -> Actor:
        if name not in self.judge.begun:
            self.judge.begun.append(name)
        return Actor(name, partial(self.world.erase, name), kill_at)

    def _verify(self) -> None:
        tokenmill.verify(self.place.address("one"), workers=1, executor=InlineExecutor())

    def _end(self, actor: Actor) -> None:
        """Take note of how a call ended: a request that succeeded, a defect, or a false alarm."""
        error = actor.error
        self._note(f"{actor.name}: {'done' if error is None else repr(error)[:200]}")
        if error is None and actor.name in REQUESTS:
            self.judge.ended.add(actor.name)
        elif isinstance(error, TokenmillError):
            if self.is_clean and not _is_refusal(error):
                self.judge.report("alarm", f"{actor.name}: {' | '.join(str(error).splitlines())}")
        elif error is not None and not isinstance(error, Killed):
            self.judge.report("crash", f"{actor.name}: {error!r}")

    def _without_copy(self) -> Files:
        return {name: data for name, data in self.place.read().items() if not name.startswith("copy/")}

    def _remove(self, directories: list[str]) -> Files:
        """Remove the files of directories, and return them."""
        files = {file: data for file, data in self.place.read().items() if file.startswith(tuple(directories))}
        self.place.remove(files)
        return files

    def _stored(self, files: Files) -> Files:
        """The files of the stores without exports: what a backup has."""
        return {name: data for name, data in files.items() if not self.world.is_export(name)}

    def _records(self, files: Files) -> Files:
        """The files of the stores that are no parts, kept columns or exports: what a backup of the records has."""
        stored = self._stored(files).items()
        return {name: data for name, data in stored if not any(one in name for one in ("/parts/", "/kept/"))}

    def _lay(self, names: tuple[str, ...], copy: Files) -> tuple[str, ...]:
        there = self.place.read()
        changed = {name: copy[name] for name in names if name in copy and there.get(name) != copy[name]}
        self.place.write(changed)
        self.is_clean = self.is_clean and not changed
        return tuple(changed)


def _of_one(files: Files) -> Files:
    """The files of the store that is copied and replaced."""
    return {name: data for name, data in files.items() if name.startswith("one/")}


def _is_refusal(error: TokenmillError) -> bool:
    """Whether a call was refused because another one is at work or has to be finished."""
    return isinstance(error, IncompleteStore) or error.exit_code == TRY_AGAIN or "tokenmill erase" in str(error)


def _pick(files: Files, rng: random.Random) -> tuple[str, ...]:
    """A random part of the files, by files or by directories."""
    fraction = rng.choice(FRACTIONS)
    if rng.random() < 0.5:
        return tuple(name for name in _sorted(files) if rng.random() < fraction)
    directories = {directory for directory in sorted({_directory(name) for name in files}) if rng.random() < fraction}
    return tuple(name for name in _sorted(files) if _directory(name) in directories)


def _sorted(names: Iterable[str]) -> list[str]:
    """Names in an order that does not depend on the hashes in them: some are of an address, or of a time."""
    return sorted(names, key=lambda name: (HASH.sub("", name), name))


def _directory(name: str) -> str:
    return "/".join(name.split("/")[:2])


def outcome_kinds(outcome: Outcome) -> set[str]:
    """The kinds of what a trial found, with what happened at last."""
    end = outcome.plan.end
    return {f"{finding.kind} ({end})" if end else finding.kind for finding in outcome.findings}
