"""The loader of a recipe: stages, cursors and skips; the past is fixed, and the future may change."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.synthetic import Shape, make_store
from tokenmill.errors import UsageError
from tokenmill.training.loader import SequenceView
from tokenmill.training.recipe_loader import RecipeLoader

GRAIN = 256


@pytest.fixture(scope="module")
def third_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = str(tmp_path_factory.mktemp("loader") / "third")
    make_store(directory, 25_000, shape=Shape(10_000, 40, seed=9), processes=False)
    return directory


@pytest.fixture
def base(store: str, other_store: str, third_store: str) -> dict[str, Any]:
    """Two sources and two stages; the third source is in no stage yet."""
    return {
        "seed": 5,
        "grain": GRAIN,
        "sources": {"web": store, "code": {"store": other_store, "repeat": 3}, "math": third_store},
        "stages": [
            {"sequence_tokens": 64, "batch_sequences": 6, "tokens": 60_000, "weights": {"web": 0.75, "code": 0.25}},
            {"sequence_tokens": 64, "batch_sequences": 6, "tokens": 50_000, "weights": {"web": 1, "code": 1}},
        ],
    }


def opened(recipe: dict[str, Any], directory: Path, **options: Any) -> RecipeLoader:
    path = directory / "recipe.json"
    path.write_text(json.dumps(recipe))
    loader = tokenmill.loader(path, **options)
    assert isinstance(loader, RecipeLoader)
    return loader


def steps_of(loader: RecipeLoader, first: int, last: int | None = None) -> list[int]:
    """The steps that a for loop takes in [first, last)."""
    line = loader.timeline
    steps, sequence = [], loader.advance(line.sequence_of(first), 0)
    while sequence < line.sequence_of(line.steps if last is None else last):
        steps.append(line.step_of(sequence))
        sequence = loader.advance(sequence, 1)
    return steps


class Counter:
    """Counts how often each token of each store is given out, by the ranges that batches are made from."""

    def __init__(self) -> None:
        self.counts: dict[str, np.ndarray[Any, Any]] = {}

    def add(self, loader: RecipeLoader, steps: list[int]) -> None:
        """Count the tokens of some steps."""
        line = loader.timeline
        for step in steps:
            first = line.sequence_of(step)
            stage = loader.plan.stages[line.stage_of(first)]
            tokens = 0
            for stream, start, stop, _ in loader.reader.spans(first, first + stage.batch_sequences):
                counts = self.counts.setdefault(stream.store.directory, np.zeros(stream.tokens, np.int64))
                counts[start:stop] += 1
                tokens += stop - start
            assert tokens == stage.batch_sequences * stage.sequence_tokens

    def check(self, loader: RecipeLoader, skipped: int = 0) -> None:
        """Each source was read from the start of its order to its cursor, and nothing is missing or there twice."""
        line = loader.timeline
        missing = 0
        for name, source in loader.reader.merged.items():
            cursor = line.cursors[-1][name]
            is_used = np.ones(cursor.position, np.bool_)
            for start, stop in cursor.pending:
                is_used[start:stop] = False
            (member,) = source.members
            found = self.counts.get(member.stream.store.directory, np.zeros(member.stream.tokens, np.int64))
            _, positions = source.locate(np.flatnonzero(is_used))
            expected = np.bincount(positions, minlength=len(found))
            assert (found <= expected).all()
            missing += int((expected - found).sum())
            assert cursor.used == int(is_used.sum()) == int(expected.sum())
            assert cursor.pending_tokens < len(loader.plan.stages) * GRAIN
        assert missing == skipped


def test_the_whole_recipe_reads_each_source_in_its_order(base: dict[str, Any], tmp_path: Path) -> None:
    """The counts of each stage are those of the plan; batches have the shape of their stage."""
    loader = opened(base, tmp_path)
    counter = Counter()
    counter.add(loader, steps_of(loader, 0))
    counter.check(loader)
    assert len(loader) == 60_000 // 64 // 6 + 50_000 // 64 // 6 == sum(1 for _ in loader)
    spans = [loader.reader.spans(sequence, sequence + 1)[0] for sequence in range(loader.sequences)]
    names = [loader.sources[span.stream.source] for span in spans]
    first = loader.plan.stages[0]
    assert {name: names[: first.sequences].count(name) for name in first.counts} == first.used(first.sequences)
    assert loader[3]["input_ids"].shape == (6, 64)
    with pytest.raises(IndexError):
        loader[len(loader)]


def test_tokens_are_those_of_the_stores(base: dict[str, Any], tmp_path: Path) -> None:
    """`locate` names the token of the store behind each token of a batch, and labels are the tokens after them."""
    loader = opened(base, tmp_path)
    for step in (0, 100, 200):
        batch = loader[step]
        for row, position in ((0, 0), (3, 63), (5, 31)):
            directory, token = loader.locate(step, row, position)
            found = tokenmill.open(directory).tokens(token, token + 2).tolist()
            assert found == [batch["input_ids"][row, position], batch["labels"][row, position]]


CUT = 90  # in the first stage, which has 156 steps


def split(base: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The recipe with its first stage ended at the cut, and the rest of that stage with changes."""
    first, *others = base["stages"]
    return base | {"stages": [first | {"stop_step": CUT}, first | {"tokens": 30_000} | changes, *others]}


