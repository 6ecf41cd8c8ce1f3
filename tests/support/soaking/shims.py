"""The preloaded library that makes calls fail: built where there is a compiler."""

from __future__ import annotations

import atexit
import errno
import functools
import os
import random
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
ERRORS = (errno.EIO, errno.EDQUOT, errno.ESTALE, errno.ENOSPC)


@functools.cache
def library() -> str | None:
    """The built library, or None where it cannot be built or does not work."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        return None
    folder = tempfile.mkdtemp(prefix="tokenmill-shim-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(file), str(SOURCE), "-ldl"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    return str(file) if _works(str(file)) else None


def _works(built: str) -> bool:
    environment = {**os.environ, "LD_PRELOAD": built, "FAULT_CLOCK": str(-(10**9))}
    command = [sys.executable, "-c", "import time; print(time.time() < 1.5e9)"]
    return subprocess.run(command, capture_output=True, env=environment, check=False).stdout.strip() == b"True"


@dataclass(frozen=True)
class Shim:
    """Which calls fail, and how."""

    path: str
    calls: str
    after: int = 0
    times: int = 1
    code: int = errno.EIO
    clock_seconds: int = 0

    def environment(self) -> dict[str, str]:
        """The variables that a command has to be started with."""
        built = library()
        assert built is not None, "there is no library to preload"
        return {
            "LD_PRELOAD": built,
            "FAULT_PATH": self.path,
            "FAULT_CALLS": self.calls,
            "FAULT_AFTER": str(self.after),
            "FAULT_TIMES": str(self.times),
            "FAULT_ERRNO": str(self.code),
            **({"FAULT_CLOCK": str(self.clock_seconds)} if self.clock_seconds else {}),
        }

    @property
    def name(self) -> str:
        """What it is called in the tally."""
        if not self.calls:
            return "clock jump"
        return "short reads and writes" if not self.code else f"{errno.errorcode[self.code]} on {self.calls}"

    @property
    def reason(self) -> str | None:
        """The words by which a message has to name it; None if there is nothing to tell."""
        return os.strerror(self.code) if self.calls and self.code else None


def at_random(rng: random.Random, out: Path, corpus: Path) -> Shim:
    """Some fault of reading or writing, or a clock that jumps."""
    kind = rng.random()
    if kind < 0.2:
        return Shim("", "", clock_seconds=rng.choice([-1, 1]) * rng.choice([3, 4000, 10**8]))
    if kind < 0.4:
        return Shim(rng.choice([str(out), str(corpus), "/"]), "rw", rng.randint(0, 30), 10**6, 0)
    times = rng.choice([1, 1, 3, 10**6])
    if kind < 0.6:
        return Shim(str(corpus), rng.choice("ro"), rng.choice([0, 1, 2, 5, 20]), times, rng.choice(ERRORS[:3]))
    return Shim(str(out), rng.choice("rwwssno"), rng.choice([0, 1, 2, 3, 5, 9, 20, 50]), times, rng.choice(ERRORS))
