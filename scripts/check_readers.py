"""Read exports back with each trainer's own package, and compare them with the store, document by document.

    TOKENMILL_TEST_DATA=DIR python scripts/check_readers.py [--corpus DIR] [--only FORMAT ...] [--keep DIR] [--markdown]

The corpus is prepared twice (gpt2 for tokens of two bytes, cl100k_base for four), exported by the installed command,
and read by the programs in `scripts/readers`, each in a fresh environment with the package whose reader it calls. The
exit code is 0 only if all of them give back the documents of the store. What cannot be installed is listed.

Most of the packages want PyTorch. With uv, its build for CPUs is installed; where PIP_FIND_LINKS names a place with
wheels, that place is searched instead, and `--torch torch==VERSION` picks the one there. pip takes what it finds, which
may be several GB.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import tokenmill

TOKENMILL = (sys.executable, "-m", "tokenmill")
READERS = Path(__file__).resolve().parent / "readers"
WINDOW_TOKENS = 1024
SEQUENCE_TOKENS = 2048
TIMEOUT_SECONDS = 1800
SHARDS = ("--shard-tokens", "3000000")
SPLIT = ("--val", "0.01")
WHOLE = ("--val", "none")
LINE = "{:<14} {:<7} {:<26} {:>9,} documents {:>12,} tokens  {:<9} {:>5.0f} s"
HEADINGS = ("format", "dtype", "package", "what was read", "documents", "tokens", "result")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Environment:
    """What is installed for a reader: its package, what that fails to ask for, and whether it needs PyTorch.

    `alone` is a package that is installed without what it asks for: a whole trainer, of which only a reader is used.
    `python` is the version that the package needs, if it is newer than the oldest.
    """

    requirements: tuple[str, ...]
    torch: bool = False
    alone: str = ""
    python: str = ""


ENVIRONMENTS = {
    "numpy": Environment(("numpy",)),
    "megatron-core": Environment(("megatron-core",), torch=True),
    "datatrove": Environment(("datatrove", "tokenizers"), torch=True),
    "dolma": Environment(("dolma", "numpy<2")),
    "ai2-olmo-core": Environment(("ai2-olmo-core",), torch=True),
    "litdata": Environment(("litdata",), torch=True),
    "mosaicml-streaming": Environment(("mosaicml-streaming",), torch=True),
    "datasets": Environment(("datasets",)),
    "nemo-automodel": Environment(
        ("datasets", "pillow", "pyyaml", "torchdata", "transformers"), True, "nemo-automodel"
    ),
    "maxtext": Environment(("grain", "numpy"), alone="maxtext", python="3.12"),
    "pylance": Environment(("pylance", "numpy")),
}


@dataclass(frozen=True)
class Case:
    """One export, and the reader programs for it, each with the environment it runs in."""

    format: str
    dtype: str
    options: tuple[str, ...]
    readers: tuple[tuple[str, str], ...]
    prepended: bool = False

    @property
    def tokenizer(self) -> str:
        """A tokenizer with ids of that size."""
        return "gpt2" if self.dtype == "uint16" else "cl100k_base"


NANOGPT = (("read_nanogpt.py", "numpy"),)
BUILD_NANOGPT = (("read_build_nanogpt.py", "numpy"),)
LLMC = (("read_llmc.py", "numpy"),)
LLMC_UINT16 = (*LLMC, ("read_automodel_llmc.py", "nemo-automodel"))
MEGATRON = (
    ("read_megatron.py", "megatron-core"),
    ("read_automodel.py", "nemo-automodel"),
    ("read_maxtext.py", "maxtext"),
)
DATATROVE = (("read_datatrove.py", "datatrove"),)
OLMO = (
    ("read_dolma.py", "dolma"),
    ("read_olmo_core.py", "ai2-olmo-core"),
    ("read_maxtext_olmo.py", "maxtext"),
)
LITDATA = (("read_litdata.py", "litdata"),)
MDS = (("read_mds.py", "mosaicml-streaming"),)
PARQUET = (("read_parquet.py", "datasets"), ("read_lance.py", "pylance"))

# build-nanogpt and llm.c fail at a shard that is smaller than a batch, so a small last one is merged there.
CASES = (
    Case("nanogpt", "uint16", SPLIT, NANOGPT),
    Case("build-nanogpt", "uint16", (*SHARDS, "--tail", "merge"), BUILD_NANOGPT, prepended=True),
    Case("build-nanogpt", "uint32", (*SHARDS, "--tail", "merge"), BUILD_NANOGPT, prepended=True),
    Case("llmc", "uint16", (*SHARDS, "--tail", "merge"), LLMC_UINT16, prepended=True),
    Case("llmc", "uint32", (*SHARDS, "--tail", "merge"), LLMC, prepended=True),
    Case("megatron", "uint16", SPLIT, MEGATRON),
    Case("megatron", "int32", (*SPLIT, *SHARDS), MEGATRON),
    Case("datatrove", "uint16", (*SPLIT, *SHARDS), DATATROVE),
    Case("datatrove", "uint32", (*WHOLE, *SHARDS), DATATROVE),
    Case("olmo", "uint16", (*SPLIT, *SHARDS), OLMO),
    Case("olmo", "uint32", (*WHOLE, *SHARDS), OLMO),
    Case("litdata", "uint16", (*SPLIT, *SHARDS), LITDATA),
    Case("litdata", "int32", (*WHOLE, *SHARDS), LITDATA),
    Case("litdata", "uint32", (*WHOLE, *SHARDS), LITDATA),
    Case("mds", "uint16", (*WHOLE, *SHARDS, "--tail", "keep"), MDS),
    Case("mds", "int32", ("--val", "first-shard", *SHARDS), MDS),
    Case("mds", "uint32", (*WHOLE, *SHARDS), MDS),
    Case("parquet", "uint16", (*SPLIT, *SHARDS), PARQUET),
    Case("parquet", "uint32", (*WHOLE, *SHARDS), PARQUET),
)


@dataclass
class Result:
    """A row of the table: what a reader found, or why it could not run."""

    case: Case
    package: str
    read: str = ""
    documents: int = 0
    tokens: int = 0
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """What the table says."""
        if not self.problems:
            return "equal"
        return "**differs**" if self.read else "**not read**"


class Failed(Exception):
    """A command that did not end well: which one, and what it wrote of the reason."""


class Bench:
    """A directory with the stores, the environments and, for a while, each export."""

    def __init__(self, folder: Path, corpus: list[str], torch: str) -> None:
        self.folder = folder
        self.corpus = corpus
        self.torch = torch
        self.stores: dict[str, dict[str, object]] = {}
        self.pythons: dict[str, str] = {}

    def check(self, case: Case) -> list[Result]:
        """Export and read one case."""
        export = self.folder / f"export-{case.format}-{case.dtype}"
        shutil.rmtree(export, ignore_errors=True)
        try:
            store = self.store(case.tokenizer)
            options = [*case.options, "--dtype", case.dtype]
            run([*TOKENMILL, "export", str(store["directory"]), "--to", case.format, "--out", str(export), *options])
        except Failed as error:
            return [Result(case, package, problems=[str(error)]) for _, package in case.readers]
        return [self.read(case, export, store, program, package) for program, package in case.readers]

    def read(self, case: Case, export: Path, store: dict[str, object], program: str, package: str) -> Result:
        """Run one reader on an export."""
        started = time.monotonic()
        result = Result(case, package)
        place = "prepended" if case.prepended else "appended"
        task = {
            "export": str(export),
            "dtype": case.dtype,
            "end": store["end"],
            "vocabulary": store["vocabulary"],
            "prepended": case.prepended,
            "tokens": f"{store['directory']}-{place}.npy",
            "ends": f"{store['directory']}-ends.npy",
            "origins": f"{store['directory']}-origins.json",
            "window": WINDOW_TOKENS,
            "sequence_tokens": SEQUENCE_TOKENS,
            "keeps_tail": "keep" in case.options,
        }
        try:
            python = self.environment(package)
            with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
                variables = {"HF_HOME": scratch, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
                command = [python, str(READERS / program), json.dumps({**task, "scratch": scratch})]
                found = json.loads(run(command, variables).splitlines()[-1])
        except Failed as error:
            result.problems.append(str(error))
        else:
            result.package = f"{found['package']} {found['version']}"
            result.read, result.documents, result.tokens = found["read"], found["documents"], found["tokens"]
            result.problems += found["differences"]
        result.seconds = time.monotonic() - started
        return result

    def store(self, tokenizer: str) -> dict[str, object]:
        """A store of the corpus, and its documents as plain arrays, which need no tokenmill to be read."""
        if tokenizer not in self.stores:
            directory = self.folder / f"store-{tokenizer}"
            run([*TOKENMILL, "prepare", *self.corpus, "--tokenizer", tokenizer, "--out", str(directory), "--quiet"])
            store = tokenmill.open(str(directory))
            documents = [tokens.astype(np.int64) for tokens in store]
            end = int(documents[0][-1])
            assert all(tokens[-1] == end and np.count_nonzero(tokens == end) == 1 for tokens in documents)
            np.save(f"{directory}-appended.npy", np.concatenate(documents))
            np.save(f"{directory}-prepended.npy", np.concatenate([np.roll(tokens, 1) for tokens in documents]))
            np.save(f"{directory}-ends.npy", np.cumsum([len(tokens) for tokens in documents]))
            origins = [(d.source, d.row) for d in map(store.document, range(len(store)))]
            Path(f"{directory}-origins.json").write_text(json.dumps(origins))
            vocabulary = store.job.tokenizer.vocabulary_size
            self.stores[tokenizer] = {"directory": str(directory), "end": end, "vocabulary": vocabulary}
        return self.stores[tokenizer]

    def environment(self, package: str) -> str:
        """The Python of a fresh environment for a package; one that was kept and asks for the same is used again."""
        if package in self.pythons:
            return self.pythons[package]
        wanted = ENVIRONMENTS[package]
        requirements = [self.torch, *wanted.requirements] if wanted.torch else [*wanted.requirements]
        identity = "\n".join(filter(None, [*requirements, wanted.alone, wanted.python]))
        folder = self.folder / f"environment-{package}"
        python, record = str(folder / "bin" / "python"), folder / "requirements.txt"
        if not record.exists() or record.read_text() != identity:
            shutil.rmtree(folder, ignore_errors=True)
            log.info("installing %s", " ".join(requirements))
            install(folder, python, requirements, wanted.python or sys.executable)
            if wanted.alone:
                run(["uv", "pip", "install", "--quiet", "--python", python, "--no-deps", wanted.alone])
            record.write_text(identity)
        self.pythons[package] = python
        return python


def main() -> int:
    """Check all formats; the exit code is 1 if anything differs or could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", help="a directory of Parquet files (corpus/en in TOKENMILL_TEST_DATA if not given)")
    parser.add_argument("--only", nargs="+", choices=sorted({case.format for case in CASES}), metavar="FORMAT")
    parser.add_argument("--keep", help="work in this directory and leave stores, exports and environments there")
    parser.add_argument("--torch", default="torch", help="what to ask for as PyTorch, such as torch==2.13.0")
    parser.add_argument("--markdown", action="store_true", help="print nothing but the table")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.WARNING if options.markdown else logging.INFO)
    data = os.environ.get("TOKENMILL_TEST_DATA")
    if data:
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", os.path.join(data, "vocab"))
    elif not options.corpus:
        parser.error("name a --corpus, or set TOKENMILL_TEST_DATA")
    corpus = sorted(
        str(path) for path in Path(options.corpus or os.path.join(data or "", "corpus", "en")).glob("*.parquet")
    )
    if not corpus:
        parser.error("the corpus has no Parquet files")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder.resolve(), corpus, options.torch)
        results = []
        for case in CASES:
            if not options.only or case.format in options.only:
                results += check(bench, case)
                if not options.keep:
                    shutil.rmtree(folder / f"export-{case.format}-{case.dtype}", ignore_errors=True)
    show(results)
    return 1 if any(result.problems for result in results) else 0


