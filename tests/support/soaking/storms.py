"""One run under a storm of faults: killed, out of space, unable to read or write; then finished, and judged."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import poison
from tests.support.soaking import corpora, disks, models
from tests.support.soaking.commands import Running, a_job, leftovers, result_files
from tests.support.soaking.judging import BUG, Faults, judge
from tests.support.soaking.kills import hurt
from tests.support.soaking.surroundings import Surroundings
from tests.support.soaking.tally import Tally

EXPORT_MANIFEST = ".tokenmill/manifests/00000000.parquet"

POISON = "POISON:"
POISONS = ("POISON:SEGFAULT", "POISON:HANG", "POISON:ALLOCATE", "POISON:ABORT")
POISON_OPTIONS = ("--document-timeout", "3")


@dataclass
class Storm:
    """A seeded run: its corpus, its command, the directory it is done in."""

    seed: int
    folder: Path
    tally: Tally
    poisons: tuple[str, ...] = ()
    rng: random.Random = field(init=False)
    seconds: float = 1.0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.name = f"{'poisoned' if self.poisons else 'storm'} {self.seed}"
        self.environment = {"TMPDIR": str(self.folder)}

    def run(self) -> None:
        """Do it all."""
        sizes = corpora.SIZES[:-1] if self.poisons else corpora.SIZES
        corpus = corpora.make(self.rng, self.folder / "corpus", sizes, self.poisons)
        self.job = a_job(self.rng, corpus, *(POISON_OPTIONS if self.poisons else ()))
        if self.poisons:
            self.environment["PYTHONPATH"] = poison.environment(self.folder / "poison")["PYTHONPATH"]
        if not self._take_reference():
            return
        with contextlib.ExitStack() as stack:
            self._settle(stack)
            for _ in range(self.rng.randint(5, 12)):
                if self._attempt() == 0 and self.rng.random() < 0.3:
                    break
            self._finish()

    def _settle(self, stack: contextlib.ExitStack) -> None:
        """Find a place for the store: mostly on a small disk."""
        base, disk = self.folder / "trial", None
        if disks.available() and self.rng.random() < 0.7:
            disk = stack.enter_context(disks.small_disk(base, disks.AMPLE_BYTES))
        else:
            base.mkdir()
        self.out = base / "store"
        pages = sum(-(-len(data) // disks.PAGE_BYTES) for data in self.reference.values())
        self.surroundings = Surroundings(
            rng=self.rng,
            tally=self.tally,
            out=self.out,
            corpus=self.job.corpus.directory,
            disk=disk,
            needed_bytes=pages * disks.PAGE_BYTES,
            needed_files=len(self.reference),
            spoils_memory=not self.poisons,  # in too little memory it cannot be told who took too much
        )

    def _take_reference(self) -> bool:
        out = self.folder / "reference"
        started = time.monotonic()
        ending = self.job.finish(out, self.environment)
        self.seconds = time.monotonic() - started
        self.tally.add("runs", "undisturbed")
        if ending.exit_code != 0:
            self._find("TRACEBACK" if BUG.search(ending.stderr) else "FAILED", f"undisturbed: {ending}")
            return False
        self.reference = result_files(out)
        wanted = self._wanted()
        self.tally.add("documents", "compared with the model", len(wanted))
        for verdict, told in models.differences(wanted, out):
            self._find(verdict, f"undisturbed: {told}")
        self._check_quarantine(out)
        shutil.rmtree(out)
        return True

    def _wanted(self) -> dict[models.Place, list[int]]:
        """The documents that the store has to hold: all but the poisoned."""
        bad = self.job.corpus.bad(POISON)
        sound = {
            name: [(row, text) for row, text in rows if (name, row) not in bad]
            for name, rows in self.job.corpus.rows.items()
        }
        return models.expected(sound, self.job.tokenizer)

    def _check_quarantine(self, out: Path) -> None:
        """Exactly the poisoned documents, and what is no text, are in quarantine."""
        wanted = self.job.corpus.bad(POISON)
        found = [(name, row) for name, bad in models.quarantined(out).items() for row in bad]
        self.tally.add("documents", "quarantined", len(found))
        if len(found) != len(wanted) or set(found) != wanted:
            strange, missing = set(found) - wanted, wanted - set(found)
            self._find("QUARANTINE", f"in quarantine without a reason {strange}, missing there {missing}")

    def _attempt(self) -> int | None:
        """The command once more, under some faults."""
        faults = Faults()
        self.tally.add("runs", "disturbed")
        with contextlib.ExitStack() as stack:
            environment, cgroup = self.surroundings.spoil(self.environment, faults, stack)
            run = self.job.start(self.out, environment, cgroup)
            stack.callback(run.stop)
            rival = self._rival(faults, stack)
            # What crashes a worker twice from outside while a document is tried alone cannot be told from the document.
            hurt(run, self.rng, self.seconds, faults, self.tally, crashes=not self.poisons)
            endings = [run.end(), *([rival.end()] if rival is not None else [])]
        for ending in endings:
            for verdict, told in judge(ending, faults, self.tally):
                self._find(verdict, told)
        self._check_promises()
        return endings[0].exit_code

    def _rival(self, faults: Faults, stack: contextlib.ExitStack) -> Running | None:
        """Another command that wants the same directory at the same time."""
        if self.rng.random() > 0.08:
            return None
        time.sleep(self.rng.uniform(0, self.seconds))
        faults.allow("another run is writing", 75)
        self.tally.add("surroundings", "two runs at once")
        rival = self.job.start(self.out, self.environment)
        stack.callback(rival.stop)
        return rival

    def _check_promises(self) -> None:
        """A run that is not complete must not look complete, and what looks complete is."""
        there = {}
        with contextlib.suppress(OSError):
            there = result_files(self.out)
        for manifest in (name for name in there if name.endswith(("manifest.parquet", EXPORT_MANIFEST))):
            prefix = manifest.removesuffix(EXPORT_MANIFEST).removesuffix("manifest.parquet")
            wanted = self._files_of(prefix)
            bad = [name for name in wanted if there.get(name) != self.reference[name]]
            if bad:
                self._find("SILENT", f"{manifest} is there, and {bad[:5]} are not as they should be")

    def _files_of(self, prefix: str) -> list[str]:
        others = {name.partition("/")[0] for name in self.reference if "/.tokenmill/" in name}
        return [
            name
            for name in self.reference
            if (name.startswith(prefix) if prefix else name.partition("/")[0] not in others)
        ]

    def _finish(self) -> None:
        """The command in peace: it has to end well, with the bytes of the reference."""
        ending = self.job.finish(self.out, self.environment)
        self.tally.add("runs", "finished")
        if ending.exit_code != 0:
            self._find("TRACEBACK" if BUG.search(ending.stderr) else "STUCK", f"in peace: {ending}")
            return
        result = result_files(self.out)
        names = sorted(
            name for name in result.keys() | self.reference.keys() if result.get(name) != self.reference.get(name)
        )
        if names:
            self._find("DIFFERENT", f"not the bytes of the undisturbed run: {names[:5]}")
            for verdict, told in models.differences(self._wanted(), self.out):
                self._find(verdict, told)
        left = leftovers(self.out)
        left += [name for name in os.listdir(self.folder) if name not in {"corpus", "trial", "poison"}]
        if left:
            self._find("LEFTOVERS", f"files {left[:5]}")

    def _find(self, verdict: str, told: str) -> None:
        self.tally.find(verdict, self.name, f"{told}\n    {' '.join(self.job.command(Path('OUT')))}")


@contextlib.contextmanager
def folder_of(parent: Path, name: str, tally: Tally, keep: bool) -> Iterator[Path]:
    """A directory for one run, which is kept if it found something."""
    folder = parent / name
    folder.mkdir()
    before = len(tally.findings)
    try:
        yield folder
    finally:
        if not keep and len(tally.findings) == before:
            shutil.rmtree(folder)
