"""TRL: SFTTrainer takes the labels of an export as they are, and its loss is the one computed by hand."""

import datasets
from masks import Case, loss_by_hand, tiny_model
from trl import SFTConfig, SFTTrainer

STEPS, BATCH = 10, 4
case = Case()


class Checked(SFTTrainer):
    """Compares the loss of each step with that of the expected masks."""

    def compute_loss(self, model, inputs, *arguments, **options):
        """The trainer's loss."""
        loss = super().compute_loss(model, inputs, *arguments, **options)
        found = float(loss[0] if isinstance(loss, tuple) else loss)
        case.same_loss(found, loss_by_hand(model, inputs, rows))
        steps.append(found)
        return loss


rows, steps = case.rows(), list[float]()
dataset = datasets.load_dataset(case.export, split="train").select_columns(["input_ids", "labels"])
for row in dataset:
    mask = rows.get(tuple(row["input_ids"]))
    case.require(mask == [label != -100 for label in row["labels"]], "labels of a document are not of its segments")
settings = SFTConfig(
    output_dir=str(case.scratch),
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
trainer = Checked(model=tiny_model(), args=settings, train_dataset=dataset, processing_class=case.tokenizer)
prepared = trainer.train_dataset
for column in ("input_ids", "labels"):
    same = [row[column] for row in prepared] == [row[column] for row in dataset]
    case.require(same, f"SFTTrainer changed the {column}")
trainer.train()
case.require(len(steps) == STEPS, f"{len(steps)} steps were trained")
read = (
    f"SFTTrainer: rows, {STEPS} steps of a tiny model, losses {steps[0]:.3f} to {steps[-1]:.3f} equal to those by hand"
)
case.report("trl", read, len(dataset), sum(map(len, dataset["input_ids"])))
