"""Conversations (`--messages`): rendered by the template of the model, with an exact mask."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.conversations import (
    END,
    TAGGED,
    TEMPLATE,
    Messages,
    random_conversations,
    rendered,
    write,
    write_model,
)
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tests.support.killing import result_files
from tests.support.segmented import expected_mask, stored_mask
from tokenmill.errors import JobChanged, RunFailed, SourceError, TokenmillError, UsageError
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.isolate import Isolate, IsolatedUnit
from tokenmill.results import PrepareResult
from tokenmill.storage import folder_at
from tokenmill.store import tables
from tokenmill.store.job import require_run

KINDS = ("parquet", "jsonl", "arrow")
QUESTION, ANSWER = {"role": "user", "content": "What?"}, {"role": "assistant", "content": "This."}

Prepare = Callable[..., PrepareResult]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def prepare(model: str) -> Prepare:
    def call(source: str, out: Path, **options: Any) -> PrepareResult:
        given = {"tokenizer": model, "messages": "messages", "unit_bytes": 1500, "executor": InlineExecutor()}
        return tokenmill.prepare(source, out=str(out), **{**given, **options})

    return call


def texts(result: PrepareResult) -> list[str]:
    store = tokenmill.open(result)
    return [store.decode(position) for position in range(len(store))]


def trained_texts(result: PrepareResult) -> list[str]:
    """The text of each document that is trained on, with bars between the spans."""
    store = tokenmill.open(result)
    return [
        "|".join(b"".join(map(store.token_bytes, store[position][begin:end].tolist())).decode() for begin, end in spans)
        for position in range(len(store))
        for spans in [store.trained(position) or []]
    ]


def verify(result: PrepareResult, erased: int = 0) -> None:
    compared = tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared
    assert compared == result.documents - erased


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_the_template_and_the_mask_is_that_of_the_answers(
    kind: str, prepare: Prepare, tmp_path: Path
) -> None:
    """Control tokens are their ids; several workers give the same bytes; `verify` compares all with the source."""
    conversations = random_conversations(100, 7)
    result = prepare(write(tmp_path / f"a.{kind}", conversations), tmp_path / "store", keep="id")
    store, present = tokenmill.open(result), [each for each in conversations if each is not None]
    assert len(store) == len(present)
    end = store.job.tokenizer.special_tokens[END]
    for position, messages in enumerate(present):
        pieces = rendered(messages)
        assert store.decode(position) == store.text(position) == "".join(piece["text"] for piece in pieces)
        assert stored_mask(store, position) == expected_mask(store, position, pieces), messages
        assert store[position].tolist().count(end) == len(messages)
    assert result.trained_tokens == sum(sum(stored_mask(store, position)) for position in range(len(store)))
    assert (result.begin_token, result.end_token) == (None, None)
    assert any("no bos and no eot" in note for note in result.notices)
    verify(result)
    again = prepare(str(tmp_path / f"a.{kind}"), tmp_path / "other", keep="id", workers=2, executor=None)
    assert tokenmill.open(again).digest == store.digest


def test_all_kinds_of_sources_give_the_same_documents(prepare: Prepare, tmp_path: Path) -> None:
    """Also as JSON text in a column, also compressed."""
    conversations = random_conversations(60, 3)
    as_text = [None if each is None else json.dumps(each) for each in conversations]
    files = [write(tmp_path / f"a.{kind}", conversations) for kind in KINDS]
    files += [write(tmp_path / f"text.{kind}", as_text) for kind in KINDS]
    stores = [prepare(file, tmp_path / str(number)) for number, file in enumerate(files)]
    assert len({tuple(texts(each)) for each in stores}) == 1
    assert len({tuple(trained_texts(each)) for each in stores}) == 1


def test_a_template_with_tags_says_what_is_trained_on(prepare: Prepare, tmp_path: Path) -> None:
    conversations = random_conversations(60, 3)
    source = write(tmp_path / "a.parquet", conversations)
    tagged = tmp_path / "tagged.jinja"
    tagged.write_text(TAGGED)
    one, other = prepare(source, tmp_path / "one"), prepare(source, tmp_path / "other", chat_template=str(tagged))
    assert texts(one) == texts(other)
    assert trained_texts(one) == trained_texts(other)


def test_tools_are_lists_or_json_text(prepare: Prepare, tmp_path: Path) -> None:
    """A null, an empty text and a text `null` are none. Null fields of Arrow structs are not in the text."""
    search = {"type": "function", "function": {"name": "search", "parameters": {"b": 1, "a": "é<"}}}
    other = {"type": "function", "function": {"name": "other"}}
    tools: list[Any] = [[search], None, [search, other], []]
    texts_of_tools = [json.dumps([search]), "", json.dumps([search, other]), "null"]
    conversations = [[QUESTION, ANSWER]] * 4
    stores = []
    for kind in KINDS:
        for name, column in (("lists", tools), ("text", texts_of_tools)):
            source = write(tmp_path / f"{name}.{kind}", conversations, tools=column)
            stores.append(texts(prepare(source, tmp_path / f"{name}-{kind}", tools="tools")))
    assert all(each == stores[0] for each in stores)
    assert stores[0][0].startswith(f"<|im_start|>system\n{json.dumps([search], ensure_ascii=False)}{END}\n")
    assert stores[0][2].startswith(f"<|im_start|>system\n{json.dumps([search, other], ensure_ascii=False)}{END}\n")
    assert stores[0][1] == stores[0][3]


def test_values_of_arrow_are_those_of_json(prepare: Prepare, tmp_path: Path) -> None:
    """Structs without a field, maps with a null, nested lists, numbers. A null in JSON is the template's matter."""
    notes: list[Any] = [{"deep": [{"x": 1, "y": None}, {}]}, {"deep": [], "number": 1.5}, {"yes": True, "big": 2**62}]
    conversations = [[QUESTION, {**ANSWER, "note": note}] for note in notes]
    kind = pa.list_(
        pa.struct([("role", pa.string()), ("content", pa.string()), ("note", pa.map_(pa.string(), pa.int64()))])
    )
    maps = pa.table({"messages": pa.array([[QUESTION, {**ANSWER, "note": [("a", 1), ("b", None)]}]], kind)})
    pq.write_table(maps, tmp_path / "maps.parquet")
    for suffix in KINDS:
        found = texts(prepare(write(tmp_path / f"a.{suffix}", conversations), tmp_path / suffix))
        assert 'note {"deep": [{"x": 1}, {}]}' in found[0].replace(', "y": null', "")
        assert 'note {"deep": [], "number": 1.5}' in found[1]
        assert 'note {"yes": true, "big": 4611686018427387904}' in found[2]
    assert 'note {"a": 1, "b": null}' in texts(prepare(str(tmp_path / "maps.parquet"), tmp_path / "maps"))[0]


