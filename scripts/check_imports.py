"""Read files of tokens back: random exports, and files that the peers' own code writes from text.

    TOKENMILL_TEST_DATA=DIR python -m scripts.check_imports --round-trips 200 [--seed N]
    TOKENMILL_TEST_DATA=DIR python -m scripts.check_imports --peers --python PYTHON --mirrors DIR [--only NAME]

A round trip is a store of random ids, an export of it with random options, and a store of each split of the export. The
documents have to be those of the first store, another export has to have the same tokens and index, `verify --all` has
to pass, and to fail after a bit of a token is flipped. EXCLUDED names what does not come back, and is counted.

The peers' writers are run by `scripts/readers/write_tokens.py` in an environment that has their packages. What comes in
has to be what tiktoken gives for the text. `--mirrors` has the repositories whose scripts are run, as OWNER+NAME/repo.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import random
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken

import tokenmill
from scripts.check_readers import READERS, Failed, run
from tests.support.corpora import SMALL_JSON
from tests.support.documents import DOCUMENTS
from tests.support.export_model import flat, model
from tests.support.inline_executor import InlineExecutor
from tokenmill import storage
from tokenmill.errors import TokenmillError, UsageError
from tokenmill.results import ExportResult, PrepareResult
from tokenmill.token_files import find_format
from tokenmill.token_files.recognize import open_tokens

FORMATS = ("nanogpt", "build-nanogpt", "llmc", "megatron", "datatrove", "olmo", "litdata", "mds", "parquet")
INDEXED = ("megatron", "datatrove", "olmo", "litdata", "parquet")
EXCLUDED = {
    "--tail drop": "tokens of the store are not in the export; it is never drawn",
    "sequences of mds": "they are no documents: the end token divides those",
    "no begin or end token, without an index": "nothing divides the documents; it must be refused",
    "an end token inside a document, without an index": "it divides the document",
    "an empty document at an edge, with another --eot-position or a cut split": "nothing tells where it stands",
    "a document that is cut between splits, in another export": "its end gets an end token of its own",
    "columns that name sources": "the import has other sources",
}
Documents = list[list[int]]


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, its begin and end token, and the ids below which its text tokens are."""

    tokenizer: str
    begin: int
    end: int
    ids: int


SMALL = Vocabulary(SMALL_JSON, 1198, 1199, 1000)
LARGE = Vocabulary("cl100k_base", 100_258, 100_257, 100_256)


@dataclass
class Trial:
    """A random store, and how it is exported."""

    name: str
    vocabulary: Vocabulary
    documents: Documents
    frame: dict[str, Any]
    options: dict[str, Any]
    unit_bytes: int

    @property
    def is_indexed(self) -> bool:
        """Whether the files state where documents are."""
        return self.name in INDEXED

    @property
    def prepended(self) -> bool:
        """Whether the end token stands before the documents."""
        default = find_format(self.name).SPEC.defaults.end
        return self.options.get("eot_position", default) == "prepended"


@dataclass
class Counts:
    """What was compared for a format."""

    stores: int = 0
    splits: int = 0
    documents: int = 0
    tokens: int = 0
    exports: int = 0
    flips: int = 0
    refused: int = 0


class Different(Exception):
    """What is not as it was."""