CHANGES: dict[str, Any] = {
    "other weights": lambda base: split(base, weights={"web": 0.1, "code": 0.9}),
    "one more source": lambda base: split(base, weights={"web": 0.5, "code": 0.2, "math": 0.3}),
    "longer sequences": lambda base: split(base, sequence_tokens=256, batch_sequences=3),
    "shorter sequences": lambda base: split(base, sequence_tokens=16, batch_sequences=10),
    "another batch size": lambda base: split(base, batch_sequences=11),
    "longer training": lambda base: base | {"stages": [base["stages"][0] | {"tokens": 90_000}, base["stages"][1]]},
    "another second stage": lambda base: (
        base
        | {"stages": [base["stages"][0], {**base["stages"][1], "weights": None, "tokens": {"math": "all", "web": 999}}]}
    ),
    "lengths up and down": lambda base: (
        base
        | {
            "stages": [
                base["stages"][0] | {"stop_step": CUT + 3},
                base["stages"][0] | {"sequence_tokens": 256, "batch_sequences": 1, "tokens": 9000},
                base["stages"][0] | {"sequence_tokens": 32, "batch_sequences": 1, "tokens": 9000},
                base["stages"][0] | {"sequence_tokens": 128, "batch_sequences": 1, "tokens": 9000},
            ]
        }
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_future_repeats_and_loses_nothing(name: str, base: dict[str, Any], tmp_path: Path) -> None:
    """Every token of the whole changed run is counted: the steps of the old recipe, then those of the new one."""
    before, now = opened(base, tmp_path), opened(CHANGES[name](base), tmp_path)
    counter = Counter()
    counter.add(before, steps_of(before, 0, CUT))
    state = before.state_dict() | {"sequences": before.timeline.sequence_of(CUT)}
    now.load_state_dict(json.loads(json.dumps(state)))
    rest = steps_of(now, CUT)
    batches = list(now)
    assert len(batches) == len(rest)
    assert (batches[0]["input_ids"] == now[CUT]["input_ids"]).all()
    counter.add(now, rest)
    counter.check(now)
    assert now.state_dict()["sequences"] == now.sequences


PAST: dict[str, tuple[Any, str]] = {
    "weights": (lambda s: s | {"weights": {"web": 0.7, "code": 0.3}}, "mixture of stage 1, from step 0 on"),
    "source": (
        lambda s: s | {"weights": {"web": 0.7, "code": 0.2, "math": 0.1}},
        "was code 1 : web 3, is now code 2 : math 1 : web 7",
    ),
    "length": (lambda s: s | {"sequence_tokens": 32}, "sequence_tokens of stage 1, from step 0 on: was 64, is now 32"),
    "batch": (lambda s: s | {"batch_sequences": 3}, "batch_sequences of stage 1, from step 0 on: was 6, is now 3"),
    "shorter": (lambda s: s | {"stop_step": 50}, "steps of stage 1, from step 50 on: was 156, is now 50"),
    "skip": (lambda s: s | {"skip": [[40, 41]]}, r"skip of stage 1, from step 40 on: was none, is now \[40, 41\]"),
}


@pytest.mark.parametrize("name", PAST)
def test_a_changed_past_is_refused(name: str, base: dict[str, Any], tmp_path: Path) -> None:
    """The message says what differs, from which step on, and what to do."""
    change, said = PAST[name]
    first, *others = base["stages"]
    before, now = opened(base, tmp_path), opened(base | {"stages": [change(first), *others]}, tmp_path)
    state = before.state_dict() | {"sequences": before.timeline.sequence_of(CUT)}
    with pytest.raises(UsageError, match=said) as caught:
        now.load_state_dict(state)
    assert f"before step {CUT}" in caught.value.headline
    assert f"stop_step = {CUT}" in caught.value.details[-1]
    now.load_state_dict(before.state_dict())  # nothing was given out yet


@pytest.mark.parametrize("change", [{"seed": 6}, {"grain": 512}, {"val": 0.1}, {"shuffle": "none"}])
def test_choices_of_the_whole_recipe_cannot_change(
    change: dict[str, Any], base: dict[str, Any], tmp_path: Path
) -> None:
    """Seed, grain, split and order decide every step."""
    before, now = opened(base, tmp_path), opened(base | change, tmp_path)
    state = before.state_dict() | {"sequences": before.timeline.sequence_of(CUT)}
    with pytest.raises(UsageError, match=f"another {next(iter(change))}"):
        now.load_state_dict(state)


def test_another_store_under_the_name_is_refused(base: dict[str, Any], tmp_path: Path) -> None:
    """A state is bound to the parts of the stores that were read, and to no store that was not."""
    before = opened(base, tmp_path)
    state = before.state_dict() | {"sequences": before.timeline.sequence_of(CUT)}
    sources = base["sources"]
    others = sources | {"web": {"store": sources["math"], "repeat": 9}, "math": sources["web"]}
    swapped = opened(base | {"sources": others}, tmp_path)
    with pytest.raises(UsageError, match="store of web in stage 1"):
        swapped.load_state_dict(state)
    without = opened(base | {"sources": {name: sources[name] for name in ("code", "web")}}, tmp_path)
    without.load_state_dict(state)


def test_states_that_are_none(base: dict[str, Any], store: str, tmp_path: Path) -> None:
    """A state of a loader without a recipe, and a state between two batches."""
    loader = opened(base, tmp_path)
    plain = tokenmill.loader(store, sequence_tokens=64, grain=GRAIN)
    with pytest.raises(UsageError, match="not the state of a recipe"):
        loader.load_state_dict(plain.state_dict() | {"sequences": 8})
    with pytest.raises(UsageError, match="another kind"):
        plain.load_state_dict(loader.state_dict() | {"sequences": 8})
    with pytest.raises(UsageError, match="no step of the recipe begins after 7 sequences"):
        loader.load_state_dict(loader.state_dict() | {"sequences": 7})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_sequences", 0),
        ("sequence_tokens", 0),
        ("sequences", -8),
        ("counts", {}),
        ("counts", {"web": 0}),
        ("counts", {"web": 1 << 60}),
        ("counts", {"other": 1}),
    ],
)
def test_damaged_states_are_refused(base: dict[str, Any], tmp_path: Path, name: str, value: Any) -> None:
    """A state with impossible counts is not the state of a recipe."""
    loader = opened(base, tmp_path)
    plan = json.loads(loader.state_dict()["digest"])
    plan["stages"][0][name] = value
    with pytest.raises(UsageError, match="not the state of a recipe"):
        loader.load_state_dict(loader.state_dict() | {"sequences": 8, "digest": json.dumps(plan)})