WRONG: list[Any] = ["text", 5, {"role": "user"}, [1], ["text"], [[]], [None]]


def test_a_row_of_something_else_is_a_bad_row(prepare: Prepare, tmp_path: Path) -> None:
    """It fails the run, or goes to quarantine; the rows around it are as without it."""
    conversations = random_conversations(30, 5)
    mixed = [*conversations[:9], *WRONG, *conversations[9:]]
    lines = "".join(json.dumps({"messages": each}) + "\n" for each in mixed)
    lines += (
        '{"messages": [{"role": "user", "content": "\\ud800"}]}\n{"messages": [{"role": "user", "content": NaN}]}\n'
    )
    lines += '{"messages": [{"role": "user", "content": 1e999}]}\n'
    (tmp_path / "a.jsonl").write_bytes(lines.encode() + b'{"messages": "\xff"}\n')
    with pytest.raises(RunFailed, match="the messages of a document are not valid"):
        prepare(str(tmp_path / "a.jsonl"), tmp_path / "failed", on_bad="fail")
    result = prepare(str(tmp_path / "a.jsonl"), tmp_path / "store", max_bad=1)
    assert result.skipped_reasons == {"not messages": len(WRONG) + 3, "not valid UTF-8": 1, "null": 1}
    assert texts(result) == texts(prepare(write(tmp_path / "b.jsonl", conversations), tmp_path / "clean"))
    as_text = [None if each is None else json.dumps(each) for each in mixed]
    in_parquet = prepare(write(tmp_path / "c.parquet", as_text), tmp_path / "parquet", max_bad=1)
    assert in_parquet.skipped_reasons == {"not messages": len(WRONG), "null": 1}
    for each in (result, in_parquet):
        verify(each)
    reasons = [
        json.loads(line)["detail"] for line in (tmp_path / "parquet" / "quarantine.jsonl").read_text().splitlines()
    ]
    assert "the messages are 5, not a list of objects" in reasons


