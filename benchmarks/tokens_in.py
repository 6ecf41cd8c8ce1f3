"""How fast tokens come in: a store in another frame, files of llm.c, and a store with another tokenizer.

The text of --sources is prepared once with gpt2. Round by round, in one process and without workers, these are timed: a
copy of the parts with the two checksums that parts have; the store with a begin token; an import of its llm.c files;
the store with o200k_base, beside the same text from Parquet. The figures are CPU seconds of this process, best and
median of the rounds.

    python -m benchmarks.tokens_in SOURCE... [--rounds 5]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xxhash
from blake3 import blake3

import tokenmill
from tests.support.inline_executor import InlineExecutor


def copy(parts: Path, out: Path) -> None:
    """Copy files, each with an XXH3 and a BLAKE3 of its content."""
    out.mkdir()
    for path in sorted(parts.iterdir()):
        content = path.read_bytes()
        xxhash.xxh3_128(content).hexdigest()
        blake3(content).hexdigest()
        (out / path.name).write_bytes(content)


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        folder, out = Path(directory), Path(directory, "out")
        store = tokenmill.prepare(options.sources, tokenizer="gpt2", out=folder / "store")
        tokenmill.export(store, to="llmc", out=folder / "llmc", val="none")

        def prepare(source: Any, **given: Any) -> Callable[[], object]:
            return lambda: tokenmill.prepare(source, out=out, executor=InlineExecutor(), **given)

        ways: dict[str, Callable[[], object]] = {
            "copy": lambda: copy(folder / "store" / "parts", out),
            "reframe": prepare(folder / "store", bos=50256),
            "import": prepare(folder / "llmc", tokenizer="gpt2", unit_bytes="16MB"),
            "transcode": prepare(folder / "store", tokenizer="o200k_base"),
            "from text": prepare(options.sources, tokenizer="o200k_base"),
        }
        for _ in range(options.rounds):
            for name, way in ways.items():
                started = time.process_time()
                way()
                seconds.setdefault(name, []).append(time.process_time() - started)
                shutil.rmtree(out)
    print(f"{store.tokens:,} tokens")
    for name, base in (("reframe", "copy"), ("import", "copy"), ("transcode", "from text")):
        best, other = min(seconds[name]), min(seconds[base])
        median = statistics.median(b / a for a, b in zip(seconds[name], seconds[base], strict=True))
        print(f"{name:<12} {best:.2f} s, {base} {other:.2f} s: {other / best:.2f} of it (median {median:.2f})")


if __name__ == "__main__":
    main()
