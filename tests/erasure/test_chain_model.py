"""The protocol of changes holds in its models, and the models fail without any one of its rules."""

from __future__ import annotations

import pytest

from tests.support.models import chain, chain_trials, exports

TRIALS = {"race": 120, "restore": 120, "mirror": 80, "diverged": 50}
ENOUGH = 400
"""Trials in which a missing rule shows."""

MODES = {
    "reused names": "restore",
    "replaced claims": "race",
    "done first": "race",
    "deleted first": "race",
    "head first": "race",
    "no parents": "diverged",
}


@pytest.mark.parametrize("mode", chain_trials.MODES)
def test_changes_of_a_store(mode: str) -> None:
    """No reader gets an erased document, no file keeps one after a repair, and every repair ends."""
    assert {seed: found for seed in range(TRIALS[mode]) if (found := chain_trials.problems(mode, seed))} == {}


@pytest.mark.parametrize("is_restored", [False, True])
def test_changes_of_an_export(is_restored: bool) -> None:
    """A file follows its stores through races, kills and restores."""
    trials = {seed: exports.problems(seed, is_restored=is_restored) for seed in range(300)}
    assert {seed: found for seed, found in trials.items() if found} == {}


@pytest.mark.parametrize("weakness", chain.WEAKNESSES)
def test_a_rule_of_the_chain_is_needed(weakness: str) -> None:
    """Without the rule, the model finds a problem."""
    assert any(chain_trials.problems(MODES[weakness], seed, weakness) for seed in range(ENOUGH))


@pytest.mark.parametrize("weakness", exports.WEAKNESSES)
def test_a_rule_of_exports_is_needed(weakness: str) -> None:
    """Without the rule, the model finds a problem."""
    assert any(exports.problems(seed, weakness) for seed in range(ENOUGH))
