"""The dataset card: the Hub's library and mlcroissant read it, its counts are right, no local directory is named."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest
from huggingface_hub import DatasetCard

import tokenmill
from tests.analysis.test_report import EVIL, command
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.remote_runs import prepared
from tests.support.servers.hub import Hub
from tests.support.servers.seaweed import Bucket
from tokenmill.analysis.card.public_facts import ETAG, IDENTITY
from tokenmill.analysis.card.readme import _files
from tokenmill.errors import UsageError
from tokenmill.results import ReportResult

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "unit_bytes": 500}
FIELDS: dict[str, Any] = {
    "name": "My: corpus #1",
    "license": "ODC-By",
    "description": 'Pages of "sites".\n\nSecond paragraph <script>',
    "creator": "Example Organization",
    "url": "https://example.org/corpus",
    "published": "2026-11-17",
}
ROWS, DENIED = 60, 20
SECRET = "private-folder"


def stores(folder: Path) -> list[str]:
    """Two stores that are read together: one with kept columns and denied rows, one without."""
    sources = folder / SECRET
    sources.mkdir(parents=True)
    rows = [{"id": n, "url": f"https://host{n % 3}.example/{n}", "text": f"page {n} of some"} for n in range(ROWS)]
    (sources / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (sources / "deny.jsonl").write_text('{"column": "url", "host": "host1.example"}\n')
    source, deny = str(sources / "a.jsonl"), str(sources / "deny.jsonl")
    tokenmill.prepare(source, out=str(folder / "one"), keep="id,url", deny=deny, **CALL)
    evil = write_parquet(sources / "<img src=x>|`$(x)`[a](b).parquet", ["two", None, "three"])
    tokenmill.prepare(evil, out=str(folder / "two"), tokenizer=SMALL_TIKTOKEN, eot=1199, workers=1)
    return [str(folder / "one"), str(folder / "two")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two stores and their cards: beside both, in one of them, and far away with all fields."""
    root = tmp_path_factory.mktemp("cards")
    one, two = stores(root)
    tokenmill.report([one, two], card=root, by="host:url", out=root / "page.html", workers=1)
    tokenmill.report(one, card=one, by="url", workers=1, **FIELDS)
    tokenmill.report(two, card=root / "away" / "card", workers=1, license="https://example.org/license/text/")
    return root


CARDS = ["", "one", "away/card"]


