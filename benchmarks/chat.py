"""Conversations to tokens and masks: `tokenmill prepare --messages` beside `datasets.map` and TRL's SFTTrainer.

    python -m benchmarks.chat --model DIR [--rows 1000000] [--peer-rows 40000] [--python PYTHON] [--rounds 3]

DIR has a tokenizer.json and a chat template without generation tags (chat_template.jinja, or in tokenizer_config.json).
PYTHON is that of an environment with trl, transformers, datasets and torch; without it, only tokenmill is measured. The
peers get the first --peer-rows conversations, since they are slow, and rates are compared. All use the same number of
processes. Their masks need tags, so the peers are given `--tagged FILE`, the same template with tags, if there is one.
The tokens of the peers are compared with the store's, row by row.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from benchmarks.processes import MAX_OTHERS, Timed, time_process, tokenmill_command

ROWS_IN_FILE = 100_000
# Words of several lengths and scripts; a conversation of four messages has about 1,000 bytes of JSON.
_SYLLABLES = [
    "an",
    "ber",
    "cho",
    "den",
    "el",
    "fi",
    "gra",
    "hin",
    "is",
    "jo",
    "ka",
    "lu",
    "mer",
    "no",
    "ost",
    "pre",
    "qui",
    "ru",
    "sta",
    "tor",
    "und",
    "ver",
    "wi",
    "xo",
    "yel",
    "zu",
]
_OTHERS = [
    "naïve",
    "日本語",
    "данные",
    "👍",
    "x = f(y)",
    "3.14159",
    "```python\nprint(1)\n```",
    "https://example.org/a?b=c",
]

# The ways of the peers. Each prints its rate, and the tokens of the first rows for the comparison.
PEER = """
import json, sys, time
way, model, files, workers, rows, template, out = sys.argv[1:8]
import datasets, transformers
datasets.disable_progress_bars()
dataset = datasets.load_dataset("parquet", data_files=json.loads(files), split=f"train[:{rows}]")
tokenizer = transformers.AutoTokenizer.from_pretrained(model)
if template:
    tokenizer.chat_template = open(template).read()
began = time.perf_counter()
if way == "map":
    def tokenize(row):
        found = tokenizer.apply_chat_template(
            row["messages"], tokenize=True, return_dict=True, return_assistant_tokens_mask=bool(template)
        )
        return {"input_ids": found["input_ids"], "mask": found.get("assistant_masks")}
    made = dataset.map(tokenize, num_proc=int(workers), remove_columns=dataset.column_names)
