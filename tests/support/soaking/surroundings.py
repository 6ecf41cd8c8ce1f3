"""What surrounds a command before it starts: a disk, memory, failing calls, a lock."""

from __future__ import annotations

import contextlib
import random
import signal
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import dying
from tests.support.soaking import disks, shims
from tests.support.soaking.judging import DEATH, Faults
from tests.support.soaking.tally import Tally

NO_SUCH_PROCESS = 4194303


@dataclass
class Surroundings:
    """Where a command works: its disk, if it has a small one, and how much of it the command needs."""

    rng: random.Random
    tally: Tally
    out: Path
    corpus: Path
    disk: disks.Disk | None
    needed_bytes: int
    needed_files: int
    spoils_memory: bool

    def spoil(
        self, environment: dict[str, str], faults: Faults, stack: contextlib.ExitStack
    ) -> tuple[dict[str, str], Path | None]:
        """Some faults, which end with the stack: the environment and the cgroup that the command starts with."""
        rng = self.rng
        self._spoil_disk(faults, stack)
        if rng.random() < 0.3 and shims.library():
            environment = {**environment, **self._shim(faults)}
        if rng.random() < 0.04 and disks.available():
            environment = {**environment, "TMPDIR": self._full_folder(faults, stack)}
        if rng.random() < 0.05 and self.out.is_dir():
            (self.out / ".lock").write_text(f"{NO_SUCH_PROCESS}\n")
            self.tally.add("surroundings", "stale lock")
        small = self.spoils_memory and rng.random() < 0.06
        return environment, self._small_memory(faults, stack) if small else None

    def _spoil_disk(self, faults: Faults, stack: contextlib.ExitStack) -> None:
        rng = self.rng
        if self.disk is None:
            return
        if rng.random() < 0.55:
            files = rng.randint(1, self.needed_files + 10) if rng.random() < 0.2 else 0
            self.disk.resize(int(rng.uniform(0, 1.05) * self.needed_bytes), files)
            stack.callback(self.disk.resize, disks.AMPLE_BYTES)
            faults.allow("No space left on device|the disk is too small", 75)
        elif rng.random() < 0.05 and self.disk.read_only(is_so=True):
            stack.callback(self.disk.read_only, is_so=False)
            faults.allow("Read-only file system", 1)
            self.tally.add("surroundings", "read-only --out")

    def _shim(self, faults: Faults) -> dict[str, str]:
        shim = shims.at_random(self.rng, self.out, self.corpus)
        self.tally.add("failing calls", shim.name)
        if shim.reason:
            faults.allow(shim.reason, 1, 75)
        return shim.environment()

    def _full_folder(self, faults: Faults, stack: contextlib.ExitStack) -> str:
        """A directory in which there is no room for temporary files."""
        full = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tmp"
        stack.enter_context(disks.small_disk(full, disks.PAGE_BYTES))
        (full / "filled").write_bytes(bytes(disks.PAGE_BYTES))
        faults.allow("No space left on device", 75)
        self.tally.add("surroundings", "full TMPDIR")
        return str(full)

    def _small_memory(self, faults: Faults, stack: contextlib.ExitStack) -> Path | None:
        try:
            cgroup = stack.enter_context(dying.memory_cgroup(self.rng.randint(60, 400) << 20))
        except pytest.skip.Exception as reason:
            self.tally.skipped.add(f"small memory: {reason}")
            return None
        faults.allow(f"{DEATH}|memory", 1, 75, -signal.SIGKILL)
        self.tally.add("surroundings", "memory cgroup too small")
        return cgroup
