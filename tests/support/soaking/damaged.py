"""Directories of small files, many of them damaged: each has to be named, or read as any other reader reads it."""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.damage import damage
from tests.support.soaking import corpora, models
from tests.support.soaking.commands import HANG_SECONDS
from tests.support.soaking.tally import Tally

HERE = Path(__file__).parent
FILES = 16


class Driver:
    """The process that prepares; a new one when it has died or hangs."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def prepare(self, **words: Any) -> dict[str, Any]:
        """What came of it; a driver that died or hung is an answer too."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words).encode() + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], HANG_SECONDS)
        line = process.stdout.readline() if ready else b""
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.close()
        return {
            "error": f"exit code {process.returncode}" if ready else "no answer",
            "crashed" if ready else "hung": True,
        }

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "damage_driver.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process


def plain_rows(folder: Path, files: Iterable[Path], separator: str | None) -> dict[str, dict[str, Any]]:
    """What the plain reader finds, by the name of the file."""
    out = folder / f"plain-{time.monotonic_ns()}.jsonl"
    command = [sys.executable, str(HERE / "plain_reader.py"), separator or "", str(out), *map(str, files)]
    subprocess.run(command, check=True, capture_output=True)
    found = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return {os.path.basename(each["file"]): each for each in found}


@dataclass
class Batch:
    """A seeded directory of files, many of them damaged, prepared again and again without those that were named."""

    seed: int
    folder: Path
    tally: Tally
    driver: Driver
    damaged: dict[str, str] = field(default_factory=dict)
    undamaged: dict[str, corpora.Rows] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.name = f"damaged {self.seed}"
        self.separator = corpora.SEPARATOR if self.rng.random() < 0.5 else None
        self.aside = self.folder / "aside"
        self.corpus = self.folder / "corpus"

    def run(self) -> None:
        """Make the files, prepare until nothing is refused, and compare."""
        self._make()
        plain = plain_rows(self.folder, sorted(self.corpus.iterdir()), self.separator)
        unit_bytes = self.rng.choice([500, 5000, 10**6])
        for attempt in range(2 * FILES):
            out = self.folder / f"store-{attempt}"
            if not list(self.corpus.iterdir()) or self._prepared(out, unit_bytes):
                break
        else:
            self._find("STUCK", "errors do not end")
        if (out / "manifest.parquet").exists():
            self._compare(out, plain)

    def _make(self) -> None:
        rng = self.rng
        self.corpus.mkdir()
        self.aside.mkdir()
        for number in range(FILES):
            ending = rng.choice(list(corpora.WRITERS))
            path = self.corpus / f"f{number:02d}{ending}"
            texts = [corpora.a_text(rng, rng.randint(0, 300)) for _ in range(rng.randint(1, 40))]
            self.undamaged[path.name] = corpora.write(rng, path, texts, self.separator)
            if rng.random() < 0.8:
                what, data = damage(rng, path.read_bytes(), ending.lstrip("."))
                path.write_bytes(data)
                self.damaged[path.name] = what

    def _prepared(self, out: Path, unit_bytes: int) -> bool:
        """Whether the directory could be prepared; if not, the files that the error names are put aside."""
        answer = self.driver.prepare(
            sources=[str(self.corpus)],
            tokenizer=models.SMALL,
            out=str(out),
            separator=self.separator if any(".txt" in path.name for path in self.corpus.iterdir()) else None,
            unit_bytes=unit_bytes,
            workers=2,
            memory="2GB",
            max_bad=1.0,
            max_skipped=1.0,
        )
        error = answer["error"]
        if error is None:
            return True
        if answer.get("bug") or answer.get("crashed") or answer.get("hung"):
            verdict = "TRACEBACK" if answer.get("bug") else "CRASHED" if answer.get("crashed") else "HUNG"
            self._find(verdict, f"{error[-1500:]} with {self.damaged}")
            return True
        named = [path.name for path in self.corpus.iterdir() if path.name in error]
        if not named:
            self._find("UNNAMED", error)
            return True
        for name in named:
            self.tally.add("corrupted inputs", "named by an error")
            if name not in self.damaged:
                self._find("FALSE ALARM", f"{name} is sound: {error}")
            shutil.move(self.corpus / name, self.aside / name)
        return False

    def _compare(self, out: Path, plain: dict[str, dict[str, Any]]) -> None:
        quarantined = models.quarantined(out)
        self.tally.add("documents", "quarantined", sum(map(len, quarantined.values())))
        there: dict[str, dict[int, list[int]]] = {path.name: {} for path in self.corpus.iterdir()}
        for (name, row), tokens in models.found(out):
            if row in there[name]:
                self._find("DUPLICATED", f"row {row} of {name}")
            there[name][row] = tokens
        for name, documents in there.items():
            self._compare_file(name, documents, quarantined.get(name, []), plain.get(name, {"error": "not read"}))

    def _compare_file(
        self, name: str, documents: dict[int, list[int]], bad: list[int | None], plain: dict[str, Any]
    ) -> None:
        kind = f"{name.partition('.')[2]}, {self.damaged.get(name, 'sound')}"
        if "error" in plain:
            # Damage to what only other readers look at, such as pyarrow's own copy of the schema, costs no row.
            whole = documents == self._undamaged_tokens(name)
            self.tally.add("corrupted inputs", "quarantined" if bad else "read in full" if whole else "SILENT")
            if not bad and not whole:
                self._find("SILENT", f"{kind}: {name} cannot be read ({plain['error']}), and nothing is said of it")
            return
        rows = {row: text for row, text in plain["rows"] if text is not None}
        good = [row for row, text in rows.items() if text is not False]
        wanted = dict(zip(good, models.encode(models.SMALL, [rows[row] for row in good]), strict=True))
        lost = [row for row in rows if row not in documents and row not in bad]
        if None in bad:
            lost = []
        other = [row for row, tokens in documents.items() if wanted.get(row) != tokens]
        if name in self.damaged:
            self.tally.add("corrupted inputs", "quarantined" if bad else "another valid file")
        elif bad:
            self._find("FALSE ALARM", f"{name} is sound, and rows {sorted(map(str, bad))[:5]} are quarantined")
        if lost:
            self._find("LOST", f"{kind}: rows {lost[:5]} of {name}")
        if other:
            self._find("DIFFERENT", f"{kind}: rows {other[:5]} of {name}; plain {[rows.get(row) for row in other[:2]]}")

    def _undamaged_tokens(self, name: str) -> dict[int, list[int]]:
        wanted = models.expected({name: self.undamaged[name]}, models.SMALL)
        return {row: tokens for (_, row), tokens in wanted.items()}

    def _find(self, verdict: str, told: str) -> None:
        self.tally.find(verdict, self.name, told)