def random_trial(rng: random.Random, name: str, excluded: Counter[str]) -> Trial:
    """Documents of random ids, some without tokens, with a frame and options that the format has."""
    spec = find_format(name).SPEC
    vocabulary = SMALL if name == "nanogpt" or rng.random() < 0.6 else LARGE
    lengths = rng.choice([[0, 1, 5, 40], [30, 200], [0, 3, 3000], [130], [1], [0]])
    count = rng.choice([1, 2, 30, 250, 250, 250]) if max(lengths) < 1000 else 40
    documents = [[rng.randrange(vocabulary.ids) for _ in range(rng.choice(lengths))] for _ in range(count)]
    begin, end = rng.choice([(None, True), (None, True), (True, True), (True, True), (True, None), (None, None)])
    frame: dict[str, Any] = {"bos": vocabulary.begin if begin else "none", "eot": vocabulary.end if end else "none"}
    fitting = [kind for kind in spec.dtypes if kind != "uint16" or vocabulary is SMALL]
    options: dict[str, Any] = {
        "dtype": rng.choice(fitting),
        "tail": "keep" if name == "mds" else rng.choice(["keep", "merge"]),
    }
    options["val"] = rng.choice(["none", "none", 0.1, 0.5, "first-shard"])
    if name == "nanogpt" and options["val"] == "first-shard":
        options["val"] = 0.3
    if rng.random() < 0.4:
        options["shuffle"] = rng.randrange(1000)
    if end and rng.random() < 0.5:
        options["eot_position"] = rng.choice(["appended", "prepended"])
    tokens = sum(map(len, documents)) + 2 * count
    if name != "nanogpt":
        options["shard_tokens"] = max(rng.choice([7, 100, 700, 5000]), tokens // 40)
    if name == "mds":
        options["sequence_tokens"] = rng.choice([2, 16, 30, 255, 256])
        options["shard_tokens"] = max(options["shard_tokens"], options["sequence_tokens"])
        excluded["sequences of mds"] += 1
    if name == "parquet":
        options["with_columns"] = ["id", "score"]
        excluded["columns that name sources"] += 1
    if end and rng.random() < 0.2:
        if name in INDEXED:
            documents = [[*ids, vocabulary.end, 5] if ids and rng.random() < 0.2 else ids for ids in documents]
        else:
            excluded["an end token inside a document, without an index"] += 1
    trial = Trial(name, vocabulary, documents, frame, options, rng.choice([400, 1500, 20_000, 1 << 20]))
    is_first = trial.prepended if end else bool(begin)
    is_told = is_first == (spec.defaults.end == "prepended") and options["val"] != "first-shard"
    if not trial.is_indexed and not (begin and end) and not is_told:
        # Which documents are at an edge depends on the split and the shuffle: none is without tokens.
        if any(not ids for ids in documents):
            excluded["an empty document at an edge, with another --eot-position or a cut split"] += 1
        trial.documents = [ids or [5] for ids in documents]
    return trial


def prepare(trial: Trial, source: Any, out: Path, **options: Any) -> PrepareResult:
    """A store with the tokenizer and frame of the trial."""
    given = {"tokenizer": trial.vocabulary.tokenizer, "unit_bytes": trial.unit_bytes, "trust_tokens": True}
    given |= trial.frame | {"executor": InlineExecutor(), "max_skipped": 1.0}
    return tokenmill.prepare(source, out=str(out), **{**given, **options})


def export(trial: Trial, store: PrepareResult, out: Path, **options: Any) -> ExportResult:
    """An export to the format of the trial."""
    return tokenmill.export(store, to=trial.name, out=out, executor=InlineExecutor(), **options)


def documents_of(store: PrepareResult) -> Documents:
    """The tokens of all documents."""
    return [ids.tolist() for ids in tokenmill.open(store)]


def divider(trial: Trial) -> int:
    """The token that divides documents: the end token, or without one the begin token."""
    return int(trial.frame["bos"] if trial.frame["eot"] == "none" else trial.frame["eot"])


def has_token(trial: Trial, file: str, token: int) -> bool:
    """Whether a file holds a token."""
    tokens = open_tokens(storage.stat(file), trial.name, trial.options["dtype"] if trial.name == "nanogpt" else "")
    return bool((tokens.read(0, tokens.tokens) == token).any())


def divided(stream: list[int], trial: Trial) -> Documents:
    """The documents of a stream without an index, as the store has them: cut where the dividing token is."""
    if trial.frame["bos"] == trial.frame["eot"] == "none":
        return [stream]
    end = divider(trial)
    first = trial.prepended or trial.frame["eot"] == "none"
    inner: Documents = [[]]
    for token in stream:
        if token == end:
            inner.append([])
        else:
            inner[-1].append(token)
    if first and stream[:1] == [end]:
        inner = inner[1:]
    elif not first and stream[-1:] == [end]:
        inner = inner[:-1]
    begin = [] if trial.frame["bos"] == "none" else [trial.frame["bos"]]
    bare = [ids[len(begin) :] if begin and ids[:1] == begin else ids for ids in inner]
    return [[*begin, *ids, *([] if trial.frame["eot"] == "none" else [end])] for ids in bare]


def expected_splits(trial: Trial, store: tokenmill.Store, done: Any) -> dict[str, tuple[Documents, bool]]:
    """The documents of each split of an export in order, and whether one of them is cut.

    With an index, the splits of `--val first-shard` are read as one: the edges of shards are counted from the first.
    """
    val = trial.options["val"]
    fraction = val if isinstance(val, float) else None
    whole = model(store, fraction, trial.options.get("shuffle"), "appended")
    if val != "first-shard":
        return {split: (documents, False) for split, documents in whole.items() if split in done.splits}
    documents, tokens = whole["train"], done.splits["val"].tokens if "val" in done.splits else 0
    if trial.is_indexed:
        return {"val train": (documents, False)}
    stream = flat(model(store, None, trial.options.get("shuffle"), "prepended" if trial.prepended else "")["train"])
    cut = tokens not in np.cumsum([len(ids) for ids in documents])
    found = {"val": (divided(stream[:tokens], trial), cut), "train": (divided(stream[tokens:], trial), cut)}
    return {split: each for split, each in found.items() if split in done.splits}


def split_files(export: Path, splits: str) -> list[str]:
    """The files that hold the tokens of splits, in order."""
    manifest = pq.read_table(export / ".tokenmill/manifests/00000000.parquet").to_pylist()
    shards = sorted(manifest, key=lambda shard: (splits.find(shard["split"]), shard["shard"]))
    files = [str(export / shard["files"][0]["name"]) for shard in shards if shard["split"] in splits.split()]
    return list(dict.fromkeys(files))


def contents(files: list[str], name: str) -> list[Any]:
    """The tokens and the index of files, as they are stored. Names and what names sources are left out."""
    if name == "parquet":
        tables = [pq.read_table(file).drop_columns(["source", "row"]) for file in files]
        return [(table["input_ids"].type, table.to_pydict()) for table in tables]
    found: list[Any] = []
    for file in files:
        stem = os.path.splitext(file)[0]
        found.append(Path(file).read_bytes())
        if name == "olmo":
            rows = gzip.decompress(Path(f"{stem}.csv.gz").read_bytes()).decode().splitlines()
            found.append([row.split(",")[:2] for row in rows])
        beside = {"megatron": f"{stem}.idx", "datatrove": f"{file}.index", "litdata": "index.json", "mds": "index.json"}
        if name in beside:
            found.append(Path(file).with_name(os.path.basename(beside[name])).read_bytes())
    return found


def flip_bit(rng: random.Random, file: str, name: str, dtype: str) -> bool:
    """Flip a bit of a token of a file, whose time stays. False if the file has no tokens."""
    status, data = os.stat(file), bytearray(Path(file).read_bytes())
    if name == "parquet":
        column, before = pq.ParquetFile(file).metadata.row_group(0).column(0), pq.read_table(file)
        if not column.total_compressed_size or not sum(map(len, before["input_ids"].to_pylist())):
            return False
        start = column.dictionary_page_offset or column.data_page_offset
        while True:  # until a value is another one, or the page cannot be read
            changed = bytearray(data)
            changed[rng.randrange(start, start + column.total_compressed_size)] ^= 1 << rng.randrange(8)
            Path(file).write_bytes(changed)
            try:
                if not pq.read_table(file).equals(before):
                    break
            except (OSError, pa.ArrowException):
                break
    else:
        tokens = open_tokens(storage.stat(file), name, dtype if name in {"nanogpt", "olmo"} else "")
        if not tokens.tokens:
            return False
        rows = rng.choice([each for each in tokens.rows if each.count * each.tokens])
        item = np.dtype(tokens.dtype).itemsize
        place = rows.first_byte + rng.randrange(rows.count) * rows.stride + rng.randrange(rows.tokens * item)
        data[place] ^= 1 << rng.randrange(8)
        Path(file).write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return True


def kept(store: PrepareResult) -> list[tuple[Any, Any]]:
    """The kept columns of a store, as rows."""
    columns = tokenmill.open(store).columns("id", "score")
    return list(zip(columns["id"].to_pylist(), columns["score"].to_pylist(), strict=True))


def round_trip(rng: random.Random, trial: Trial, folder: Path, counts: Counts, excluded: Counter[str]) -> None:
    """Export, import and export again. Raises Different if something is not as it was."""
    columns: dict[str, list[Any]] = {"id": [f"row {row}" for row in range(len(trial.documents))]}
    columns |= {"score": [row / 7 if row % 5 else None for row in range(len(trial.documents))]}
    source = folder / "ids.parquet"
    pq.write_table(pa.table({"ids": pa.array(trial.documents, pa.list_(pa.uint32())), **columns}), source)
    as_they_are = {"tokens_column": "ids", "rows": "documents", "source_bos": "none", "source_eot": "none"}
    stored = prepare(trial, str(source), folder / "store", keep="id,score", **as_they_are)
    try:
        done = export(trial, stored, folder / "export", **trial.options)
    except UsageError:
        if trial.options["val"] != "first-shard":
            raise
        trial.options["val"] = "none"  # one shard holds all
        done = export(trial, stored, folder / "export", **trial.options)
    store, origin = tokenmill.open(stored), dict(zip(map(tuple, documents_of(stored)), kept(stored), strict=True))
    counts.stores += 1
    for split, (expected, is_cut) in expected_splits(trial, store, done).items():
        files, out = split_files(folder / "export", split), folder / f"import-{split}"
        options: dict[str, Any] = {}
        if trial.name == "parquet":
            options = {"tokens_column": "input_ids", "keep": "id,score"}
        if trial.is_indexed and len({len(ids) for ids in expected if ids}) == 1:
            options["rows"] = "documents"  # without it, rows of one length are refused
        if not files:  # no document has a token
            continue
        if trial.frame["bos"] == trial.frame["eot"] == "none" and not trial.is_indexed:
            require_refusal(lambda: prepare(trial, files, out), "no token divides the documents")  # noqa: B023
            excluded["no begin or end token, without an index"] += 1
            counts.refused += 1
            continue
        if not trial.is_indexed and not has_token(trial, files[0], divider(trial)):
            require_refusal(lambda: prepare(trial, files, out), "no token divides the documents")  # noqa: B023
            options["source_eot"] = divider(trial)  # it is looked for in the first file only
        result = prepare(trial, files, out, **options)
        require(documents_of(result), expected, f"documents of {split}")
        if trial.name == "parquet" and len(origin) == len(store):
            require(kept(result), [origin[tuple(ids)] for ids in expected], f"kept columns of {split}")
        verified = tokenmill.verify(result, all=True, executor=InlineExecutor())
        require(verified.documents_compared, len(expected), "compared documents")
        counts.splits += 1
        counts.documents += len(expected)
        counts.tokens += sum(map(len, expected))
        if is_cut:
            excluded["a document that is cut between splits, in another export"] += 1
        else:
            second, is_whole = folder / f"again-{split}", " " in split
            same = trial.options | {"shuffle": None, "val": "first-shard" if is_whole else "none"}
            export(trial, result, second, **same)
            if contents(split_files(second, split if is_whole else "train"), trial.name) != contents(files, trial.name):
                raise Different(f"the files of another export of {split}")
            counts.exports += 1
        if flip_bit(rng, rng.choice(files), trial.name, trial.options["dtype"]):
            require_refusal(lambda: tokenmill.verify(result, all=True, executor=InlineExecutor()), "")  # noqa: B023
            counts.flips += 1


def require(found: Any, expected: Any, what: str) -> None:
    """Raise Different if two values differ."""
    if found != expected:
        if isinstance(found, list):
            place = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), "the end")
            at = slice(place, place + 1) if isinstance(place, int) else slice(0)
            shown = f"first at {place}: {str(found[at])[:200]} not {str(expected[at])[:200]}"
            raise Different(f"{what}: {len(found)}, not {len(expected)}; {shown}")
        raise Different(f"{what}: {found}, not {expected}")


