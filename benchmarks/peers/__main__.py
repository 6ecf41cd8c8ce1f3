"""tokenmill beside its peers: the same work, each in an environment of its own, interleaved, whole commands timed.

    python -m benchmarks.peers --corpus DIR --out RESULTS

DIR holds Parquet files with a column `text`. tokenmill (a wheel of this checkout), gigatoken and Megatron-LM's fast
path get the corpus repeated to --bytes; each of the others the first documents of it, as many as take about --seconds;
and tokenmill gets those, too. Every pipeline gives gpt2's tokens, which are compared with tiktoken's, document by
document. Nothing is timed but commands, from start to exit; what is converted or compared is not. --memory and --kills
add runs that are not timed. RESULTS gets peers.json, peers.md and peers.svg.

Some pipelines are in no package. They run from a work tree of their repository (--megatron, --nemotron, --marin); its
commit is recorded. Without the option, such a pipeline is listed as one that did not run.

Needs uv, the packages that tokenmill needs, and some GB of disk for environments (PyTorch among them), which are kept
in --envs. tiktoken finds its vocabulary as always (TIKTOKEN_CACHE_DIR); those that want a Hugging Face tokenizer take
`gpt2` from the Hub, or what --tokenizer-json names. The exit code is 1 if tokenmill itself failed or gave other tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers import chart, environments, table
from benchmarks.peers.catalogue import MILLS, PIPELINES, TOKENMILL, Pipeline
from benchmarks.peers.contest import Entry, Setting, failures, measure_memory, run_rounds
from benchmarks.peers.kills import kill_all
from benchmarks.peers.orphans import adopt_orphans
from benchmarks.peers.works import Corpus, Work, write_model, write_ranks

CHECKOUT = Path(__file__).resolve().parents[2]
SMALL_BYTES = 2_000_000
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}


def main() -> int:
    """Measure and write, or write again what was measured."""
    options = parse()
    adopt_orphans()
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    if options.redraw:
        results = json.loads((out / "peers.json").read_text())
    else:
        try:
            with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
                results, problems = measure(options, Path(scratch))
        except environments.NotInstalled as error:
            raise SystemExit(f"error: tokenmill itself could not be installed\n  reason       {error}") from error
        (out / "peers.json").write_text(json.dumps(results, indent=1) + "\n")
    (out / "peers.md").write_text(table.render(results))
    (out / "peers.svg").write_text(chart.render(results))
    print(table.render(results))
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser("benchmarks.peers", None, __doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpus", help="directory of Parquet files with a column `text`")
    parser.add_argument("--out", required=True, help="directory for the results")
    parser.add_argument("--bytes", type=size, default=600 * 10**6, help="text for tokenmill, such as 600M (default)")
    parser.add_argument("--seconds", type=float, default=20, help="about how long a peer may take (default: 20)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="default: one per core")
    everything = ",".join(pipeline.name for pipeline in (*MILLS, *PIPELINES))
    parser.add_argument("--only", type=names, help=f"some of {everything}")
    for pipeline in PIPELINES:
        if pipeline.repository:
            parser.add_argument(f"--{pipeline.directory}", metavar="DIR", help=f"a work tree of {pipeline.repository}")
    parser.add_argument("--memory", action="store_true", help="add a run of each that is watched: its peak memory")
    parser.add_argument("--kills", action="store_true", help="add runs in which a worker, or the parent, is killed")
    parser.add_argument(
        "--envs", default=environments.default_directory(), help="default: in the user's cache directory"
    )
    parser.add_argument(
        "--scratch", help="directory for the work and what is written (default: that of temporary files)"
    )
    parser.add_argument("--tokenizer-json", default="gpt2", help="gpt2's tokenizer.json (default: gpt2 from the Hub)")
    parser.add_argument("--torch-backend", help="handed to uv: cpu installs a PyTorch without CUDA")
    parser.add_argument("--find-links", metavar="DIR", help="handed to uv: a directory of wheels")
    parser.add_argument("--redraw", action="store_true", help="only write table and chart again, from OUT/peers.json")
    options = parser.parse_args()
    if not options.redraw and not options.corpus:
        parser.error("name a --corpus")
    return options


def size(text: str) -> int:
    """A number of bytes, such as 600M."""
    factor = SUFFIXES.get(text[-1:], 1)
    return int(float(text.rstrip("".join(SUFFIXES))) * factor)


def names(text: str) -> list[str]:
    """Names of pipelines, separated by commas."""
    chosen = text.split(",")
    unknown = set(chosen) - {pipeline.name for pipeline in (*MILLS, *PIPELINES)}
    if unknown:
        raise argparse.ArgumentTypeError(f"there is no {', '.join(sorted(unknown))}")
    return chosen


def measure(options: argparse.Namespace, scratch: Path) -> tuple[dict[str, Any], list[str]]:
    """Make environments and work, run the rounds: the results, and what is wrong with tokenmill's own."""
    tokenizer = options.tokenizer_json
    setting = Setting(
        scratch,
        options.workers,
        {
            "hub": os.path.abspath(tokenizer) if os.path.exists(tokenizer) else tokenizer,
            "model": write_model(str(scratch / "gpt2"), tokenizer),
            "ranks": write_ranks(str(scratch / "gpt2.tiktoken")),
        },
        limit_seconds=120 + 20 * options.seconds,
    )
    print("making the work, with its right tokens", file=sys.stderr, flush=True)
    corpus = Corpus(options.corpus, options.workers)
    small = corpus.cut(str(scratch / "small"), SMALL_BYTES, options.workers)
    entries = make_entries(options, corpus, scratch)
    run_rounds(entries, setting, small, options.rounds)
    if options.memory:
        measure_memory(entries, setting)
    if options.kills:
        kill_all(entries, setting)
    results = {
        "machine": machine(),
        "commit": commit(CHECKOUT),
        "workers": options.workers,
        "rounds": options.rounds,
        "corpus": {"files": len(corpus.paths), "documents": len(corpus.sizes), "text_bytes": int(corpus.sizes.sum())},
        "rows": [entry.row() for entry in entries],
    }
    return results, failures(entries)


