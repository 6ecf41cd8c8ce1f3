"""`mix`: the table of a recipe, the comparison of two, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from benchmarks.synthetic import Shape, make_store
from tests.support.command import run
from tokenmill.errors import UsageError

RECIPE = """
grain = 256
[sources]
web = "web"
code = { store = "code", repeat = 2 }
[[stages]]
sequence_tokens = 64
batch_sequences = 6
tokens = "30k"
weights = { web = 0.75, code = 0.25 }
[[stages]]
sequence_tokens = 256
batch_sequences = 2
tokens = { web = 9000, code = "all" }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores and a recipe of both."""
    folder = tmp_path_factory.mktemp("mix")
    make_store(str(folder / "web"), 60_000, shape=Shape(10_000, 60), processes=False)
    make_store(str(folder / "code"), 20_000, shape=Shape(10_000, 60, seed=3), processes=False)
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def write(folder: Path, name: str, old: str, new: str) -> str:
    assert old in RECIPE
    (folder / name).write_text(RECIPE.replace(old, new))
    return str(folder / name)


def test_the_table_adds_up(folder: Path) -> None:
    """Tokens of sources are those of their stage, and of all stages those of the recipe."""
    result = tokenmill.mix(folder / "recipe.toml")
    assert result.tokens == sum(stage.tokens for stage in result.stages) == sum(one.tokens for one in result.sources)
    first, second = result.stages
    assert (first.steps, first.sequences, first.tokens) == (78, 468, 468 * 64)
    assert {one.source: one.sequences for one in first.sources} == {"code": 117, "web": 351}
    assert sum(one.share for one in second.sources) == pytest.approx(1)
    for stage in result.stages:
        assert sum(one.sequences for one in stage.sources) == stage.sequences == stage.steps * stage.batch_sequences
        assert all(one.asked_tokens - one.tokens < 2 * stage.batch_sequences * 256 for one in stage.sources)
    code = next(one for one in result.sources if one.source == "code")
    assert code.left_tokens == code.epoch_tokens - code.tokens
    assert code.epochs == code.tokens / code.epoch_tokens
    assert code.pending_tokens == 256 - 117 * 64 % 256


@pytest.mark.parametrize(
    ("repeat", "budgets", "left"),
    [(1, ["1x"], [0]), (3, ["1x"], [0]), (2, ["0.5x", "1x"], [0.5, 0]), (2, ["0.25x", "0.5x"], [0.75, 0.25])],
)
def test_what_is_left_over_was_never_read(folder: Path, repeat: int, budgets: list[str], left: list[float]) -> None:
    """Of a source that is read once, nothing is left over, however often the recipe may read it."""
    stage = "[[stages]]\nsequence_tokens = 64\nbatch_sequences = 1\ntokens = {{ code = '{}' }}\n"
    recipe = folder / "once.toml"
    stages = "".join(map(stage.format, budgets))
    recipe.write_text(f"grain = 256\n[sources]\ncode = {{ store = 'code', repeat = {repeat} }}\n{stages}")
    result = tokenmill.mix(recipe)
    [source] = result.sources
    found = [one.left_tokens for each in result.stages for one in each.sources]
    assert found == pytest.approx([fraction * source.epoch_tokens for fraction in left], abs=64)
    assert source.left_tokens == found[-1]
    if not left[-1]:
        assert f"{found[-1]}\n" in run("mix", recipe).stdout
        assert source.left_tokens == 0


def test_the_command_shows_the_same(folder: Path) -> None:
    """The table has a line for each source of each stage; --json has the result."""
    shown = run("mix", str(folder / "recipe.toml"))
    assert "stage 1: steps 0 to 77 of 6 x 64 tokens" in shown.stdout
    assert shown.stdout.count("\n  web ") == 2
    as_json = json.loads(run("mix", str(folder / "recipe.toml"), "--json").stdout)
    assert as_json["stages"][0]["sources"][0] == {
        "source": "code",
        "asked_tokens": 7500,
        "tokens": 7488,
        "sequences": 117,
        "share": 0.25,
        "epochs": as_json["stages"][0]["sources"][0]["epochs"],
        "left_tokens": as_json["stages"][0]["sources"][0]["left_tokens"],
    }


def test_two_recipes(folder: Path) -> None:
    """What differs, from which step on, and whether the second can take over."""
    path = str(folder / "recipe.toml")
    later = write(folder, "later.toml", "web = 9000", "web = 12_000")
    result = tokenmill.mix(path, later, step=78)
    assert result.changes is not None
    assert [change.step for change in result.changes] == [
        78,
        78 + min(s.steps for s in (tokenmill.mix(path).stages[1], result.stages[1])),
    ]
    assert (result.same_steps, result.takes_over, result.reason) == (78, True, None)
    assert tokenmill.mix(path, later, step=79).takes_over is False
    same = tokenmill.mix(path, path, step=90)
    assert (same.changes, same.same_steps, same.takes_over) == ([], None, True)
    longer = tokenmill.mix(path, write(folder, "longer.toml", '"30k"', '"36k"'), step=78)
    assert longer.takes_over
    assert longer.same_steps == 78


def test_the_command_compares(folder: Path) -> None:
    """Exit code 1 and the reason, if the second recipe cannot take over."""
    path, other = str(folder / "recipe.toml"), write(folder, "weights.toml", "web = 0.75", "web = 0.5")
    shown = run("mix", path, other, "--step", "40", code=1)
    assert "step 0: mixture of stage 1, code 1 : web 3 -> code 1 : web 2" in shown.stdout
    assert "cannot continue a run" in shown.stdout
    assert "`stop_step = 40`" in shown.stdout
    run("mix", path, other)
    with pytest.raises(UsageError, match="needs two recipes"):
        tokenmill.mix(path, step=3)


def test_the_page_is_one_safe_file(folder: Path, tmp_path: Path) -> None:
    """The page has the look of the report, and a bar for each source of each stage, as high as its share."""
    tokenmill.mix(folder / "recipe.toml", html=tmp_path / "mix.html")
    page = (tmp_path / "mix.html").read_text()
    assert page.count("<rect") == 4
    assert "<script" not in page
    assert 'height="75.000"' in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<section") == 4
    with pytest.raises(UsageError, match="not the name of a page"):
        tokenmill.mix(folder / "recipe.toml", html=tmp_path / "mix.txt")


def test_a_page_in_a_missing_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    """The folder may be misspelled, so it is not created."""
    path = tmp_path / "missing" / "mix.html"
    refused = run("mix", folder / "recipe.toml", "--html", path, code=2).stderr
    assert "--html" in refused
    assert str(path.parent) in refused
    with pytest.raises(UsageError, match=str(path.parent)):
        tokenmill.mix(folder / "recipe.toml", html=path)
    assert not path.parent.exists()


def test_a_recipe_in_loader_and_locate(folder: Path) -> None:
    """The commands `loader` and `locate` take a recipe in place of stores."""
    path = str(folder / "recipe.toml")
    shown: dict[str, Any] = json.loads(run("loader", path, "--seconds", "0", "--step", "3", "--json").stdout)
    assert shown["steps"] == tokenmill.mix(path).steps
    found = run("locate", path, "--step", "3", "--row", "2", "--position", "10", "--json")
    assert json.loads(found.stdout)["store"] in {str(folder / "web"), str(folder / "code")}
    assert "seed is given with a recipe" in run("loader", path, "--seed", "3", code=2).stderr
