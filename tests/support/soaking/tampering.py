"""Stores and sources that change between two calls, and an engine that is wrong: nothing may end wrong in silence."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.support import poison
from tests.support.small_stores import rewrite_run
from tests.support.soaking import corpora, models
from tests.support.soaking.commands import Ending, Job, a_job, leftovers, tokens_of
from tests.support.soaking.tally import Tally

CORRUPT = 3
MOVED = "sources moved"
WRONG_ENGINE = "engine is wrong"


@dataclass
class Tampering:
    """A seeded run whose store or sources are changed by somebody else, then finished."""

    seed: int
    folder: Path
    tally: Tally
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.name = f"tampered {self.seed}"
        self.out = self.folder / "store"
        self.environment: dict[str, str] = {}

    def run(self) -> None:
        """A right store, a store that is tampered with once or twice, and the same command until it has to be right."""
        moves = self._moves()
        move = self.rng.choice(sorted(moves))
        wrong = [f"WRONGTOKEN {number}" for number in range(20)] if move == WRONG_ENGINE else []
        self.corpus = corpora.make(self.rng, self.folder / "corpus", (60_000, 400_000), wrong)
        self.job = a_job(self.rng, self.corpus)
        if move == WRONG_ENGINE:
            options = ("auto" if option in ("tokenizers", "tiktoken") else option for option in self.job.options)
            self.job = Job(self.corpus, models.SMALL, tuple(options))
            self.environment = {"PYTHONPATH": poison.environment(self.folder / "poison")["PYTHONPATH"]}
        reference = self._right_store()
        if reference is None:
            return
        complete = self._begin()
        parts = sorted((self.out / "parts").glob("*.arrow"))
        if not parts or not (self.out / "run.json").exists():
            return
        self.tally.add("tampered", f"{move}, {'complete' if complete else 'unfinished'}")
        moves[move](parts)
        self._finish(reference, move)

    def _right_store(self) -> dict[str, bytes] | None:
        out = self.folder / "reference"
        options = tuple("tokenizers" if option == "auto" else option for option in self.job.options)
        slow = Job(self.corpus, self.job.tokenizer, options if self.job.tokenizer == models.SMALL else self.job.options)
        ended = slow.finish(out)
        self.tally.add("runs", "undisturbed")
        if ended.exit_code != 0:
            self._find("FAILED", f"undisturbed: {ended}")
            return None
        return tokens_of(out)

    def _begin(self) -> bool:
        """Run the command, to its end or to a kill at a random moment; whether the store is complete."""
        run = self.job.start(self.out, self.environment)
        try:
            if self.rng.random() < 0.5:
                while run.going and not (self.out / "run.json").exists():
                    time.sleep(0.001)
                run.until(time.monotonic() - run.started + self.rng.random())
                if run.going:
                    os.killpg(run.process.pid, signal.SIGKILL)
            run.end()
        finally:
            run.stop()
        return (self.out / "manifest.parquet").exists()

    def _moves(self) -> dict[str, Callable[[list[Path]], None]]:
        moves = {
            "part deleted": self._delete,
            "all parts deleted": lambda _: shutil.rmtree(self.out / "parts"),
            "parts swapped": self._swap,
            "part of another store": self._foreign,
            "part cut off": self._cut,
            "bit flipped": self._flip,
            "run.json deleted": lambda _: (self.out / "run.json").unlink(),
            "manifest deleted": lambda _: (self.out / "manifest.parquet").unlink(missing_ok=True),
            "source touched": self._touch,
            MOVED: self._move,
            "version changed": self._version,
        }
        return {**moves, WRONG_ENGINE: lambda _: None}

    def _delete(self, parts: list[Path]) -> None:
        for part in self.rng.sample(parts, self.rng.randint(1, len(parts))):
            part.unlink()

    def _swap(self, parts: list[Path]) -> None:
        if len(parts) > 1:
            one, other = self.rng.sample(parts, 2)
            kept = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(kept)

    def _foreign(self, parts: list[Path]) -> None:
        corpus = corpora.make(self.rng, self.folder / "other-corpus", (60_000, 400_000))
        other = self.folder / "other"
        Job(corpus, self.job.tokenizer, self.job.options).finish(other)
        foreign = sorted((other / "parts").glob("*.arrow"))
        part = self.rng.choice(parts)
        same = other / "parts" / part.name
        if foreign:
            shutil.copyfile(same if same.exists() else foreign[0], part)

    def _cut(self, parts: list[Path]) -> None:
        part = self.rng.choice(parts)
        os.truncate(part, self.rng.randrange(part.stat().st_size))

    def _flip(self, parts: list[Path]) -> None:
        part = self.rng.choice(parts)
        data = bytearray(part.read_bytes())
        data[self.rng.randrange(len(data))] ^= 1 << self.rng.randrange(8)
        part.write_bytes(data)

    def _touch(self, _: list[Path]) -> None:
        for name in self.corpus.rows:
            if self.rng.random() < 0.5:
                os.utime(self.corpus.directory / name)

    def _move(self, _: list[Path]) -> None:
        old, new = self.corpus.directory, self.folder / "moved"
        old.rename(new)
        self.corpus = replace(self.corpus, directory=new)
        self.job = Job(self.corpus, self.job.tokenizer, (*self.job.options, "--moved", f"{old}={new}"))

    def _version(self, _: list[Path]) -> None:
        """A run that was begun with another reference library; refused if it is not complete, and then set right."""
        path = self.out / "run.json"
        original = path.read_bytes()
        rewrite_run(self.out, lambda run: run["versions"].update(tiktoken="0.1.0", tokenizers="0.1.0"))
        complete = (self.out / "manifest.parquet").exists()
        ending = self.job.finish(self.out, self.environment)
        if not complete and ending.exit_code != 1:
            self._find("SILENT", f"another version of the reference was not refused: {ending}")
        path.write_bytes(original)

    def _finish(self, reference: dict[str, bytes], move: str) -> None:
        """The command must end well and give the right tokens; a flipped bit is found by verify, and repaired."""
        ending = self.job.finish(self.out, self.environment)
        self.tally.add("runs", "finished")
        if move == "bit flipped":
            repaired = Job(self.corpus, self.job.tokenizer, (*self.job.options, "--repair"))
            if ending.exit_code == 0 and tokens_of(self.out) != reference:
                self._expect_refusal()
            ending = repaired.finish(self.out, self.environment)
        if ending.exit_code != 0:
            self._find("STUCK", f"{move}: {ending}")
        elif move == WRONG_ENGINE and not (self.out / "engine-mismatch.json").exists():
            self.tally.add("tampered", "engine is wrong, and no audit met it")
        elif names := self._differences(reference, move):
            self._find("SILENT", f"{move}: exit code 0, and these files are wrong: {names[:5]}")
        if left := leftovers(self.out):
            self._find("LEFTOVERS", f"files {left[:5]}")

    def _differences(self, reference: dict[str, bytes], move: str) -> list[str]:
        """The files that are not those of the right store. Some exports and the quarantine name paths of sources."""
        found = tokens_of(self.out)
        names = sorted(name for name in found.keys() | reference.keys() if found.get(name) != reference.get(name))
        own = ("parts/", "manifest.parquet")
        return [name for name in names if name.startswith(own)] if move == MOVED else names

    def _expect_refusal(self) -> None:
        """`verify` finds what `prepare` does not read."""
        ending: Ending = VerifyJob(self.corpus, self.job.tokenizer, ()).finish(self.out, self.environment)
        if ending.exit_code != CORRUPT:
            self._find("SILENT", f"verify found no flipped bit: {ending}")

    def _find(self, verdict: str, told: str) -> None:
        self.tally.find(verdict, self.name, f"{told}\n    {' '.join(self.job.command(Path('OUT')))}")


class VerifyJob(Job):
    """`tokenmill verify` of a store."""

    def command(self, out: Path) -> list[str]:
        """The command that reads a directory."""
        return [*super().command(out)[:3], "verify", str(out)]
