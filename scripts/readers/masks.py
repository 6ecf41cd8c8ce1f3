"""What the readers of masks have in common: the case, the tokens and the mask of each document, and the result.

The readers run in the environments of the trainers' packages, so this needs transformers and nothing of tokenmill.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import transformers

END = "<|endoftext|>"


class Case:
    """The case that this process was started for: a JSON file with the name in its only argument."""

    def __init__(self) -> None:
        case = json.loads(Path(sys.argv[1]).read_text())
        self.export: str = case["export"]
        self.store: str = case["store"]
        self.checkout: str = case["checkout"]
        self.revision: str = case["revision"]
        self.scratch = Path(case["scratch"])
        self.end: int = case["end"]
        self.documents: list[list[dict]] = case["documents"]
        self.tokens: list[int] = case["tokens"]
        self.mask: list[bool] = case["mask"]
        self.differences: list[str] = []
        self.tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=case["tokenizer"], eos_token=END, pad_token=END, bos_token=END, unk_token=END
        )

    def rows(self) -> dict[tuple[int, ...], list[bool]]:
        """The mask of each document by its tokens, from its segments, by the tokenizer of transformers alone."""
        rows = {}
        for segments in self.documents:
            text = "".join(segment["text"] for segment in segments)
            found = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
            trained = [segment["train"] for segment in segments for _ in segment["text"]]
            mask = [any(trained[begin:end]) for begin, end in found["offset_mapping"]]
            rows[*found["input_ids"], self.end] = [*mask, mask[-1]]
        return rows

    def require(self, holds: bool, wrong: str) -> None:
        """Note what is wrong if something does not hold."""
        if not holds:
            self.differences.append(wrong)

    def same_loss(self, found: float, expected: float) -> None:
        """Compare the loss of a step."""
        self.require(abs(found - expected) <= 1e-4, f"the loss of a step is {found}, {expected} expected")

    def report(self, package: str, read: str, documents: int, tokens: int, version: str = "") -> None:
        """Print the result: the package that read, what it read, how much, and what differs."""
        told = {"package": package, "version": version or importlib.metadata.version(package), "read": read}
        found = {"documents": documents, "tokens": tokens, "differences": list(dict.fromkeys(self.differences))[:5]}
        print("\n" + json.dumps({**told, **found}), flush=True)


def tiny_model() -> transformers.GPT2LMHeadModel:
    """A model of two layers, without dropout, so that the same input has the same loss.

    Its weights are large, so that each token has another loss: nearly equal ones would hide a wrong mask.
    """
    transformers.set_seed(1)
    shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "initializer_range": 0.3}
    shape |= {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))


def loss_by_hand(model: transformers.GPT2LMHeadModel, inputs: dict, rows: dict[tuple[int, ...], list[bool]]) -> float:
    """The mean loss of the trained tokens of a padded batch of documents. `rows` has the mask of each document."""
    import torch

    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    total, count = torch.zeros(()), 0
    for ids, keep, row in zip(inputs["input_ids"], inputs["attention_mask"], logits, strict=True):
        tokens = ids[keep.bool()]
        mask = torch.tensor(rows[tuple(tokens.tolist())][1:])
        total += torch.nn.functional.cross_entropy(row[: len(tokens) - 1][mask], tokens[1:][mask], reduction="sum")
        count += int(mask.sum())
    return float(total / count)
