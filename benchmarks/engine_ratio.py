"""How near `tokenmill prepare` comes to its bare engine.

Timed in turn, round after round, each as a whole process from start to exit on the same warm files:

bare      gigatoken alone: builds the tokenizer and calls `encode_files` with gigatoken's own threads. The tokens stay
          in memory; nothing is written.
lean      benchmarks/lean.py: processes that read Parquet, encode, hash, write and sync, and do nothing else.
prepare   `tokenmill prepare FILES --tokenizer T --out DIR`, from the sources to a synced store with checksums.

All must give the same number of tokens, end tokens aside; otherwise the script ends with exit code 1. gigatoken reads
the uncompressed JSON Lines where tokenmill reads compressed ones. A round in which other processes used more than 5 %
of the machine is repeated and counted. `sync` is called before each process, so that none waits for what another wrote.

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
INPUTS = ("parquet", "jsonl", "jsonl.zst", "jsonl.gz", "document")
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
kinds = {"txt": gigatoken.TextFileSource, "jsonl": gigatoken.JsonlFileSource, "parquet": gigatoken.ParquetFileSource}
result = tokenizer.encode_files(kinds[files[0].rpartition(".")[2]](files), parallel=True)
print(json.dumps({"documents": len(result), "tokens": len(result.layout.content.data)}))
"""


@dataclass(frozen=True)
class Contest:
    """Both programs over one corpus, in a directory of their own."""

    directory: str
    corpus: Corpus
    inputs: list[str]
    plain: list[str]  # the same text, uncompressed, for the bare engine
    tokenizer: str
    workers: int

    @property
    def store(self) -> str:
        """The store of the last `prepare`."""
        return os.path.join(self.directory, "store")

    def bare(self) -> Timed:
        """Gigatoken alone."""
        command = [sys.executable, "-c", BARE, *self._vocabulary(), *self.plain]
        return time_process(command, RAYON_NUM_THREADS=str(self.workers))

    def lean(self) -> Timed:
        """The least that tokenizing these Parquet files takes."""
        out = os.path.join(self.directory, "lean")
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "benchmarks.lean", *self._vocabulary(), out, *self.corpus.files]
        return time_process([*command, "--workers", str(self.workers)])

    def _vocabulary(self) -> tuple[str, str]:
        """A file with the vocabulary, and what gigatoken calls its split pattern."""
        vocabulary = resolve(self.tokenizer)
        path = os.path.join(self.directory, vocabulary.spec.file)
        with open(path, "wb") as file:
            file.write(vocabulary.content)
        return path, SCHEMES.get(self.tokenizer, "json")

    @property
    def programs(self) -> dict[str, Callable[[], Timed]]:
        """What is compared."""
        lean = {"lean": self.lean} if self.inputs[0].endswith(".parquet") else {}
        return {"bare": self.bare, **lean, "prepare": self.prepare}

    def prepare(self) -> Timed:
        """The whole command; its store is kept until the next time."""
        shutil.rmtree(self.store, ignore_errors=True)
        options = ["--tokenizer", self.tokenizer, "--out", self.store, "--workers", str(self.workers)]
        if self.inputs[0].endswith(".txt"):
            size = os.path.getsize(self.inputs[0])
            options += ["--max-document-bytes", str(size), "--memory", str(12 * size + 1_000_000_000)]
        return time_process([*tokenmill_command("prepare"), *self.inputs, *options])

    def problems(self, timed: dict[str, Timed]) -> list[str]:
        """What does not fit together in the counts of a round; nothing if all is well."""
        answers = {name: each.answer for name, each in timed.items()}
        documents, tokens = answers["prepare"]["documents"], answers["prepare"]["tokens"]
        expected = documents, tokens - (documents if answers["prepare"]["end_token"] is not None else 0)
        found = {name: (answer["documents"], answer["tokens"]) for name, answer in answers.items() if name != "prepare"}
        return [f"{name}: {counts}, tokenmill: {expected}" for name, counts in found.items() if counts != expected]


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


def summarize(kept: dict[str, list[Timed]], other: str) -> dict[str, float]:
    """The ratios to another program: of wall times, where 1 is as fast, and of CPU seconds, where less is better."""
    wall = {name: [each.seconds for each in timed] for name, timed in kept.items()}
    cpu = {name: [each.cpu_seconds for each in timed] for name, timed in kept.items()}
    pairs, cpu_pairs = (list(zip(of[other], of["prepare"], strict=True)) for of in (wall, cpu))
    return {
        "wall_best": min(wall[other]) / min(wall["prepare"]),
        "wall_median": statistics.median(a / b for a, b in pairs),
        "cpu_best": min(cpu["prepare"]) / min(cpu[other]),
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
    kept, thrown_away = run_rounds(contest.programs, options.rounds)
    ratios = {name: summarize(kept, name) for name in kept if name != "prepare"}
    megabytes = contest.corpus.text_bytes / 1e6
    speed = {name: megabytes / min(each.seconds for each in timed) for name, timed in kept.items()}
    shown = ", ".join(f"{name} {value:.1f} MB/s" for name, value in speed.items())
    print(
        f"{options.text} {options.input} {megabytes:.0f} MB {os.path.basename(contest.tokenizer)}: {shown}; "
        f"{thrown_away} rounds thrown away"
    )
    for name, ratio in ratios.items():
        print(
            f"  prepare/{name} by wall time {ratio['wall_best']:.2f} best, {ratio['wall_median']:.2f} median; "
            f"CPU {ratio['cpu_best']:.2f} best, {ratio['cpu_median']:.2f} median",
            flush=True,
        )
    result: dict[str, Any] = {
        "tokenizer": os.path.basename(contest.tokenizer),
        "megabytes": megabytes,
        "ratios": ratios,
        "thrown_away": thrown_away,
        "rounds": {name: [asdict(each) for each in timed] for name, timed in kept.items()},
        "problems": contest.problems({name: timed[-1] for name, timed in kept.items()}),
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
        plain = inputs
        if options.input.startswith("jsonl."):
            plain = write_inputs(corpus, "jsonl", os.path.join(directory, "plain"))
        for path in {*corpus.files, *inputs, *plain}:
            with open(path, "rb") as file:
                while file.read(1 << 24):
                    pass
        tokenizers = options.tokenizer or ["gpt2"]
        report["results"] = [
            measure(options, Contest(directory, corpus, inputs, plain, each, options.workers)) for each in tokenizers
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
