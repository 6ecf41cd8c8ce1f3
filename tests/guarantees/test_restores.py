"""Random restores, kills and races in stores with erasures: readers get no erased document, and repairs end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.restore_fuzz import Fuzz, opened
from tests.support.restores import places
from tests.support.restores.judge import Judge
from tests.support.restores.stage import Stage
from tests.support.restores.trial import Plan, Step

PLANS = {
    "disk": Plan(0, 2, (Step("killed", "31/30/0"), Step("restore", "31/30/1"))),
    "bucket": Plan(0, 1, (Step("race", "31/0"),)),
}
"""They have one layout, so that its stores are made once for each kind of place."""


@pytest.fixture(scope="module")
def fuzz(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzz]:
    """Trials on a disk, or in a bucket."""
    stage, folder = Stage(), tmp_path_factory.mktemp("restores")
    with opened(request.param, folder) as place, stage.open():
        yield Fuzz(place, folder / "in", stage)


@pytest.mark.thorough
@pytest.mark.parametrize(("fuzz", "plan"), PLANS.items(), indirect=["fuzz"], ids=PLANS)
def test_a_trial(fuzz: Fuzz, plan: Plan) -> None:
    """Nothing is found. `python -m scripts.restore_fuzz` runs more."""
    outcome = fuzz.run(plan)
    assert outcome.findings == [], outcome.notes


@pytest.mark.thorough
@pytest.mark.parametrize("fuzz", ["disk"], indirect=True)
def test_the_judge_sees_a_leak(fuzz: Fuzz) -> None:
    """If all files are those of before an erasure that succeeded, readers and files have its documents."""
    world = fuzz.world(0)
    places.replace(fuzz.place, world.versions[0])
    judge = Judge(world, begun=["a"], ended={"a"})
    judge.read()
    judge.complaints()
    judge.load(judge.ended)
    assert {finding.kind for finding in judge.findings} == {"leak", "hole"}
    assert "a loader got the erased documents [9]" in [finding.text for finding in judge.findings]
