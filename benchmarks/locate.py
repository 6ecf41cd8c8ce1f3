"""How long `tokenmill locate` takes on a large store, and whether tokens of every format lead back to it.

    python -m benchmarks.locate --directory DIR [--tokens 1010M] [--positions 10000] [--formats nanogpt,llmc,...]

A store of random tokens is made in DIR, exported to each format in turn, shuffled and with a validation split, and
asked. A query by command is a fresh process: what it takes beyond an import of the same libraries is told apart. Round
trips ask an open store: token of a file -> document -> files, and every token is compared with the store's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from typing import Any

import numpy as np

import tokenmill
from benchmarks.synthetic import make_store
from tokenmill.exports import records
from tokenmill.exports.job import read_frozen
from tokenmill.exports.locator import Locator
from tokenmill.exports.trace import ExportIndex
from tokenmill.humanize import parse_size
from tokenmill.storage import Folder, folder_at
from tokenmill.token_files import FORMATS, find_format

Query = tuple[list[Any], dict[str, Any]]

TIMED = """
import json, re, sys, time
from tokenmill.system import startup
startup.skip_pandas()  # as the command does
import tokenmill.api
started = time.perf_counter()
found = tokenmill.locate(*json.loads(sys.argv[1]), **json.loads(sys.argv[2]))
seconds = time.perf_counter() - started
assert found.documents
print(json.dumps([seconds, int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024]))
"""


def main() -> None:
    """Make what is missing, ask, print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", required=True)
    parser.add_argument("--tokens", default="1010M")
    parser.add_argument("--positions", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=20)
    parser.add_argument("--formats", default=",".join(FORMATS))
    words = parser.parse_args()
    directory = os.path.join(words.directory, f"store-{words.tokens}")
    if not os.path.exists(os.path.join(directory, "manifest.parquet")):
        make_store(directory, parse_size(words.tokens))
    store = tokenmill.open(directory)
    random = np.random.default_rng(1)
    tokens = random.integers(0, store.token_count, words.queries).tolist()
    result: dict[str, Any] = {"tokens": store.token_count, "documents": len(store), "parts": len(store.manifest)}
    result["store"] = asked([([directory, token], {}) for token in tokens])
    result["formats"] = {}
    for name in words.formats.split(","):
        started = time.perf_counter()
        tokenmill.export(directory, to=name, shuffle=7, val=0.01)
        exported = time.perf_counter() - started
        result["formats"][name] = {"export_seconds": round(exported, 1), **of_format(store, name, words)}
        print(name, json.dumps(result["formats"][name]), file=sys.stderr, flush=True)
        shutil.rmtree(os.path.join(directory, name))
    print(json.dumps(result, indent=2))


def of_format(store: tokenmill.Store, name: str, words: argparse.Namespace) -> dict[str, object]:
    """Round trips, and the times of queries both ways."""
    folder = folder_at(os.path.join(store.directory, name))
    locator, export = Locator(store, 40), ExportIndex(folder)
    files = token_files(folder)
    random = np.random.default_rng(2)
    ends = np.cumsum([count for _, count, _ in files])
    wanted = np.sort(random.integers(0, ends[-1], words.positions))
    started = time.perf_counter()
    forward: list[Query] = []
    back: list[Query] = []
    for file, (path, count, names) in enumerate(files):
        before = int(ends[file]) - count
        positions = wanted[(wanted >= before) & (wanted < ends[file])] - before
        read: Any = find_format(name).read(folder, names, export.job.dtype).tokens if len(positions) else []
        for token in positions.tolist():
            (document,) = locator.in_export(export, path, token, token + 1)
            assert store[document.document][document.offset] == read[token], (path, token)
            number, _ = locator.find_row(document.source, document.position)
            spots = locator.shards_of(number, document.position[1], {name: export})[name]
            assert any(s.file == folder.path(path) and s.token <= token < s.token + s.tokens for s in spots)
        if len(positions):
            where, spot = folder.path(path), int(positions[0])
            (document,) = locator.in_export(export, path, spot, spot + 1)
            forward.append(([where, spot], {}))
            back.append(([store.directory], {"source": document.source, **dict([document.position])}))
    seconds = time.perf_counter() - started
    return {
        "files": len(files),
        "round_trips": words.positions,
        "ms_each_way": round(seconds * 500 / words.positions, 2),
        "by_token": asked(forward[: words.queries]),
        "by_row": asked(back[: words.queries]),
    }


def token_files(folder: Folder) -> list[tuple[str, int, tuple[str, ...]]]:
    """The files with tokens: the name, how many tokens, and all names that the format's reader wants."""
    found: dict[str, tuple[int, tuple[str, ...]]] = {}
    frozen = read_frozen(folder)
    assert frozen is not None
    for shard in records.read_manifest(folder, frozen.job.digest()).rows.to_pylist():
        names = tuple(file["name"] for file in shard["files"])
        if names[0].endswith("_document.bin"):  # of Megatron, whose index belongs to no shard if a split is one file
            names = (names[0], names[0].removesuffix(".bin") + ".idx")
        found[names[0]] = found.get(names[0], (0, names))[0] + shard["tokens"], names
    return [(name, count, names) for name, (count, names) in found.items()]


def asked(queries: list[Query]) -> dict[str, float]:
    """What queries take in processes of their own, after the libraries are loaded: best, median, worst; peak memory."""
    seconds, peaks = [], []
    for arguments, words in queries:
        command = [sys.executable, "-c", TIMED, json.dumps(arguments), json.dumps(words)]
        took, peak = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        seconds.append(took * 1000)
        peaks.append(peak / 1e6)
    best, middle, worst = (round(float(np.quantile(seconds, share)), 1) for share in (0, 0.5, 1))
    return {"best_ms": best, "median_ms": middle, "worst_ms": worst, "peak_mb": round(max(peaks))}


if __name__ == "__main__":
    main()