def test_rows_that_the_template_refuses_are_listed_with_its_words(prepare: Prepare, tmp_path: Path) -> None:
    conversations = random_conversations(30, 5)
    refused: list[Any] = [[{**QUESTION, "content": "REFUSE"}, ANSWER], [{**QUESTION, "content": f"a {END} b"}, ANSWER]]
    source = write(tmp_path / "a.parquet", [*conversations, *refused, refused[0]])
    with pytest.raises(RunFailed, match="a conversation cannot be rendered") as raised:
        prepare(source, tmp_path / "failed", on_bad="fail", special="parse")
    assert "roles must alternate" in str(raised.value)
    result = prepare(source, tmp_path / "store", max_bad=1)
    assert result.skipped_reasons == {"refused by the chat template": 2, "spells a control token": 1, "null": 1}
    assert next(iter(result.bad_details.items())) == ("refused by the chat template: roles must alternate", 2)
    verify(result)
    again = prepare(source, tmp_path / "store", max_bad=1, repair=True)
    assert again.units_done_now == 0
    parsed = prepare(source, tmp_path / "parsed", max_bad=1, special="parse")
    assert parsed.skipped_reasons == {"refused by the chat template": 2, "null": 1}
    store = tokenmill.open(parsed)
    end = store.job.tokenizer.special_tokens[END]
    assert store[len(store) - 1].tolist().count(end) == 3
    verify(parsed)


def test_a_unit_in_isolation_gives_the_same_part(prepare: Prepare, tmp_path: Path) -> None:
    """Row by row, as after the death of a worker, also if a row is several documents."""
    conversations = [*random_conversations(40, 5), [{**QUESTION, "content": "REFUSE"}, ANSWER]]
    for turns in ("whole", "each"):
        source = write(tmp_path / f"{turns}.parquet", conversations, row_group_size=60)
        result = prepare(source, tmp_path / turns, turns=turns, max_bad=1)
        part = tmp_path / turns / "parts" / "00000000.arrow"
        expected, folder = part.read_bytes(), folder_at(result.directory)
        folder.discard("parts/00000000.arrow")
        run_record = require_run(folder)
        (task,) = plan.tasks(tables.read_plan(folder, run_record), tables.read_sources(folder, run_record), range(1))
        limits = WorkerLimits(1 << 30, on_bad="quarantine")
        assert Isolate(result.directory, run_record.job, "gigatoken", limits)(IsolatedUnit(task)) is not None
        assert part.read_bytes() == expected


@pytest.mark.processes
@pytest.mark.parametrize(
    ("content", "reason", "limits"),
    [
        ("ENDLESS", "took too long", ("--document-timeout", "1")),
        ("HUNGRY", "took too much memory", ("--memory", "800MB", "--max-document-bytes", "1MB")),
    ],
)
def test_rows_that_kill_the_renderer_are_left_out(
    content: str, reason: str, limits: tuple[str, ...], model: str, tmp_path: Path
) -> None:
    """An endless template and one that takes all memory are stopped, and the row is named; the rest is there."""
    conversations = random_conversations(30, 5)
    conversations[7] = [{**QUESTION, "content": content}, ANSWER]
    source = write(tmp_path / "a.jsonl", conversations)
    command = ("prepare", source, "--tokenizer", model, "--messages", "messages", "--unit-bytes", "1500", *limits)
    output = run(*command, "--max-bad", "50%", "--workers", "2", "--out", tmp_path / "out").stdout
    (entry,) = map(json.loads, (tmp_path / "out" / "quarantine.jsonl").read_text().splitlines())
    assert (entry["line"], entry["reason"]) == (8, reason)
    assert ("took too long: more than 1 s" in output) == (content == "ENDLESS")
    documents = 30 - 2
    verified = run("verify", tmp_path / "out", "--all").stdout
    assert f"{documents} of {documents} compared documents equal the reference" in verified
    files = result_files(tmp_path / "out")
    run(*command, "--max-bad", "50%", "--repair", "--out", tmp_path / "out")
    assert result_files(tmp_path / "out") == files