else:
    import torch, trl
    shape = dict(n_layer=1, n_embd=8, n_head=1, vocab_size=len(tokenizer))
    net = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
    config = trl.SFTConfig(
        out, dataset_num_proc=int(workers), assistant_only_loss=bool(template), max_length=None, report_to=[],
        use_cpu=True, bf16=False,
    )
    began = time.perf_counter()
    made = trl.SFTTrainer(net, config, train_dataset=dataset, processing_class=tokenizer).train_dataset
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, "rows": len(made), "ids": [list(made[n]["input_ids"]) for n in range(200)]}))
"""


def make_conversations(directory: Path, rows: int) -> list[str]:
    """Files of conversations of one to four turns, some with a system message, no two alike."""
    directory.mkdir()
    rng, files = random.Random(11), list[str]()
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(20_000)]
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    schema = pa.schema([("messages", pa.list_(message))])

    def text(least: int, most: int) -> str:
        chosen = rng.choices(words, k=rng.randint(least, most))
        if rng.random() < 0.2:
            chosen.insert(rng.randrange(len(chosen)), rng.choice(_OTHERS))
        return " ".join(chosen).capitalize() + rng.choice([".", "?", "!", "\n"])

    def conversation() -> list[dict[str, str]]:
        messages = [{"role": "system", "content": text(4, 12)}] if rng.random() < 0.3 else []
        for _ in range(rng.choice([1, 1, 2, 3])):
            messages += [{"role": "user", "content": text(5, 40)}, {"role": "assistant", "content": text(10, 90)}]
        return messages

    for start in range(0, rows, ROWS_IN_FILE):
        made = [{"messages": conversation()} for _ in range(min(ROWS_IN_FILE, rows - start))]
        files.append(str(directory / f"{len(files):05d}.parquet"))
        pq.write_table(pa.Table.from_pylist(made, schema), files[-1], compression="zstd", row_group_size=10_000)
    return files


class Contest:
    """The same conversations for each program."""

    def __init__(self, options: argparse.Namespace, scratch: Path) -> None:
        self.options = options
        self.scratch = scratch
        self.files = make_conversations(scratch / "chats", options.rows)
        self.ids: list[list[int]] = []

    def tokenmill(self) -> Timed:
        """The whole command, into a fresh store, whose first rows are kept for the comparison."""
        store = self.scratch / "store"
        shutil.rmtree(store, ignore_errors=True)
        own = ["--tokenizer", self.options.model, "--messages", "messages", "--workers", str(self.options.workers)]
        timed = time_process([*tokenmill_command("prepare"), *self.files, *own, "--out", str(store)])
        opened = tokenmill.open(str(store))
        self.ids = [opened[number].tolist() for number in range(200)]
        return timed

    def peer(self, way: str) -> Timed:
        """One of the peers, on the first rows. The rate is that of its own preparation, without its imports."""
        template = self.options.tagged or ""
        out, rows, workers = str(self.scratch / "trainer"), self.options.peer_rows, self.options.workers
        shutil.rmtree(self.scratch / "cache", ignore_errors=True)
        command = [self.options.python, "-c", PEER, way, self.options.model, json.dumps(self.files)]
        command += [str(workers), str(rows), template, out]
        environment = {"HF_HOME": str(self.scratch / "cache"), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        timed = time_process(command, **environment)
        differ = sum(mine != theirs for mine, theirs in zip(self.ids, timed.answer["ids"], strict=True))
        if differ:
            raise SystemExit(f"{way}: {differ} of {len(self.ids)} conversations have other tokens")
        return timed


def read_options() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="directory with tokenizer.json and a chat template")
    parser.add_argument("--tagged", help="the template with generation tags, for the masks of the peers")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--peer-rows", type=int, default=40_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--python", help="Python of the peers")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="where conversations and stores are written")
    return parser.parse_args()


def main() -> int:
    """Measure in turn, and print each round and the ratios."""
    options = read_options()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        contest = Contest(options, Path(scratch))
        size = sum(os.path.getsize(file) for file in contest.files)
        print(f"{options.rows:,} conversations, {size / 1e6:,.0f} MB of Parquet, {options.workers} processes")
        for number in range(options.rounds):
            ways: dict[str, Any] = {"tokenmill": contest.tokenmill}
            if options.python:
                ways |= {way: lambda way=way: contest.peer(way) for way in ("map", "trl")}
            for name, run in ways.items():
                timed = run()
                is_ours = name == "tokenmill"
                seconds = timed.seconds if is_ours else timed.answer["seconds"]
                rate = (options.rows if is_ours else options.peer_rows) / seconds
                note = " disturbed" if timed.others > MAX_OTHERS else ""
                figures = f"{seconds:7.1f} s  {rate:9,.0f} rows/s  CPU {timed.cpu_seconds:.1f} s"
                print(f"round {number + 1}  {name:10} {figures}{note}")
                rates.setdefault(name, []).append(rate)
    for name, values in rates.items():
        ours = rates["tokenmill"]
        best, median = max(ours) / max(values), statistics.median(ours) / statistics.median(values)
        print(
            f"{name:10} best {max(values):9,.0f} rows/s; tokenmill: best {best:.1f}, median {median:.1f} times as fast"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
