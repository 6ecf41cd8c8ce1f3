"""The loader beside the rest: the documents that exports hold out, and the command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.synthetic import Shape, make_store
from tests.support.command import run


@pytest.fixture(scope="module")
def own_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that exports are written into."""
    directory = str(tmp_path_factory.mktemp("exported") / "store")
    make_store(directory, 40_000, shape=Shape(10_000, 60), processes=False)
    return directory


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would."""
    return run(*arguments, code=None)


def test_the_split_is_that_of_exports(own_store: str) -> None:
    """Train and val of a loader are the files of an export with the same fraction, token for token."""
    tokenmill.export(own_store, to="nanogpt", val="10%", workers=1)
    options: dict[str, Any] = {"sequence_tokens": 8, "grain": 8, "batch_sequences": 64, "shuffle": "none"}
    for split in ("train", "val"):
        expected = np.fromfile(Path(own_store, "nanogpt", f"{split}.bin"), np.uint16)
        loader = tokenmill.loader(own_store, **options, val=0.1, split=split)
        steps = range(-(-loader.sequences // 64))  # the last one goes on with the next pass
        found = np.concatenate([loader[step]["input_ids"].reshape(-1) for step in steps])[: loader.tokens]
        assert len(expected) == loader.tokens + loader.tail_tokens
        assert np.array_equal(found, expected[: loader.tokens])


def test_the_command_shows_a_batch(own_store: str) -> None:
    """It prints the figures and the text of each row; --json has the same."""
    settings = [
        "--sequence-tokens",
        "16",
        "--batch-sequences",
        "2",
        "--grain",
        "64",
        "--step",
        "3",
        "--seconds",
        "0.05",
    ]
    shown = command("loader", own_store, *settings)
    assert shown.returncode == 0, shown.stderr
    assert "step 3, row 1\n" in shown.stdout
    assert "tokens/s in one process" in shown.stdout
    facts = json.loads(command("loader", own_store, *settings, "--json").stdout)
    loader = tokenmill.loader(own_store, sequence_tokens=16, batch_sequences=2, grain=64)
    assert facts["sequences"] == loader.sequences
    assert facts["digest"] == loader.state_dict()["digest"]
    assert len(facts["rows"]) == 2
    first = "".join(f"{token} " for token in loader[3]["input_ids"][0] if token != 50256)
    assert facts["rows"][0].replace("<|end|>", "") == first


def test_the_command_reads_the_batch_of_a_rank(own_store: str) -> None:
    """Rank, world size, epochs and fields are options of the command; a rank has its rows of the batch."""
    settings = ["--sequence-tokens", "16", "--batch-sequences", "4", "--grain", "64", "--seconds", "0"]
    whole = json.loads(command("loader", own_store, *settings, "--json").stdout)
    more = ["--rank", "1", "--world-size", "2", "--epochs", "3", "--fields", "input_ids,document_ids"]
    facts = json.loads(command("loader", own_store, *settings, *more, "--json").stdout)
    assert (facts["rank"], facts["world_size"]) == (1, 2)
    assert facts["rows"] == whole["rows"][2:]
    assert list(facts["fields"]) == ["input_ids", "document_ids"]
    assert facts["fields"]["input_ids"].endswith("[2, 16]")
    assert facts["steps"] == len(tokenmill.loader(own_store, sequence_tokens=16, batch_sequences=4, grain=64, epochs=3))
    shown = command("loader", own_store, *settings, *more).stdout
    assert "rank         1 of 2\n" in shown
    assert "of 4 sequences, in 3 epochs\n" in shown
    assert "step 0, row 2\n" in shown
    without = json.loads(command("loader", own_store, *settings, "--fields", "source_ids", "--json").stdout)
    assert (list(without["fields"]), without["rows"]) == (["source_ids"], [])
    for wrong, message in (
        (["--fields", "input_idz"], "a batch has no field 'input_idz'"),
        (["--rank", "1"], "there is no rank 1 of 1"),
        (["--world-size", "3"], "cannot be divided among 3 ranks"),
    ):
        refused = command("loader", own_store, *settings, *wrong)
        assert refused.returncode == 2
        assert message in refused.stderr


def test_the_command_explains_a_small_store(own_store: str) -> None:
    """A store without a whole grain is a usage error with advice."""
    ended = command("loader", own_store, "--sequence-tokens", "100k")
    assert ended.returncode == 2
    assert "smaller than one grain of 100,000 tokens" in ended.stderr


@pytest.mark.parametrize("choices", [{}, {"val": 0.2}, {"packing": "best-fit"}, {"val": 0.2, "split": "val"}])
def test_a_token_of_a_batch_is_located(own_store: str, other_store: str, choices: dict[str, Any]) -> None:
    """The document that is found has the token, in the store that it names, also if two stores are mixed."""
    settings: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 6, "grain": 64, **choices}
    random = np.random.default_rng(3)
    for stores in (own_store, [own_store, other_store]):
        loader = tokenmill.loader(stores, **settings)
        for step in random.integers(0, 1000, 20).tolist():
            row, position = int(random.integers(6)), int(random.integers(16))
            directory, token = loader.locate(step, row, position)
            store = tokenmill.open(directory)
            assert store.tokens(token, token + 1)[0] == loader[step]["input_ids"][row, position]
            document, offset = store.at(token)
            following = loader[step]["labels"][row, position]
            rest = store[document][offset + 1 :]
            assert following == rest[0] if len(rest) else True
    found = tokenmill.locate(own_store, step=7, row=2, position=3, **settings)
    assert found.documents[0].store_token == tokenmill.loader(own_store, **settings).locate(7, 2, 3)[1]
    assert found.place.startswith("step 7, row 2 of ")


def test_the_command_locates_a_token_of_a_batch(own_store: str) -> None:
    """The options of the loader are options of locate; a step without a row, or a row beyond the batch, is refused."""
    settings = ["--sequence-tokens", "16", "--batch-sequences", "6", "--grain", "64"]
    shown = command("locate", own_store, "--step", "7", "--row", "2", "--position", "3", *settings)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("token        3 of step 7, row 2 of ")
    assert command("locate", own_store, "--step", "7", *settings).returncode == 2
    beyond = command("locate", own_store, "--step", "7", "--row", "6", "--position", "3", *settings)
    assert "there is no row 6" in beyond.stderr


def test_the_commands_take_several_stores(own_store: str, other_store: str) -> None:
    """`loader A B` shows batches of the mixture, and `locate A B --step` names the store of a token of it."""
    settings = ["--sequence-tokens", "16", "--batch-sequences", "6", "--grain", "64"]
    choices: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 6, "grain": 64}
    both = tokenmill.loader([own_store, other_store], **choices)
    shown = command("loader", own_store, other_store, *settings, "--seconds", "0", "--step", "3", "--json")
    assert shown.returncode == 0, shown.stderr
    facts = json.loads(shown.stdout)
    assert facts["sequences"] == both.sequences
    assert len(facts["rows"]) == 6
    for row in range(6):
        place = ["--step", "3", "--row", str(row), "--position", "5"]
        located = command("locate", own_store, other_store, *place, *settings, "--json")
        assert located.returncode == 0, located.stderr
        found = json.loads(located.stdout)
        assert (found["store"], found["documents"][0]["store_token"]) == both.locate(3, row, 5)