def test_each_turn_of_the_assistant_is_a_document(prepare: Prepare, tmp_path: Path) -> None:
    """With the messages before it, and only this turn is trained on. Rows are counted once, and columns kept."""
    conversations = random_conversations(40, 9)
    present = [(row, each) for row, each in enumerate(conversations) if each is not None]
    refused: Any = [[{**QUESTION, "content": "REFUSE"}, ANSWER], [QUESTION]]
    for kind in KINDS:
        source = write(tmp_path / f"a.{kind}", [*conversations, *refused])
        options = {"turns": "each", "keep": "id"}
        result = prepare(source, tmp_path / kind, **options, max_bad="4.8%")
        store, rows, expected = tokenmill.open(result), list[int](), list[str]()
        for row, messages in present:
            for number, message in enumerate(messages):
                if message["role"] == "assistant":
                    pieces = [*rendered(messages[:number], roles=()), *rendered([message])]
                    assert stored_mask(store, len(rows)) == expected_mask(store, len(rows), pieces)
                    expected.append("".join(piece["text"] for piece in pieces))
                    rows.append(row)
        assert texts(result) == expected == [store.text(position) for position in range(len(store))]
        assert store.columns("id")["id"].to_pylist() == rows
        assert result.skipped_rows == 3
        verify(result)
        assert (
            prepare(source, tmp_path / kind, turns="each", keep="id", repair=True, max_bad="4.8%").units_done_now == 0
        )
        with pytest.raises(RunFailed, match="2 documents of 42 cannot be tokenized"):
            prepare(
                source,
                tmp_path / f"few-{kind}",
                turns="each",
                max_bad="4.7%",
                keep="id",
                on_bad="quarantine",
                max_skipped=0.5,
            )


def test_all_documents_of_a_row_are_erased(prepare: Prepare, tmp_path: Path) -> None:
    conversations: list[Any] = [[QUESTION, ANSWER, QUESTION, ANSWER], [QUESTION, ANSWER], [QUESTION, ANSWER] * 3]
    source = write(tmp_path / "a.parquet", conversations)
    result = prepare(source, tmp_path / "store", turns="each", keep="id")
    tokenmill.erase(result, column="id", values=["2"], request="r-1", executor=InlineExecutor())
    store = tokenmill.open(result)
    assert [bool(store.trained(position)) for position in range(len(store))] == [True] * 3 + [False] * 3
    verify(result, erased=3)


def test_sharegpt_has_other_names_for_roles_and_fields(prepare: Prepare, tmp_path: Path) -> None:
    named = {"user": "human", "assistant": "gpt", "system": "system"}
    conversations = random_conversations(20, 5)
    other = [
        each and [{"from": named[message["role"]], "value": message["content"]} for message in each]
        for each in conversations
    ]
    expected = prepare(write(tmp_path / "a.parquet", conversations), tmp_path / "a")
    result = prepare(write(tmp_path / "b.parquet", other), tmp_path / "b", roles="human=user,gpt=assistant")
    assert texts(result) == texts(expected)
    assert trained_texts(result) == trained_texts(expected)


def test_train_chooses_the_turns(prepare: Prepare, tmp_path: Path) -> None:
    """A flag of a message wins."""
    messages: Messages = [{**QUESTION}, {**ANSWER}, {**QUESTION}, {"role": "assistant", "content": "Last."}]
    flagged = [{**message, "train": number == 1} for number, message in enumerate(messages)]
    source = write(tmp_path / "a.jsonl", [messages, flagged])
    for train, expected in (
        (None, f"This.{END}|Last.{END}"),
        ("last", f"Last.{END}"),
        ("user", f"What?{END}|What?{END}"),
        ("user,assistant", f"What?{END}|This.{END}|What?{END}|Last.{END}"),
    ):
        assert trained_texts(prepare(source, tmp_path / str(train), train=train)) == [expected, f"This.{END}"]


