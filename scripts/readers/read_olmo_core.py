"""OLMo-core: documents by the csv and by the end tokens, and the instances of its NumpyFSLDataset."""

import numpy as np
from expected import Check, Documents, chain, collect
from olmo_core.data.numpy_dataset import NumpyFSLDataset
from olmo_core.data.utils import iter_document_indices, load_array_slice


def main() -> None:
    """Compare each document, then every instance."""
    check = Check()
    splits, instances, dropped = [], 0, 0
    for folder in check.folders():
        paths = check.files(".npy", folder)
        files = [read_file(check, path) for path in paths]
        splits.append(chain(files))
        instances += compare_instances(check, paths, files)
        dropped += sum(len(file.tokens) % check.window for file in files)
    check.same_documents(splits)
    check.report(
        "ai2-olmo-core",
        f"each document (iter_document_indices by the csv and by the end token); {instances:,} instances of "
        f"{check.window:,} (NumpyFSLDataset drops {dropped:,} tokens at ends of files)",
    )


def read_file(check: Check, path: str) -> Documents:
    """The documents of a file."""
    told = list(iter_document_indices(path, use_array_if_local=False, dtype=check.dtype.type))
    scanned = iter_document_indices(path, use_array_if_local=True, eos_token_id=check.end, dtype=check.dtype.type)
    check.same(f"end tokens of {path}", np.array(list(scanned)), np.array(told))
    return collect(load_array_slice(path, start, end, check.dtype.type) for start, end in told)


def compare_instances(check: Check, paths: list[str], files: list[Documents]) -> int:
    """Compare the instances of some files with their documents; how many there were."""
    dataset = NumpyFSLDataset(
        *paths,
        sequence_length=check.window,
        pad_token_id=check.end,
        eos_token_id=check.end,
        vocab_size=check.vocabulary,
        dtype=check.dtype.type,
    )
    dataset.prepare()
    position = 0
    for file in files:
        for start in range(0, len(file.tokens) - check.window + 1, check.window):
            found = dataset[position]["input_ids"].numpy()
            check.same(f"instance {position:,}", found, file.tokens[start : start + check.window])
            position += 1
    check.require(position == len(dataset), f"{len(dataset):,} instances, {position:,} expected")
    return position


main()
