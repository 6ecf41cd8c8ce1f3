"""How near `tokenmill prepare` comes to its bare engine.

Timed in turn, round after round, each as a whole process from start to exit on the same warm files:

bare      gigatoken alone: builds the tokenizer and calls `encode_files` with gigatoken's own threads. The tokens stay
          in memory; nothing is written.
prepare   `tokenmill prepare FILES --tokenizer T --out DIR`, from the sources to a synced store with checksums.

Both must give the same number of tokens, end tokens aside; otherwise the script ends with exit code 1. gigatoken reads
Parquet of the same text where tokenmill reads JSON Lines. A round in which other processes used more than 5 % of the
machine is repeated and counted. `sync` is called before each process, so that none waits for what another wrote.

    python -m benchmarks.engine_ratio --text en --tokenizer gpt2 --megabytes 600
    python -m benchmarks.engine_ratio --text recombined --tokenizer o200k_base --megabytes 2000 --profile
    python -m benchmarks.engine_ratio --text mixed --input document --megabytes 500 --tokenizer gpt2
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.corpora import TEXTS, Corpus, add_corpus_option, make_text, write_inputs
from benchmarks.processes import MAX_OTHERS, Timed, time_process, tokenmill_command
from benchmarks.worker_profile import print_profile, profile_command, profile_worker
from tokenmill.pipeline.planning.request import versions
from tokenmill.tokenization.resolve import resolve

# What gigatoken calls the split patterns of the encodings.
SCHEMES = {"gpt2": "gpt2", "r50k_base": "gpt2", "p50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}
INPUTS = ("parquet", "jsonl.zst", "jsonl.gz", "document")
# How often a disturbed round is repeated before the script gives up.
MAX_REPEATS = 3

BARE = """
import json, sys
import awkward, gigatoken  # encode_files would import awkward
vocabulary, scheme, *files = sys.argv[1:]
if scheme == "json":
    tokenizer = gigatoken.Tokenizer.from_json(open(vocabulary, encoding="utf-8").read())
else:
    tokenizer = gigatoken.Tokenizer.from_tiktoken(vocabulary, pretokenizer=scheme, special_tokens={})
