"""The snippets of docs/loader.md for trainers are run as they are printed, where the trainers are installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")

SMALL: dict[str, Any] = {"sequence_tokens": 64, "grain": 256, "batch_sequences": 8, "seed": 5}


def run_snippet(word: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the block of docs/loader.md that has a word; the names that it leaves."""
    blocks = (ROOT / "docs/loader.md").read_text(encoding="utf-8").split("```py\n")[1:]
    (code,) = [block.partition("```")[0] for block in blocks if word in block.partition("```")[0]]
    names = {"torch": torch, **names}
    exec(compile(code, "docs/loader.md", "exec"), names)
    return names


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_of_hugging_face_trains(store: str, tmp_path: Path) -> None:
    """The Trainer takes the sequences of the loader."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    loader = tokenmill.loader(store, **SMALL, fields="input_ids", rank=0, world_size=1)
    config = transformers.GPT2Config(vocab_size=50257, n_positions=64, n_embd=8, n_layer=1, n_head=1)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), max_steps=3, per_device_train_batch_size=4, report_to=[], use_cpu=True
    )
    model = transformers.GPT2LMHeadModel(config)
    names = run_snippet("import Trainer", {"loader": loader, "model": model, "arguments": arguments})
    assert names["trainer"].state.global_step == 3
    assert len(names["sequences"]) == loader.sequences


@pytest.mark.filterwarnings("ignore")
def test_torchtitan_resumes(store: str) -> None:
    """The state of the data loader continues with the next batch."""
    pytest.importorskip("torchtitan.components.dataloader", reason="torchtitan is not installed")
    loader = tokenmill.loader(store, **SMALL)
    names = run_snippet("BaseDataLoader", {})
    feed = names["StoreDataLoader"](loader)
    batches = iter(feed)
    for step in range(3):
        inputs, labels = next(batches)
        assert np.array_equal(np.asarray(inputs["input"]), loader[step]["input_ids"])
        assert np.array_equal(np.asarray(labels), loader[step]["labels"])
    resumed = names["StoreDataLoader"](loader, num_workers=0)
    resumed.load_state_dict(feed.state_dict())
    assert np.array_equal(np.asarray(next(iter(resumed))[1]), loader[3]["labels"])
