"""MosaicML streaming: the samples of its LocalDataset, and of its StreamingDataset in order."""

import importlib.metadata

import numpy as np
import torch
from expected import Check

if torch.version.cuda is None and "+" not in importlib.metadata.version("torchvision"):
    # A torchvision made for CUDA beside a torch without it cannot register these, and streaming imports it.
    for operator in ("nms", "qnms"):
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from streaming import LocalDataset, StreamingDataset


def main() -> None:
    """Compare every sample with the stream of tokens: less than one sample may be missing at its end, or be short."""
    check = Check()
    folders = check.folders()[::-1]  # val is the first shard
    samples = [sample for folder in folders for sample in read_folder(check, folder)]
    length, stream = check.sequence_tokens, check.expected.tokens
    samples_expected = -(-len(stream) // length) if check.keeps_tail else len(stream) // length
    check.require(len(samples) == samples_expected, f"{len(samples):,} of {samples_expected:,} samples")
    check.require(all(len(sample) == length for sample in samples[:-1]), f"not all samples have {length:,} tokens")
    tokens = np.concatenate(samples)
    check.same("the stream", tokens, stream if check.keeps_tail else stream[: samples_expected * length])
    check.tokens = len(tokens)
    check.documents = int(np.searchsorted(check.expected.ends, len(tokens), side="right"))
    shards = sum(len(check.files(".mds", folder)) for folder in folders)
    dropped = len(stream) - len(tokens)
    rest = f"the last has {len(samples[-1]):,}" if check.keeps_tail else f"the last {dropped:,} tokens are dropped"
    check.report(
        "mosaicml-streaming",
        f"{len(samples):,} samples of {length:,} tokens in {shards} shards (LocalDataset, StreamingDataset); {rest}",
    )


def read_folder(check: Check, folder: str) -> list[np.ndarray]:
    """The samples of a directory, the same from both datasets."""
    local = LocalDataset(folder)
    samples = [local[position]["tokens"] for position in range(len(local))]
    check.require(all(sample.dtype == check.dtype for sample in samples), f"not all samples are {check.dtype}")
    streaming = StreamingDataset(local=folder, shuffle=False, batch_size=1, num_canonical_nodes=1)
    streamed = [sample["tokens"] for sample in streaming]
    check.same("StreamingDataset", np.concatenate(streamed), np.concatenate(samples))
    return samples


main()
