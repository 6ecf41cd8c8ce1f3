"""Kill a command that changes a complete store (`erase`), and check what readers find after each kill.

Shared by the tests and scripts/erase_soak.py.
"""

from __future__ import annotations

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.support import remote_runs
from tests.support.remote_runs import NOT_COMPARED
from tests.support.servers.seaweed import S3Server
from tokenmill.errors import IncompleteStore
from tokenmill.storage import folder_at
from tokenmill.store.chain import claim_file, read_head
from tokenmill.store.reader import Store

Files = dict[str, bytes]
POLL_SECONDS = 0.005
MAX_KILLS = 3
"""Kills of one copy, before the command is left alone."""

AFTER_THE_CLAIM = 0.7
"""The fraction of kills that wait for the claim first: only then readers refuse the store."""


@dataclass(frozen=True)
class Place:
    """A directory, or a bucket of a server, with copies of a store."""

    root: str
    server: S3Server | None = None

    def path(self, name: str) -> str:
        """The address of a copy."""
        return f"{self.root}/{name}"

    def write(self, name: str, files: Files) -> str:
        """Write a copy; return its address."""
        store = None if self.server is None else self.server.store(self.path(name))
        for file, data in files.items():
            if store is not None:
                store.put(file, data)
            else:
                path = Path(self.path(name), file)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        return self.path(name)

    def read(self, name: str) -> Files:
        """All files of a copy."""
        if self.server is not None:
            return self.server.objects(self.path(name))
        root = Path(self.path(name))
        return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}

    def remove(self, name: str) -> None:
        """Remove a copy."""
        if self.server is None:
            shutil.rmtree(self.path(name))
        else:
            store = self.server.store(self.path(name))
            store.delete(list(self.server.objects(self.path(name))))

    def result(self, name: str) -> Files:
        """The files that make up the result, without the times and the addresses in them."""
        root = self.path(name).encode()
        files = {file: data for file, data in self.read(name).items() if not NOT_COMPARED.fullmatch(file)}
        kept = {file: data for file, data in files.items() if "/manifests/" not in file}  # with the hash of a claim
        return {file: re.sub(rb'"time": ?"[^"]*"', b"", data.replace(root, b"")) for file, data in kept.items()}


@dataclass
class ChangeKills:
    """Copies of one store are changed by a command that is killed again and again.

    `command` gives the arguments for a copy at an address. `states` counts what readers found after the kills.
    """

    place: Place
    files: Files
    command: Callable[[str], Sequence[object]]
    rng: random.Random
    states: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    copies: int = 0

    def run_undisturbed(self) -> None:
        """Change a copy without a kill. All others are compared with it."""
        self._tokens = [self._read(self.place.write("undisturbed", self.files))]
        process = remote_runs.start(*self.command(self.place.path("undisturbed")))
        started, marked = time.monotonic(), None
        folder = folder_at(self.place.path("undisturbed"))
        while process.poll() is None:
            if marked is None and folder.exists(claim_file(1)):
                marked = time.monotonic()
            time.sleep(POLL_SECONDS)
        ended = remote_runs.end(process)
        assert ended.code == 0, ended.err
        assert marked is not None, "the claim was not seen"
        self._seconds, self._claimed_seconds = time.monotonic() - started, time.monotonic() - marked
        self._tokens.append(self._read(self.place.path("undisturbed")))
        self._after = self.place.result("undisturbed")

    def kill(self, kills: int) -> int:
        """Kill the command on a new copy, several times at most, then finish; return how often it was killed."""
        self.copies += 1
        name = f"copy-{self.copies}"
        root = self.place.write(name, self.files)
        wanted = min(kills, self.rng.randint(1, MAX_KILLS))
        count = 0
        while count < wanted and self._killed(root):
            count += 1
            self.states[self._check(root)] += 1
        ended = remote_runs.tokenmill(*self.command(root))
        if ended.code:
            self.problems.append(f"{root}: the same command failed: {ended.err}")
            return count
        found = self.place.result(name)
        different = [file for file in sorted({*found, *self._after}) if found.get(file) != self._after.get(file)]
        if different:
            self.problems.append(f"{root}: these files are not those of an undisturbed run: {different}")
            return count
        self.place.remove(name)
        return count

    def _killed(self, root: str) -> bool:
        """Start the command and kill it at a random moment; False if it ended before."""
        process = remote_runs.start(*self.command(root))
        folder = folder_at(root)
        if self.rng.random() < AFTER_THE_CLAIM:
            while process.poll() is None and not folder.exists(claim_file(1)):
                time.sleep(POLL_SECONDS)
            time.sleep(self.rng.uniform(0, self._claimed_seconds))
        else:
            time.sleep(self.rng.uniform(0, self._seconds))
        is_running = process.poll() is None
        if self.rng.random() < 0.5:
            process.kill()  # the workers end by themselves
        remote_runs.kill(process)
        return is_running

    def _check(self, root: str) -> str:
        """What readers find: the store before, the store after, or a refusal that names the command."""
        head = read_head(folder_at(root))
        if head.is_done:
            tokens = self._read(root)
            versions = [number for number, known in enumerate(self._tokens) if np.array_equal(tokens, known)]
            if not versions:
                self.problems.append(f"{root}: readers find neither the store before nor the one after")
            return "new" if head.number else "old"
        try:
            Store(root)
        except IncompleteStore as error:
            if f"tokenmill {self.command(root)[0]} {root}" not in str(error):
                self.problems.append(f"{root}: the refusal does not name the command: {error}")
        else:
            self.problems.append(f"{root}: a store whose change is not done can be read")
        return "refused"

    def _read(self, root: str) -> np.ndarray:
        store = Store(root)
        return np.concatenate([np.empty(0, np.uint32), *store])
