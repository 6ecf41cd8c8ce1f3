"""TRL: SFTTrainer takes the labels of an export as they are, and its loss is the one computed by hand."""

import importlib.metadata
import json
import sys
from pathlib import Path

import datasets
import torch
import transformers
from trl import SFTConfig, SFTTrainer

STEPS, BATCH = 10, 4
case = json.loads(Path(sys.argv[1]).read_text())
differences: list[str] = []


def expected_rows() -> dict[tuple[int, ...], list[bool]]:
    """The tokens and the mask of each document, from its segments, by the tokenizer of transformers alone."""
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=case["tokenizer"], eos_token="<|endoftext|>")
    rows = {}
    for segments in case["documents"]:
        text = "".join(segment["text"] for segment in segments)
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        trained = [segment["train"] for segment in segments for _ in segment["text"]]
        mask = [any(trained[begin:end]) for begin, end in found["offset_mapping"]]
        rows[*found["input_ids"], tokenizer.eos_token_id] = [*mask, mask[-1]]
    return rows


class Checked(SFTTrainer):
    """Compares the loss of each step with that of the expected masks."""

    def compute_loss(self, model, inputs, *arguments, **options):
        """The trainer's loss."""
        loss = super().compute_loss(model, inputs, *arguments, **options)
        with torch.no_grad():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
        total, count = torch.zeros(()), 0
        for ids, keep, row in zip(inputs["input_ids"], inputs["attention_mask"], logits, strict=True):
            tokens = ids[keep.bool()]
            mask = torch.tensor(rows[tuple(tokens.tolist())][1:])
            total += torch.nn.functional.cross_entropy(row[: len(tokens) - 1][mask], tokens[1:][mask], reduction="sum")
            count += int(mask.sum())
        found = loss[0] if isinstance(loss, tuple) else loss
        if abs(float(found) - float(total / count)) > 1e-4:
            differences.append(f"the loss of a step is {float(found)}, {float(total / count)} expected")
        steps.append(float(found))
        return loss


rows, steps = expected_rows(), list[float]()
dataset = datasets.load_dataset(case["export"], split="train").select_columns(["input_ids", "labels"])
for row in dataset:
    mask = rows.get(tuple(row["input_ids"]))
    if mask != [label != -100 for label in row["labels"]]:
        differences.append("the labels of a document are not those of its segments")
transformers.set_seed(1)
shape = {"n_layer": 2, "n_embd": 32, "n_head": 2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
tokenizer = transformers.PreTrainedTokenizerFast(
    tokenizer_file=case["tokenizer"], eos_token="<|endoftext|>", pad_token="<|endoftext|>"
)
settings = SFTConfig(
    output_dir=case["scratch"],
    max_steps=STEPS,
    per_device_train_batch_size=BATCH,
    max_length=None,
    report_to=[],
    use_cpu=True,
    save_strategy="no",
    bf16=False,
    logging_steps=1,
    disable_tqdm=True,
)
trainer = Checked(model=model, args=settings, train_dataset=dataset, processing_class=tokenizer)
prepared = trainer.train_dataset
if [row["input_ids"] for row in prepared] != [row["input_ids"] for row in dataset]:
    differences.append("SFTTrainer changed the tokens")
if [row["labels"] for row in prepared] != [row["labels"] for row in dataset]:
    differences.append("SFTTrainer changed the labels")
trainer.train()
if len(steps) != STEPS:
    differences.append(f"{len(steps)} steps were trained")
version = importlib.metadata.version("trl")
read = (
    f"SFTTrainer: rows, {STEPS} steps of a tiny model, losses {steps[0]:.3f} to {steps[-1]:.3f} equal to those by hand"
)
tokens = sum(map(len, dataset["input_ids"]))
told = {"package": "trl", "version": version, "read": read, "documents": len(dataset), "tokens": tokens}
print(json.dumps({**told, "differences": differences[:5]}))