def test_a_mask_of_one_kind_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    """Unless it was asked for."""
    source = write(tmp_path / "a.parquet", [[QUESTION, {**ANSWER, "role": "bot"}]] * 3)
    with pytest.raises(RunFailed, match="no tokens of the store would be trained on") as raised:
        prepare(source, tmp_path / "none")
    assert 'roles="NAME=assistant"' in str(raised.value).replace("'", '"')
    assert not (tmp_path / "none" / "manifest.parquet").exists()
    silent = write_model(
        tmp_path / "silent", "{% for m in messages if m.role == 'assistant' %}{{ m.content }}{% endfor %}"
    )
    with pytest.raises(RunFailed, match="no tokens of the store would be trained on"):
        prepare(source, tmp_path / "silent-store", tokenizer=silent)
    result = prepare(source, tmp_path / "all", train="all")
    assert result.trained_tokens == result.tokens
    verify(result)


def test_a_store_like_another(prepare: Prepare, model: str, tmp_path: Path) -> None:
    """It takes the template, although the model has another one now. A given text stands in place of the messages."""
    source = write(tmp_path / "a.jsonl", random_conversations(30, 5), text=["some text"] * 30)
    roles = {"roles": "human=user", "chat_set": ["prefix=begin ", "number=5"], "train": "last", "special": "parse"}
    first = prepare(source, tmp_path / "store", **roles)
    like = {"tokenizer": None, "messages": None, "like": first.directory}
    assert texts(prepare(source, tmp_path / "b", **like)) == texts(first)
    jobs = [tokenmill.open(tmp_path / name).job for name in ("store", "b")]
    assert jobs[0] == jobs[1]
    other = prepare(source, tmp_path / "c", **{**like, "chat_set": "prefix=other", "train": "assistant"})
    assert texts(other)[0].startswith("other")
    plain = prepare(source, tmp_path / "d", **like, column="text")
    assert (plain.trained_tokens, tokenmill.open(plain).job.special) == (None, "text")
    like = {"tokenizer": None, "like": plain.directory}
    with pytest.raises(UsageError, match="has no chat template"):
        prepare(source, tmp_path / "e", **like)
    template = tmp_path / "t.jinja"
    template.write_text(TEMPLATE)
    assert prepare(source, tmp_path / "f", **like, chat_template=str(template)).trained_tokens


def test_where_the_template_of_a_model_is(tmp_path: Path, prepare: Prepare) -> None:
    """In a file, or in the configuration; named ones; one with tools; and the tokens that the configuration names."""
    source = write(tmp_path / "a.jsonl", [[QUESTION, ANSWER]] * 3, tools=[None] * 3)
    spelled = "{{ %s }}{%% for m in messages %%}{{ m.role + ': ' + m.content + eos_token }}{%% endfor %%}"

    def begin(config: dict[str, Any], template: str | None = None, **options: Any) -> str:
        directory = write_model(tmp_path / "model", template, config)
        out = tmp_path / str(len(list(tmp_path.iterdir())))
        return texts(prepare(source, out, tokenizer=directory, train="all", **options))[0].partition("user")[0]

    assert begin({"chat_template": spelled % "'a'"}) == "a"
    assert begin({"chat_template": spelled % "'a'"}, spelled % "'file'") == "file"
    (tmp_path / "model" / "chat_template.jinja").unlink()
    named = [{"name": "default", "template": spelled % "'d'"}, {"name": "tool_use", "template": spelled % "'t'"}]
    assert begin({"chat_template": named}) == "d"
    assert begin({"chat_template": named}, tools="tools") == "t"
    assert begin({"chat_template": named}, chat_template="tool_use") == "t"
    token = {"bos_token": {"content": "<|im_start|>", "lstrip": False}}
    assert begin({"chat_template": spelled % "bos_token", **token}) == "<|im_start|>"
    assert begin({"chat_template": spelled % "bos_token", **token}, chat_set="bos_token=b") == "b"
    directory = write_model(tmp_path / "model", None)
    with pytest.raises(UsageError, match="has no chat template") as raised:
        prepare(source, tmp_path / "none", tokenizer=directory)
    assert "chat_template=" in str(raised.value)
    (tmp_path / "model" / "additional_chat_templates").mkdir()
    (tmp_path / "model" / "additional_chat_templates" / "rag.jinja").write_text(spelled % "'r'")
    with pytest.raises(UsageError, match="no default chat template"):
        prepare(source, tmp_path / "none", tokenizer=directory)
    assert begin({}, chat_template="rag") == "r"


