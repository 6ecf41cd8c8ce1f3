"""Documents that are rearranged for fill-in-the-middle: `--fim-rate` and the options beside it."""

from __future__ import annotations

import json
import math
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.killing import Job, Round, part_files, result_files, write_corpus
from tests.support.rearranged import QWEN, Pieces, pieces_of, write_tokenizer
from tests.support.small_stores import rewrite_part
from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.isolate import Isolate, IsolatedUnit
from tokenmill.results import PrepareResult
from tokenmill.storage import folder_at
from tokenmill.store import tables
from tokenmill.store.job import require_run
from tokenmill.store.part import PartContent

TEXTS = [
    "",
    "a",
    "one line",
    "one line\n",
    "\n",
    "\n\n\n",
    "first\r\nsecond\r\n",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪",
    "日本語のテキスト\nnaïve café",
    "def add(a, b):\n    return a + b\n\n\nprint(add(1, 2))",
    "  leading and trailing  ",
    "x" * 500,
]


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    return write_tokenizer(tmp_path / "qwen.json", "qwen")


def prepare(source: str | Path, out: Path, **options: Any) -> PrepareResult:
    given = {"unit_bytes": 2000, "executor": InlineExecutor(), "fim_rate": 0.5, "max_skipped": 1}
    return tokenmill.prepare(str(source), out=str(out), **{**given, **options})


def all_pieces(result: PrepareResult) -> list[Pieces]:
    store = tokenmill.open(result)
    return [pieces_of(store, position) for position in range(len(store))]


def assert_fraction(found: int, of: int, expected: float) -> None:
    """Within five standard deviations: one run of two million fails without a reason."""
    assert abs(found - of * expected) <= 5 * math.sqrt(of * expected * (1 - expected)), (found, of)


@pytest.mark.parametrize("split", ["character", "line"])
@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_the_pieces_are_the_text_and_as_many_as_asked_are_rearranged(
    kind: str, split: str, tokenizer: str, tmp_path: Path
) -> None:
    texts = TEXTS * 100
    source = tmp_path / f"a.{kind}"
    if kind == "parquet":
        write_parquet(source, [*texts, None])
    else:
        source.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*texts, None]))
    result = prepare(source, tmp_path / "store", tokenizer=tokenizer, fim_rate=0.7, fim_spm=0.2, fim_split=split, bos=1)
    pieces = all_pieces(result)
    assert [each.text for each in pieces] == texts
    assert_fraction(sum(each.order == "plain" for each in pieces), len(texts), 0.3)
    if split == "line":
        starts = [each for each in pieces if each.order == "psm"]
        assert all(not each.prefix or each.prefix.endswith("\n") or not each.middle + each.suffix for each in starts)
        assert all(not each.middle or each.middle.endswith("\n") or not each.suffix for each in starts)
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == len(texts)
    assert tokenmill.stats(result).documents == len(texts)
    assert tokenmill.inspect(result, doc=3).document is not None


def test_every_cut_is_as_frequent_as_any_other(tokenizer: str, tmp_path: Path) -> None:
    """Of ten characters there are 66 pairs of cuts, of which those with an empty middle are half as frequent."""
    text = "aé日👩x\nyzw."
    source = write_parquet(tmp_path / "a.parquet", [text] * 6000)
    pieces = all_pieces(prepare(source, tmp_path / "out", tokenizer=tokenizer, fim_rate=1, fim_spm=0))
    # With an empty prefix, both orders are the same.
    cuts = Counter((0 if each.order == "spm" else len(each.prefix), len(text) - len(each.suffix)) for each in pieces)
    assert len(cuts) == 66
    for (first, second), found in cuts.items():
        assert_fraction(found, 6000, (2 if first < second else 1) / 121)


