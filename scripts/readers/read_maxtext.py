"""MaxText: the reader of `grain_file_type=mmap` for Megatron's files."""

import numpy as np
from expected import Check, Documents, collect, compare_prefixes
from maxtext.input_pipeline._mmap_datasource import MMapIndexedDataset


def main() -> None:
    """Compare each sequence of each prefix; a sequence is a document."""
    check = Check()
    prefixes = compare_prefixes(check, read_prefix)
    check.report("maxtext", f"each document of {prefixes} MMapIndexedDataset")


def read_prefix(check: Check, prefix: str) -> Documents:
    """The documents of a pair of files."""
    dataset = MMapIndexedDataset(prefix)
    check.require(np.dtype(dataset.dtype) == check.dtype, f"{prefix} is {dataset.dtype}")
    check.same(f"document indices of {prefix}", dataset.doc_idx, np.arange(len(dataset) + 1))
    return collect(dataset[position] for position in range(len(dataset)))


main()
