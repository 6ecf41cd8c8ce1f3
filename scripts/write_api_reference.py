"""Write docs/api.md from signatures and docstrings: `python scripts/write_api_reference.py [--check]`.

With --check nothing is written, and the exit code is 1 if the page is not what it would be. Keywords mean what the
options of the same name mean, so their meanings are taken from there.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

import tokenmill
from tokenmill import errors
from tokenmill.cli import cli

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
WIDTH = 100
HEAD = """# Python

Written by `scripts/write_api_reference.py` from signatures and docstrings; CI fails when it is out of date.

The commands that do something are functions, too. Keywords are called as the options are, with `_` for `-`, and mean
the same; sizes may be numbers or words (`"8GB"`, `"100M"`). What a command prints is what its function returns. A call
shows a progress bar in a terminal or a notebook, and nothing elsewhere.

```python
import json
import tokenmill

with open("corpus.jsonl", "w") as file:
    for n in range(100):
        print(json.dumps({"text": f"Document {n} has something to say."}), file=file)

done = tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", to="nanogpt", val=0.1)
print(done.documents, done.tokens, done.exports[0].splits["val"].tokens)

store = tokenmill.open("tokens")
print(len(store), store.token_count, store.dtype)
print(store[7])  # the tokens of document 7: a NumPy view of the memory-mapped store
print(store.document(7).source, store.document(7).row)  # and where they come from

try:
    tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", eot="none")
except tokenmill.TokenmillError as error:
    print(error)  # a store is never mixed with another job
```

