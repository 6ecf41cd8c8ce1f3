"""Megatron-Bridge: the batches of its GPTSFTPackedParquetDataset, by the code of a checkout.

Its package needs Transformer Engine, so only the modules that read are loaded: what they import besides is empty.
"""

import importlib.machinery
import itertools
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
from masks import Case

WINDOW, BATCH = 512, 4
EMPTY = ("utils.common_utils", "training.tokenizers.tokenizer", "data.conversation_processing")


def load(checkout: Path) -> type:
    """The dataset of a checkout."""
    root = checkout / "src" / "megatron" / "bridge"
    for name in ("", "data", "data.packing", "data.datasets", "utils", "training", "training.tokenizers"):
        module = types.ModuleType(f"megatron.bridge.{name}".rstrip("."))
        module.__path__ = [str(root.joinpath(*name.split(".")))]
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        sys.modules[module.__name__] = module
    for name in EMPTY:
        sys.modules[f"megatron.bridge.{name}"] = MagicMock(spec_set=None)
    from megatron.bridge.data.packing.parquet import GPTSFTPackedParquetDataset

    return GPTSFTPackedParquetDataset


def main() -> None:
    """Compare each row of a batch with the documents in it."""
    case = Case()
    rows, found = case.rows(), 0
    tokenizer = types.SimpleNamespace(eos_id=case.end)
    options = {"prompt_template": "{input} {answer}", "truncation_field": "input"}  # asked for, and not used
    kind = load(Path(case.checkout))
    dataset = kind(case.export, tokenizer, max_seq_length=WINDOW, pad_to_max_length=True, **options)
    for first in range(0, len(dataset), BATCH):
        batch = dataset.collate_fn([dataset[number] for number in range(first, min(first + BATCH, len(dataset)))])
        for tokens, labels, mask, edges in zip(
            *(batch[name].numpy() for name in ("tokens", "labels", "loss_mask", "cu_seqlens_q")), strict=True
        ):
            for begin, end in itertools.pairwise(edges):
                if begin == end or (end == WINDOW and not mask[begin:].any()):
                    continue  # padding, which has a sequence of its own
                document = (*tokens[begin:end].tolist(), int(labels[end - 1]))
                case.require(document in rows, "a document is not one of the store")
                case.require(
                    np.array_equal(labels[begin : end - 1], tokens[begin + 1 : end]), "labels are other tokens"
                )
                trained = (mask[begin:end] == 1).tolist()
                case.require(trained == rows.get(document, [])[1:], "the mask of a document is not of its segments")
                found += 1
    case.require(found == len(rows), f"{found} documents were packed, {len(rows)} expected")
    read = f"GPTSFTPackedParquetDataset: {len(dataset)} rows of {WINDOW} in batches of {BATCH}"
    case.report("megatron-bridge", read, found, sum(map(len, rows)), case.revision)


if __name__ == "__main__":
    main()
