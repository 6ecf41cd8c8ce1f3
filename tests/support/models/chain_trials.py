"""Random trials of the chain of changes: races with kills and pauses, restores, and copies that diverged."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.support.models.bucket import Bucket, Process, Race, RefusedError, Steps, run
from tests.support.models.chain import UNITS, Chain, documents_of, held, new_store

REQUESTS = {"a": {"0.1", "2.0"}, "b": {"0.2", "1.1"}, "c": {"0.1", "3.2"}}
MODES = ("race", "restore", "mirror", "diverged")
"""What happens beside races: nothing, random files of backups, a backup of all but `changes/`, claims of a copy."""

KILLED, BACKED_UP = 0.01, 0.01
FRACTIONS = (0.2, 0.5, 0.9, 1.0)


@dataclass
class Trial:
    """A few rounds of races and restores in one store, and what was not as promised."""

    mode: str
    chain: Chain
    rng: random.Random
    bucket: Bucket = field(default_factory=new_store)
    ended: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backups = [self.bucket.copy()]

    def run(self) -> list[str]:
        """Run the rounds, and repair at last; return the problems."""
        for _ in range(self.rng.randint(1, 4)):
            if self.mode in ("race", "diverged") or self.rng.random() < 0.5:
                self._race()
            self._back_up()
            {"race": lambda: None, "restore": self._restore, "mirror": self._mirror, "diverged": lambda: None}[
                self.mode
            ]()
            self._read()
        if self.mode == "diverged":
            self._diverge()
        else:
            self._repair()
        return self.problems

    def _back_up(self) -> None:
        self.backups.append(self.bucket.copy())

    def _race(self) -> None:
        """Up to three erasures and a reader take turns."""
        before = {document for name in self.ended for document in REQUESTS[name]}
        requests = self.rng.choices([*REQUESTS], k=self.rng.randint(1, 3))
        processes = [Process(name, self._eraser(name), self.rng.choice([0] * 3 + list(range(60)))) for name in requests]
        if self.rng.random() < 0.5:
            processes.append(Process("reader", self.chain.read()))
        race = Race(self.bucket, self.rng, KILLED, BACKED_UP, self._back_up)
        race.run(processes)
        for process in race.ended:
            if process.name in REQUESTS and process.error is None:
                self.ended.add(process.name)
            elif process.name in REQUESTS:
                self.problems.append(f"an erasure was refused: {process.error}")
            elif process.error is None and before & set(process.result):
                self.problems.append("a reader got an erased document")
            elif process.error is not None and self.mode in ("race", "diverged"):
                self._allow(process.error)

    def _eraser(self, name: str) -> Steps[None]:
        return self.chain.erase(name, REQUESTS[name])

    def _allow(self, error: Exception) -> None:
        """A reader may be refused only while a change is not finished."""
        if str(error) not in ("a change is not finished", "the store changes too often"):
            self.problems.append(f"a reader was refused: {error}")

    def _restore(self) -> None:
        """Random files of a backup are laid over those that are there."""
        backup, fraction = self.rng.choice(self.backups), self.rng.choice(FRACTIONS)
        self.bucket.update({name: data for name, data in backup.items() if self.rng.random() < fraction})

    def _mirror(self) -> None:
        """A backup replaces all files; then `changes/` is put back from elsewhere."""
        records = {name: self.bucket[name] for name in self.bucket.names("changes/")}
        backup = self.rng.choice(self.backups)
        self.bucket.clear()
        self.bucket.update({**backup, **records})

    def _read(self) -> None:
        try:
            documents = run(self.bucket, self.chain.read())
        except RefusedError as error:
            if self.mode in ("race", "restore"):
                self._allow(error)
        else:
            if any(REQUESTS[name] & set(documents) for name in self.ended):
                self.problems.append("a reader got an erased document")

    def _repair(self) -> None:
        """Erase again what was erased. Then no file has it, and a reader gets all else."""
        requests = sorted(self.ended | {"a"})
        erased = {document for name in requests for document in REQUESTS[name]}
        try:
            for name in requests:
                run(self.bucket, self._eraser(name))
            documents = set(run(self.bucket, self.chain.read()))
        except RefusedError as error:
            self.problems.append(f"a dead end: {error}")
            return
        if erased & documents:
            self.problems.append("a reader got an erased document after the repair")
        if erased & set(held(self.bucket)):
            self.problems.append("a file has an erased document after the repair")
        begun = {document for name in REQUESTS for document in REQUESTS[name]}
        if {name for unit in range(UNITS) for name in documents_of(unit)} - begun - documents:
            self.problems.append("a document that was not erased is gone")

    def _diverge(self) -> None:
        """Claims of a copy, in which another request came next, are laid over those of the store: it is refused."""
        copy = self.backups[0].copy()
        run(copy, self._eraser(self.rng.choice([*REQUESTS])))
        try:
            for name in REQUESTS:
                run(self.bucket, self._eraser(name))
        except RefusedError as error:
            self.problems.append(f"a dead end: {error}")
            return
        if self.bucket["changes/1"] == copy["changes/1"]:
            return
        self.bucket["changes/1"] = copy["changes/1"]
        try:
            run(self.bucket, self.chain.read())
        except RefusedError:
            return
        self.problems.append("a claim of another history was accepted")


def problems(mode: str, seed: int, weakness: str = "") -> list[str]:
    """The problems of one trial."""
    return Trial(mode, Chain(weakness), random.Random(f"{mode}/{seed}")).run()
