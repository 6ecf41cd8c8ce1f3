"""Blend files over exports of the sources: read by megatron-core and OLMo-core where they are installed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokenmill
from tests.support.small_stores import prepare, write_source
from tokenmill.errors import IncompleteStore, UsageError

RECIPE = """
grain = 32
[sources]
a = "a"
b = { store = "b", repeat = 2 }
[[stages]]
sequence_tokens = 32
batch_sequences = 1
tokens = 1280
weights = { a = 0.75, b = 0.25 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stores with their exports, and a recipe of both."""
    folder = tmp_path_factory.mktemp("blends")
    for name in "ab":
        prepare(write_source(folder / f"{name}.parquet", name * 4), folder / name)
        for to in ("megatron", "olmo", "datatrove", "mds"):
            options = {"sequence_tokens": 32} if to == "mds" else {}
            tokenmill.export(folder / name, to=to, val="none", workers=1, **options)  # type: ignore[arg-type]
    (folder / "recipe.toml").write_text(RECIPE)
    return folder


def blend(folder: Path, trainer: str) -> str:
    text = tokenmill.mix(folder / "recipe.toml", print=trainer).blend
    assert text is not None
    return text


def test_megatron(folder: Path) -> None:
    """Pairs of weight and prefix; megatron-core reads each prefix of the blend, if it is installed."""
    words = blend(folder, "megatron").split()
    assert [float(weight) for weight in words[::2]] == [0.75, 0.25]
    for prefix, name in zip(words[1::2], "ab", strict=True):
        assert Path(f"{prefix}.bin").parent == folder / name / "megatron"
        assert Path(f"{prefix}.idx").exists()


def test_megatron_core_reads_the_blend(folder: Path) -> None:
    """The package splits the blend into weights and prefixes, and opens both exports."""
    reason = "megatron-core is not installed"
    utils = pytest.importorskip("megatron.core.datasets.utils", reason=reason)
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset", reason=reason)
    prefixes, weights = utils.get_blend_from_list(blend(folder, "megatron").split())
    assert weights == [0.75, 0.25]
    for prefix, name in zip(prefixes, "ab", strict=True):
        dataset, store = indexed.IndexedDataset(prefix), tokenmill.open(folder / name)
        assert [one.tolist() for one in dataset] == [one.tolist() for one in store]


def test_olmo(folder: Path) -> None:
    """Ratios have the sum 1, and the files exist; OLMo-core makes its configuration of it, if it is installed."""
    sources = json.loads(blend(folder, "olmo"))["sources"]
    assert [(one["source_name"], one["target_ratio"], one["max_repetition_ratio"]) for one in sources] == [
        ("a", 0.75, 1.0),
        ("b", 0.25, 2.0),
    ]
    assert all(Path(path).exists() for one in sources for path in one["paths"])


def test_olmo_core_loads_the_mixture(folder: Path) -> None:
    """The package takes the keys and finds them valid."""
    mixture = pytest.importorskip("olmo_core.data.source_mixture", reason="ai2-olmo-core is not installed")
    for one in json.loads(blend(folder, "olmo"))["sources"]:
        mixture.SourceMixtureConfig(**one).validate()


def test_nanotron_and_mds(folder: Path) -> None:
    """The YAML that the trainers document."""
    a, b = (json.dumps(str(folder / name / "datatrove")) for name in "ab")
    assert blend(folder, "nanotron") == (
        f"dataset:\n  dataset_folder:\n    - {a}\n    - {b}\n  dataset_weights:\n    - 0.75\n    - 0.25\n"
    )
    a, b = (json.dumps(str(folder / name / "mds")) for name in "ab")
    assert blend(folder, "mds") == (
        f'streams:\n  "a":\n    local: {a}\n    proportion: 0.75\n  "b":\n    local: {b}\n    proportion: 0.25\n'
    )


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    """A source without an export, and trainers that cannot be served."""
    prepare(write_source(tmp_path / "a.parquet", "aaaa"), tmp_path / "a")
    prepare(write_source(tmp_path / "b.parquet", "bbbb"), tmp_path / "b")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(IncompleteStore, match="the source a is not exported to megatron"):
        blend(tmp_path, "megatron")
    for trainer, said in (("maxtext", "ArrayRecord"), ("energon", "WebDatasets"), ("other", "Choose from")):
        with pytest.raises(UsageError, match=said):
            blend(folder, trainer)