def require_refusal(call: Any, message: str) -> None:
    """Raise Different unless a call ends with an error of tokenmill."""
    try:
        call()
    except TokenmillError as error:
        if message not in str(error):
            raise Different(f"refused with another message: {error}") from error
    else:
        raise Different(f"nothing was refused: {message or 'a flipped bit'}")


def round_trips(number: int, seed: int) -> int:
    """Do so many round trips, the formats in turn. Returns the number of those that differ."""
    counts, excluded, differences = {name: Counts() for name in FORMATS}, Counter[str](), 0
    for index in range(number):
        name, rng = FORMATS[index % len(FORMATS)], random.Random(f"{seed} {index}")
        trial = random_trial(rng, name, excluded)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                round_trip(rng, trial, Path(scratch), counts[name], excluded)
            except (Different, TokenmillError) as error:
                differences += 1
                lengths = sorted(map(len, trial.documents))
                about = f"{len(lengths)} documents of {lengths[0]} to {lengths[-1]} ids, {trial.frame}, {trial.options}"
                print(f"trial {index}, {name}: {type(error).__name__}: {error}\n    {about}", flush=True)
    print(
        f"{'format':<14}{'stores':>8}{'imports':>9}{'documents':>11}{'tokens':>11}{'exports':>9}{'flips':>7}  refused"
    )
    for name, each in counts.items():
        print(
            f"{name:<14}{each.stores:>8}{each.splits:>9}{each.documents:>11,}{each.tokens:>11,}{each.exports:>9}"
            f"{each.flips:>7}{each.refused:>9}"
        )
    for name, reason in EXCLUDED.items():
        print(f"excluded, drawn {excluded[name]:>4} times: {name}: {reason}")
    print(f"{differences} of {number} round trips differ (seed {seed})")
    return differences


