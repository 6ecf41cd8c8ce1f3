"""Train on exports of segments with the trainers' own packages: they have to train on the same tokens.

    python -m scripts.check_masks [--keep DIR] [--torch torch==VERSION]

Segments are made up, prepared with gpt2 (TIKTOKEN_CACHE_DIR, and TOKENMILL_TEST_DATA for its tokenizer.json), exported
to Parquet and for OLMo-core, and read by `scripts/readers/read_trl.py` and `read_olmo_mask.py`, each in a fresh
environment. Those compute tokens and masks from the text, without tokenmill.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import tokenmill
from scripts.check_readers import ENVIRONMENTS, READERS, Bench, Environment, Failed, run

DOCUMENTS = 200
WORDS = ["The", "river", "bends", "naïve", "日本語", "42", "(x)", "👍", "\nNext", "it's", "been", "done."]
ENVIRONMENTS["trl"] = Environment(("trl", "transformers", "accelerate", "datasets"), torch=True)
CASES = (("parquet", "read_trl.py", "trl"), ("olmo", "read_olmo_mask.py", "ai2-olmo-core"))


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
    parser.add_argument("--keep", help="work in this directory and leave everything there")
    parser.add_argument("--torch", default="torch", help="what to ask for as PyTorch, such as torch==2.13.0")
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
        opened = tokenmill.open(store)
        mask: list[bool] = []
        for position in range(len(opened)):
            own = [False] * len(opened[position])
            for begin, end in opened.trained(position) or []:
                own[begin:end] = [True] * (end - begin)
            mask += own
        tokens = opened.tokens(0, opened.token_count).tolist()
        for to, program, package in CASES:
            export = tokenmill.export(store, to=to, out=folder / to)
            task = {"export": export.directory, "documents": documents, "tokens": tokens, "mask": mask, "end": 50256}
            task |= {"tokenizer": os.path.join(data, "vocab/hf/gpt2.json"), "scratch": str(folder / "scratch")}
            (folder / "task.json").write_text(json.dumps(task))
            variables = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "HF_HOME": str(folder / "cache")}
            try:
                command = [bench.environment(package), str(READERS / program), str(folder / "task.json")]
                found = json.loads(run(command, variables).splitlines()[-1])
            except Failed as error:
                print(f"{to}, {package}: not read: {error}")
                failed = True
                continue
            problems = found["differences"]
            failed |= bool(problems)
            counts = f"{found['documents']:,} documents, {found['tokens']:,} tokens"
            print(f"{to}, {found['package']} {found['version']}: {found['read']}; {counts}; {problems or 'equal'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
