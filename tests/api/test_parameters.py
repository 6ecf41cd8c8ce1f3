"""The parameters of public functions: named as the options, documented, and typed as what they accept."""

from __future__ import annotations

import importlib.util
import inspect
import json
import re
import typing
from pathlib import Path

import click
import msgspec
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, write_parquet
from tokenmill.cli import cli
from tokenmill.errors import PYTHON_NAMES, UsageError
from tokenmill.options import StrPath
from tokenmill.pipeline.planning.estimate import Estimate

FUNCTIONS = [name for name in tokenmill.__all__ if inspect.isfunction(getattr(tokenmill, name))]
COMMANDS = [name for name in FUNCTIONS if name in cli.commands]
# Parameters that name a file, a directory or an address.
PATHS = {"directory", "stores", "out", "sources", "tokenizer", "where", "source", "store", "cache_dir", "cache"}
PATHS |= {"recipe", "other", "html", "job"}
# Options of a command that are about its output, or repeat it.
ONLY_FOR_COMMANDS = {"json", "quiet", "debug", "endpoint", "region", "allow_http", "cache", "watch", "step", "seconds"}
ONLY_FOR_COMMANDS |= {"print_job"}


def types_of(name: str) -> dict[str, typing.Any]:
    """The types of the parameters of a function."""
    types = typing.get_type_hints(inspect.unwrap(getattr(tokenmill, name)))
    return {key: value for key, value in types.items() if key not in {"return", "_"}}


def option_names(name: str) -> set[str]:
    """The options of a command by the names that they have as keywords."""
    options = [option for option in cli.commands[name].params if isinstance(option, click.Option)]
    names = [max(option.opts, key=len).lstrip("-") for option in options]
    return {PYTHON_NAMES.get(option, option.replace("-", "_")) for option in names}


def members(kind: object) -> set[object]:
    """The members of a union, those of unions and sequences in it included."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal or not inner:
        return {kind}
    return {kind} | {member for part in inner for member in members(part)}


@pytest.mark.parametrize("name", COMMANDS)
def test_keywords_are_the_options(name: str) -> None:
    """Each option of a command is a keyword of its function."""
    assert option_names(name) - ONLY_FOR_COMMANDS <= set(inspect.signature(getattr(tokenmill, name)).parameters)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_are_the_keywords(name: str) -> None:
    """Each keyword of a function is an option or an argument of its command, but for objects of Python."""
    arguments = {each.name for each in cli.commands[name].params if isinstance(each, click.Argument)}
    arguments |= {"token", "token2"} if name == "locate" else set()  # one argument of the command
    keywords = set(inspect.signature(getattr(tokenmill, name)).parameters)
    assert keywords - {"reporter", "executor"} <= arguments | option_names(name)


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_are_literals(name: str) -> None:
    """What a command lets a user choose from is a Literal with the same choices."""
    types = types_of(name)
    for option in cli.commands[name].params:
        if isinstance(option.type, click.Choice):
            literals = [kind for kind in members(types[option.name]) if typing.get_origin(kind) is typing.Literal]
            assert [set(typing.get_args(kind)) for kind in literals] == [set(option.type.choices)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_paths_may_be_path_objects(name: str) -> None:
    """What names a file or a directory has a type that includes os.PathLike."""
    for parameter, kind in types_of(name).items():
        is_filter = name in {"plan", "prepare"} and parameter == "where"  # for `locate` it is a file
        if parameter in PATHS and not is_filter:
            assert set(typing.get_args(StrPath)) <= members(kind), parameter


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_is_explained(name: str) -> None:
    """The docstring has an entry for each parameter, in the order of the signature."""
    function = getattr(tokenmill, name)
    _, _, listed = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    assert re.findall(r"^    (\w+): \S", listed, re.MULTILINE) == list(inspect.signature(function).parameters)


def test_a_path_object_of_an_address_is_explained() -> None:
    """Path("s3://bucket/run") drops a slash; the error has the address to write."""
    with pytest.raises(UsageError, match="neither a URL nor a path") as raised:
        tokenmill.open(Path("s3://bucket/run"))
    assert "s3://bucket/run" in str(raised.value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_true_is_no_number(name: str) -> None:
    """A bool is refused, with the parameter's name, for each parameter that takes a number and no bool."""
    function = getattr(tokenmill, name)
    required = {
        parameter.name: "x"
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty
    }
    for parameter, kind in types_of(name).items():
        if {int, float} & members(kind) and bool not in members(kind):
            for value in (True, False):
                with pytest.raises(UsageError, match=f"^{parameter} has to be .*, not {value} "):
                    function(**{**required, parameter: value})


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"sources": ["a", 5]}, "sources has to be a path, a list of paths, or rows\n.*str, int"),
        ({"sources": {"train": "a"}}, "sources has to be a path, a list of paths, or rows, not a dict"),
        ({"sources": 5}, "sources has to be a path, a list of paths, or rows, not a int"),
        ({"workers": "2"}, r"workers has to be a whole number or None, not '2' \(str\)"),
        ({"keep": ["url,id"]}, "'url,id' in keep has a comma\n.*: keep=\\['url', 'id'\\]"),
        ({"out": 5}, "out has to be"),
    ],
)
def test_an_argument_of_another_type_is_named(keywords: dict[str, typing.Any], message: str) -> None:
    """The error has the name of the parameter, what it takes, and what was given."""
    given = {"sources": "a", "tokenizer": SMALL_JSON, "out": "out", **keywords}
    with pytest.raises(UsageError, match=message):
        tokenmill.prepare(given.pop("sources"), **given)


