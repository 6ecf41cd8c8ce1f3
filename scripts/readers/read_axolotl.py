"""axolotl: `axolotl train` takes the labels of an export as they are, and its loss is the one computed by hand."""

import json
import os

os.environ |= {"AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": "", "TRL_EXPERIMENTAL_SILENCE": "1"}

import datasets
from masks import Case, loss_by_hand, tiny_model

STEPS, BATCH = 10, 4


def main() -> None:
    """Train as the command does. It may start processes that load this file again."""
    from axolotl.cli.train import do_cli
    from axolotl.core.trainers.base import AxolotlTrainer

    case = Case()
    rows, steps = case.rows(), list[float]()
    base = case.scratch / "model"
    tiny_model().save_pretrained(base)
    case.tokenizer.save_pretrained(base)
    compute_loss = AxolotlTrainer.compute_loss

    def checked(self, model, inputs, *arguments, **options):
        batch = {name: inputs[name].clone() for name in ("input_ids", "attention_mask")}
        expected = loss_by_hand(model, batch, rows)
        loss = compute_loss(self, model, inputs, *arguments, **options)
        steps.append(float(loss[0] if isinstance(loss, tuple) else loss))
        case.same_loss(steps[-1], expected)
        return loss

    AxolotlTrainer.compute_loss = checked
    configuration = {
        "base_model": str(base),
        "datasets": [{"path": case.export, "type": ""}],
        "dataset_prepared_path": str(case.scratch / "prepared"),
        "dataset_num_proc": 1,
        "output_dir": str(case.scratch / "out"),
        "sequence_len": 512,
        "micro_batch_size": BATCH,
        "gradient_accumulation_steps": 1,
        "max_steps": STEPS,
        "num_epochs": 1,
        "optimizer": "adamw_torch",
        "learning_rate": 0.001,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "save_strategy": "no",
    }
    file = case.scratch / "config.yml"
    file.write_text(json.dumps(configuration))  # JSON is YAML
    do_cli(str(file))
    case.require(len(steps) == STEPS, f"{len(steps)} steps were trained")
    (prepared,) = (path for path in (case.scratch / "prepared").iterdir() if path.is_dir())
    dataset = datasets.load_from_disk(str(prepared))
    case.require(len(dataset) == len(rows), f"{len(dataset)} documents were prepared, {len(rows)} expected")
    for row in dataset:
        mask = rows.get(tuple(row["input_ids"]))
        case.require(mask == [label != -100 for label in row["labels"]], "labels of a document are not of its segments")
    losses = f"losses {steps[0]:.3f} to {steps[-1]:.3f} equal to those by hand"
    case.report(
        "axolotl",
        f"axolotl train: prepared rows, {STEPS} steps of a tiny model, {losses}",
        len(dataset),
        sum(map(len, dataset["input_ids"])),
    )


if __name__ == "__main__":
    main()
