"""The comparison with other tools: its table and chart from recorded results, and how it judges tokens."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import worker_profile
from tests.support import GOLDEN, ROOT

MACHINE = {"processor": "a processor", "cores": 2, "memory_bytes": 8e9, "system": "Linux", "python": "3.11.7"}


@pytest.fixture
def peers():
    """Imports a module of benchmarks.peers."""

    def load(name: str) -> ModuleType:
        return importlib.import_module(f"benchmarks.peers.{name}")

    return load


def row(name: str, megabytes: int, speeds: list[float], **words: Any) -> dict[str, Any]:
    """What is recorded of a pipeline."""
    told = [
        {"round": number, "megabytes_per_second": speed, "tokens_are": words.get("tokens_are", "equal")}
        for number, speed in enumerate(speeds, 1)
    ]
    told += [{"round": 0, "tokens_are": "equal"}] if words.get("bare") else []
    return {
        "name": name,
        "title": f"the {name} & co",
        "bare": words.get("bare", False),
        "note": "a note",
        "versions": f"{name} 1.0",
        "work": f"{megabytes} MB",
        "text_bytes": megabytes * 10**6,
        "failure": words.get("failure"),
        "rounds": told,
        **{key: words[key] for key in ("beside", "repository", "commit", "peak_bytes", "kills") if key in words},
    }


RESULTS: dict[str, Any] = {
    "machine": MACHINE,
    "commit": "0123abc",
    "workers": 2,
    "rounds": 2,
    "corpus": {"files": 8, "documents": 100, "text_bytes": 61_000_000},
    "rows": [
        row("tokenmill", 600, [100.0, 120.0]),
        row("tokenmill", 80, [40.0, 30.0]),
        row("nanogpt", 80, [3.0, 4.0]),
        row("build-nanogpt", 80, [8.0, 7.0]),
        row("dolma", 80, [2.0, 2.0], tokens_are="17 fewer; 3 of 9 documents equal"),
        row("gigatoken", 600, [150.0, 140.0], bare=True, tokens_are="not written"),
        row("litdata", 80, [], failure="ended with 1: no such module"),
    ],
}


def test_table_compares_the_best_rounds(peers) -> None:
    """A row gives the best round, all rounds, and how much slower it is than tokenmill, on all text and on the same."""
    page = peers("table").render(RESULTS)
    rows = {line.split(" | ")[0].strip("| "): line for line in page.splitlines() if line.startswith("|")}
    assert rows["the nanogpt & co"] == "| the nanogpt & co | 80 MB | 4.0 | 3.0, 4.0 | equal | 30.0 | 10.0 |"
    assert "**15 times** the fastest peer pipeline, the build-nanogpt & co (5 times on the same 80 MB)." in page
    assert "**30 times** `datasets.map`" in page


def test_table_shows_losses(peers) -> None:
    """A faster engine, other tokens, and a pipeline that failed are all in the table, with the reason."""
    page = peers("table").render(RESULTS)
    assert "| the gigatoken & co | 600 MB | 150 | 150, 140 | equal | 0.80 | 0.80 |" in page
    assert "17 fewer; 3 of 9 documents equal" in page
    assert "| the litdata & co | 80 MB | did not run |" in page
    assert "Did not run: ended with 1: no such module" in page


def test_table_compares_a_peer_with_tokenmill_on_the_same_input(peers) -> None:
    """A peer that reads another input is compared with the pipeline of tokenmill that reads it; its commit is named."""
    peer = row("megatron-fast", 600, [30.0], beside="tokenmill-megatron", repository="NVIDIA/Megatron-LM", commit="d98")
    rows = [*RESULTS["rows"], row("tokenmill-megatron", 600, [45.0]), peer]
    page = peers("table").render(RESULTS | {"rows": rows})
    assert "| the megatron-fast & co | 600 MB | 30.0 | 30.0 | equal | 1.50 | 1.50 |" in page
    assert "- the megatron-fast & co (NVIDIA/Megatron-LM at d98, megatron-fast 1.0): a note." in page
    alone = peers("table").render(RESULTS | {"rows": rows[-2:]})
    assert "tokenmill: 45.0 MB/s." in alone


def test_table_shows_memory_and_kills(peers) -> None:
    """The second table has the peak memory, and what came of killing a worker and the parent."""
    end = {"exit_code": 1, "seconds": 2.0, "silent": False, "message": "it failed", "tokens_are": "equal"}
    hang = end | {"exit_code": None, "silent": True, "tokens_are": "3 fewer"}
    parent = {"orphans": 2, "orphans_cores": 1.9, "tokens_are": "5 fewer", "usual_seconds": 9.0, "again": end}
    rows = [
        row("tokenmill", 600, [100.0]),
        row("dolma", 80, [2.0], peak_bytes=5e8, kills={"worker": hang, "parent": parent}),
        row("litdata", 80, [1.0], peak_bytes=6e8, kills={"worker": None, "parent": parent | {"orphans": 0}}),
    ]
    page = peers("table").render(RESULTS | {"rows": rows})
    again = "exit 1 after 2.0 s (it failed); tokens: equal (usual: 9.0 s)"
    left = "2 processes stay, 1.9 cores busy; tokens: 5 fewer"
    assert f"| the dolma & co | 80 MB | 500 | hangs; tokens: 3 fewer | {left} | {again} |" in page
    assert "| 600 | there is no other process | no process stays; tokens: 5 fewer |" in page


def test_chart_is_a_picture_of_every_row(peers) -> None:
    """The SVG is well-formed, has a bar for each row that ran, as long as its speed, and inside the picture."""
    picture = ET.fromstring(peers("chart").render(RESULTS))
    width, height = (float(value) for value in picture.attrib["viewBox"].split()[2:])
    bars = [each for each in picture.findall(".//{*}rect") if each.attrib["class"].startswith("bar")]
    lengths = [float(bar.attrib["width"]) for bar in bars]
    assert lengths == pytest.approx([lengths[0] * speed / 150 for speed in (150, 120, 40, 8, 4, 2)], abs=0.1)
    texts = {"".join(each.itertext()): each for each in picture.findall(".//{*}text")}
    assert {"the litdata & co", "did not run", "150, nothing written", "2.0, 60 times slower, other tokens"} <= set(
        texts
    )
    assert all(0 < float(each.attrib["x"]) < width and 0 < float(each.attrib["y"]) < height for each in texts.values())


def test_chart_has_no_labels_over_each_other(peers) -> None:
    """Names end before the bars begin, what is beside a bar ends inside the picture, and rows do not touch."""
    chart, letter_width = peers("chart"), 7.2
    catalogue = peers("catalogue")
    for pipeline in (*catalogue.PIPELINES, *catalogue.MILLS):
        assert len(pipeline.title) * letter_width < chart.LEFT - 10
    picture = ET.fromstring(chart.render(RESULTS))
    rows = [float(each.attrib["y"]) for each in picture.findall(".//{*}text") if each.attrib["text-anchor"] == "end"]
    assert min(np.diff(rows)) >= 20
    for text in picture.findall(".//{*}text"):
        if text.attrib["text-anchor"] == "start":
            assert float(text.attrib["x"]) + len("".join(text.itertext())) * letter_width < chart.WIDTH


@pytest.mark.parametrize(
    ("layout", "golden"),
    [("bin", "nanogpt"), ("npy", "build-nanogpt"), ("dolma", "dolma"), ("litdata", "litdata_u16"), ("mds", "mds_u16")],
)
def test_tokens_are_found_in_every_layout(peers, layout: str, golden: str) -> None:
    """The same three documents are found in the files of each tool, wherever the end token stands."""
    outputs = peers("outputs")
    documents = [np.array(tokens, np.uint16) for tokens in ([1, 2, 3], [4, 5], [6, 7, 8, 9, 10])]
    found = outputs.find(layout, str(GOLDEN / golden))
    assert sorted(found.hashes.tolist()) == sorted(outputs.hash_document(tokens) for tokens in documents)


def test_other_tokens_are_told(peers) -> None:
    """Documents in another order are equal; one that differs, or is missing, is counted."""
    outputs = peers("outputs")
    expected = outputs.count([np.array([1, 2, 50256, 3, 50256], np.uint16)])
    assert outputs.count([np.array([50256, 3, 50256, 1, 2], np.uint16)]).verdict(expected) == "equal"
    other = outputs.count([np.array([1, 9, 50256, 3, 50256], np.uint16)])
    assert other.verdict(expected) == "same number; 1 of 2 documents equal"
    assert outputs.count([np.array([3, 50256], np.uint16)]).verdict(expected) == "3 fewer; 1 of 2 documents equal"


def test_text_is_converted_to_what_peers_read(peers, tmp_path) -> None:
    """Several Parquet files become one file of JSON Lines; a tokenizer.json becomes what transformers loads."""
    works, outputs = peers("works"), peers("outputs")
    (tmp_path / "work").mkdir()
    for name, text in (("a", "one"), ("b", "zwölf\n")):
        pq.write_table(pa.table({"text": [text]}), tmp_path / "work" / f"{name}.parquet")
    work = works.Work(str(tmp_path / "work"), 10, 2, outputs.count([]))
    lines = Path(works.convert(work, "one.jsonl"), "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["one", "zwölf\n"]
    (tmp_path / "gpt2.json").write_text("{}")
    model = Path(works.write_model(str(tmp_path / "model"), str(tmp_path / "gpt2.json")))
    assert sorted(path.name for path in model.iterdir()) == ["tokenizer.json", "tokenizer_config.json"]
    assert works.write_model("unused", "gpt2") == "gpt2"


CHILD = "import time\nwhile True: sum(range(10**5)); time.sleep(0.01)"
PARENT = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {CHILD!r}]).wait(); sys.exit(3)"


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_kills_find_the_worker_and_the_orphans(tmp_path) -> None:
    """A killed worker ends its parent as the parent does; a killed parent leaves a worker, which is ended, too."""
    script = f"""