def metadata(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "croissant.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("card", CARDS)
def test_the_hubs_library_reads_the_header(folder: Path, card: str) -> None:
    """The header is YAML with the keys of the Hub, and comes back from the library as it was."""
    loaded = DatasetCard.load(folder / card / "README.md")
    data = loaded.data.to_dict()
    assert data["size_categories"] == ["n<1K"]
    assert data["tags"] == ["tokenized", "tokenmill"]
    assert (data["task_categories"], data["viewer"]) == (["text-generation"], False)
    assert DatasetCard(str(loaded)).data.to_dict() == data
    expected = {
        "": {"pretty_name": "two"},
        "one": {"pretty_name": "My: corpus #1", "license": "odc-by"},
        "away/card": {
            "pretty_name": "two",
            "license": "other",
            "license_name": "text",
            "license_link": "https://example.org/license/text/",
        },
    }
    names = ("pretty_name", "license", "license_name", "license_link")
    assert {name: data[name] for name in names if name in data} == expected[card]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib
@pytest.mark.parametrize("card", CARDS)
def test_mlcroissant_validates_the_metadata(folder: Path, card: str) -> None:
    """The reference library finds no error; it misses only what a person has not given."""
    mlcroissant = pytest.importorskip("mlcroissant", reason="mlcroissant, of the group dev, is not installed")
    dataset = mlcroissant.Dataset(jsonld=folder / card / "croissant.json")
    assert not dataset.metadata.issues.errors
    assert dataset.metadata.ctx.conforms_to.value == "http://mlcommons.org/croissant/1.1"
    warnings = "\n".join(text for text, _ in dataset.metadata.issues._warnings)
    assert ("license" in warnings) == (card == "")
    assert ("datePublished" in warnings) == (card != "one")


@pytest.mark.parametrize("card", CARDS)
def test_no_directory_of_the_machine_is_named(folder: Path, card: str) -> None:
    """Local sources are named by their file names, and stores by the last part of their path."""
    for name in ("README.md", "croissant.json"):
        text = (folder / card / name).read_text(encoding="utf-8")
        for private in (SECRET, str(folder), os.sep + folder.name, os.path.expanduser("~") + os.sep):
            assert private not in text
        assert "a.jsonl" in text or card == "away/card"


def test_counts_and_denied_rows(folder: Path) -> None:
    """The counts are those of the store. Denied rows are counted, and the list is named by its hash."""
    found, store = metadata(folder / "one"), tokenmill.open(folder / "one")
    text = (folder / "one" / "README.md").read_text(encoding="utf-8")
    assert f"| tokens | {store.token_count:,} |\n| documents | {len(store)} |\n" in text
    assert len(store) == ROWS - DENIED
    used = {entity["prov:label"]: entity for entity in found["prov:wasGeneratedBy"]["prov:used"]}
    assert used["list of denied rows"]["@id"] == f"deny/{store.job.deny}"
    assert used["small.tiktoken"]["sha256"] == store.job.tokenizer.sha256
    heading = r"not in the dataset\n\n\| reason \| rows \|\n\| --- \| --- \|\n"
    assert re.search(rf"{heading}\| denied[^|]* \| {DENIED} \|\n\n", text)
    assert str(store.job.deny) in text
    assert "| null: without text | 1 |" in (folder / "README.md").read_text(encoding="utf-8")


def test_files_have_the_hashes_that_are_stated(folder: Path) -> None:
    """Each file of the distribution is where the card says, with its size and SHA-256; patterns match all parts."""
    for card in ("", "one"):
        matched = 0
        for entry in metadata(folder / card)["distribution"]:
            if entry["@type"] == "cr:FileSet":
                matched += len(list((folder / card).glob(entry["includes"])))
                continue
            data = (folder / card / entry["contentUrl"]).read_bytes()
            assert entry["contentSize"] == f"{len(data)} B"
            assert entry["sha256"] == hashlib.sha256(data).hexdigest()
        kept_and_parts = [
            path for path in [*folder.glob("*/parts/*"), *folder.glob("*/kept/*")] if card in path.parts or not card
        ]
        assert matched == len(kept_and_parts) > 2


def test_sources_have_the_recorded_hashes(folder: Path) -> None:
    """A local source has the hash that the store identifies it by, and no time."""
    (source,) = metadata(folder / "one")["prov:wasDerivedFrom"]
    identity = pq.read_table(folder / "one" / "sources.parquet")["identity"][0].as_py()
    assert source["prov:label"] == "a.jsonl"
    assert [(item["propertyID"], item["sc:value"]) for item in source["identifier"]] == [(IDENTITY, f"{identity:016x}")]
    assert len(metadata(folder)["prov:wasDerivedFrom"]) == 2


def test_what_a_person_has_to_add_is_marked(folder: Path, tmp_path: Path) -> None:
    """Missing fields are marked in the card, absent in the metadata, and named by the command; given ones are there."""
    text, found = (folder / "one" / "README.md").read_text(encoding="utf-8"), metadata(folder / "one")
    assert "to be filled in" not in text.lower()
    assert (found["name"], found["license"]) == (FIELDS["name"], FIELDS["license"])
    assert (found["url"], found["datePublished"]) == (FIELDS["url"], FIELDS["published"])
    assert (found["description"], found["creator"]["name"]) == (FIELDS["description"], FIELDS["creator"])
    text, found = (folder / "README.md").read_text(encoding="utf-8"), metadata(folder)
    assert text.count("**to be filled in**") == 4
    assert "# license: to be filled in" in text
    assert not {"license", "url", "creator", "datePublished"} & set(found)
    done = command("report", str(folder / "two"), "--card", str(tmp_path), "--url", "https://a.example", "-q")
    assert "to fill in   --license, --creator, --published\n" in done.stdout
    assert f"card         {tmp_path}/croissant.json\n" in done.stdout
    done = command("report", str(folder / "two"), "--card", str(tmp_path), "--json", "-q")
    result = json.loads(done.stdout)
    assert result["to_fill_in"] == ["license", "creator", "url", "published"]
    assert result["card"] == [f"{tmp_path}/README.md", f"{tmp_path}/croissant.json"]


def test_data_cannot_become_markup(folder: Path, tmp_path: Path) -> None:
    """Names of files and values of columns are text: no HTML, no link, no further cell."""
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert "<img" not in text
    assert "[a](b)" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("| &lt;img"))
    assert len(re.findall(r"(?<!\\)\|", line)) == 4
    assert "<script" not in (folder / "one" / "README.md").read_text(encoding="utf-8")
    fields: dict[str, Any] = dict.fromkeys(("name", "description", "creator"), EVIL + "\n---\nlicense: mit\n")
    tokenmill.report(str(folder / "two"), card=tmp_path, workers=1, **fields)
    loaded = DatasetCard.load(tmp_path / "README.md")
    assert "license" not in loaded.data.to_dict()
    assert "<script" not in loaded.text
    assert "\x1b" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_the_same_store_gives_the_same_card(folder: Path) -> None:
    """A card is replaced by the next one, with the same bytes; the store stays valid with a card in it."""
    names = [folder / "one" / name for name in ("README.md", "croissant.json")]
    before = [path.read_bytes() for path in names]
    tokenmill.report(str(folder / "one"), card=folder / "one", by="url", workers=2, **FIELDS)
    assert [path.read_bytes() for path in names] == before
    tokenmill.verify(str(folder / "one"), all=True, workers=1)


