"""The file of a recipe: what it may say, and what its errors name."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import ROOT
from tokenmill.errors import UsageError
from tokenmill.training.budgets import apportion, resolve, weight_counts
from tokenmill.training.recipe import Recipe, json_schema, parse_recipe, read_recipe

GOOD = """
seed = 1
grain = 64
[sources]
web = "web"
code = { store = ["code", "s3://bucket/more"], repeat = 2 }
[[stages]]
sequence_tokens = 32
batch_sequences = 4
tokens = "8k"
weights = { web = 0.8, code = 0.2 }
[[stages]]
sequence_tokens = 64
batch_sequences = 2
tokens = { web = 4096, code = "all" }
skip = [[70, 71]]
"""

STAGE: dict[str, Any] = {"sequence_tokens": 32, "batch_sequences": 4, "tokens": 3200}


def recipe(*stages: dict[str, Any], **keys: Any) -> Recipe:
    content = {"sources": {"a": "a", "b": "b"}, "grain": 64, "stages": [STAGE | stage for stage in stages], **keys}
    return parse_recipe(content, "r.toml")


def test_toml_and_json_are_the_same(tmp_path: Path) -> None:
    """Both give one recipe; paths are relative to the file, addresses stay."""
    (tmp_path / "r.toml").write_text(GOOD)
    read = read_recipe(str(tmp_path / "r.toml"))
    assert read.source("web").store == [str(tmp_path / "web")]
    assert read.source("code").store == [str(tmp_path / "code"), "s3://bucket/more"]
    (tmp_path / "r.json").write_bytes(msgspec.json.encode(tomllib.loads(GOOD)))
    assert read_recipe(str(tmp_path / "r.json")) == read


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("seed =", "sed =", "no key 'sed': did you mean 'seed'?"),
        ("weights =", "weigths =", "no key 'weigths': did you mean 'weights'?"),
        ("repeat =", "repeats =", "no key 'repeats': did you mean 'repeat'?"),
        ("web = 0.8", "wep = 0.8", "no source 'wep': did you mean 'web'?"),
        ("repeat = 2", "repeat = 0", "Expected `float` > 0.0"),
        ("batch_sequences = 4", "batch_sequences = 0", "Expected `int` >= 1"),
        ("batch_sequences = 4", "", "missing required field `batch_sequences`"),
        ("repeat = 2", "repeat = inf", "not a finite number"),
        ("web = 0.8", "web = inf", "a weight is not a finite number"),
        ('web = "web"', "web = []", "there is no store"),
        ('web = "web"', "web = 7", "Expected"),
        ("seed = 1", "seed = 1\nseed = 2", "not valid TOML"),
        ("seed = 1", 'shuffle = "ful"', "Invalid enum value 'ful'"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, old: str, new: str, said: str) -> None:
    """A recipe is strict: an unknown key is an error with the key that was perhaps meant."""
    path = tmp_path / "r.toml"
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        read_recipe(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_json_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """JSON parsers would take the last of two keys without a word."""
    (tmp_path / "r.json").write_text('{"seed": 1, "seed": 2}')
    with pytest.raises(UsageError, match="given twice"):
        read_recipe(str(tmp_path / "r.json"))


def test_the_schema_has_every_key_with_a_description() -> None:
    """The published schema is that of the classes, and forbids other keys."""
    schema = json.loads((ROOT / "docs/recipe.schema.json").read_text())
    assert schema == json.loads(json.dumps(json_schema()))
    assert set(schema["$defs"]) == {"Recipe", "RecipeSource", "RecipeStage"}
    for name, definition in schema["$defs"].items():
        assert definition["additionalProperties"] is False, name
        assert all("description" in key for key in definition["properties"].values()), name
    assert schema["$defs"]["RecipeStage"]["required"] == ["sequence_tokens", "batch_sequences", "tokens"]


def test_weights_are_exact_as_written() -> None:
    """Decimal numbers are taken as they are written, in lowest terms by the caller; too many digits are rounded."""
    assert weight_counts({"b": 0.1, "a": 0.2}, 1) == {"a": 2, "b": 1}
    assert weight_counts({"a": 3.0, "b": 0.0}, 1) == {"a": 3}
    counts = weight_counts({"a": 0.1234567890123456, "b": 0.8765432109876544}, 1)
    assert sum(counts.values()) == 1 << 32
    with pytest.raises(UsageError, match="all weights are 0"):
        weight_counts({"a": 0.0}, 1)


def test_apportion_is_exact() -> None:
    """The parts have the total, and each is within one of its share."""
    assert apportion({"a": 1, "b": 1, "c": 1}, 10) == {"a": 4, "b": 3, "c": 3}
    assert apportion({"a": 7, "b": 2}, 9) == {"a": 7, "b": 2}


def test_budgets_all_and_times() -> None:
    """Budgets are whole sequences of each source; `all` is the rest of the epoch, and 2x is two epochs."""
    stages = resolve(
        recipe(
            {"tokens": {"a": "6400", "b": 640}}, {"tokens": {"a": "all", "b": "0.5x"}}, sources={"a": "a", "b": "b"}
        ),
        {"a": 12_800, "b": 6400},
    )
    assert stages[0].given == {"a": 6400, "b": 640}
    assert stages[1].given == {"a": 6400, "b": 3200}
    assert [stage.plan.steps for stage in stages] == [55, 75]


@pytest.mark.parametrize(("before", "rest"), [(3200, 9600), (12_800, None), (16_000, 9600), (25_600, None)])
def test_all_is_the_rest_of_an_epoch(before: int, rest: int | None) -> None:
    """At the end of an epoch nothing is left: `all` does not take a whole further epoch."""
    stages: list[dict[str, Any]] = [{"tokens": {"a": before}}, {"tokens": {"a": "all"}}]
    asked = recipe(*stages, sources={"a": {"store": "a", "repeat": 3}, "b": "b"})
    if rest is None:
        with pytest.raises(UsageError, match="nothing of a is left"):
            resolve(asked, {"a": 12_800, "b": 6400})
    else:
        assert resolve(asked, {"a": 12_800, "b": 6400})[1].given == {"a": rest}


def test_less_than_a_batch_is_left_out_in_proportion() -> None:
    """The counts of a stage fill whole batches."""
    (stage,) = resolve(recipe({"tokens": {"a": 3200, "b": 32 * 10 + 31}}), {"a": 12_800, "b": 6400})
    assert stage.asked == {"a": 3200, "b": 351}
    assert sum(stage.given.values()) == 27 * 4 * 32
    assert stage.given == {"a": 32 * 98, "b": 32 * 10}


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ([{"tokens": 3200}], "stage 1 has no weights"),
        ([{"tokens": "40GB", "weights": {"a": 1}}], "is a size in bytes"),
        ([{"tokens": "some", "weights": {"a": 1}}], "is not a number of tokens"),
        ([{"tokens": {"a": 64}, "weights": {"a": 1}}], "has weights and tokens of each source"),
        ([{"tokens": "all", "weights": {"a": 1}}], 'has weights and tokens = "all"'),
        (
            [{"tokens": "all"}, {"tokens": "all"}],
            r"stage 2(?s:.*)nothing of a is left\n.*6,400.*\n.*6,400 .*, 1 epoch",
        ),
        ([{"tokens": {"a": 6400}}, {"tokens": {"a": "all"}}], r"stage 2(?s:.*)nothing of a is left"),
        ([{"tokens": 100, "weights": {"a": 1}}], "less than one batch"),
        ([{"sequence_tokens": 48, "weights": {"a": 1}}], "do not divide a grain of 64"),
        ([{"weights": {"a": 1}, "stop_step": 26}], "stop_step 26 is not in the stage"),
        ([{"weights": {"a": 1}, "skip": [[3, 5], [5, 6]]}], r"skip \[5, 6\]"),
        ([{"weights": {"a": 1}, "skip": [[3, 25]]}], r"skip \[3, 25\]"),
        ([{"weights": {"a": 1}}] * 3, r"missing      9,600 - 6,400 = 3,200 tokens"),
        ([{"tokens": {"a": "2x"}}], "repeat = 2"),
    ],
)
def test_what_is_impossible_is_refused(stages: list[dict[str, Any]], said: str) -> None:
    """The message says which stage, and shows the arithmetic."""
    with pytest.raises(UsageError, match=said):
        resolve(recipe(*stages), {"a": 6400, "b": 6400})


def test_best_fit_keeps_one_length() -> None:
    """Packed rows of another length would lose and repeat tokens."""
    with pytest.raises(UsageError, match="all stages need the same sequence_tokens"):
        resolve(
            recipe({"tokens": "all"}, {"tokens": "all", "sequence_tokens": 64}, packing="best-fit"),
            {"a": 6400, "b": 6400},
        )
