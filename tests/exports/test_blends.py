"""Blend files over exports of the sources: read by megatron-core and OLMo-core where they are installed."""

from __future__ import annotations

import glob
import importlib
import json
import shutil
from pathlib import Path

import pytest

import tokenmill
from tests.support import command
from tests.support.small_stores import prepare, write_source
from tokenmill.errors import IncompleteStore, JobChanged, UsageError
from tokenmill.exports import blends

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


def test_a_recipe_of_several_stages_has_a_blend_for_each(folder: Path) -> None:
    """The average of stages is the mixture of none, so a stage has to be named."""
    second = "[[stages]]\nsequence_tokens = 32\nbatch_sequences = 1\ntokens = {{ {} }}\n"
    path = folder / "stages.toml"
    path.write_text(RECIPE + second.format("b = 640") + second.format("a = 320, b = 320"))
    with pytest.raises(UsageError, match=r"3 stages(?s:.*)stage 1 +a 75.0%, b 25.0%(?s:.*)stage 2 +b 100.0%"):
        tokenmill.mix(path, print="megatron")
    for stage, weights in ((1, [0.75, 0.25]), (2, [1.0]), (3, [0.5, 0.5])):
        words = command.run("mix", path, "--print", "megatron", "--stage", stage).stdout.split()
        assert [float(weight) for weight in words[::2]] == weights
        assert f"{folder / 'b'}/" in words[-1]
    with pytest.raises(UsageError, match="there is no stage 4"):
        tokenmill.mix(path, print="megatron", stage=4)
    with pytest.raises(UsageError, match="stage= needs print="):
        tokenmill.mix(path, stage=1)


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
    """The YAML that the trainers read."""
    a, b = (json.dumps(str(folder / name / "datatrove")) for name in "ab")
    assert blend(folder, "nanotron") == (
        f"dataset:\n  dataset_folder:\n    - {a}\n    - {b}\n  dataset_weights:\n    - 0.75\n    - 0.25\n"
    )
    a, b = (json.dumps(str(folder / name / "mds")) for name in "ab")
    assert blend(folder, "mds") == (
        f'streams:\n  "a":\n    local: {a}\n    proportion: 0.75\n  "b":\n    local: {b}\n    proportion: 0.25\n'
    )


def test_streaming_reads_the_blend(folder: Path) -> None:
    """MosaicML streaming takes the streams as llm-foundry gives them, and mixes them in the proportions."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    try:
        streaming = importlib.import_module("streaming")
    except (ImportError, RuntimeError):  # the latter from a torchvision that does not fit to torch
        pytest.skip("mosaicml-streaming is not installed")
    streams = [streaming.Stream(**one) for one in yaml.safe_load(blend(folder, "mds"))["streams"].values()]
    dataset = streaming.StreamingDataset(streams=streams, epoch_size=40, batch_size=1)
    assert [one.choose for one in streams] == [30, 10]
    assert len(dataset[0]["tokens"]) == 32


def test_nanotron_takes_the_keys(folder: Path) -> None:
    """The package makes its arguments of the keys."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    dacite = pytest.importorskip("dacite", reason="nanotron is not installed")
    config = pytest.importorskip("nanotron.config.config", reason="nanotron is not installed")
    content = yaml.safe_load(blend(folder, "nanotron"))["dataset"]
    made = dacite.from_dict(config.NanosetDatasetsArgs, content, dacite.Config(strict=True))
    assert made.dataset_weights == [0.75, 0.25]


@pytest.fixture
def converted(folder: Path) -> Path:
    """The stores with files in the formats that tokenmill does not write."""
    for name in "ab":
        (folder / name / "arrayrecord").mkdir(exist_ok=True)
        (folder / name / "arrayrecord" / "train.array_record-00000").touch()
        (folder / name / "webdataset" / ".nv-meta").mkdir(parents=True, exist_ok=True)
        (folder / name / "webdataset" / ".nv-meta" / ".info.json").write_text("{}")
    return folder


def test_maxtext(converted: Path) -> None:
    """Names with a pattern of files and a weight, as `grain_train_mixture_config_path` documents it."""
    sources = json.loads(blend(converted, "maxtext"))
    assert {name: one.pop("weight") for name, one in sources.items()} == {"a": 0.75, "b": 0.25}
    for name, one in sources.items():
        (path,) = one.values()
        assert list(one) == ["path"]
        assert glob.glob(path) == [str(converted / name / "arrayrecord" / "train.array_record-00000")]