def test_packed_rows_have_no_tokens(base: dict[str, Any], tmp_path: Path) -> None:
    """As without a recipe."""
    with pytest.raises(UsageError, match="packed rows have no field tokens"):
        opened(base | {"packing": "best-fit"}, tmp_path, fields=["tokens"])


def test_a_store_twice_in_a_source_is_refused(base: dict[str, Any], store: str, tmp_path: Path) -> None:
    """Every document would be read twice in a pass."""
    with pytest.raises(UsageError, match="names a store twice"):
        opened(base | {"sources": base["sources"] | {"web": {"store": [store, store]}}}, tmp_path)


def test_skips_jump(base: dict[str, Any], tmp_path: Path) -> None:
    """A for loop leaves skipped steps out; the other steps are as they were."""
    plain = opened(base, tmp_path)
    base["stages"][0]["skip"] = [[4, 6], [100, 100]]
    base["stages"][1]["skip"] = [[156, 157]]  # the first steps of the stage
    loader = opened(base, tmp_path)
    steps = steps_of(loader, 0)
    assert len(loader) == len(steps) == len(plain) - 6
    assert steps == [step for step in range(len(plain)) if step not in {4, 5, 6, 100, 156, 157}]
    for step, batch in zip(steps[:8], loader, strict=False):
        assert (batch["input_ids"] == plain[step]["input_ids"]).all()
        if step == 3:
            state = loader.state_dict()
    resumed = opened(base, tmp_path)
    resumed.load_state_dict(state)
    assert (next(iter(resumed))["input_ids"] == plain[7]["input_ids"]).all()
    counter = Counter()
    counter.add(loader, steps)
    counter.check(loader, skipped=6 * 6 * 64)


