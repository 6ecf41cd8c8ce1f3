"""Train a tiny GPT from a store by DistributedDataParallel, on CPUs, with checkpoints that any number of ranks resumes.

    torchrun --standalone --nproc-per-node 2 train.py --store tokens --checkpoint run.pt --record run.jsonl

Each step logs its loss and a hash of its global batch. With --die-at the last rank kills itself after that step, as a
machine that fails does. Run the same command again, with any number of processes, to continue from the checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import tokenmill

try:
    import torch
    from torch import Tensor, distributed, nn
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel
except ModuleNotFoundError:
    sys.exit("train.py needs PyTorch: pip install torch")

from tokenmill.training.torch import TokenDataLoader

CONTEXT = 64
BATCH = 12  # sequences of all ranks together: divisible by 1, 2, 3 and 4
WIDTH = 32
HEADS = 2
SAVE_EVERY = 4


class TinyGPT(nn.Module):
    """Token and position embeddings, one block of attention and perceptron, and the token embedding as the output."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, known: Tensor, wanted: Tensor) -> Tensor:
        """The mean loss, in nats, of the labels."""
        stream = self.block(self.token(known) + self.position.weight, src_mask=self.mask, is_causal=True)
        scores = functional.linear(stream, self.token.weight)
        return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def batch_hash(rows: Tensor) -> str:
    """The hash of the global batch: the rows of all ranks, one after the other."""
    gathered = [torch.empty_like(rows) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, rows.contiguous())
    return hashlib.sha256(torch.cat(gathered).numpy().tobytes()).hexdigest()[:16]


def save(path: Path, content: dict[str, Any]) -> None:
    """Write a checkpoint that is complete or absent. One rank writes it: the state of the data is equal on all."""
    if distributed.get_rank() == 0:
        temporary = path.with_suffix(".tmp")
        torch.save(content, temporary)
        temporary.replace(path)
    distributed.barrier()


def main() -> None:
    """Train, or continue to train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, metavar="DIR", help="a store made by `tokenmill prepare`")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="written every few steps")
    parser.add_argument("--record", type=Path, required=True, metavar="FILE", help="a JSON line is added for each step")
    parser.add_argument("--steps", type=int, default=24, help="batches to train on [24]")
    parser.add_argument("--workers", type=int, default=1, help="workers of each rank that read batches [1]")
    parser.add_argument("--die-at", type=int, metavar="STEP", help="kill the last rank after this step")
    options = parser.parse_args()
    torch.manual_seed(1337)
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    loader = tokenmill.loader(options.store, sequence_tokens=CONTEXT, batch_sequences=BATCH, grain=4 * CONTEXT)
    feed = TokenDataLoader(loader, num_workers=options.workers)
    model = TinyGPT(tokenmill.open(options.store).job.tokenizer.vocabulary_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = 0
    if options.checkpoint.exists():
        before = torch.load(options.checkpoint)
        model.load_state_dict(before["model"])
        optimizer.load_state_dict(before["optimizer"])
        feed.load_state_dict(before["data"])
        step = before["step"]
    parallel = DistributedDataParallel(model)
    batches = iter(feed)
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    while step < options.steps:
        batch = next(batches)
        loss = parallel(batch["input_ids"], batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        distributed.all_reduce(mean)
        entry = {"step": step, "ranks": ranks, "loss": mean.item() / ranks, "batch": batch_hash(batch["input_ids"])}
        step += 1
        if rank == 0:
            with options.record.open("a") as file:
                print(json.dumps(entry), file=file)
        if step - 1 == options.die_at and rank == ranks - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVE_EVERY == 0:
            content = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(options.checkpoint, content | {"data": feed.state_dict(), "step": step})
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
