"""Kill `tokenmill erase` at random moments, on a disk or on S3, and check what readers find and what is left.

    python -m scripts.erase_soak [--kills 50] [--on disk|s3] [--seed N] [--folder DIR]

A small store with kept columns, rows in quarantine and four exports is copied. The command is killed up to three times
on each copy. After each kill, readers have to find the store of before or of afterwards, or refuse it with the command
that finishes the erasure; an export without a mark has to be as before or as afterwards. Then the same command has to
finish, with the bytes of an undisturbed run. Exit code 1 if not. S3 is a SeaweedFS of this script.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tokenmill
from tests.support.change_kills import ChangeKills, Place
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.servers.seaweed import start_seaweed

ROWS = 400
EXPORTS: dict[str, dict[str, Any]] = {
    "nanogpt": {"val": 0.1, "shuffle": 7},
    "megatron": {},
    "mds": {"sequence_tokens": 32, "shard_tokens": 3200},
    "parquet": {"shard_tokens": 3000},
}


def write_source(path: Path) -> str:
    """JSON Lines with a URL, and rows that are no text."""
    with path.open("w") as file:
        for row in range(ROWS):
            text: Any = f"document number {row} tells words{row} " * (row % 7 + 1) if row % 50 else row
            file.write(json.dumps({"text": text, "url": f"https://s{row}.host{row % 9}.example/{row}"}) + "\n")
    return str(path)


def main() -> int:
    """Make the store, kill, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--on", choices=("disk", "s3"), default="disk")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, help="where the copies are (default: a temporary directory)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tokenmill-erase-", dir=options.folder))
    server = None
    if options.on == "s3":
        server = start_seaweed(folder / "seaweed", secrets.token_hex(8), secrets.token_hex(16))
        os.environ.update(server.environment())
    try:
        place = Place(str(folder) if server is None else server.bucket("soak"), server)
        trial = soak(place, folder, options.kills, random.Random(options.seed))
    finally:
        if server is not None:
            server.stop()
    for problem in trial.problems:
        print(problem)
    kills = sum(trial.states[name] for name in ("old", "refused", "new"))
    print(
        f"on {options.on}: {kills} kills of {trial.copies} erasures, seed {options.seed}; afterwards readers found the "
        f"old store {trial.states['old']} times, refused it {trial.states['refused']} times, found the new one "
        f"{trial.states['new']} times; exports refused {trial.states['export refused']} times; "
        f"{len(trial.problems)} problems"
    )
    if not trial.problems:
        shutil.rmtree(folder)
    return 1 if trial.problems else 0


def soak(place: Place, folder: Path, kills: int, rng: random.Random) -> ChangeKills:
    """Make the store with its exports, and kill."""
    source = write_source(folder / "in.jsonl")
    store = place.path("made")
    options: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "keep": "url", "unit_bytes": 3000}
    tokenmill.prepare(source, out=store, max_bad=0.1, quarantine_text=True, workers=1, **options)
    for to, more in EXPORTS.items():
        tokenmill.export(store, to=to, workers=1, **more)
    hosts = folder / "hosts.txt"
    hosts.write_text("host2.example\nhost5.example\n")
    selector = ("--column", "url", "--hosts", hosts, "--request", "soak", "--workers", "1")
    trial = ChangeKills(place, place.read("made"), lambda root: ("erase", root, *selector), rng)
    trial.run_undisturbed()
    done, started = 0, time.monotonic()
    while done < kills and not trial.problems:
        done += trial.kill(kills - done)
        print(f"{done} kills, {time.monotonic() - started:.0f} s, {dict(trial.states)}", flush=True)
    return trial


if __name__ == "__main__":
    sys.exit(main())