Scripts need no `if __name__ == "__main__"`: workers never import your main module. Importing `tokenmill` loads nothing
heavy.
"""
# Of parameters that no option stands for.
MEANINGS = {
    "directory": "The store: a path, or an address such as `s3://bucket/run`.",
    "sources": "Paths, directories, globs, addresses, or the name of a dataset; one or several.",
    "reporter": "Who is told of notes and progress. [default: a bar in a terminal or notebook]",
    "executor": "Workers that are at hand, instead of new ones.",
    "dataset": "A `Dataset` or `DatasetDict` of Hugging Face.",
    "num_proc": "Processes. [default: one per core]",
    "cache_dir": "Where the tokens stay. [default: a folder of the datasets cache]",
}


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    page = "".join([HEAD, *sections()])
    if not check:
        PAGE.write_text(page)
        return 0
    if PAGE.exists() and PAGE.read_text() == page:
        return 0
    print(f"{PAGE} is out of date: run python scripts/write_api_reference.py", file=sys.stderr)
    return 1


def sections() -> Iterator[str]:
    """The functions, then the store, the records that are returned, and the errors."""
    public = {name: getattr(tokenmill, name) for name in tokenmill.__all__}
    yield "\n## Functions\n"
    for name, value in public.items():
        if inspect.isfunction(value):
            yield function_section(name, value)
    for name, value in public.items():
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield class_section(name, value)
    yield "\n## What is returned\n\nFrozen records, without methods; `--json` prints the same fields.\n"
    yield from (record_section(record) for record in records())
    yield errors_section()


def function_section(name: str, function: Callable[..., Any]) -> str:
    """A function: how it is called, what it does, what each parameter means."""
    signature = inspect.signature(function)
    command = cli.commands.get(name) or cli.commands["prepare"]
    options = {max(option.opts, key=len).lstrip("-").replace("-", "_"): option for option in of_options(command)}
    rows = [row(parameter, options.get(parameter.name)) for parameter in signature.parameters.values()]
    table = "\n".join(["| parameter | type | meaning |", "| --- | --- | --- |", *rows])
    return f"\n### tokenmill.{name}\n\n{call(name, signature)}\n{docstring(function)}\n\n{table}\n"


def of_options(command: click.Command) -> list[click.Option]:
    """The options of a command."""
    return [option for option in command.params if isinstance(option, click.Option)]


def row(parameter: inspect.Parameter, option: click.Option | None) -> str:
    """One parameter, in words of the option that it is."""
    meaning = (option.help if option else None) or MEANINGS.get(parameter.name, "As told above.")
    if "[default" not in meaning and parameter.default not in {inspect.Parameter.empty, None, ()}:
        meaning += f" [default: `{parameter.default!r}`]"
    return f"| `{parameter.name}` | {cell(annotation(parameter.annotation))} | {escape(meaning)} |"


def call(name: str, signature: inspect.Signature) -> str:
    """The signature as code, on one line or with a line for each parameter."""
    texts, marked = [], False
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not marked:
            marked = True
            texts.append("*")
        texts.append(declaration(parameter))
    result = f") -> {annotation(signature.return_annotation)}"
    line = f"{name}({', '.join(texts)}{result}"
    if len(line) > WIDTH:
        line = "".join([f"{name}(\n", *(f"    {text},\n" for text in texts), result])
    return f"```py\n{line}\n```\n"


def declaration(parameter: inspect.Parameter) -> str:
    """One parameter as code."""
    text = f"{parameter.name}: {annotation(parameter.annotation)}"
    if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
        return f"*{text}"
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {parameter.default!r}"


def annotation(value: Any) -> str:
    """A type as people write it: without the modules it is from."""
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def class_section(name: str, value: type) -> str:
    """A class: what it is, its properties and its methods."""
    parts = [f"\n## tokenmill.{name}\n\n{docstring(value)}\n"]
    for member, content in vars(value).items():
        if not member.startswith("_"):
            parts.append(member_section(member, content))
    return "".join(parts)


def member_section(name: str, content: Any) -> str:
    """A property, or a method without its `self`."""
    if inspect.isfunction(content):
        signature = inspect.signature(content)
        own = [parameter for key, parameter in signature.parameters.items() if key != "self"]
        return f"\n### {name}\n\n{call(name, signature.replace(parameters=own))}\n{docstring(content)}\n"
    getter: Any = getattr(content, "fget", None) or getattr(content, "func", None)
    returns = annotation(inspect.signature(getter).return_annotation)
    return f"\n### {name}\n\n```py\n{name}: {returns}\n```\n\n{docstring(getter)}\n"


def records() -> list[type]:
    """The records that functions of the api and the store return, each followed by those that its fields hold."""
    found: dict[str, type] = {}
    functions = [value for name in tokenmill.__all__ if inspect.isfunction(value := getattr(tokenmill, name))]
    modules = [sys.modules[value.__module__] for value in functions]
    returned = [inspect.signature(value).return_annotation for value in functions]
    results = [
        getattr(module, name) for module, name in zip(modules, returned, strict=True) if ".api." in module.__name__
    ]
    waiting = sorted((value for value in results if isinstance(value, type)), key=lambda value: value.__name__)
    while waiting:
        record = waiting.pop(0)
        if record.__name__ in found:
            continue
        found[record.__name__] = record
        waiting[:0] = mentioned(record)
    return [record for record in found.values() if fields(record)]


def mentioned(record: type) -> list[type]:
    """The classes of ours that the fields and methods of a class name."""
    methods = [str(inspect.signature(method)) for method in vars(record).values() if inspect.isfunction(method)]
    words = re.findall(r"\w+", " ".join([*map(str, fields(record).values()), *methods]))
    values = [getattr(sys.modules[record.__module__], word, None) for word in dict.fromkeys(words)]
    return [value for value in values if isinstance(value, type) and value.__module__.startswith("tokenmill")]


def fields(record: type) -> dict[str, Any]:
    """What a record tells: its public fields and their types."""
    own = inspect.get_annotations(record).items()
    return {name: kind for name, kind in own if not name.startswith("_") and "ClassVar" not in str(kind)}


def record_section(record: type) -> str:
    """A record: what it tells, field by field."""
    lines = "\n".join(f"    {name}: {annotation(kind)}" for name, kind in fields(record).items())
    return f"\n### {record.__name__}\n\n{docstring(record)}\n\n```py\nclass {record.__name__}:\n{lines}\n```\n"


def errors_section() -> str:
    """The error tree."""
    head = "\n## Errors\n\nAll are in `tokenmill.errors`, and each is a `tokenmill.TokenmillError`.\n"
    tree, _, rest = (errors.__doc__ or "").partition("\n\n")[2].partition("\n\n")
    rest = " ".join(rest.split())
    return f"{head}\n```text\n{tree}\n```\n\n{rest}\n"


def docstring(value: Any) -> str:
    """A docstring as Markdown: paragraphs stay, lines are joined by whoever shows it, and code is shown as code."""
    paragraphs = (inspect.getdoc(value) or "").split("\n\n")
    return "\n\n".join(f"```py\n{text}\n```" if text.startswith("with ") else text for text in paragraphs)


def cell(text: str) -> str:
    """Code in a table: alternatives as words, because a bar would end the cell."""
    return ", ".join(f"`{part.strip()}`" for part in text.split(" | "))


def escape(text: str) -> str:
    """Text in a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