import sys, time
from types import SimpleNamespace
from pathlib import Path
from benchmarks.peers import contest, kills, orphans, outputs

orphans.adopt_orphans()
kills.ORPHAN_SECONDS, kills.MIN_WORKER_SECONDS = 0.5, 0.05
kills.ready = lambda *arguments, **options: ([sys.executable, "-c", {PARENT!r}], {{}}, ".")
setting = contest.Setting(Path("."), 1, {{}}, limit_seconds=2)
work = SimpleNamespace(expected=outputs.count([]))
entry = SimpleNamespace(pipeline=SimpleNamespace(layout="bin"), work=work, best_seconds=2)
worker = kills.kill_worker(entry, setting)
assert worker["exit_code"] == 3 and worker["tokens_are"] == "none", worker
parent = kills.kill_parent(entry, setting)
assert parent["orphans"] == 1 and parent["again"]["exit_code"] is None, parent
assert not orphans.descendants()
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment, timeout=60)


def test_every_peer_is_pinned_and_has_its_program(peers) -> None:
    """What a recipe is named for is installed in one version, and the recipe is there."""
    for pipeline in peers("catalogue").PIPELINES:
        assert (ROOT / "benchmarks" / "peers" / "recipes" / pipeline.recipe).is_file()
        assert all(re.search(r"==\d", package) for package in pipeline.packages[: pipeline.named])


def test_every_step_of_the_profile_has_its_function() -> None:
    """The functions that `engine_ratio.py --profile` puts on the clock exist."""
    functions = [worker_profile.READING, *(function for step in worker_profile.STEPS.values() for function in step)]
    missing = [
        function
        for function in functions
        if not callable(getattr(worker_profile.named(function[0]), function[1], None))
    ]
    assert not missing


@pytest.mark.data
@pytest.mark.usefixtures("test_data")
def test_the_benchmark_of_many_nodes_fits_the_driver() -> None:
    """Its nodes stand for actors of the product: a simulated run ends with every part as it has to be."""
    command = [sys.executable, "-m", "benchmarks.many_actors", "--nodes", "8", "--simulate", "--units", "1000"]
    done = subprocess.run([*command, "--seconds", "0.5"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "units_per_second" in done.stdout