@dataclass(frozen=True)
class Peer:
    """A writer of tokens, and what it does to documents and their order."""

    name: str
    tokenizer: str = "gpt2"
    dtype: str = "uint16"
    options: dict[str, Any] = field(default_factory=dict)
    in_order: bool = True
    drops_empty: bool = False
    cuts_val: bool = False
    drops_rest: bool = False


PEERS = (
    Peer("datasets", options={"tokens_column": "input_ids"}),
    Peer("nanogpt", in_order=False),
    Peer("build-nanogpt", cuts_val=True),
    Peer("llmc", cuts_val=True),
    Peer("llmc-llama", "cl100k_base", cuts_val=True),
    Peer("megatron"),
    Peer("megatron", "cl100k_base", "int32"),
    Peer("datatrove", in_order=False, drops_empty=True),
    Peer("dolma", in_order=False, drops_empty=True),
    Peer("litdata", "cl100k_base"),
    Peer("mds", drops_rest=True),
    Peer("mds", "cl100k_base", "int32", drops_rest=True),
)
SHARD_TOKENS, SEQUENCE_TOKENS = 20_000, 256


def texts_of(data: str) -> list[str]:
    """Texts in several scripts, some of them long, some empty. None begins with a space, which dolma removes."""
    table = pq.read_table(os.path.join(data, "corpus/en/000.parquet"), columns=["text"])
    texts = [*DOCUMENTS, *table["text"].slice(0, 400).to_pylist()]
    return [text.strip() for text in texts if text is not None and "<|" not in text and "\x00" not in text]


