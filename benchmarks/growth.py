"""How time, memory and requests grow with the corpus: `tokenmill prepare` of 0.1 to 10 GB of text.

Each corpus repeats the corpora of the tests in other orders. Corpora of at most --bucket-megabytes are prepared twice
more: while the memory of all processes is watched, which takes time by itself, and from a bucket into a bucket, through
a proxy that counts the requests (SeaweedFS on loopback). The figures go to benchmarks/growth.json, from which
`scripts/write_scale.py` draws docs/scale.svg.

    TOKENMILL_TEST_DATA=DIR python -m benchmarks.growth --megabytes 100,300,1000,3000,10000
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.corpora import Corpus, add_corpus_option, build_corpus, read_originals
from benchmarks.memory import measure
from benchmarks.network import prepare
from benchmarks.processes import time_process, tokenmill_command
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import start_seaweed
from tokenmill.system import machine

RESULTS = Path(__file__).with_suffix(".json")


def count_requests(corpus: Corpus, options: argparse.Namespace, scratch: Path) -> dict[str, int]:
    """The requests of a run from a bucket into a bucket, by method."""
    server = start_seaweed(scratch / "s3", "benchmark", "not-a-secret")
    try:
        server.bucket("growth")
        server.upload(Path(corpus.files[0]).parent, "s3://growth/corpus")
        with Proxy(server.port) as proxy:
            prepare("s3://growth/corpus", "s3://growth/run", options, None, server.environment(proxy.endpoint))
            return dict(Counter(proxy.requests))
    finally:
        server.stop()
        shutil.rmtree(scratch / "s3")


def run_size(megabytes: int, options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """The figures of one corpus."""
    sources, store = scratch / "sources", scratch / "store"
    corpus = build_corpus(read_originals(options.corpus), str(sources), megabytes * 10**6)
    command = [*tokenmill_command("prepare"), str(sources), "--tokenizer", "gpt2", "--out"]
    timed = time_process([*command, str(store)])
    is_small = megabytes <= options.bucket_megabytes
    return {
        "text_bytes": corpus.text_bytes,
        "source_bytes": sum(os.path.getsize(path) for path in corpus.files),
        "store_bytes": sum(path.stat().st_size for path in store.rglob("*") if path.is_file()),
        "files": len(corpus.files),
        "units": timed.answer["units"],
        "seconds": round(timed.seconds, 2),
        "others": round(timed.others, 3),
        "tree_bytes": measure([*command, str(scratch / "watched")]).tree_bytes if is_small else 0,
        "requests": count_requests(corpus, options, scratch) if is_small else {},
    }


def main() -> None:
    """Measure each size, print a line for it, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument("--megabytes", default="100,300,1000,3000,10000", help="text of each corpus")
    parser.add_argument("--bucket-megabytes", type=int, default=1000, help="most text of the other runs")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    options = parser.parse_args()
    options.tokenizer, options.workers = "gpt2", machine.cores()
    sizes = []
    for megabytes in map(int, options.megabytes.split(",")):
        with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-growth-") as scratch:
            sizes.append(run_size(megabytes, options, Path(scratch)))
        print(json.dumps(sizes[-1]), flush=True)
    figures = {"date": datetime.now(UTC).date().isoformat(), "cores": machine.cores(), "sizes": sizes}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