def test_energon(converted: Path) -> None:
    """The metadataset as it is documented; Energon loads it, if it is installed."""
    text = blend(converted, "energon")
    a, b = (json.dumps(str(converted / name / "webdataset")) for name in "ab")
    assert text == (
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend:\n"
        f"      - path: {a}\n        weight: 0.75\n      - path: {b}\n        weight: 0.25\n"
    )


def test_energon_loads_the_metadataset(converted: Path) -> None:
    """The package finds both datasets of the blend with their weights."""
    energon = pytest.importorskip("megatron.energon", reason="megatron-energon is not installed")
    paths = pytest.importorskip("megatron.energon.epathlib", reason="megatron-energon is not installed")
    config = pytest.importorskip("megatron.energon.dataset_config", reason="megatron-energon is not installed")
    path = converted / "metadataset.yaml"
    path.write_text(blend(converted, "energon"))
    loaded = config.load_config(
        paths.EPath(str(path)), default_type=energon.MetadatasetV2, default_kwargs={"path": paths.EPath(str(path))}
    )
    assert isinstance(loaded, energon.MetadatasetV2)
    assert [one.weight for one in loaded.splits["train"].blend] == [0.75, 0.25]
    found = [str(one.path) for one in loaded.traverse(split_part="train")]
    assert found == [str(converted / name / "webdataset") for name in "ab"]


def test_small_shares_are_decimal_numbers() -> None:
    """YAML reads 1e-05 as a text, and a weight of 1 would be an integer."""
    for share, weight in ((1e-5, "0.00001"), (1.0, "1.0"), (1 / 3, "0.333333333333")):
        one = blends._Exported(blends.BlendSource("a", ("a",), 1, 1), [], "a", False, share)
        assert one.weight == weight


def test_documents_that_the_recipe_holds_out_are_not_in_the_blend(tmp_path: Path) -> None:
    """An export with another split is refused, with the command for the right one."""
    for name in "ab":
        prepare(write_source(tmp_path / f"{name}.parquet", name * 4), tmp_path / name)
        tokenmill.export(tmp_path / name, to="megatron", val=0.1 if name == "b" else "none", workers=1)
    (tmp_path / "recipe.toml").write_text(f"val = 0.2\n{RECIPE.replace('1280', '640')}")
    for name in "ab":
        with pytest.raises(JobChanged, match=f"export of {name} does not hold out") as refused:
            blend(tmp_path, "megatron")
        assert "--val 0.2`" in refused.value.text
        shutil.rmtree(tmp_path / name / "megatron")
        tokenmill.export(tmp_path / name, to="megatron", val="20%", workers=1)
    assert "train" in blend(tmp_path, "megatron")


def test_a_blend_after_an_erasure(tmp_path: Path) -> None:
    """The exports have the documents erased in place, so they are still those of the stores."""
    for name in "ab":
        source = write_source(tmp_path / f"{name}.parquet", name * 4)
        prepare(source, tmp_path / name)
        tokenmill.export(tmp_path / name, to="megatron", workers=1)
    (tmp_path / "recipe.toml").write_text(RECIPE)
    before = blend(tmp_path, "megatron")
    tokenmill.erase(tmp_path / "a", rows=[("a.parquet", 3)], workers=1)
    assert blend(tmp_path, "megatron") == before


def test_what_is_missing_is_named(folder: Path, tmp_path: Path) -> None:
    """A source without an export, and trainers that do not exist."""
    prepare(write_source(tmp_path / "a.parquet", "aaaa"), tmp_path / "a")
    prepare(write_source(tmp_path / "b.parquet", "bbbb"), tmp_path / "b")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    for trainer, message in (
        ("megatron", "the source a is not exported to megatron"),
        ("maxtext", "the source a has no ArrayRecord files"),
        ("energon", "the source a has no WebDatasets"),
    ):
        with pytest.raises(IncompleteStore, match=message):
            blend(tmp_path, trainer)
    with pytest.raises(UsageError, match="Choose from"):
        blend(folder, "other")