def test_a_card_replaces_nothing_else(folder: Path, tmp_path: Path) -> None:
    """A README.md of a person, a fifo, the files of a store, and one of several stores are refused before any work."""
    one, two = str(folder / "one"), str(folder / "two")
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="would replace something"):
        tokenmill.report(two, card=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / "croissant.json")
    with pytest.raises(UsageError, match="would replace something"):
        tokenmill.report(two, card=tmp_path / "fifo")
    for card in ("parts", "new/folder"):
        with pytest.raises(UsageError, match="among the files of the store"):
            tokenmill.report(two, card=os.path.join(two, card))
    with pytest.raises(UsageError, match="inside one of several stores"):
        tokenmill.report([one, two], card=one)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        tokenmill.report(two, card=tmp_path / "file")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"license": "my own license"}, "license= is an id or an address"),
        ({"url": "example.org"}, "url= is not an address"),
        ({"published": "17.11.2026"}, "published= is a date"),
        ({"name": " "}, "name= is empty"),
    ],
)
def test_fields_are_checked_first(folder: Path, tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    """A value that would not be valid in a card is refused before any work, and so is a field without a card."""
    with pytest.raises(UsageError, match=message):
        tokenmill.report(str(folder / "two"), card=tmp_path / "card", **fields)
    assert not (tmp_path / "card").exists()
    with pytest.raises(UsageError, match="need a card"):
        tokenmill.report(str(folder / "two"), name="name")


def test_sources_of_the_hub_have_their_address_and_hash(hub: Hub, tmp_path: Path) -> None:
    """A file of the Hub is named by address and commit, with the SHA-256 of its content; its dataset is named, too."""
    path = write_parquet(tmp_path / "corpus" / "data" / "a b.parquet", ["one", "two"] * 40)
    repository = hub.add("org/corpus", tmp_path / "corpus")
    prepared(
        "hf://datasets/org/corpus/data", "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--out", tmp_path / "store"
    )
    done = command("report", str(tmp_path / "store"), "--card", str(tmp_path / "card"), "-q")
    assert done.returncode == 0, done.stderr
    dataset, source = metadata(tmp_path / "card")["prov:wasDerivedFrom"]
    assert dataset["@id"] == f"hf://datasets/org/corpus@{repository.sha}"
    assert source["prov:label"] == f"hf://datasets/org/corpus@{repository.sha}/data/a b.parquet"
    assert source["prov:atLocation"] == f"hf://datasets/org/corpus@{repository.sha}/data/a%20b.parquet"
    hashes = [source.get("sha256"), *(item["sc:value"] for item in source["identifier"])]
    content = Path(path).read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
    assert hashlib.sha256(content).hexdigest() in hashes or blob in hashes
    assert DatasetCard.load(tmp_path / "card" / "README.md").data.source_datasets == ["extended|org/corpus"]


def test_a_store_in_a_bucket_gets_its_card_there(s3: Bucket, tmp_path: Path) -> None:
    """A card in an object store is that of a disk but for the sources, which have an etag."""
    path = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    s3.server.store(s3.url).put("in/a.parquet", Path(path).read_bytes())
    tokenmill.prepare(f"{s3.url}/in/a.parquet", out=f"{s3.url}/run", **CALL)
    result: ReportResult = tokenmill.report(f"{s3.url}/run", card=f"{s3.url}/run", workers=1)
    assert result.card == [f"{s3.url}/run/README.md", f"{s3.url}/run/croissant.json"]
    objects = s3.server.objects(f"{s3.url}/run")
    found = json.loads(objects["croissant.json"])
    for entry in found["distribution"]:
        if entry["@type"] == "cr:FileObject":
            assert hashlib.sha256(objects[entry["contentUrl"]]).hexdigest() == entry["sha256"]
    (source,) = found["prov:wasDerivedFrom"]
    assert source["prov:label"] == f"{s3.url}/in/a.parquet"
    assert ETAG in [item["propertyID"] for item in source["identifier"]]
    tokenmill.report(f"{s3.url}/run", card=f"{s3.url}/run", workers=1)
    s3.server.store(s3.url).put("run/README.md", b"mine")
    with pytest.raises(UsageError, match="would replace"):
        tokenmill.report(f"{s3.url}/run", card=f"{s3.url}/run", workers=1)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("prefixes", "opened"), [(("",), '"."'), (("web/",), '"web"'), (("web/", "code/"), '["web", "code"]')]
)
def test_the_card_opens_the_stores_beside_it(prefixes: tuple[str, ...], opened: str) -> None:
    """The lines of Python in a card name the directories of the stores, from where the card is."""
    facts: Any = SimpleNamespace(prefixes=prefixes)
    assert f"tokenmill.open({opened})" in _files(facts)