def test_single_sequences_cannot_be_skipped(base: dict[str, Any], tmp_path: Path) -> None:
    """A sampler would take the sequences of the skipped steps, too."""
    assert len(SequenceView(opened(base, tmp_path))) > 0
    base["stages"][0]["skip"] = [[3, 5]]
    with pytest.raises(UsageError, match="skips steps"):
        SequenceView(opened(base, tmp_path))


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_each_batch(world_size: int, base: dict[str, Any], tmp_path: Path) -> None:
    """The rows of all ranks are the batch of one process."""
    whole = opened(base, tmp_path)
    ranks = [opened(base, tmp_path, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in (0, 155, 156):
        rows = np.concatenate([loader[step]["input_ids"] for loader in ranks])
        assert (rows == whole[step]["input_ids"]).all()
    with pytest.raises(UsageError, match="cannot be divided among 4 ranks"):
        opened(base, tmp_path, rank=0, world_size=4)


def test_another_process_reads_the_same(base: dict[str, Any], tmp_path: Path) -> None:
    """A loader can be pickled with its cursor."""
    loader = opened(base, tmp_path)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    assert copy.state_dict() == loader.state_dict()
    assert (next(iter(copy))["input_ids"] == loader[1]["input_ids"]).all()


def test_several_stores_are_one_source(base: dict[str, Any], tmp_path: Path) -> None:
    """Two stores under one name are shuffled as one: an epoch has every grain of both once."""
    sources = base["sources"]
    merged = {
        "sources": {"both": [sources["web"], sources["math"]]},
        "stages": [{"sequence_tokens": 64, "batch_sequences": 4, "tokens": "all"}],
    }
    loader = opened(merged | {"grain": GRAIN, "seed": 5}, tmp_path)
    counter = Counter()
    counter.add(loader, steps_of(loader, 0))
    (source,) = loader.reader.merged.values()
    given = sum(int(counts.sum()) for counts in counter.counts.values())
    assert source.tokens - 4 * 64 < given <= source.tokens
    assert all(counts.max() == 1 for counts in counter.counts.values())
    assert len(counter.counts) == 2


def test_repeats_are_epochs_with_other_orders(base: dict[str, Any], tmp_path: Path) -> None:
    """A source that is read three times gives every grain three times, each epoch in its own order."""
    stage = {"sequence_tokens": 256, "batch_sequences": 1, "tokens": {"code": "3x"}}
    loader = opened(base | {"stages": [stage]}, tmp_path)
    counter = Counter()
    counter.add(loader, steps_of(loader, 0))
    counter.check(loader)
    source = loader.reader.merged["code"]
    counts = counter.counts[base["sources"]["code"]["store"]]
    assert (counts[: source.tokens] == 3).all()
    assert not counts[source.tokens :].any()
    grains = source.tokens // GRAIN
    firsts = [loader[step]["input_ids"][0, :8].tolist() for step in range(3 * grains)]
    assert firsts[:grains] != firsts[grains : 2 * grains]


def test_best_fit_reads_the_same_tokens(base: dict[str, Any], tmp_path: Path) -> None:
    """Packed rows of a recipe have each token of their windows once."""
    stage = {"sequence_tokens": 64, "batch_sequences": 4, "tokens": {"code": "all"}}
    loader = opened(base | {"stages": [stage], "packing": "best-fit"}, tmp_path)
    counter = Counter()
    counter.add(loader, steps_of(loader, 0))
    assert counter.counts[base["sources"]["code"]["store"]].max() == 1


@pytest.mark.parametrize(("choice", "value"), [("sequence_tokens", 64), ("seed", 1), ("epochs", 2), ("split", "val")])
def test_choices_are_in_the_recipe(choice: str, value: Any, base: dict[str, Any], tmp_path: Path) -> None:
    """A choice that the recipe has cannot be given beside it."""
    with pytest.raises(UsageError, match=f"{choice} is given with a recipe"):
        opened(base, tmp_path, **{choice: value})


def test_torch_workers_deliver_the_recipe(base: dict[str, Any], tmp_path: Path) -> None:
    """Workers take batches in turn through stages of different batch sizes and skips; the state counts deliveries."""
    adapters = pytest.importorskip("tokenmill.training.torch", reason="torch is not installed")
    base["stages"][1] |= {"batch_sequences": 4, "sequence_tokens": 128, "skip": [[158, 159]]}
    base["stages"][0] |= {"stop_step": 12}
    base["stages"][1]["skip"] = [[14, 15]]
    loader = opened(base, tmp_path)
    expected = [loader[step]["input_ids"] for step in steps_of(loader, 0, 24)]
    feed = adapters.TokenDataLoader(opened(base, tmp_path), num_workers=2)
    for number, (batch, other) in enumerate(zip(feed, expected, strict=False)):
        assert (batch["input_ids"].numpy() == other).all()
        if number == 12:
            state = feed.state_dict()
            break
    resumed = adapters.TokenDataLoader(opened(base, tmp_path), num_workers=1)
    resumed.load_state_dict(state)
    for batch, other in zip(resumed, expected[13:], strict=False):
        assert (batch["input_ids"].numpy() == other).all()