def test_a_run_goes_on_with_the_same_template_only(prepare: Prepare, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", random_conversations(40, 5))
    directory = write_model(tmp_path / "model")
    half = prepare(source, tmp_path / "store", tokenizer=directory, limit_units=2)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE + " ")
    with pytest.raises(JobChanged, match="chat_template") as raised:
        prepare(source, tmp_path / "store", tokenizer=directory)
    assert "blake3" in str(raised.value)
    (tmp_path / "model" / "chat_template.jinja").write_text(TEMPLATE)
    with pytest.raises(JobChanged, match="train"):
        prepare(source, tmp_path / "store", tokenizer=directory, train="last")
    result = prepare(source, tmp_path / "store", tokenizer=directory)
    assert half.documents < result.documents == 39
    verify(result)


@pytest.mark.parametrize(
    ("options", "headline"),
    [
        ({"column": "text"}, "--column cannot be used with --messages"),
        ({"segments": "s"}, "--segments cannot be used with --messages"),
        ({"messages": None, "train": "last"}, "--train needs --messages"),
        ({"messages": None, "chat_set": "a=1"}, "--chat-set needs --messages"),
        ({"train": "all,user"}, "--train all,user is not assistant, last, all, or roles with commas between them"),
        ({"chat_set": "messages=1"}, "--chat-set messages=1: 'messages' cannot be set"),
        ({"chat_set": "a"}, "--chat-set 'a' is not NAME=VALUE"),
        ({"turns": "each", "max_tokens": 5}, "--turns each cannot be used with --min-tokens and --max-tokens"),
        ({"tokenizer": ["gpt2", "r50k_base"]}, "--messages cannot be used with several tokenizers"),
        ({"tokenizer": SMALL_JSON}, "small has no chat template"),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], headline: str, prepare: Prepare, tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", random_conversations(5, 5))
    with pytest.raises(UsageError) as raised:
        prepare(source, tmp_path / "store", **options)
    assert raised.value.headline == headline


def test_a_column_of_something_else_is_refused(prepare: Prepare, tmp_path: Path) -> None:
    for kind in KINDS:
        source = write(tmp_path / f"a.{kind}", random_conversations(5, 5))
        with pytest.raises(SourceError, match=r"no column named 'other'|has the column 'other'"):
            prepare(source, tmp_path / kind, messages="other")
        with pytest.raises(SourceError, match=r"no column named 'other'|has the column 'other'"):
            prepare(source, tmp_path / kind, tools="other")
        if kind != "jsonl":
            with pytest.raises(SourceError, match="is int64, not a list of objects"):
                prepare(source, tmp_path / kind, messages="id")
        with pytest.raises(TokenmillError, match=r'messages="messages"|--messages messages'):
            prepare(source, tmp_path / kind, messages=None, column="messages")
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match="text files have no columns"):
        prepare(str(tmp_path / "a.txt"), tmp_path / "text")