def make_entries(options: argparse.Namespace, corpus: Corpus, scratch: Path) -> list[Entry]:
    """Every chosen pipeline on its work, and tokenmill on all of them."""
    chosen = [pipeline for pipeline in PIPELINES if not options.only or pipeline.name in options.only]
    beside = {pipeline.beside for pipeline in chosen}
    mills = [mill for mill in MILLS if not options.only or mill.name in options.only or mill.name in beside]
    large = corpus.link(str(scratch / "large"), options.bytes)
    works: dict[float, Work] = {}
    for rate in sorted({pipeline.rate for pipeline in (*chosen, *mills) if pipeline.rate < TOKENMILL.rate}):
        works[rate] = corpus.cut(str(scratch / f"rate-{rate}"), int(rate * options.seconds * 1e6), options.workers)
    wheel = environments.build_wheel(CHECKOUT, scratch)
    environment = environments.make(Path(options.envs), (wheel, *TOKENMILL.packages[1:]), [])
    entries = [Entry(mill, environment, works.get(mill.rate, large)) for mill in mills]
    entries += [Entry(TOKENMILL, environment, work) for work in works.values() if TOKENMILL in mills]
    return entries + [enter(pipeline, works.get(pipeline.rate, large), options) for pipeline in chosen]


def enter(pipeline: Pipeline, work: Work, options: argparse.Namespace) -> Entry:
    """A pipeline with its environment and repository, or with the reason why there is none."""
    repository = getattr(options, pipeline.directory) if pipeline.repository else ""
    if repository is None:
        reason = f"it needs --{pipeline.directory}, a work tree of {pipeline.repository}"
        return Entry(pipeline, None, work, failure=reason)
    more = ["--torch-backend", options.torch_backend] if options.torch_backend else []
    more += ["--find-links", os.path.abspath(options.find_links)] if options.find_links else []
    try:
        environment = environments.make(Path(options.envs), pipeline.packages, more, pipeline.python)
    except environments.NotInstalled as error:
        return Entry(pipeline, None, work, failure=str(error))
    if not repository:
        return Entry(pipeline, environment, work)
    return Entry(pipeline, environment, work, None, os.path.abspath(repository), commit(Path(repository)))


def machine() -> dict[str, Any]:
    """What it was measured on."""
    model = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes,
        "system": platform.system(),
        "python": platform.python_version(),
    }


def commit(directory: Path) -> str | None:
    """The commit of a work tree, marked if files differ from it."""
    words = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


if __name__ == "__main__":
    sys.exit(main())
