"""Sources that change, shrink, vanish or are replaced while they are read, or lack the column in one file."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.soaking import corpora
from tests.support.soaking.commands import Ending, a_job, leftovers, result_files, tokens_in, tokens_of
from tests.support.soaking.tally import Tally

CHANGES = ("appended to", "cut off", "removed", "replaced", "overwritten", "touched")


def change(rng: random.Random, path: Path, how: str) -> None:
    """Do something to a file that its reader does not expect."""
    data = path.read_bytes()
    if how == "appended to":
        with open(path, "ab") as file:
            file.write(b'{"text": "more"}\n')
    elif how == "cut off":
        os.truncate(path, rng.randrange(len(data)) if data else 0)
    elif how == "removed":
        path.unlink()
    elif how == "replaced":
        other = path.with_name(f".{path.name}.new")
        other.write_bytes(rng.randbytes(len(data)) + b"x")
        other.replace(path)
    elif how == "overwritten":
        with open(path, "r+b") as file:
            file.write(data.swapcase() + b"x")
    if how == "touched":
        os.utime(path)


@dataclass
class Changing:
    """A seeded run whose sources do not stay as they were, then do."""

    seed: int
    folder: Path
    tally: Tally
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.name = f"changing {self.seed}"

    def run(self) -> None:
        """An undisturbed run, one whose sources change, one that has to be refused, and one that has to end well."""
        self.corpus = corpora.make(self.rng, self.folder / "corpus", (400_000, 2_200_000))
        self.job = a_job(self.rng, self.corpus)
        reference = self.job.finish(self.folder / "reference")
        self.tally.add("runs", "undisturbed")
        if reference.exit_code != 0:
            self.tally.find("FAILED", self.name, f"undisturbed: {reference}")
            return
        self.reference = result_files(self.folder / "reference")
        if self.rng.random() < 0.2:
            self._lack_a_column()
        else:
            self._change()

    def _change(self) -> None:
        out, how = self.folder / "store", self.rng.choice(CHANGES)
        victim = self.corpus.directory / self.rng.choice(sorted(self.corpus.rows))
        kept, status = victim.read_bytes(), victim.stat()
        if how == "cut off" and not kept:  # an empty file stays as it is
            how = "touched"
        run = self.job.start(out)
        try:
            while run.going and not (out / "run.json").exists():
                time.sleep(0.001)
            run.until(time.monotonic() - run.started + self.rng.choice([0, 0, 0.05, 0.2]) * self.rng.random())
            change(self.rng, victim, how)
            self.tally.add("sources", how)
            ending = run.end()
        finally:
            run.stop()
        self._judge(ending, victim, how, self._complete(out))
        adopted = self._judge_changed(self.job.finish(out), out, victim, how)
        victim.write_bytes(kept)
        os.utime(victim, ns=(status.st_atime_ns, status.st_mtime_ns))
        ending = self.job.finish(out)
        self.tally.add("runs", "finished")
        if adopted and how != "touched":  # it is complete with what the source held then
            if ending.exit_code == 0:
                self._find("SILENT", f"a complete store took a source that was {how} and restored")
        elif ending.exit_code != 0:
            self._find("STUCK", f"restored after it was {how}: {ending}")
        elif tokens_of(out) != tokens_in(self.reference):
            self._find("DIFFERENT", f"restored after it was {how}: not the bytes of the undisturbed run")
        if left := leftovers(out):
            self._find("LEFTOVERS", f"files {left[:5]}")

    def _judge_changed(self, ending: Ending, out: Path, victim: Path, how: str) -> bool:
        """A source that changed is refused, or its units are done again and the store is that of the sources now."""
        if ending.exit_code != 0:
            self._judge(ending, victim, f"{how} before", False)
            return False
        self.tally.add("runs", "disturbed")
        fresh = self.job.finish(self.folder / "fresh")
        if fresh.exit_code != 0:
            self._find("SILENT", f"{victim.name} {how} before: exit code 0, where a new run fails: {fresh}")
        elif tokens_of(out) != tokens_of(self.folder / "fresh"):
            self._find("DIFFERENT", f"{victim.name} {how} before: not the store of the sources as they are now")
        elif how != "touched" and victim.name not in ending.stderr:
            self._find("UNNAMED", f"{victim.name} {how} before, and its name is missing: {ending.stderr[-1000:]}")
        return True

    def _complete(self, out: Path) -> bool:
        """Whether the store is there, and what the sources gave before they changed."""
        return (out / "manifest.parquet").exists() and tokens_of(out) == tokens_in(self.reference)

    def _judge(self, ending: Ending, victim: Path, how: str, may_be_done: bool) -> None:
        told = ending.stderr[-2000:]
        self.tally.add("runs", "disturbed")
        if ending.left_behind:
            self._find("LEFTOVERS", f"processes {ending.left_behind}")
        if ending.exit_code is None:
            self._find("HUNG", f"{victim.name} {how}: {told}")
        elif "This is a bug" in told or "Traceback" in told:
            self._find("TRACEBACK", f"{victim.name} {how}: {told}")
        elif ending.exit_code == 0 and not may_be_done:
            self._find("SILENT", f"{victim.name} {how}, and nothing is said")
        elif ending.exit_code != 0 and victim.name not in told and "no source in" not in told:  # it was the only one
            self._find("UNNAMED", f"{victim.name} {how}: {ending.exit_code} {told}")

    def _lack_a_column(self) -> None:
        self.tally.add("sources", "without the column")
        victim = self.corpus.directory / self.rng.choice(["00.parquet", "99.arrow", "00.jsonl", "99.jsonl"])
        table = pa.table({"txt": ["some"] * 50})
        if victim.suffix == ".parquet":
            pq.write_table(table, victim)
        elif victim.suffix == ".arrow":
            with pa.ipc.new_file(victim, table.schema) as writer:
                writer.write_table(table)
        else:
            victim.write_text("".join(json.dumps({"txt": "some"}) + "\n" for _ in range(50)))
        self._judge(self.job.finish(self.folder / "lacking"), victim, "without the column", False)
        victim.unlink()
        shutil.rmtree(self.folder / "lacking", ignore_errors=True)

    def _find(self, verdict: str, told: str) -> None:
        self.tally.find(verdict, self.name, f"{told}\n    {' '.join(self.job.command(Path('OUT')))}")