def expected_of(peer: Peer, ids: Documents, end: int) -> Documents:
    """The documents that come in, without end token."""
    if peer.cuts_val:
        stream = flat([[end, *document] for document in ids])
        val, train = stream[:SHARD_TOKENS], stream[SHARD_TOKENS:]
        parts = [split_at(train, end), split_at(val, end)]
        return [document for part in parts for document in (part if part[0] else part[1:])]
    if peer.drops_rest:
        stream = flat([[*document, end] for document in ids])
        parts = [split_at(stream[: len(stream) // SEQUENCE_TOKENS * SEQUENCE_TOKENS], end)]
        return parts[0] if parts[0][-1] else parts[0][:-1]
    return [document for document in ids if document] if peer.drops_empty else ids


def split_at(stream: list[int], end: int) -> Documents:
    """The tokens between end tokens."""
    ends = [place for place, token in enumerate(stream) if token == end]
    return [stream[start + 1 : stop] for start, stop in itertools.pairwise([-1, *ends, len(stream)])]


def check_peer(peer: Peer, texts: list[str], folder: Path, options: argparse.Namespace) -> str:
    """Write by a peer, and import. Returns what came in. Raises Different or Failed."""
    encoding = tiktoken.get_encoding(peer.tokenizer)
    ids, end = [encoding.encode_ordinary(text) for text in texts], encoding.eot_token
    task = {"out": str(folder / "files"), "texts": texts, "ids": ids, "end": end, "dtype": peer.dtype}
    task |= {"tokenizer": os.path.join(os.environ["TOKENMILL_TEST_DATA"], "vocab/hf/gpt2.json")}
    task |= {"shard_tokens": SHARD_TOKENS, "sequence_tokens": SEQUENCE_TOKENS, "mirrors": options.mirrors}
    (folder / "task.json").write_text(json.dumps(task))
    python = sys.executable if peer.name == "datasets" else options.python
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"), "PYTHONWARNINGS": "ignore"}
    command = [python, str(READERS / "write_tokens.py"), peer.name, str(folder / "task.json")]
    version = json.loads(run(command, variables).splitlines()[-1])["version"]
    given = {"tokenizer": peer.tokenizer, "out": folder / "store", "executor": InlineExecutor(), "unit_bytes": 50_000}
    store = tokenmill.prepare(str(folder / "files"), **given, **peer.options)  # type: ignore[arg-type]
    expected = [[*document, end] for document in expected_of(peer, ids, end)]
    found = documents_of(store)
    require(*((found, expected) if peer.in_order else (sorted(found), sorted(expected))), "documents")
    require(tokenmill.verify(store, all=True, executor=InlineExecutor()).documents_compared, len(expected), "compared")
    shown = f"{len(found):,} documents, {sum(map(len, found)):,} tokens, {len(tokenmill.open(store).sources)} files"
    return f"{version}: {shown}; {'; '.join(store.notices)}"


def check_peers(options: argparse.Namespace) -> int:
    """Check all peers. Returns the number of those that differ or cannot be run."""
    texts, failed = texts_of(os.environ["TOKENMILL_TEST_DATA"]), 0
    for peer in PEERS:
        if options.only and peer.name not in options.only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            try:
                shown = f"equal: {check_peer(peer, texts, Path(scratch), options)}"
            except (Different, Failed, TokenmillError) as error:
                failed, shown = failed + 1, f"{type(error).__name__}: {error}"
        print(f"{peer.name} ({peer.tokenizer}): {shown}", flush=True)
    print(f"{failed} of the peers differ or did not run")
    return failed


def main() -> int:
    """Check; the exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--round-trips", type=int, metavar="N", default=0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--peers", action="store_true", help="import what the peers write")
    parser.add_argument("--python", default=sys.executable, help="the Python of an environment with their packages")
    parser.add_argument("--mirrors", default="", metavar="DIR", help="where their repositories are")
    parser.add_argument("--only", nargs="+", choices=[peer.name for peer in PEERS], metavar="NAME")
    options = parser.parse_args()
    data = os.environ["TOKENMILL_TEST_DATA"]
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", os.path.join(data, "vocab"))
    failed = round_trips(options.round_trips, options.seed) if options.round_trips else 0
    failed += check_peers(options) if options.peers else 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
