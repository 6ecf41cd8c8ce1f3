"""NeMo AutoModel: its own IndexedDataset for Megatron's files, mapped and as a file."""

import numpy as np
from expected import Check, Documents, collect, compare_prefixes
from nemo_automodel.components.datasets.llm.megatron.indexed_dataset import IndexedDataset


def main() -> None:
    """Compare each sequence of each prefix; a sequence is a document."""
    check = Check()
    prefixes = compare_prefixes(check, read_prefix)
    check.report("nemo-automodel", f"each document of {prefixes} IndexedDataset, mapped and as a file")


def read_prefix(check: Check, prefix: str) -> Documents:
    """The documents of a pair of files."""
    dataset = IndexedDataset(prefix, mmap=True)
    documents = collect(dataset[position] for position in range(len(dataset)))
    check.same(f"document indices of {prefix}", dataset.document_indices, np.arange(len(dataset) + 1))
    unmapped = IndexedDataset(prefix, mmap=False)
    check.same(f"{prefix} as a file", collect(unmapped[i] for i in range(len(unmapped))).tokens, documents.tokens)
    return documents


main()