def test_rows_in_memory_are_no_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of splits and columns are not read as paths, even if there are folders of these names."""
    import datasets
    import pandas as pd

    monkeypatch.chdir(tmp_path)
    for name in ("train", "text"):
        write_parquet(tmp_path / name / "0.parquet", ["not this"])
    rows = datasets.Dataset.from_dict({"text": ["a"]})
    for given, way in (
        (datasets.DatasetDict(train=rows), "save_to_disk"),
        (rows, "save_to_disk"),
        (pd.DataFrame({"text": ["a"]}), "to_parquet"),
    ):
        with pytest.raises(UsageError, match=f"not a {type(given).__name__}\n.*{way}"):
            tokenmill.bench(typing.cast("typing.Any", given), tokenizer=SMALL_JSON)
        with pytest.raises(UsageError, match=f"plan reads only files, not a {type(given).__name__}"):
            tokenmill.plan(given, tokenizer=SMALL_JSON)
        result = tokenmill.prepare(given, tokenizer=SMALL_JSON, out=tmp_path / type(given).__name__)
        assert (result.documents, result.text_bytes) == (1, 1)


def test_a_result_and_an_open_store_are_paths(tmp_path: Path) -> None:
    """What takes the path of a store takes the result of `prepare` and the opened store."""
    source = write_parquet(tmp_path / "a.parquet", ["one", "two"])
    result = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "store", workers=1)
    store = tokenmill.open(result)
    for given in (result, store):
        assert tokenmill.status(given).state == "complete"
        assert tokenmill.verify(given).documents == 2
        assert tokenmill.stats(given).documents == 2
        assert tokenmill.inspect(given).documents == 2
        assert tokenmill.finish(given).directory == str(tmp_path / "store")
        assert tokenmill.report(given).path.startswith(str(tmp_path / "store"))
        assert tokenmill.plan(source, like=given).tokenizer == "small"
        assert tokenmill.erase(given, rows=[(str(source), 0)], dry_run=True).documents == 1
        assert tokenmill.prepare(source, like=given, out=given).units_done_now == 0
        assert tokenmill.loader(given, sequence_tokens=2, batch_sequences=1, grain=2).reader.sources
    exported = tokenmill.export(store, to="llmc", val="none", workers=1)
    assert tokenmill.locate(exported, source=source, row=0).documents[0].source == str(source)
    other = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "other", workers=1)
    with pytest.raises(UsageError, match="several are open"):
        tokenmill.status(tokenmill.open([result, other]))


def test_several_that_are_open_are_several_paths(tmp_path: Path) -> None:
    """What takes several stores takes those that were opened as one, alone or in a list."""
    sources = [write_parquet(tmp_path / f"{name}.parquet", [name, f"{name} {name}"]) for name in ("a", "b", "c")]
    one, two, three = (
        tokenmill.prepare(source, tokenizer=SMALL_JSON, out=f"{source}.store", workers=1) for source in sources
    )
    both = tokenmill.open([one, two])
    cases: list[tuple[typing.Any, int]] = [(both, 4), ([both, three], 6)]
    for given, number in cases:
        assert len(tokenmill.open(given)) == number
        assert tokenmill.verify(given).documents == number
        assert tokenmill.stats(given).documents == number
        assert tokenmill.report(given, out=tmp_path / "page.html").statistics.documents == number
        loader = tokenmill.loader(given, sequence_tokens=2, batch_sequences=1, grain=2)
        assert len(loader.options.stores) == number / 2
        assert tokenmill.locate(given, number - 1).documents
        assert tokenmill.inspect(given, doc=-1).document == number - 1
        exported = tokenmill.export(given, to="llmc", val="none", workers=1, out=tmp_path / f"export{number}")
        assert exported.splits["train"].documents == number
        assert tokenmill.locate(exported, source=sources[1], row=0, store=given).documents[0].source == str(sources[1])
    assert [info.documents for info in tokenmill.inspect([both, three])] == [2, 2, 2]
    with pytest.raises(UsageError, match="several are open"):
        tokenmill.inspect(both)


def test_no_public_function_has_the_name_of_a_module() -> None:
    """An import of the module would replace the function: `tokenmill.loader` stays callable whatever is imported."""
    assert [name for name in tokenmill.__all__ if importlib.util.find_spec(f"tokenmill.{name}")] == ["results"]


def test_the_functions_that_list_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formats, tokenizers and datasets are listed as the commands list them, and one tokenizer is described."""
    monkeypatch.setattr("tokenmill.api.datasets.machine_bytes_per_second", lambda *_: Estimate(1e6, 1e6))
    monkeypatch.setattr("tokenmill.api.tokenizers.core_bytes_per_second", lambda *_: 1e6)
    assert "nanogpt" in {each.name for each in tokenmill.formats()}
    assert "gpt2" in {each.tokenizer for each in tokenmill.tokenizers()}
    assert tokenmill.tokenizers(Path(SMALL_JSON)).vocabulary_size > 1000
    listing = tokenmill.datasets("fineweb-edu", tokenizer=Path(SMALL_JSON))
    assert [each.name for each in listing.datasets] == ["fineweb-edu"]
    assert listing.bytes_per_second


