"""Run `tokenmill prepare` again and again while everything around it fails, and check that nothing is lost or silent.

    python -m scripts.soak --minutes 30 [--seed S] [--keep]
    python -m scripts.soak --replay RUN SEED

Every run has a seed of its own and is one of five kinds, which take turns:

- storm: a random corpus and random options; an undisturbed run; then the same command in another directory, again and
  again, while its processes are signalled at random moments, its disk is full or read-only, its reads and writes fail
  or fall short, its memory is too small, its clock jumps, and a second command wants the same directory;
- poisoned: the same with documents that kill, hang or bloat whoever tokenizes them;
- changing: a source changes, shrinks, vanishes or is replaced in mid-run, or lacks the column;
- tampered: between two calls parts are deleted, swapped, cut off, flipped or replaced by another store's, `run.json` is
  gone, sources are moved or touched, the version of a library changes; or the fast engine gives wrong tokens;
- damaged: a directory of small files, most of them damaged.

In the end every file has to be that of the undisturbed run, byte for byte, and every document has to be in the store
once, with the tokens of the reference library, or in quarantine; a damaged file is named, or read as other readers read
it. A command may fail only with a message that names the fault. Anything else is a finding: LOST, DUPLICATED, INVENTED,
DIFFERENT, SILENT (something is wrong and nobody says so), HUNG, TRACEBACK, CRASHED, LEFTOVERS (processes or temporary
files), UNNAMED (a failure without its cause), UNEXPECTED (an exit code without a reason), STUCK (it fails although all
is well again), QUARANTINE (not exactly the poisoned), FALSE ALARM (something sound is refused).

A finding is printed with the kind and seed of its run, which `--replay` does once more: with the same files, options
and faults, though not at the same microseconds. Its directory is kept. What a machine does not allow is skipped and
said: small disks need root, failing calls a C compiler, small memory a cgroup. Stop it with Ctrl-C or SIGTERM: it says
what it has so far. Exit code 1 if there was a finding.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from tests.support.soaking import disks, shims
from tests.support.soaking.changing import Changing
from tests.support.soaking.damaged import Batch, Driver
from tests.support.soaking.storms import POISONS, Storm, folder_of
from tests.support.soaking.tally import Tally
from tests.support.soaking.tampering import Tampering

TURNS = (*("storm", "tampered", "storm", "damaged", "tampered") * 3, "changing", "poisoned")
PROGRESS_SECONDS = 30.0
MAX_TOLD = 1500
"""How many characters of a finding are shown."""


class Soak:
    """The runs, and what they have come to."""

    def __init__(self, folder: Path, keep: bool) -> None:
        self.folder = folder
        self.keep = keep
        self.tally = Tally()
        self.driver = Driver()
        self._told = 0

    def run(self, kind: str, seed: int) -> None:
        """One run; what it finds is told at once."""
        with folder_of(self.folder, f"{kind}-{seed}", self.tally, self.keep) as folder:
            if kind == "storm":
                Storm(seed, folder, self.tally).run()
            elif kind == "poisoned":
                Storm(seed, folder, self.tally, tuple(random.Random(seed).sample(POISONS, 2))).run()
            elif kind == "changing":
                Changing(seed, folder, self.tally).run()
            elif kind == "tampered":
                Tampering(seed, folder, self.tally).run()
            else:
                Batch(seed, folder, self.tally, self.driver).run()
        self.tally.add("kinds of run", kind)
        for finding in self.tally.findings[self._told :]:
            print(f"{finding.verdict}: {finding.run}\n{textwrap.indent(finding.told[-MAX_TOLD:], '    ')}", flush=True)
        self._told = len(self.tally.findings)

    def go_on(self, minutes: float, seed: int) -> None:
        """Runs, one after the other, until the time is up."""
        rng, started = random.Random(seed), time.monotonic()
        told, number = started, 0
        while time.monotonic() - started < minutes * 60:
            self.run(TURNS[number % len(TURNS)], rng.randrange(1 << 32))
            number += 1
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print(self._progress(told - started), flush=True)

    def _progress(self, seconds: float) -> str:
        tally = self.tally
        groups = ("runs", "kills", "disk full", "corrupted inputs")
        counts = ", ".join(f"{tally.total(group):,} {group}" for group in groups)
        return f"{seconds / 60:6.1f} min  {counts}, {len(tally.findings):,} findings"


def note_what_is_skipped(tally: Tally) -> None:
    """What cannot be done on this machine."""
    if not disks.available():
        tally.skipped.add("full and read-only disks: no file system may be mounted here")
    if shims.library() is None:
        tally.skipped.add("failing calls and clock jumps: no library can be built and preloaded here")


def main() -> int:
    """Read the options, soak, and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--keep", action="store_true", help="keep every directory, not only those with a finding")
    parser.add_argument("--replay", nargs=2, metavar=("RUN", "SEED"), help="do one run again, such as: storm 123")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-soak-"))
    soak = Soak(folder, options.keep or bool(options.replay))
    note_what_is_skipped(soak.tally)
    print(f"seed {options.seed}, in {folder}", flush=True)
    try:
        if options.replay:
            soak.run(options.replay[0], int(options.replay[1]))
        else:
            soak.go_on(options.minutes, options.seed)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    finally:
        soak.driver.close()
    print(soak.tally.table())
    if not any(folder.iterdir()):
        shutil.rmtree(folder)
    return 1 if soak.tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
