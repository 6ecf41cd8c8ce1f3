"""OLMo-core: the labels of NumpyFSLDataset's instances with the masks of an export."""

import glob

import numpy as np
from masks import Case
from olmo_core.data.numpy_dataset import NumpyFSLDataset

WINDOW = 64
case = Case()
paths = sorted(path for path in glob.glob(f"{case.export}/**/*.npy", recursive=True) if "_mask" not in path)
masks = [path.replace(".npy", "_mask.npy") for path in paths]
dataset = NumpyFSLDataset(
    *paths,
    sequence_length=WINDOW,
    pad_token_id=case.end,
    eos_token_id=case.end,
    vocab_size=50304,
    dtype=np.uint16,
    label_mask_paths=masks,
)
dataset.prepare()
ids, trained = np.array(case.tokens), np.array(case.mask, bool)
for number in range(len(dataset)):
    item, place = dataset[number], slice(number * WINDOW, (number + 1) * WINDOW)
    case.require(np.array_equal(item["input_ids"].numpy(), ids[place]), f"instance {number} has other tokens")
    case.require(np.array_equal(item["label_mask"].numpy(), trained[place]), f"instance {number} has another mask")
read = f"{len(dataset)} instances of {WINDOW} with label_mask_paths"
case.report("ai2-olmo-core", read, len(case.documents), len(ids))