def test_the_doctor_of_python_refuses_as_the_command(tmp_path: Path) -> None:
    """A script without a function, an empty command, and options of the other kind of target are refused."""
    doctor: typing.Any = tokenmill.doctor
    script = tmp_path / "script.py"
    script.write_text("def tokenize(row):\n    return row\n")
    for arguments, keywords, message in (
        (str(script), {}, "does not name a function"),
        ([], {}, "the command is empty"),
        (f"{script}:tokenize", {"stop_hung": True}, "stop_hung needs a command"),
        (["true"], {"column": "text"}, "column needs a function"),
        (["true"], {"num_proc": 2}, "num_proc needs a function"),
    ):
        with pytest.raises(UsageError, match=message):
            doctor(arguments, **keywords)


def test_inspect_returns_what_its_json_prints(tmp_path: Path) -> None:
    """The records of a store, a document and the skipped rows are those of `inspect --json`."""
    source = tmp_path / "a.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ({"text": "one"}, {"text": None}, {"text": "two"})))
    out = tmp_path / "store"
    result = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=out, workers=1, max_skipped=1.0)

    def printed(*options: str) -> list[typing.Any]:
        return [json.loads(line) for line in command.run("inspect", out, *options, "--json").stdout.splitlines()]

    def plain(record: object) -> typing.Any:
        return json.loads(msgspec.json.encode(record))

    info = tokenmill.inspect(result)
    assert (info.documents, info.skipped_rows, info.text_bytes) == (2, 1, 6)
    assert printed() == [plain(info)] == plain(tokenmill.inspect([result]))
    document = tokenmill.inspect(tokenmill.open(out), doc=-1)
    assert (document.document, document.text[:3], document.position) == (1, "two", ("byte", 31))
    assert printed("--doc", "-1") == [plain(document)]
    skipped = tokenmill.inspect(out, skipped=True)
    assert [(each.byte, each.line, each.reason) for each in skipped] == [(16, 2, "null")]
    assert printed("--skipped") == plain(skipped)
    with pytest.raises(UsageError, match="there is no document 2"):
        tokenmill.inspect(out, doc=2)
    assert "--doc is given with --skipped" in command.run("inspect", out, "--doc", "1", "--skipped", code=2).stderr
    both: typing.Any = {"doc": 1, "skipped": True}
    with pytest.raises(UsageError, match="doc= is given with skipped=True"):
        tokenmill.inspect(out, **both)
