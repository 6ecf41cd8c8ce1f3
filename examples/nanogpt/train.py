"""Train a tiny GPT on train.bin and val.bin, on the CPU, to see that the tokens can be learned from.

    python train.py --data tokens/nanogpt

The files are read as nanoGPT reads them: memory-mapped, uint16, windows from random places of the stream. The exit code
is 1 if the validation loss did not go down clearly. The model is not one to keep.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

import numpy as np

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError:
    sys.exit("train.py needs PyTorch: pip install torch")

CONTEXT = 32
BATCH = 4
WIDTH = 64
HEADS = 4
BLOCKS = 2
LEARNING_RATE = 3e-3
CLEARLY = 0.5  # nats by which the loss has to go down
NANOGPT_VOCABULARY = 50304  # gpt2's 50,257 ids, rounded up to a multiple of 64


class Block(nn.Module):
    """Causal attention, then a perceptron, each on the normalized stream and added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, stream: Tensor) -> Tensor:
        """One step of the stream: (batch, time, width) in and out."""
        batch, time_, _ = stream.shape
        heads = self.attend(self.before_attention(stream)).view(batch, time_, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.mix(seen.transpose(1, 2).reshape(batch, time_, WIDTH))
        return stream + self.perceptron(self.before_perceptron(stream))


class TinyGPT(nn.Module):
    """Token and position embeddings, a few blocks, and the token embedding once more as the output."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.last = nn.LayerNorm(WIDTH)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, windows: Tensor) -> Tensor:
        """The mean loss, in nats, of each token of the windows given those before it."""
        known, wanted = windows[:, :-1], windows[:, 1:]
        stream = self.blocks(self.token(known) + self.position.weight[: known.shape[1]])
        scores = functional.linear(self.last(stream), self.token.weight)
        return functional.cross_entropy(scores.flatten(0, 1), wanted.flatten())


def open_tokens(path: Path) -> np.memmap:
    """The tokens of a file: uint16, nothing before or after them."""
    if not path.is_file():
        sys.exit(f"{path} is not there: tokenmill prepare SOURCE... --tokenizer gpt2 --out DIR --to nanogpt")
    if path.stat().st_size <= 2 * CONTEXT:
        sys.exit(f"{path} has no {CONTEXT + 1} tokens: prepare more text, or give --val a larger share")
    return np.memmap(path, dtype=np.uint16, mode="r")


def vocabulary_size(data: Path) -> int:
    """A multiple of 64 with room for every id: that of the store the files are in, else nanoGPT's own."""
    run = data.resolve().parent / "run.json"
    if not run.is_file():
        return NANOGPT_VOCABULARY
    return 64 * math.ceil(json.loads(run.read_text())["job"]["tokenizer"]["vocabulary_size"] / 64)


def windows_at(tokens: np.memmap, starts: np.ndarray) -> Tensor:
    """A batch: from each start, one window of the context and the token after it."""
    return torch.from_numpy(np.stack([tokens[start : start + CONTEXT + 1] for start in starts]).astype(np.int64))


@torch.no_grad()
def validate(model: TinyGPT, tokens: np.memmap) -> float:
    """The mean loss over windows at even distances: always the same ones."""
    starts = np.linspace(0, len(tokens) - CONTEXT - 1, 8 * BATCH).astype(np.int64)
    return float(np.mean([model(windows_at(tokens, batch)).item() for batch in starts.reshape(8, BATCH)]))


def learn(model: TinyGPT, train: np.memmap, val: np.memmap, steps: int, seed: int) -> tuple[float, float]:
    """Train on windows at random places and print both losses now and then; the first and the last on val.bin."""
    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.1)
    first = last = validate(model, val)
    print(f"step    0                     val loss {first:6.3f}")
    losses = []
    for step in range(1, steps + 1):
        loss = model(windows_at(train, random.integers(0, len(train) - CONTEXT, BATCH)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 10 == 0 or step == steps:
            last = validate(model, val)
            print(f"step {step:>4}  train loss {np.mean(losses):6.3f}  val loss {last:6.3f}", flush=True)
            losses.clear()
    return first, last


def main() -> int:
    """Train a tiny GPT; the exit code says whether it learned."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="where train.bin and val.bin are")
    parser.add_argument("--steps", type=int, default=60, help="batches to train on [60]")
    parser.add_argument("--seed", type=int, default=1337, help="for the weights and the windows [1337]")
    options = parser.parse_args()
    tokens = [open_tokens(options.data / name) for name in ("train.bin", "val.bin")]
    vocabulary = vocabulary_size(options.data)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # at this size, threads wait for each other longer than they work
    model = TinyGPT(vocabulary)
    print(f"train.bin {len(tokens[0]):,} tokens, val.bin {len(tokens[1]):,} tokens")
    print(f"{sum(weights.numel() for weights in model.parameters()):,} parameters, {vocabulary:,} ids")
    started = time.monotonic()
    first, last = learn(model, *tokens, options.steps, options.seed)
    learned = last < first - CLEARLY
    verdict = "it learns" if learned else f"it did not learn: {CLEARLY} less was expected"
    print(f"val loss {first:.3f} -> {last:.3f} in {time.monotonic() - started:.0f} s: {verdict}")
    return 0 if learned else 1


if __name__ == "__main__":
    sys.exit(main())
