"""Tokenize with a fast engine that gets one document in N wrong, and check that the store ends exact.

    python -m scripts.planted_bug CORPUS [--every 1000] [--copies 4] [--tries 20]

CORPUS is a directory of Parquet files with a column `text`. Each try plants the bug under another seed and runs
`tokenmill prepare`. If the audit meets a wrong document, every part that was committed before has to be corrected: the
parts are compared, byte for byte, with those of the reference engine. If it does not, the try is counted as unnoticed:
the text is too little for the share that is audited. It ends after the first noticed try. Exit code 1 if a store in
which the bug was noticed is not exact, or if no try noticed it.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import poison


def prepare(corpus: Path, out: Path, *options: str, environment: dict[str, str] | None = None) -> tuple[float, str]:
    """Run `tokenmill prepare`; the seconds that it took and what it printed to stderr."""
    command = [sys.executable, "-m", "tokenmill", "prepare", str(corpus), "--tokenizer", "gpt2", "--out", str(out)]
    started = time.monotonic()
    done = subprocess.run([*command, *options], env=environment, stderr=subprocess.PIPE, text=True, check=True)
    return time.monotonic() - started, done.stderr


def differing_parts(one: Path, other: Path) -> list[str]:
    """The names of parts that are not the same in two stores."""
    names = sorted({path.name for out in (one, other) for path in (out / "parts").iterdir()})
    _, different, missing = filecmp.cmpfiles(one / "parts", other / "parts", names, shallow=False)
    return different + missing


def noticed_after(out: Path) -> int:
    """How many units were committed before the audit noticed the bug."""
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    names = [(event["event"], "failed an audit" in event.get("message", "")) for event in events]
    return [name for name, _ in names[: names.index(("notice", True))]].count("unit")


def main() -> int:
    """Read the options, plant, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--every", type=int, default=1000, help="one document in so many is wrong")
    parser.add_argument("--copies", type=int, default=4, help="how many times the corpus is taken")
    parser.add_argument("--tries", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-planted-") as folder:
        corpus = Path(folder, "corpus")
        corpus.mkdir()
        for copy in range(options.copies):
            for path in sorted(options.corpus.rglob("*.parquet")):
                shutil.copyfile(path, corpus / f"{copy}-{path.name}")  # a link would be read once
        return plant(Path(folder), corpus, options.every, options.tries)


def plant(folder: Path, corpus: Path, every: int, tries: int) -> int:
    """Try seeds until the audit notices the bug, then compare the store with the reference engine's."""
    for seed in range(tries):
        out = folder / f"planted-{seed}"
        environment = poison.environment(folder / "site") | {"WRONG_EVERY": str(every), "WRONG_SEED": str(seed)}
        seconds, _ = prepare(corpus, out, environment=environment)
        if not (out / "engine-mismatch.json").exists():
            print(f"seed {seed}: not noticed, {seconds:.0f} s", flush=True)
            continue
        print(f"seed {seed}: noticed after {noticed_after(out)} units, complete after {seconds:.0f} s", flush=True)
        seconds, _ = prepare(corpus, folder / "reference", "--engine", "tiktoken")
        different = differing_parts(out, folder / "reference")
        print(f"reference engine: {seconds:.0f} s; parts that differ: {len(different)}", flush=True)
        return 1 if different else 0
    print("no try noticed the bug: take more --copies")
    return 1


if __name__ == "__main__":
    sys.exit(main())
