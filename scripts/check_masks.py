"""Train on exports of segments with the trainers' own packages: they have to train on the same tokens.

    python -m scripts.check_masks [--only NAME ...] [--keep DIR] [--torch torch==VERSION] [--megatron-bridge DIR]

Segments are made up, prepared with gpt2 (TIKTOKEN_CACHE_DIR, and TOKENMILL_TEST_DATA for its tokenizer.json), exported,
and read by the programs in `scripts/readers` that CASES names, each in a fresh environment. Those compute tokens and
masks from the text, without tokenmill. Megatron-Bridge needs a GPU to be installed: its reader is run from a checkout,
if there is one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenmill
from scripts.check_readers import ENVIRONMENTS, READERS, Bench, Environment, Failed, run
from tokenmill.results import PrepareResult
from tokenmill.store.reader import Store

DOCUMENTS = 200
WORDS = ["The", "river", "bends", "naïve", "日本語", "42", "(x)", "👍", "\nNext", "it's", "been", "done."]
REPOSITORY = Path(__file__).resolve().parent.parent
# axolotl asks for exact versions of what a GPU needs, too: these are the ones of its data path and its trainer.
AXOLOTL = (
    *("accelerate==1.13.0", "datasets==4.8.4", "huggingface_hub==1.17.0", "peft==0.20.0", "tokenizers==0.23.1"),
    *("transformers==5.16.1", "trl==1.9.0", "torchao==0.17.0", "bitsandbytes==0.50.2", "mistral-common==1.11.5"),
    *("addict", "art", "axolotl-contribs-lgpl", "axolotl-contribs-mit", "colorama", "einops", "evaluate", "fastcore"),
    *("fire", "immutabledict", "kernels<0.17", "langdetect", "numba", "nvidia-ml-py", "optimum==1.16.2", "posthog"),
    *("python-dotenv", "requests", "schedulefree", "scipy", "tensorboard", "triton", "wandb"),
)
ENVIRONMENTS |= {
    "trl": Environment(("trl", "transformers", "accelerate", "datasets"), torch=True),
    "axolotl": Environment(AXOLOTL, torch=True, alone="axolotl==0.19.0"),
    "ai2-olmo-core": Environment((*ENVIRONMENTS["ai2-olmo-core"].requirements, "transformers"), torch=True),
    "marin-levanter": Environment(("marin-levanter==0.2.20.dev202606180959", "GitPython")),
    "megatron-bridge": Environment(("megatron-core", "transformers", "datasets", "regex", "six"), torch=True),
    "tokenmill": Environment((str(REPOSITORY), "transformers"), torch=True),
}


@dataclass(frozen=True)
class Case:
    """An export, the program that reads it, and the environment of that."""

    name: str
    to: str
    program: str
    package: str
    options: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("trl", "parquet", "read_trl.py", "trl"),
    Case("axolotl", "parquet", "read_axolotl.py", "axolotl"),
    Case("levanter", "parquet", "read_levanter.py", "marin-levanter", {"mask": "weights"}),
    Case("olmo", "olmo", "read_olmo_mask.py", "ai2-olmo-core"),
    Case("megatron-bridge", "parquet", "read_megatron_bridge.py", "megatron-bridge", {"packed": 512}),
    Case("loader", "parquet", "read_loader.py", "tokenmill"),
)


def make_documents() -> list[list[dict[str, object]]]:
    """Documents of questions and answers. A segment but the first begins with a space: see the readers' offsets."""
    rng = random.Random(5)

    def text(number: int) -> str:
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 12)))
        return f"{number} {words}" if number else words

    documents = []
    for number in range(DOCUMENTS):
        pieces = [(f" {text(part)}" if part else f"{number} {text(part)}") for part in range(rng.randint(2, 6))]
        documents.append([{"text": each, "train": part % 2 == 1} for part, each in enumerate(pieces)])
    return documents


def main() -> int:
    """Check all packages; the exit code is 1 if one differs or could not be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[case.name for case in CASES], metavar="NAME")
    parser.add_argument("--keep", help="work in this directory and leave everything there")
    parser.add_argument("--torch", default="torch", help="what to ask for as PyTorch, such as torch==2.13.0")
    parser.add_argument("--megatron-bridge", metavar="DIR", help="a checkout of Megatron-Bridge")
    options = parser.parse_args()
    data, documents, failed = os.environ["TOKENMILL_TEST_DATA"], make_documents(), False
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", os.path.join(data, "vocab"))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(options.keep or scratch).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, [], options.torch)
        source = folder / "segments.jsonl"
        source.write_text("".join(json.dumps({"segments": each}) + "\n" for each in documents))
        store = tokenmill.prepare(source, tokenizer="gpt2", segments="segments", out=folder / "store")
        task = {"store": str(folder / "store"), "documents": documents, "end": 50256} | stored(tokenmill.open(store))
        task |= {"tokenizer": os.path.join(data, "vocab/hf/gpt2.json"), "checkout": options.megatron_bridge or ""}
        if options.megatron_bridge:
            task["revision"] = run(["git", "-C", options.megatron_bridge, "rev-parse", "--short", "HEAD"]).strip()
        for case in CASES:
            if options.only and case.name not in options.only:
                continue
            if case.name == "megatron-bridge" and not options.megatron_bridge:
                print("megatron-bridge: not read: no --megatron-bridge DIR")
                continue
            failed |= not check(bench, case, store, task)
    return 1 if failed else 0


def stored(store: Store) -> dict[str, object]:
    """The tokens and the mask of a store, as lists."""
    mask: list[bool] = []
    for position in range(len(store)):
        own = [False] * len(store[position])
        for begin, end in store.trained(position) or []:
            own[begin:end] = [True] * (end - begin)
        mask += own
    return {"tokens": store.tokens(0, store.token_count).tolist(), "mask": mask}


def check(bench: Bench, case: Case, store: PrepareResult, task: dict[str, object]) -> bool:
    """Export, read in the environment of a package, and print the result. Whether all of it is equal."""
    folder = bench.folder
    export = tokenmill.export(store, to=case.to, out=folder / f"export-{case.name}", **case.options)
    scratch = folder / f"scratch-{case.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    file = folder / f"task-{case.name}.json"
    file.write_text(json.dumps({"revision": "", **task, "export": export.directory, "scratch": str(scratch)}))
    variables = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "HF_HOME": str(folder / "cache")}
    try:
        command = [bench.environment(case.package), str(READERS / case.program), str(file)]
        found = json.loads(run(command, variables).splitlines()[-1])
    except Failed as error:
        print(f"{case.name}: not read: {error}", flush=True)
        return False
    counts = f"{found['documents']:,} documents, {found['tokens']:,} tokens"
    verdict = found["differences"] or "equal"
    print(f"{case.name}, {found['package']} {found['version']}: {found['read']}; {counts}; {verdict}", flush=True)
    return not found["differences"]


if __name__ == "__main__":
    sys.exit(main())
