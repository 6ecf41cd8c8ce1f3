"""locate: from a token to the row behind it, in a store and in every format, and back."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, write_parquet
from tests.support.export_model import END, read_back
from tokenmill.errors import JobChanged, StoreError, UsageError
from tokenmill.exports.locator import LocatedDocument, Locator
from tokenmill.exports.trace import ExportIndex
from tokenmill.storage import folder_at
from tokenmill.token_files import FORMATS, find_format
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_bytes import token_bytes_lookup

POSITIONS = 30
LONG = "a long document, which goes on through several shards " * 120


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Parquet, JSON Lines, text and small files together: short, empty, missing and very long documents."""
    rng = random.Random(3)
    folder = tmp_path_factory.mktemp("sources")
    texts = ["".join(rng.choices("etaoin shrdlu é\n", k=rng.choice([0, 3, 40, 300]))) for _ in range(150)]
    texts[130] = LONG
    write_parquet(folder / "a.parquet", [None if n % 50 == 7 else text for n, text in enumerate(texts)], 15)
    lines = [json.dumps({"text": text}) for text in texts[:60]]
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")
    for number in range(3):
        (folder / f"c{number}.txt").write_text(f"A small file, number {number}.")
    return [str(folder)]


@pytest.fixture(scope="module")
def store(sources: list[str], tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Store:
    """A store of some dozen parts."""
    out = str(tmp_path_factory.mktemp("store") / "store")
    tokenmill.prepare(sources, tokenizer=SMALL_TIKTOKEN, out=out, eot=END, unit_bytes=2_000, workers=2)
    return tokenmill.open(out)


def at_every_position(store: tokenmill.Store) -> list[tuple[int, int]]:
    """The document and the place in it of every token of the store, by counting."""
    return [(number, place) for number, tokens in enumerate(store) for place in range(len(tokens))]


def token_at(store: tokenmill.Store, document: LocatedDocument) -> int:
    assert store.tokens(document.store_token, document.store_token + 1) == store[document.document][document.offset]
    return int(store[document.document][document.offset])


def test_every_token_of_a_store_is_found(store: tokenmill.Store) -> None:
    """at() agrees with counting, and locate() names the document's own source and row."""
    expected = at_every_position(store)
    assert len(expected) == store.token_count
    assert [store.at(token) for token in range(store.token_count)] == expected
    locator = Locator(store, 5)
    for token in random.Random(5).sample(range(store.token_count), POSITIONS):
        (document,) = locator.in_store(token, token + 1)
        assert (document.document, document.offset) == expected[token]
        read = store.document(document.document)
        assert (document.source, document.position, document.kind) == (read.source, read.position, read.kind)
        assert document.store_token == document.token == token


def test_every_document_is_found_by_its_row(store: tokenmill.Store) -> None:
    """find() gives each document's own number, and nothing for rows that are none."""
    numbers = {path: number for number, path in enumerate(store.sources["path"].to_pylist())}
    places = [store.document(position) for position in range(len(store))]
    assert [store.find(numbers[place.source], place.row) for place in places] == list(range(len(store)))
    there = {(place.source, place.row) for place in places}
    for source, number in numbers.items():
        for row in [*range(0, 2_000, 13), 10**9, 1 << 40]:
            assert (store.find(number, row) is not None) == ((source, row) in there)


CHOICES: dict[str, dict[str, Any]] = {
    "shuffled": {"val": 0.1, "shuffle": 7},
    "in order": {"val": "none"},
    "prepended": {"val": "first-shard", "shuffle": 8, "eot_position": "prepended"},
}


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((name, "shuffled") for name, each in FORMATS.items() if not each.SPEC.is_text),
        *((name, "in order") for name in ("nanogpt", "megatron", "parquet")),
        *((name, "prepended") for name in ("llmc", "megatron", "mds")),
    ],
)
def test_tokens_of_every_format_lead_to_the_store_and_back(
    store: tokenmill.Store, name: str, chosen: str, tmp_path: Path
) -> None:
    """A token of an exported file is the one that locate names, and that document is told to be where the token was."""
    out = tmp_path / "out"
    choice, more = CHOICES[chosen], {"sequence_tokens": 64} if name == "mds" else {}
    options = {"shard_tokens": 2_000, **choice, **more}
    tokenmill.export(store.directory, to=name, out=str(out), workers=2, **options)
    rng, traits = random.Random(name), find_format(name).SPEC
    locator, export = Locator(store, 5), ExportIndex(folder_at(str(out)))
    files = token_files(out)
    read = [tokens for splits in read_back(out, name).values() for tokens, _ in splits]
    assert [len(tokens) for tokens in read] == [count for _, count in files]
    for (file, count), tokens in zip(files, read, strict=True):
        for token in {0, count - 1, *(rng.randrange(count) for _ in range(max(3, POSITIONS // len(files))))}:
            (document,) = locator.in_export(export, file, token, token + 1)
            assert token_at(store, document) == tokens[token]
            number, _ = locator.find_row(document.source, document.position)
            spots = locator.shards_of(number, document.position[1], {name: export})[name]
            here = [s for s in spots if s.file == str(out / file) and s.token <= token < s.token + s.tokens]
            assert len(here) == 1
            joined = [read[place_of(files, spot.file)][spot.token : spot.token + spot.tokens] for spot in spots]
            held = sum(map(len, joined))
            assert held == document.document_tokens or name == "mds"  # which has sequences, and drops what fills none
            exported = np.roll(
                store[document.document],
                choice.get("eot_position") == "prepended" or traits.defaults.end == "prepended",
            )
            assert np.array_equal(np.concatenate(joined), exported[:held])


def token_files(out: Path) -> list[tuple[str, int]]:
    """The files with tokens, and how many each holds, as the export's manifest tells."""
    found: dict[str, int] = {}
    for shard in pq.read_table(out / ".tokenmill/manifests/00000000.parquet").to_pylist():
        name = shard["files"][0]["name"]
        found[name] = found.get(name, 0) + shard["tokens"]
    return list(found.items())


def place_of(files: list[tuple[str, int]], path: str) -> int:
    return next(place for place, (name, _) in enumerate(files) if path.endswith(name))


def test_a_stretch_names_every_document(store: tokenmill.Store, tmp_path: Path) -> None:
    """The documents of [TOKEN, TOKEN2) follow each other, in a store and in a file, and have all of its tokens."""
    out = tmp_path / "out"
    tokenmill.export(store.directory, to="nanogpt", out=str(out), val="none")
    for where, made_from in ((store.directory, None), (str(out / "train.bin"), store.directory)):
        documents = tokenmill.locate(where, 100, 5_000, store=made_from).documents
        assert documents[0].token == 100
        assert all(a.token + a.tokens == b.token for a, b in itertools.pairwise(documents))
        assert documents[-1].token + documents[-1].tokens == 5_000
        assert [d.store_token for d in documents] == [d.token for d in documents]


@pytest.mark.parametrize("tokenizer", [SMALL_TIKTOKEN, SMALL_JSON])
def test_the_text_around_is_cut_at_characters(tmp_path: Path, tokenizer: str) -> None:
    """What stands before, at and after a token is the document's text, also where a token is a part of a character."""
    text = "Καλημέρα κόσμε, 世界 and 🙂🙃 end"
    source = write_parquet(tmp_path / "a.parquet", [text])
    locator = Locator(tokenmill.open(prepare(source, tmp_path, tokenizer)), 1000)
    for token in range(len(tokenmill.open(str(tmp_path / "store"))[0])):
        around = next(locator.in_store(token, token + 1)).around
        whole = around.before + around.text + around.after
        assert whole[: len(text)] == text
        assert "\ufffd" not in whole
        assert around.text


def test_a_long_stretch_is_shown_by_its_ends(store: tokenmill.Store) -> None:
    """Of many tokens the first and the last are shown, and what comes after them is what really does."""
    number = next(n for n, tokens in enumerate(store) if len(tokens) > 1000)
    start = store.start_of(number)
    locator = Locator(store, 3)
    whole, part = (next(locator.in_store(start + a, start + b)).around for a, b in ((0, 1000), (1000, 1001)))
    assert whole.shortened
    assert " ... " in whole.text
    assert whole.after.startswith(part.text)


def test_stretches_of_prepended_documents_leave_no_gap(store: tokenmill.Store, tmp_path: Path) -> None:
    """The end token before a document counts with it, and the text begins with the document."""
    out = tmp_path / "out"
    tokenmill.export(store.directory, to="llmc", out=str(out), val="none", shard_tokens=100_000)
    file = token_files(out)[0][0]
    documents = tokenmill.locate(str(out / file), 0, 3_000, store=store.directory).documents
    assert all(a.token + a.tokens == b.token for a, b in itertools.pairwise(documents))
    assert [d.offset for d in documents if d.document_tokens > 1] == [0] * sum(d.document_tokens > 1 for d in documents)


def test_links_copies_and_other_names_of_a_file_are_understood(store: tokenmill.Store, tmp_path: Path) -> None:
    """A link leads to its file, a pair by any name; a copy elsewhere is not known."""
    plain = tmp_path / "store"
    shutil.copytree(store.directory, plain)
    tokenmill.export(str(plain), to="megatron")
    pair = plain / "megatron/train_text_document"
    (tmp_path / "link.bin").symlink_to(f"{pair}.bin")
    shutil.copy(f"{pair}.bin", tmp_path)
    expected = tokenmill.locate(f"{pair}.bin", 777).documents
    for where in (pair, f"{pair}.idx", tmp_path / "link.bin"):
        assert tokenmill.locate(str(where), 777).documents == expected
    copy = str(tmp_path / "train_text_document.bin")
    with pytest.raises(StoreError, match="name the original"):
        tokenmill.locate(copy, 777)


def test_an_export_that_is_not_of_the_store_is_not_asked(tmp_path: Path) -> None:
    """What was exported before the store was made anew, and what is not complete, is named with the reason."""
    source, out = write_parquet(tmp_path / "a.parquet", ["One text.", "Another text."]), str(tmp_path / "store")
    prepare(source, tmp_path)
    for name in ("llmc", "nanogpt", "megatron"):
        tokenmill.export(out, to=name, val="none")
    (tmp_path / "store/megatron/.tokenmill/manifests/00000000.parquet").unlink()
    other = write_parquet(tmp_path / "b.parquet", ["One text.", "Another one."])
    prepare(other, tmp_path / "other")
    tokenmill.export(str(tmp_path / "other/store"), to="llmc", val="none")
    shutil.rmtree(tmp_path / "store/llmc")
    shutil.move(tmp_path / "other/store/llmc", tmp_path / "store/llmc")
    found = tokenmill.locate(out, source="a.parquet", row=1)
    assert list(found.exports or {}) == ["nanogpt"]
    assert found.unasked == {"llmc": "exported from another store", "megatron": "not complete"}


def test_nothing_in_a_document_is_obeyed_by_a_terminal(tmp_path: Path) -> None:
    """Escape sequences and marks that turn the direction of writing are shown by their codes, both ways."""
    text = "red \x1b[31m title \x1b]0;me\x07 back \x08\r over \u202e turned \x9b2J"
    directory = prepare(write_parquet(tmp_path / "a.parquet", [text]), tmp_path)
    for words in (["2"], ["--source", "a.parquet", "--row", "0"]):
        found = command.run("locate", directory, *words, FORCE_COLOR="1").stdout
        assert not any(
            code in found.replace("\x1b[1;7m", "").replace("\x1b[0m", "") for code in "\x1b\x07\x08\r\u202e\x9b"
        )


@pytest.mark.parametrize(
    ("model", "decoder", "expected"),
    [
        ({"type": "BPE", "vocab": {"\u2581na": 0, "<0xC3>": 1, "<0xAF>": 2, "ve": 3}}, None, " naïve"),
        ({"type": "WordPiece", "vocab": {"na": 0, "##\u00ef": 1, "##ve": 2, "man": 3}}, None, " naïve man"),
        ({"type": "BPE", "vocab": {"na": 0, "\u00c3\u00af": 1, "ve": 2, "\u0120man": 3}}, "ByteLevel", "naïve man"),
    ],
)
def test_pieces_are_spelled_as_their_vocabulary_has_them(
    model: dict[str, Any], decoder: str | None, expected: str
) -> None:
    """Bytes that a vocabulary falls back to, words and byte-level tokens become the text they stand for."""
    steps = {"decoder": None, "pre_tokenizer": {"type": decoder} if decoder else None}
    content = json.dumps({"model": model, **steps}).encode()
    spec = TokenizerSpec("x", "huggingface", "x.json", hashlib.sha256(content).hexdigest(), 4, {})
    lookup = token_bytes_lookup(spec, content)
    assert b"".join(map(lookup, range(4))).decode() == expected


def prepare(source: str, folder: Path, tokenizer: str = SMALL_TIKTOKEN) -> str:
    out = str(folder / "store")
    tokenmill.prepare(source, tokenizer=tokenizer, out=out, eot=7, workers=1)
    return out


def test_documents_of_json_lines_are_named_by_byte_and_line(tmp_path: Path) -> None:
    """`locate` and `inspect --doc` give the byte and the number of the line, and --byte leads back."""
    lines = [json.dumps({"text": f"Document number {number}."}) for number in range(5)]
    (tmp_path / "a.jsonl").write_text(lines[0] + "\n\n" + "\n".join(lines[1:]) + "\n")
    directory = prepare(str(tmp_path / "a.jsonl"), tmp_path)
    byte = len(lines[0]) + 2 + len(lines[1]) + 1
    token = tokenmill.open(directory).start_of(2)
    for question in ((token,), ("--source", "a.jsonl", "--byte", byte)):
        (found,) = json.loads(command.run("locate", directory, *question, "--json").stdout)["documents"]
        assert (found["row"], found["byte"], found["line"], found["document"]) == (None, byte, 4, 2)
        assert f"\nline         4\nbyte         {byte}\n" in command.run("locate", directory, *question).stdout
    shown = json.loads(command.run("inspect", directory, "--doc", "2", "--json").stdout)
    assert (shown["byte"], shown["line"]) == (byte, 4)
    assert "row" not in shown
    assert f"\nline         4\nbyte         {byte}\n" in command.run("inspect", directory, "--doc", "-3").stdout
    (tmp_path / "a.jsonl").write_text("")
    assert tokenmill.open(directory).line(2) is None
    assert tokenmill.locate(directory, token).documents[0].line is None


def test_the_line_is_counted_in_its_own_store(tmp_path: Path) -> None:
    """Of several stores, each document has the line of its own file; a document of Parquet has a row and no line."""
    (tmp_path / "b.jsonl").write_text('\n{"text": "Of the second store."}\n')
    one = prepare(write_parquet(tmp_path / "a.parquet", ["One text.", "Another text."]), tmp_path / "one")
    other = prepare(str(tmp_path / "b.jsonl"), tmp_path / "other")
    opened = tokenmill.open([one, other])
    found = [tokenmill.locate([one, other], opened.start_of(number)).documents[0] for number in (1, 2)]
    assert [(document.row, document.byte, document.line) for document in found] == [(1, None, None), (None, 1, 2)]


def test_what_cannot_be_found_is_told(store: tokenmill.Store, tmp_path: Path) -> None:
    """Each wrong question gets an answer that says what there is."""
    out, directory = str(tmp_path / "out"), store.directory
    tokenmill.export(directory, to="llmc", out=out)
    shard = f"{out}/{token_files(Path(out))[0][0]}"
    questions: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (UsageError, "holds        ", {"where": directory, "token": store.token_count}),
        (
            UsageError,
            "holds        ",
            {"where": shard, "token": 10**9, "store": directory},
        ),
        (UsageError, "_train_", {"where": out, "token": 3, "store": directory}),
        (StoreError, "neither a tokenmill store", {"where": str(tmp_path), "token": 3}),
        (UsageError, "Give TOKEN, or", {"where": directory}),
        (UsageError, "Give TOKEN, or", {"where": directory, "source": "a.parquet"}),
        (UsageError, "Give TOKEN, or", {"where": directory, "token": 1, "source": "a.parquet", "row": 1}),
        (UsageError, "TOKEN2 is not larger", {"where": directory, "token": 4, "token2": 4}),
        (UsageError, "a.parquet", {"where": directory, "source": "z.parquet", "row": 1}),
        (UsageError, "reason       null", {"where": directory, "source": "a.parquet", "row": 57}),
        (UsageError, "no document starts there", {"where": directory, "source": "c0.txt", "byte": 1 << 80}),
        (UsageError, "store= is only for files", {"where": directory, "token": 1, "store": directory}),
        (UsageError, "byte 1 is not a document", {"where": directory, "source": "b.jsonl", "byte": 1}),
        (UsageError, "has no row numbers", {"where": directory, "source": "b.jsonl", "row": 1}),
        (UsageError, "give row=N", {"where": directory, "source": "a.parquet", "byte": 1}),
        (UsageError, "a row or a byte", {"where": directory, "source": "a.parquet", "row": 1, "byte": 1}),
        (UsageError, "counted from 0", {"where": directory, "source": "b.jsonl", "byte": -1}),
        (UsageError, "Give these three", {"where": directory, "step": 1, "row": 0, "position": 0, "byte": 1}),
    ]
    for error, words, question in questions:
        with pytest.raises(error) as told:
            tokenmill.locate(**question)
        assert words in str(told.value), question
    other = write_parquet(tmp_path / "other.parquet", ["another store"])
    with pytest.raises(JobChanged):
        tokenmill.locate(out, source="a.parquet", row=0, store=prepare(other, tmp_path))


def test_the_command_shows_both_ways(store: tokenmill.Store) -> None:
    """A token leads to source, row and text, with the token marked; a row leads to its tokens."""

    def run(*words: str) -> str:
        return command.run("locate", store.directory, *words).stdout

    start = store.start_of(store.find(number_of(store, "c1.txt"), 0) or 0)
    shown = run(f"{start + 2:,}")
    assert "c1.txt" in shown
    assert "[[" in shown
    assert shown.replace("[[", "").replace("]]", "").strip().endswith("\nA small file, number 1. line")
    assert f"tokens {start:,} to" in run("--source", "c1.txt", "--byte", "0")
    found = json.loads(run(str(start), str(start + 20), "--json"))
    assert found["documents"][0]["kind"] == "text"


def number_of(store: tokenmill.Store, name: str) -> int:
    return next(n for n, path in enumerate(store.sources["path"].to_pylist()) if path.endswith(name))