@pytest.mark.parametrize(("rate", "orders"), [(0, {"plain"}), (1, {"psm", "spm"})])
def test_a_rate_of_nothing_and_of_all(rate: float, orders: set[str], tokenizer: str, tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", TEXTS * 10)
    result = prepare(source, tmp_path / "out", tokenizer=tokenizer, fim_rate=rate)
    assert {each.order for each in all_pieces(result)} == orders
    if rate == 0:
        plain = prepare(source, tmp_path / "plain", tokenizer=tokenizer, fim_rate=None)
        assert [row.tolist() for row in tokenmill.open(result)] == [row.tolist() for row in tokenmill.open(plain)]


@pytest.mark.parametrize("engine", ["gigatoken", "tiktoken"])
@pytest.mark.data
def test_documents_of_the_corpus_with_a_vocabulary_of_openai(engine: str, test_data: Path, tmp_path: Path) -> None:
    """Real documents, most of them not in English: the pieces of each are its text; `verify` takes the reference."""
    read = [
        pq.read_table(file, columns=["text"]).slice(0, 60)
        for file in sorted((test_data / "corpus/multi").glob("*.parquet"))[:6]
    ]
    texts = [text for table in read for text in table["text"].to_pylist()]
    source = write_parquet(tmp_path / "a.parquet", texts)
    result = prepare(source, tmp_path / "out", tokenizer="cl100k_base", engine=engine, unit_bytes="1MB")
    pieces = all_pieces(result)
    assert [each.text for each in pieces] == texts
    orders = Counter(each.order for each in pieces)
    assert_fraction(orders["plain"], len(texts), 0.5)
    assert_fraction(orders["spm"], orders["spm"] + orders["psm"], 0.5)
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == len(texts)


def test_the_choices_depend_on_the_document_alone(tokenizer: str, tmp_path: Path) -> None:
    """Not on its unit, its batch, the workers, the order of sources, or where they are; but on the seed."""
    source = write_parquet(tmp_path / "a.parquet", TEXTS * 20)
    first = prepare(source, tmp_path / "out", tokenizer=tokenizer)
    workers = prepare(source, tmp_path / "workers", tokenizer=tokenizer, workers=8, executor=None)
    assert part_bytes(workers.directory) == part_bytes(first.directory)
    rows = [row.tolist() for row in tokenmill.open(first)]
    units = prepare(source, tmp_path / "units", tokenizer=tokenizer, unit_bytes=1)
    assert units.units != first.units
    assert [row.tolist() for row in tokenmill.open(units)] == rows
    copy = tmp_path / "elsewhere" / "b.parquet"
    write_parquet(copy, TEXTS * 20)
    other = write_parquet(tmp_path / "elsewhere" / "a.parquet", ["something else"])
    copied = tokenmill.prepare(
        [other, str(copy)], out=str(tmp_path / "copied"), tokenizer=tokenizer, fim_rate=0.5, executor=InlineExecutor()
    )
    assert [row.tolist() for row in tokenmill.open(copied)][1:] == rows
    seeded = prepare(source, tmp_path / "seeded", tokenizer=tokenizer, fim_seed=2)
    assert [row.tolist() for row in tokenmill.open(seeded)] != rows


def test_a_unit_in_isolation_gives_the_same_part(tokenizer: str, tmp_path: Path) -> None:
    result = prepare(write_parquet(tmp_path / "a.parquet", TEXTS * 8), tmp_path / "out", tokenizer=tokenizer)
    folder, expected = folder_at(result.directory), part_bytes(result.directory)
    folder.discard("parts/00000000.arrow")
    run = require_run(folder)
    task = next(iter(plan.tasks(tables.read_plan(folder, run), tables.read_sources(folder, run), range(1))))
    assert Isolate(result.directory, run.job, "gigatoken", WorkerLimits(1 << 30))(IsolatedUnit(task)) is not None
    assert part_bytes(result.directory) == expected


@pytest.mark.processes
def test_kills_and_ranks_change_no_byte(tokenizer: str, tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus", documents=180, rows_per_group=3)
    job = Job(corpus, (tokenizer, "--fim-rate", "0.5", "--prefix", "{text}", "--prefix-rate", "0.1"))
    command.run(*job.words(tmp_path / "undisturbed"))
    undisturbed = result_files(tmp_path / "undisturbed")
    trial = Round(job, tmp_path / "out")
    run = job.start(trial.out)
    assert run.until_units(10)
    run.signal_group(signal.SIGKILL)
    run.wait()
    trial.end(run)
    assert 0 < len(part_files(trial.out)) < 60
    command.run(*job.words(trial.out))
    assert trial.violations(undisturbed) == []
    for rank in range(2):
        options = (*job.tokenizer, "--rank", str(rank), "--of", "2")
        command.run(*Job(corpus, options).words(tmp_path / "ranks"))
    assert part_bytes(tmp_path / "ranks") == part_bytes(tmp_path / "undisturbed")


def test_a_document_that_is_not_as_the_job_says_is_found(tokenizer: str, tmp_path: Path) -> None:
    result = prepare(
        write_parquet(tmp_path / "a.parquet", TEXTS * 8), tmp_path / "out", tokenizer=tokenizer, fim_rate=1
    )
    store = tokenmill.open(result)
    _, suf, mid = (store.job.tokenizer.added_tokens[token] for token in QWEN)

    def swap(content: PartContent) -> PartContent:
        tokens = content.tokens.copy()
        tokens[tokens == suf] = mid
        return PartContent(tokens, content.offsets, content.source, content.row)

    rewrite_part(Path(result.directory), swap)
    with pytest.raises(CorruptStore, match="other tokens than the reference gives"):
        tokenmill.verify(result, all=True, executor=InlineExecutor())


def test_other_features_beside_it(tokenizer: str, tmp_path: Path) -> None:
    """Duplicates by their text, limits by all tokens, --like, job files, several tokenizers, locate, the text."""
    source = write_parquet(tmp_path / "a.parquet", [*TEXTS, *TEXTS, "a b c d e f g"])
    unique = prepare(source, tmp_path / "unique", tokenizer=tokenizer, dedup="exact")
    assert [each.text for each in all_pieces(unique)] == [*TEXTS, "a b c d e f g"]
    limited = prepare(source, tmp_path / "limited", tokenizer=tokenizer, min_tokens=5, max_tokens=60)
    lengths = [len(row) - 1 for row in tokenmill.open(limited)]
    assert min(lengths) >= 5
    assert max(lengths) <= 60
    assert tokenmill.verify(limited, all=True, executor=InlineExecutor()).documents_compared >= limited.documents
    like = prepare(source, tmp_path / "like", like=unique.directory, fim_rate=None, dedup="none")
    job = tokenmill.open(like).job
    assert (job.fim_rate, job.fim_tokens, job.dedup) == (0.5, QWEN, None)
    off = prepare(source, tmp_path / "off", like=unique.directory, fim_rate="none")
    assert tokenmill.open(off).job.fim_rate is None
    (tmp_path / "job.toml").write_text("fim_rate = 0.5\nfim_tokens = 'qwen'\n")
    by_file = prepare(source, tmp_path / "file", tokenizer=tokenizer, fim_rate=None, job=str(tmp_path / "job.toml"))
    assert part_bytes(by_file.directory) == part_bytes(
        prepare(source, tmp_path / "same", tokenizer=tokenizer).directory
    )
    starcoder = write_tokenizer(tmp_path / "starcoder.json", "starcoder")
    both = tokenmill.prepare(
        source, out=str(tmp_path / "both"), tokenizer=[tokenizer, starcoder], fim_rate=0.5, executor=InlineExecutor()
    )
    assert [each.text for each in all_pieces(both)] == [each.text for each in all_pieces(both.others[0])]
    exported = tokenmill.export(like, to="nanogpt", val="none", executor=InlineExecutor())
    located = tokenmill.locate(exported.directory, source=source, row=9, store=like.directory)
    assert [(each.row, each.document_tokens) for each in located.documents] == [(9, len(tokenmill.open(like)[9]))]
    assert tokenmill.open(like).text(9) == TEXTS[9]


def test_a_part_made_before_the_sources_were_touched_is_compared_with_them(tokenizer: str, tmp_path: Path) -> None:
    source = write_parquet(tmp_path / "a.parquet", TEXTS * 20)
    prepare(source, tmp_path / "out", tokenizer=tokenizer, limit_units=2)
    Path(source).touch()
    result = prepare(source, tmp_path / "out", tokenizer=tokenizer)
    whole = prepare(source, tmp_path / "whole", tokenizer=tokenizer)
    assert part_bytes(result.directory) == part_bytes(whole.directory)
    with pytest.raises(StoreError, match="another fim_rate"):
        prepare(source, tmp_path / "out", tokenizer=tokenizer, fim_rate=0.4)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"fim_rate": None, "fim_spm": 0.5}, "--fim-spm needs --fim-rate"),
    ({"fim_rate": None, "fim_seed": 5}, "--fim-seed needs --fim-rate"),
    ({"fim_rate": 1.5}, "--fim-rate 1.5 is not a fraction"),
    ({"fim_spm": "x"}, "--fim-spm x is not a fraction"),
    ({"segments": "text"}, "--fim-rate cannot be used with --segments"),
    (
        {"template": "<|endoftext|>{text}", "template_special": "parse"},
        "--fim-rate cannot be used with --template-special",
    ),
    ({"tokenizer": SMALL_JSON}, "has no FIM tokens of a known family"),
    (
        {"tokenizer": SMALL_TIKTOKEN, "fim_tokens": "qwen"},
        "has no token <|fim_prefix|>, which is to stand before the prefix",
    ),
    ({"fim_tokens": "starcoder"}, "similar      <|fim_prefix|> <|fim_suffix|> <|fim_middle|>"),
    ({"fim_tokens": "unknown"}, "--fim-tokens unknown is no family, and not three tokens"),
    ({"fim_tokens": "<|fim_prefix|>,<|fim_prefix|>,<|fim_middle|>"}, "not three tokens"),
    ({"tokenizer": "two.json"}, "has the tokens of qwen and starcoder"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be_is_refused_before_any_work(
    options: dict[str, Any], message: str, tokenizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_tokenizer(tmp_path / "two.json", "qwen", "starcoder")
    source = write_parquet(tmp_path / "a.parquet", TEXTS)
    with pytest.raises(UsageError) as raised:
        prepare(source, tmp_path / "out", **{"tokenizer": tokenizer, "eot": 1, **options})
    assert message in repr(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["starcoder", "santacoder", "deepseek", "codellama", "glm"])
def test_a_family_is_found_in_the_vocabulary(family: str, tmp_path: Path) -> None:
    """The same as if it is named, or if its three tokens are."""
    tokenizer = write_tokenizer(tmp_path / "a.json", family)
    source = write_parquet(tmp_path / "a.parquet", TEXTS)
    found = prepare(source, tmp_path / "found", tokenizer=tokenizer)
    assert [each.text for each in all_pieces(found)] == TEXTS
    for name, tokens in (("named", family), ("given", ",".join(tokenmill.open(found).job.fim_tokens))):
        same = prepare(source, tmp_path / name, tokenizer=tokenizer, fim_tokens=tokens)
        assert part_bytes(same.directory) == part_bytes(found.directory)