def test_a_path_a_filter_and_duplicates(prepare: Prepare, tmp_path: Path) -> None:
    conversations = random_conversations(30, 5)
    data = [{"inner": {"messages": each}} for each in conversations]
    for kind in KINDS:
        source = write(tmp_path / f"a.{kind}", [*conversations, conversations[0]], data=[*data, data[0]])
        plain = prepare(source, tmp_path / kind, dedup="exact", where="id != 3")
        assert plain.skipped_reasons == {"duplicate": 1, "filtered": 1, "null": 1}
        assert texts(prepare(source, tmp_path / f"{kind}-path", messages="data.inner.messages"))[:-1] == texts(
            prepare(source, tmp_path / f"{kind}-all", dedup="exact")
        )
        verify(plain)


def test_the_place_of_a_token_tells_whether_it_is_trained_on(prepare: Prepare, tmp_path: Path) -> None:
    result = prepare(write(tmp_path / "a.jsonl", [[QUESTION, ANSWER]]), tmp_path / "store")
    store = tokenmill.open(result)
    found = [tokenmill.locate(result, token).documents[0] for token in range(store.token_count)]
    assert [document.trained for document in found] == [int(mask) for mask in stored_mask(store, 0)]


def test_a_token_of_an_export_is_found_in_its_turn(prepare: Prepare, tmp_path: Path) -> None:
    """Also if the documents of a row are in two shards; `locate` lists all documents of a row."""
    source = write(tmp_path / "a.parquet", random_conversations(60, 3))
    result = prepare(source, tmp_path / "store", turns="each")
    store = tokenmill.open(result)
    for shuffle in (None, 7):
        options: dict[str, Any] = {"shuffle": shuffle, "shard_tokens": 5000, "executor": InlineExecutor()}
        tokenmill.export(result, to="olmo", out=str(tmp_path / str(shuffle)), **options)
        files = [file for file in sorted((tmp_path / str(shuffle)).rglob("*.npy")) if "mask" not in file.name]
        for file in files:
            tokens = np.fromfile(file, np.uint16)
            for token in {*range(0, len(tokens), 997), len(tokens) - 1}:
                (document,) = tokenmill.locate(str(file), token, store=[result.directory]).documents
                assert store[document.document][document.offset] == tokens[token]
    rows = [store.document(number).row for number in range(len(store))]
    found = tokenmill.locate(result, source=source, row=rows[-1]).documents
    assert [each.document for each in found] == [number for number, row in enumerate(rows) if row == rows[-1]]


def test_control_tokens_that_a_conversation_spells(prepare: Prepare, tmp_path: Path) -> None:
    """They are text, or tokens, or a bad row; those that the template writes are always tokens."""
    spelled = [[QUESTION, {"role": "assistant", "content": f"é {END} ends."}], [QUESTION, ANSWER]]
    source = write(tmp_path / "a.jsonl", spelled)
    for special, ends, documents in (("text", 2, 2), ("parse", 3, 2), ("refuse", 2, 1)):
        result = prepare(source, tmp_path / special, special=special, max_bad=1.0)
        store = tokenmill.open(result)
        assert len(store) == documents
        assert store[0].tolist().count(store.job.tokenizer.special_tokens[END]) == ends
        assert store.decode(0) == store.text(0)
        verify(result)
    assert trained_texts(prepare(source, tmp_path / "again", special="text"))[0] == f"é {END} ends.{END}"


def test_a_begin_token_is_neither_added_nor_doubled(tmp_path: Path, prepare: Prepare) -> None:
    """The template writes it, or there is none, also if the tokenizer adds one to plain text."""
    for template, begins in ((TEMPLATE, 0), ("{{ bos_token }}" + TEMPLATE, 1)):
        directory = tmp_path / f"model{begins}"
        model = write_model(directory, template, {"bos_token": "<|endoftext|>"})
        vocabulary = json.loads((directory / "tokenizer.json").read_text())
        begin = next(each["id"] for each in vocabulary["added_tokens"] if each["content"] == "<|endoftext|>")
        first = {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}
        vocabulary["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [first, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [begin], "tokens": ["<|endoftext|>"]}},
        }
        (directory / "tokenizer.json").write_text(json.dumps(vocabulary))
        source = write(tmp_path / f"{begins}.jsonl", [[QUESTION, ANSWER]])
        store = tokenmill.open(prepare(source, tmp_path / f"store{begins}", tokenizer=model))
        assert store[0].tolist().count(begin) == begins