kind = gigatoken.TextFileSource if files[0].endswith(".txt") else gigatoken.ParquetFileSource
result = tokenizer.encode_files(kind(files), parallel=True)
print(json.dumps({"documents": len(result), "tokens": len(result.layout.content.data)}))
"""


@dataclass(frozen=True)
class Contest:
    """Both programs over one corpus, in a directory of their own."""

    directory: str
    corpus: Corpus
    inputs: list[str]
    tokenizer: str
    workers: int

    @property
    def store(self) -> str:
        """The store of the last `prepare`."""
        return os.path.join(self.directory, "store")

    def bare(self) -> Timed:
        """Gigatoken alone."""
        vocabulary = resolve(self.tokenizer)
        path = os.path.join(self.directory, vocabulary.spec.file)
        with open(path, "wb") as file:
            file.write(vocabulary.content)
        files = self.inputs if self.inputs[0].endswith(".txt") else self.corpus.files
        command = [sys.executable, "-c", BARE, path, SCHEMES.get(self.tokenizer, "json"), *files]
        return time_process(command, RAYON_NUM_THREADS=str(self.workers))

    def prepare(self) -> Timed:
        """The whole command; its store is kept until the next time."""
        shutil.rmtree(self.store, ignore_errors=True)
        options = ["--tokenizer", self.tokenizer, "--out", self.store, "--workers", str(self.workers)]
        if self.inputs[0].endswith(".txt"):
            size = os.path.getsize(self.inputs[0])
            options += ["--max-document-bytes", str(size), "--memory", str(12 * size + 1_000_000_000)]
        return time_process([*tokenmill_command("prepare"), *self.inputs, *options])

    def problems(self, bare: Timed, prepare: Timed) -> list[str]:
        """What does not fit together in the counts of a round; nothing if all is well."""
        first, second = bare.answer, prepare.answer
        ends = second["documents"] if second["end_token"] is not None else 0
        counts = {
            "documents": (first["documents"], second["documents"]),
            "tokens": (first["tokens"], second["tokens"] - ends),
        }
        return [f"{name}: gigatoken {a}, tokenmill {b}" for name, (a, b) in counts.items() if a != b]


def run_rounds(programs: dict[str, Callable[[], Timed]], rounds: int) -> tuple[dict[str, list[Timed]], int]:
    """Every program once a round, beginning with another one each time; and how many rounds were thrown away."""
    kept: dict[str, list[Timed]] = {name: [] for name in programs}
    names, thrown_away = list(programs), 0
    while len(kept[names[0]]) < rounds:
        number = len(kept[names[0]])
        first = number % len(names)
        timed = {name: programs[name]() for name in names[first:] + names[:first]}
        is_quiet = all(each.others <= MAX_OTHERS for each in timed.values())
        shown = "  ".join(f"{name} {each.seconds:.2f} s, {each.cpu_seconds:.2f} CPU s" for name, each in timed.items())
        print(f"round {number + 1}  {shown}{'' if is_quiet else '  disturbed'}", file=sys.stderr, flush=True)
        if not is_quiet and thrown_away < MAX_REPEATS * rounds:
            thrown_away += 1
            continue
        for name, each in timed.items():
            kept[name].append(each)
    return kept, thrown_away


def summarize(kept: dict[str, list[Timed]]) -> dict[str, float]:
    """The ratios: of wall times, where 1 is as fast as the bare engine, and of CPU seconds, where less is better."""
    wall = {name: [each.seconds for each in timed] for name, timed in kept.items()}
    cpu = {name: [each.cpu_seconds for each in timed] for name, timed in kept.items()}
    pairs, cpu_pairs = (list(zip(of["bare"], of["prepare"], strict=True)) for of in (wall, cpu))
    return {
        "wall_best": min(wall["bare"]) / min(wall["prepare"]),
        "wall_median": statistics.median(a / b for a, b in pairs),
        "cpu_best": min(cpu["prepare"]) / min(cpu["bare"]),
        "cpu_median": statistics.median(b / a for a, b in cpu_pairs),
    }


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_corpus_option(parser)
    parser.add_argument("--text", choices=list(TEXTS), default="mixed", help="the text (default mixed)")
    parser.add_argument("--input", choices=INPUTS, default="parquet", help="the files that tokenmill reads")
    parser.add_argument("--megabytes", type=float, default=600, help="text; bare needs six times that in memory")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--workers", type=int, default=2, help="threads of bare, workers of prepare (default 2)")
    parser.add_argument(
        "--tokenizer", action="append", help="an encoding, or a tokenizer.json; may be given more than once"
    )
    parser.add_argument("--profile", action="store_true", help="also say where the time of prepare goes")
    parser.add_argument("--profile-megabytes", type=float, default=300, help="text for the one worker (default 300)")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    return parser.parse_args()


def measure(options: argparse.Namespace, contest: Contest) -> dict[str, Any]:
    """The figures of one tokenizer, printed as one line."""
    kept, thrown_away = run_rounds({"bare": contest.bare, "prepare": contest.prepare}, options.rounds)
    ratios = summarize(kept)
    megabytes = contest.corpus.text_bytes / 1e6
    speed = {name: megabytes / min(each.seconds for each in timed) for name, timed in kept.items()}
    print(
        f"{options.text} {options.input} {megabytes:.0f} MB {os.path.basename(contest.tokenizer)}: "
        f"bare {speed['bare']:.1f} MB/s, prepare {speed['prepare']:.1f} MB/s; prepare/bare by wall time "
        f"{ratios['wall_best']:.2f} best, {ratios['wall_median']:.2f} median; CPU {ratios['cpu_best']:.2f} best, "
        f"{ratios['cpu_median']:.2f} median; {thrown_away} rounds thrown away",
        flush=True,
    )
    result: dict[str, Any] = {
        "tokenizer": os.path.basename(contest.tokenizer),
        "megabytes": megabytes,
        "ratios": ratios,
        "thrown_away": thrown_away,
        "rounds": {name: [asdict(each) for each in timed] for name, timed in kept.items()},
        "problems": contest.problems(kept["bare"][-1], kept["prepare"][-1]),
    }
    if options.profile:
        result["command"] = profile_command(contest.prepare(), contest.store, contest.workers)
        profiled = os.path.join(contest.directory, "profiled")
        target_bytes = int(options.profile_megabytes * 1e6)
        result["worker"] = profile_worker(contest.inputs, contest.tokenizer, contest.workers, profiled, target_bytes)
        shutil.rmtree(profiled)
        print_profile(result["command"], result["worker"])
    return result


def main() -> int:
    """Measure and print."""
    options = read_options()
    report: dict[str, Any] = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": versions(),
        "options": {name: value for name, value in vars(options).items() if name not in ("corpus", "tmp", "json")},
    }
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-ratio-") as directory:
        target_bytes = int(options.megabytes * 1e6)
        corpus = make_text(options.corpus, options.text, os.path.join(directory, "corpus"), target_bytes)
        inputs = write_inputs(corpus, options.input, os.path.join(directory, "inputs"))
        for path in {*corpus.files, *inputs}:
            with open(path, "rb") as file:
                while file.read(1 << 24):
                    pass
        tokenizers = options.tokenizer or ["gpt2"]
        report["results"] = [
            measure(options, Contest(directory, corpus, inputs, each, options.workers)) for each in tokenizers
        ]
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=2)
    problems = [problem for result in report["results"] for problem in result["problems"]]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
