"""Train a small language model in JAX on batches of Grain, which reads a tokenmill store.

Each step saves the parameters and the state of Grain's iterator. A training that is killed continues with the next
batch: `run.sh` kills one and compares it with an undisturbed one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np

import tokenmill
from tokenmill.training.grain import TokenSource

WIDTH = 32
LEARNING_RATE = 0.5


def loss(parameters: dict[str, Any], inputs: Any, labels: Any) -> Any:
    """The mean loss of predicting each token from the one before it."""
    scores = parameters["embedding"][inputs] @ parameters["output"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(scores), labels[..., None], axis=-1))


@jax.jit
def train_step(parameters: dict[str, Any], inputs: Any, labels: Any) -> tuple[dict[str, Any], Any]:
    """One step of gradient descent."""
    value, gradients = jax.value_and_grad(loss)(parameters, inputs, labels)
    return jax.tree.map(lambda weights, slope: weights - LEARNING_RATE * slope, parameters, gradients), value


def new_parameters(vocabulary_size: int) -> dict[str, Any]:
    """The parameters before the first step."""
    first, second = jax.random.split(jax.random.key(0))
    return {
        "embedding": jax.random.normal(first, (vocabulary_size, WIDTH)) / WIDTH,
        "output": jax.random.normal(second, (WIDTH, vocabulary_size)) / WIDTH,
    }


def main() -> None:
    """Train from the checkpoint on, if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--checkpoint", required=True, type=Path)
    parser.add_argument("--record", required=True, type=Path)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--die-at", type=int, help="end by SIGKILL after so many steps")
    options = parser.parse_args()
    loader = tokenmill.loader(options.store, sequence_tokens=64, grain=256, seed=1337, rank=0, world_size=1)
    own = slice(jax.process_index(), None, jax.process_count())  # Grain divides the sequences among the hosts
    dataset = grain.MapDataset.source(TokenSource(loader))[own].repeat().batch(8)
    batches = iter(dataset.to_iter_dataset())
    parameters, step = new_parameters(tokenmill.open(options.store).job.tokenizer.vocabulary_size), 0
    if options.checkpoint.exists():
        with np.load(options.checkpoint) as saved:
            parameters = {name: jnp.asarray(saved[name]) for name in parameters}
            step = int(saved["step"])
            batches.set_state(json.loads(str(saved["batches"])))
    for batch in batches:
        if step == options.steps:
            break
        parameters, value = train_step(parameters, batch["input_ids"], batch["labels"])
        step += 1
        with options.record.open("a") as record:
            tokens = hashlib.sha256(batch["input_ids"].tobytes()).hexdigest()[:16]
            record.write(json.dumps({"step": step, "tokens": tokens, "loss": float(value).hex()}) + "\n")
        temporary = options.checkpoint.with_suffix(".new.npz")
        np.savez(temporary, **parameters, step=step, batches=json.dumps(batches.get_state()))
        temporary.replace(options.checkpoint)
        if step == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"{step} steps, loss {float(value):.3f}" if step else "no step")


if __name__ == "__main__":
    main()
