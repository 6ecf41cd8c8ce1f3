"""Count the source files that six ways through the program enter: `python -m scripts.count_ways [--files]`.

The ways are: a unit in a worker, a shard in a worker, a death from the worker's end to the decision about its document,
`status`, a batch of a loader that gave one before, and the erasure of a document in the process that was called. A
profile function in every process records the files of tokenmill whose code runs while the way's first function is on
the stack, in all threads of that process.
`--src DIR` counts another tree, by the same names of functions.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import ROOT, poison
from tests.support.corpora import SMALL_JSON, write_parquet

WAYS = {
    "Tokenize.__call__": "unit in a worker",
    "WriteShard.__call__": "shard in a worker",
    "Driver.run": "death to decision",
    "status": "status",
    "Loader.__getitem__": "warm batch",
    "erase": "erasure of a document",
}

PROFILE = """
import json, os, sys, threading

WAYS, SRC, OUT = {ways!r}, {src!r}, {out!r}
entered, calls = {{}}, {{}}

def profile(frame, event, argument):
    code = frame.f_code
    if not code.co_filename.startswith(SRC):
        return
    if event == "call":
        for files in entered.values():
            files.add(code.co_filename)
        if code.co_qualname in WAYS and code.co_qualname not in entered:
            calls[code.co_qualname] = calls.get(code.co_qualname, 0) + 1
            entered[code.co_qualname] = {{code.co_filename}}
    elif event == "return" and code.co_qualname in entered:
        files = entered.pop(code.co_qualname)
        path = f"{{OUT}}/{{code.co_qualname}}-{{calls[code.co_qualname]}}-{{os.getpid()}}"
        with open(path, "w") as file:
            json.dump(sorted(files), file)

sys.setprofile(profile)
threading.setprofile(profile)
"""

BATCHES = """
import tokenmill
loader = tokenmill.loader({store!r}, sequence_tokens=16, batch_sequences=2, grain=64)
loader[0]
loader[1]
tokenmill.status({store!r})
tokenmill.erase({store!r}, rows=[("good.parquet", 250)], request="count", workers=1)
"""


def main() -> None:
    """Print the number of files of each way, and with --files their names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--src", type=Path, default=ROOT / "src")
    parser.add_argument("--files", action="store_true", help="print the names of the files")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for name, files in count(options.src.resolve(), Path(directory)).items():
            print(f"{len(files):4} files  {name}")
            print("".join(f"           {file}\n" for file in files) * options.files, end="")


def count(src: Path, directory: Path) -> dict[str, list[str]]:
    """The files of each way."""
    package, out = str(src / "tokenmill") + "/", directory / "entered"
    out.mkdir()
    environment = poison.environment(directory / "site") | {"COLUMNS": "120"}
    site = directory / "site" / "sitecustomize.py"
    site.write_text(site.read_text() + PROFILE.format(ways=tuple(WAYS), src=package, out=str(out)))
    environment["PYTHONPATH"] = os.pathsep.join([str(directory / "site"), str(src), str(ROOT)])
    texts: list[str | None] = [f"document {row} says little" for row in range(400)]
    good = write_parquet(directory / "good.parquet", texts, row_group_size=100)
    texts[250] = "POISON:ABORT"
    deadly = write_parquet(directory / "deadly.parquet", texts, row_group_size=100)
    store = directory / "store"
    prepare = ("-m", "tokenmill", "prepare", "--tokenizer", SMALL_JSON, "--unit-bytes", "1", "--workers", "1")
    run(environment, *prepare, good, "--out", store, "--to", "megatron")
    run(environment, *prepare, deadly, "--out", directory / "second", "--max-bad", "10%")
    run(environment, "-c", BATCHES.format(store=str(store)))
    return {title: files_of(out, name, package) for name, title in WAYS.items()}


def run(environment: dict[str, str], *words: object) -> None:
    """Run Python, which has to end well."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)


def files_of(out: Path, name: str, package: str) -> list[str]:
    """The files of a way: those of its longest call, and for a batch those of the second."""
    calls = [path for path in out.glob(f"{name}-*") if name != "Loader.__getitem__" or "-2-" in path.name]
    if not calls:
        sys.exit(f"{name} was not called")
    longest = max((json.loads(path.read_text()) for path in calls), key=len)
    return [file.removeprefix(package) for file in longest]


if __name__ == "__main__":
    main()
