"""levanter: documents of an export become a cache of prebuilt rows, packed as supervised ones; its loss is by hand."""

import glob
import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
from haliax import Axis
from levanter.data.sharded_datasource import UrlDataSource
from levanter.data.text import (
    DatasetComponent,
    LmDataConfig,
    PrebuiltLmDatasetFormat,
    SupervisedLmDatasetFormat,
    build_lm_dataset_cache,
)
from levanter.models.gpt2 import Gpt2Config
from masks import Case

STEPS, WINDOW, VOCABULARY = 10, 512, 50257


def main() -> None:
    """Build the cache as a job for a cluster does, and read it by the configuration of a training."""
    case = Case()
    rows = case.rows()
    base = case.scratch / "tokenizer"
    case.tokenizer.save_pretrained(base)
    cache = str(case.scratch / "cache")
    prebuilt = PrebuiltLmDatasetFormat(loss_weights_key="loss_weights")
    files = UrlDataSource(sorted(glob.glob(f"{case.export}/*.parquet")))
    build_lm_dataset_cache(f"{cache}/train", files, prebuilt, case.tokenizer)
    component = DatasetComponent(cache_dir=cache, format=SupervisedLmDatasetFormat(), pack=True)
    data = LmDataConfig(tokenizer=str(base), components={"sft": component}, shuffle=False)
    shape = Gpt2Config(max_seq_len=WINDOW, hidden_dim=32, num_layers=2, num_heads=2, initializer_range=0.3)
    packed = data.build_token_datasets(data.build_caches("train"), shape.max_Pos, split="train")
    dataset = packed["sft"].as_sync_dataset()
    found, masks = 0, []
    for number in range(len(dataset)):
        example = dataset[number]
        documents, expected = split(np.asarray(example.tokens), np.asarray(example.attn_mask.segment_ids[0])), []
        for document in documents:
            mask = rows.get(tuple(document.tolist()))
            case.require(mask is not None, "a document is not one of the store")
            expected += [*(mask or [])[1:], False]
        found += len(documents)
        weights = np.asarray(example.loss_weight)
        expected = np.array(expected + [False] * (WINDOW - len(expected)), np.float32)
        case.require(np.array_equal(weights, expected), "the weights of a packed row are not of its segments")
        masks.append(expected)
    case.require(found == len(rows), f"{found} documents were packed, {len(rows)} expected")
    losses = compare_losses(case, shape, dataset, masks)
    read = f"prebuilt cache, {len(dataset)} packed rows of {WINDOW}; losses {losses} equal to those by hand"
    case.report("marin-levanter", read, found, sum(map(len, rows)))


def split(tokens: np.ndarray, segments: np.ndarray) -> list[np.ndarray]:
    """The documents of a packed row; the segment of padding is below zero."""
    edges = np.flatnonzero(np.diff(segments)) + 1
    parts = zip(np.split(tokens, edges), np.split(segments, edges), strict=True)
    return [part for part, numbers in parts if numbers[0] >= 0]


def compare_losses(case: Case, shape: Gpt2Config, dataset, masks: list[np.ndarray]) -> str:
    """Compare the losses of some rows with those of the expected masks, and return their range as text."""
    from levanter.data.text import named_lm_example_from_grug
    from levanter.trainer import TrainerConfig

    losses = []
    with TrainerConfig().use_device_mesh():
        model = shape.build(Axis("vocab", VOCABULARY), key=jax.random.PRNGKey(1))
        for number in range(min(STEPS, len(dataset))):
            example = named_lm_example_from_grug(dataset[number], shape.max_Pos)
            losses.append(float(model.compute_next_token_loss(example).scalar()))
            logits = np.asarray(model(example.tokens, example.attn_mask).array, np.float64)[:-1]
            greatest = logits.max(axis=1, keepdims=True)
            total = np.log(np.exp(logits - greatest).sum(axis=1)) + greatest[:, 0]
            each = total - logits[np.arange(len(logits)), np.asarray(example.tokens.array)[1:]]
            mask = masks[number][:-1] > 0
            case.same_loss(losses[-1], float(each[mask].mean()))
    return f"{min(losses):.3f} to {max(losses):.3f} of {len(losses)} rows"


if __name__ == "__main__":
    main()
