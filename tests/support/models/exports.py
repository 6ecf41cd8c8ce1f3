"""How a file of an export follows the stores it was made from: record first, file after.

The file has a fixed name, because trainers open it. Its records are numbered and created if absent: each has the number
of changes of each store, and the hash of the file. A weakness changes one rule.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.models.bucket import (
    Bucket,
    Process,
    Race,
    RefusedError,
    Steps,
    create,
    digest,
    encode,
    get,
    names,
    replace,
    run,
)

DOCUMENTS = [f"{store}{number}" for store in "AB" for number in range(4)]
CHANGES = {"A": [{"A1"}, {"A1", "A3"}], "B": [{"B0"}, {"B2"}]}
"""What each change of a store erases."""

FILE = "file"
ATTEMPTS = 80
KILLED, BACKED_UP = 0.02, 0.1
WEAKNESSES = {
    "file first": "the file is changed before its record",
    "one record": "the record is replaced and has no number",
    "newest version": "a record takes over the goal of its process only, and forgets what other stores had",
}
Versions = dict[str, int]


def without_erased(documents: list[str | None], versions: Versions) -> list[str | None]:
    """The file after these changes of its stores. It follows from any earlier one in the same way."""
    erased = {document for store, count in versions.items() for change in CHANGES[store][:count] for document in change}
    return [None if document in erased else document for document in documents]


def new_export() -> Bucket:
    """An export of two stores that were never changed."""
    file = encode(DOCUMENTS)
    return Bucket({FILE: file, "record/0": encode({"versions": {"A": 0, "B": 0}, "hash": digest(file)})})


def converge(goal: Versions, weakness: str = "") -> Steps[None]:
    """Bring the file to at least these versions. Raises RefusedError if it is damaged."""
    for _ in range(ATTEMPTS):
        number = yield from _last()
        record = json.loads((yield from get(f"record/{number}")) or b"{}")
        documents = json.loads((yield from get(FILE)) or b"[]")
        if digest(encode(documents)) != record["hash"]:
            yield from _repair(number, record, documents)
            continue
        versions = {store: max(record["versions"][store], goal.get(store, 0)) for store in CHANGES}
        if weakness == "newest version":
            versions = {store: goal.get(store, 0) for store in CHANGES}
        if versions == record["versions"]:
            return
        file = encode(without_erased(documents, versions))
        if weakness == "file first":
            yield from replace(FILE, file)
        write, next_number = (replace, 0) if weakness == "one record" else (create, number + 1)
        yield from write(f"record/{next_number}", encode({"versions": versions, "hash": digest(file)}))
    raise RefusedError("the export changes too often")


def _repair(number: int, record: dict[str, Any], documents: list[str | None]) -> Steps[None]:
    """Make the file agree with its record, unless another process went on."""
    file = encode(without_erased(documents, record["versions"]))
    if digest(file) == record["hash"]:
        yield from replace(FILE, file)
    elif (yield from _last()) == number:
        raise RefusedError("the file is damaged")


def _last() -> Steps[int]:
    listed = yield from names("record/")
    return max(int(name.removeprefix("record/")) for name in listed)


@dataclass
class Trial:
    """Rounds of races and restores in one export, and what was not as promised."""

    rng: random.Random
    weakness: str = ""
    is_restored: bool = True
    bucket: Bucket = field(default_factory=new_export)
    problems: list[str] = field(default_factory=list)

    def run(self) -> list[str]:
        """Run the rounds, and converge at last; return the problems."""
        heads, backups = dict.fromkeys(CHANGES, 0), [self.bucket.copy()]
        for _ in range(self.rng.randint(1, 4)):
            race = Race(self.bucket, self.rng, KILLED, BACKED_UP, lambda: backups.append(self.bucket.copy()))
            race.run([self._process(heads) for _ in range(self.rng.randint(1, 3))])
            self.problems += [f"refused in a race: {one.error}" for one in race.ended if one.error is not None]
            if self.is_restored:
                backup = self.rng.choice(backups)
                self.bucket.update({name: data for name, data in backup.items() if self.rng.random() < 0.5})
        try:
            run(self.bucket, converge(heads, self.weakness))
        except RefusedError as error:
            self.problems.append(f"a dead end: {error}")
        else:
            if json.loads(self.bucket[FILE]) != without_erased(list(DOCUMENTS), heads):
                self.problems.append("the file is not that of its stores")
        return self.problems

    def _process(self, heads: Versions) -> Process:
        """A process that has erased in a store, or repeats it."""
        store = self.rng.choice([*CHANGES])
        heads[store] = min(len(CHANGES[store]), heads[store] + self.rng.randint(0, 1))
        pause = self.rng.choice([0] * 6 + list(range(12)))
        return Process(store, converge({store: heads[store]}, self.weakness), pause)


def problems(seed: int, weakness: str = "", *, is_restored: bool = True) -> list[str]:
    """The problems of one trial."""
    return Trial(random.Random(f"exports/{seed}"), weakness, is_restored).run()