def check(bench: Bench, case: Case) -> list[Result]:
    """Check one case, and tell of it at once."""
    results = bench.check(case)
    for result in results:
        counts = (result.documents, result.tokens, result.verdict.strip("*"), result.seconds)
        log.info(LINE.format(case.format, case.dtype, result.package, *counts))
        for problem in result.problems:
            log.info("    %s", problem)
    return results


def show(results: list[Result]) -> None:
    """Print the table, and below it what went wrong."""
    rows = [HEADINGS, tuple("-" * len(heading) for heading in HEADINGS)]
    rows += [
        (r.case.format, r.case.dtype, r.package, r.read, f"{r.documents:,}", f"{r.tokens:,}", r.verdict)
        for r in results
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    for row in rows:
        print("|", " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)), "|")
    for result in results:
        for problem in result.problems:
            print(f"\n- {result.case.format} {result.case.dtype}, {result.package}: {problem}")


def install(folder: Path, python: str, requirements: list[str], version: str) -> None:
    """Make an environment with some packages, by uv if it is there and can, else by venv and pip.

    `version` is a Python, or the number of one that uv finds; pip uses this one.
    """
    tried = []
    if shutil.which("uv"):
        links = os.environ.get("PIP_FIND_LINKS", "").split()
        source = [word for link in links for word in ("--find-links", link)] or ["--torch-backend", "cpu"]
        try:
            run(["uv", "venv", "--quiet", "--python", version, str(folder)])
            run(["uv", "pip", "install", "--quiet", "--python", python, *source, *requirements])
        except Failed as error:
            tried.append(str(error))
        else:
            return
    try:
        run([sys.executable, "-m", "venv", "--clear", str(folder)])
        run([python, "-m", "pip", "install", "--quiet", *requirements])
    except Failed as error:
        raise Failed("; ".join([*tried, str(error)])) from error


def run(command: list[str] | tuple[str, ...], variables: dict[str, str] | None = None) -> str:
    """What a command writes to stdout; if it fails, the command and the line that tells why, mostly the last one."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env={**os.environ, **(variables or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{brief(command)}` took more than {TIMEOUT_SECONDS} seconds") from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "nothing was written").splitlines()
        last = next((line for line in lines if line.startswith("error: ")), lines[-1])
        raise Failed(f"`{brief(command)}` ended with {done.returncode}: {last.strip()}")
    return done.stdout


def brief(command: list[str] | tuple[str, ...]) -> str:
    """A command as a person would write it, without the directories of this machine."""
    words = [word if word.startswith("{") else os.path.basename(word.rstrip("/")) or word for word in command]
    return " ".join(word for word in words if not word.startswith("{"))


if __name__ == "__main__":
    sys.exit(main())
