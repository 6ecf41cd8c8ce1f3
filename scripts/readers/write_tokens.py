"""Write tokens by a peer's own code: `write_tokens.py NAME TASK`, with the texts and their ids in the file TASK.

Scripts of repositories run as they are, but for the data set that they load, the number of processes, and the size of
the shards of build-nanogpt, which is a constant.
"""

import gzip
import importlib.metadata
import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np


def by_script(repository, path, task, arguments=(), replaced=("", ""), beside=()):
    """Run a script of a repository on the texts."""
    import datasets

    git = ["git", "-C", f"{task['mirrors']}/{repository}/repo"]
    for each in (path, *beside):
        text = subprocess.run([*git, "show", f"HEAD:{each}"], check=True, capture_output=True, text=True).stdout
        Path(task["out"], os.path.basename(each)).write_text(text.replace(*replaced) if replaced[0] else text)
    data = datasets.Dataset.from_dict({"text": task["texts"]})
    datasets.load_dataset = lambda *_, split=None, **__: data if split else datasets.DatasetDict(train=data)
    os.cpu_count = lambda: 1
    sys.path.insert(0, task["out"])
    sys.argv = [path, *arguments]
    runpy.run_path(os.path.join(task["out"], os.path.basename(path)), run_name="__main__")
    return subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout


def nanogpt(task):
    """Its prepare.py divides each split into 1,024 parts: here the first one has all, and there is no other."""
    import datasets
    import tqdm

    tokenize, tqdm.tqdm = datasets.DatasetDict.map, lambda parts, **_: parts[:1]
    datasets.DatasetDict.map = lambda *arguments, **options: tokenize(*arguments, **{**options, "num_proc": None})
    datasets.Dataset.shard = lambda data, **_: data
    return by_script("karpathy+nanoGPT", "data/openwebtext/prepare.py", task)


def build_nanogpt(task):
    """Its fineweb.py, with smaller shards."""
    size = ("shard_size = int(1e8)", f"shard_size = {task['shard_tokens']}")
    return by_script("karpathy+build-nanogpt", "fineweb.py", task, replaced=size)


def llmc(task):
    """Its fineweb.py and data_common.py."""
    size = ("--shard_size", str(task["shard_tokens"]))
    return by_script("karpathy+llm.c", "dev/data/fineweb.py", task, size, beside=("dev/data/data_common.py",))


def llmc_llama(task):
    """Its write_datafile, for a vocabulary of four bytes; the end token is first, and shards cut documents."""
    git = ["git", "-C", f"{task['mirrors']}/karpathy+llm.c/repo"]
    code = subprocess.run([*git, "show", "HEAD:dev/data/data_common.py"], check=True, capture_output=True, text=True)
    module = {"__name__": "data_common"}
    exec(code.stdout, module)
    stream = [token for ids in task["ids"] for token in (task["end"], *ids)]
    for number, start in enumerate(range(0, len(stream), task["shard_tokens"])):
        file = f"{task['out']}/fineweb_{'train' if number else 'val'}_{number:06d}.bin"
        module["write_datafile"](file, stream[start : start + task["shard_tokens"]], "llama-3")
    return subprocess.run([*git, "rev-parse", "--short", "HEAD"], check=True, capture_output=True, text=True).stdout


def megatron(task):
    """IndexedDatasetBuilder; every third document consists of two sequences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    builder = IndexedDatasetBuilder(f"{task['out']}/data_text_document.bin", dtype=np.dtype(task["dtype"]).type)
    for number, ids in enumerate(task["ids"]):
        items = [*ids, task["end"]]
        lengths = [len(items) // 2, len(items) - len(items) // 2] if number % 3 == 0 else [len(items)]
        if number % 2:
            builder.add_document(torch.tensor(items), lengths)
        else:
            for first, length in zip((0, lengths[0]), lengths, strict=False):
                builder.add_item(torch.tensor(items[first : first + length]))
            builder.end_document()
    builder.finalize(f"{task['out']}/data_text_document.idx")
    return importlib.metadata.version("megatron-core")


def datatrove(task):
    """DocumentTokenizer, whose files are shuffled."""
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    texts = [text for text in task["texts"] if text]
    for rank in range(2):
        step = DocumentTokenizer(
            task["out"], task["tokenizer"], eos_token="<|endoftext|>", seed=1, max_tokens_per_file=task["shard_tokens"]
        )
        part = [Document(text=text, id=str(number)) for number, text in enumerate(texts) if number % 2 == rank]
        step.run(iter(part), rank, 2)
    return importlib.metadata.version("datatrove")


def dolma(task):
    """The command `dolma tokens`."""
    source = f"{task['out']}-documents.json.gz"
    with gzip.open(source, "wt") as file:
        for number, text in enumerate(task["texts"]):
            row = {"id": str(number), "text": text, "source": "texts", "added": "", "created": "", "metadata": {}}
            file.write(json.dumps(row) + "\n")
    command = [os.path.join(os.path.dirname(sys.executable), "dolma"), "tokens", "--documents", source]
    command += ["--destination", task["out"], "--tokenizer.name_or_path", task["tokenizer"], "--dtype", "uint16"]
    command += ["--tokenizer.eos_token_id", str(task["end"]), "--processes", "1", "--max_size", "100000"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stderr[-3000:]}")
    return importlib.metadata.version("dolma")


def tensors(part):
    """The ids of documents, for litdata."""
    import torch

    for ids in part:
        yield torch.tensor(ids, dtype=torch.int32)


def litdata(task):
    """The function optimize, with TokensLoader."""
    from litdata import TokensLoader, optimize

    documents = [[*ids, task["end"]] for ids in task["ids"]]
    parts = [documents[first : first + 100] for first in range(0, len(documents), 100)]
    optimize(tensors, parts, task["out"], chunk_size=task["shard_tokens"], num_workers=1, item_loader=TokensLoader())
    return importlib.metadata.version("litdata")


def mds(task):
    """MDSWriter, with sequences of the stream of documents, as llm-foundry writes them. The rest is dropped."""
    import torch

    if torch.version.cuda is None and "+" not in importlib.metadata.version("torchvision"):
        # A torchvision made for CUDA beside a torch without it cannot register these, and streaming imports it.
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float threshold) -> Tensor")
    from streaming import MDSWriter

    stream, length = np.array([token for ids in task["ids"] for token in (*ids, task["end"])]), task["sequence_tokens"]
    with MDSWriter(out=task["out"], columns={"tokens": f"ndarray:{task['dtype']}"}, size_limit=100_000) as writer:
        for start in range(0, len(stream) - length + 1, length):
            writer.write({"tokens": stream[start : start + length].astype(task["dtype"])})
    return importlib.metadata.version("mosaicml-streaming")


def datasets(task):
    """save_to_disk of a column of ids."""
    from datasets import Dataset

    data = Dataset.from_dict({"input_ids": [[*ids, task["end"]] for ids in task["ids"]], "text": task["texts"]})
    data.save_to_disk(task["out"], num_shards=3)
    return importlib.metadata.version("datasets")


if __name__ == "__main__":
    task = json.loads(Path(sys.argv[2]).read_text())
    Path(task["out"]).mkdir(parents=True)
    version = globals()[sys.argv[1].replace("-", "_")](task)
    print(json.dumps({"version": version.strip()}))
