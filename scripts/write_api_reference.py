"""Write docs/api.md from signatures and docstrings: `python scripts/write_api_reference.py [--check]`.

With --check nothing is written, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import tokenmill
from tokenmill import errors, options, results

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
WIDTH = 100
HEAD = """# Python

Written by `scripts/write_api_reference.py` from signatures and docstrings; CI fails when it is out of date.

Use tokenmill from Python: each command is a function. Keywords have the names of the options, with `_`
for `-`. Sizes are numbers or strings such as `"8GB"` and `"100M"`. A call shows a progress bar in a terminal or a
notebook, and nothing elsewhere.

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
print(store.decode(7))  # the text of the document
print(store.document(7).source, store.document(7).row)  # the source and the row of the document
print([len(tokens) for tokens in store[2:5]])  # a slice is a view: its documents are read one by one

try:
    tokenmill.prepare("corpus.jsonl", tokenizer="gpt2", out="tokens", eot="none")
except tokenmill.TokenmillError as error:
    print(error)  # a store is never mixed with another job
```

Scripts need no `if __name__ == "__main__"`, because workers never import your main module. `import tokenmill` loads no
large library.

Where a function takes the path of a store, it takes an opened store and the result of `prepare`, too.

A store can be sent to other processes, such as the workers of a PyTorch `DataLoader`: its pickle is its address.
Notebooks show stores and results as tables.
"""


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
    """The functions, the types of parameters, the store, the records that functions return, and the errors."""
    public = {name: getattr(tokenmill, name) for name in sorted(tokenmill.__all__)}
    yield "\n## Functions\n"
    for name, value in public.items():
        if inspect.isfunction(value):
            yield function_section(name, value)
    yield types_section()
    for name, value in public.items():
        if inspect.isclass(value) and not issubclass(value, Exception):
            yield class_section(f"## tokenmill.{name}", value)
    yield (
        "\n## tokenmill.results\n\nThe classes of all results, for annotations: "
        "`from tokenmill.results import PrepareResult`. Results are frozen records; `--json` prints the same fields.\n"
    )
    for record in records():
        heading = f"### {record.__name__}"
        yield record_section(heading, record) if fields(record) else class_section(heading, record)
    yield errors_section()


def function_section(name: str, function: Callable[..., Any]) -> str:
    """A function: its signature, what it does, and the meaning of each parameter."""
    signature = inspect.signature(function)
    text, meanings = split_arguments(function)
    rows = [row(parameter, meanings[parameter.name]) for parameter in signature.parameters.values()]
    table = "\n".join(["| parameter | type | meaning |", "| --- | --- | --- |", *rows])
    return f"\n### tokenmill.{name}\n\n{call(name, signature)}\n{text}\n" + (f"\n{table}\n" if rows else "")


def split_arguments(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """The docstring without its `Args:`, and the meaning of each parameter."""
    head, _, listed = docstring(function).partition("\n\nArgs:\n")
    listed, _, tail = listed.partition("\n\n")
    found = re.split(r"^    (\w+): ", listed, flags=re.MULTILINE)[1:]
    meanings = {name: " ".join(text.split()) for name, text in zip(found[::2], found[1::2], strict=True)}
    return "\n\n".join(filter(None, [head, tail])), meanings


def row(parameter: inspect.Parameter, meaning: str) -> str:
    """One parameter."""
    if "Default:" not in meaning and parameter.default not in {inspect.Parameter.empty, None, (), False}:
        meaning += f" Default: `{default(parameter)}`."
    return f"| `{parameter.name}` | {cell(annotation(parameter.annotation))} | {escape(meaning)} |"


def default(parameter: inspect.Parameter) -> str:
    """A default value as code, with double quotes."""
    value = parameter.default
    return f'"{value}"' if isinstance(value, str) else repr(value)


def types_section() -> str:
    """The types that several functions share."""
    kinds = {name: kind for name, kind in vars(options).items() if get_origin(kind) is not None}
    rows = [f"| `{name}` | {alternatives(kind)} |" for name, kind in sorted(kinds.items())]
    note = "Write an address such as `s3://bucket/run` as a `str`, because a `Path` drops a slash."
    head = f"\n## Types of parameters\n\n{note}\n"
    return "\n".join([head, "| type | values |", "| --- | --- |", *rows]) + "\n"


def alternatives(kind: Any) -> str:
    """The values of a Literal, or the members of a union."""
    values = get_args(kind)
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{value}"`' for value in values)
    return ", ".join(cell(value.__name__ if value is str else annotation(str(value))) for value in values)


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
    return text if parameter.default is inspect.Parameter.empty else f"{text} = {default(parameter)}"


def annotation(value: Any) -> str:
    """A type as people write it: without the modules it is from."""
    text = value if isinstance(value, str) else getattr(value, "__name__", str(value))
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)


def class_section(heading: str, value: type) -> str:
    """A class: what it is, its properties and its methods."""
    parts = [f"\n{heading}\n\n{docstring(value)}\n"]
    for member, content in vars(value).items():
        if not member.startswith("_") and not inspect.ismemberdescriptor(content):
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
    """The classes of tokenmill.results, each followed by the classes that its fields name."""
    public = {name: record for name, record in sorted(vars(results).items()) if isinstance(record, type)}
    found: dict[str, type] = {}
    waiting = sorted(public.values(), key=lambda value: (not value.__name__.endswith("Result"), value.__name__))
    while waiting:
        record = waiting.pop(0)
        if record.__name__ in public and record.__name__ not in found:
            found[record.__name__] = record
            waiting[:0] = mentioned(record)
    return list(found.values())


def mentioned(record: type) -> list[type]:
    """The classes of ours that the fields and methods of a class name."""
    methods = [str(inspect.signature(method)) for method in vars(record).values() if inspect.isfunction(method)]
    words = re.findall(r"\w+", " ".join([*map(str, fields(record).values()), *methods]))
    values = [getattr(sys.modules[record.__module__], word, None) for word in dict.fromkeys(words)]
    return [value for value in values if isinstance(value, type) and value.__module__.startswith("tokenmill")]


def fields(record: type) -> dict[str, Any]:
    """The public fields of a record and their types."""
    own = inspect.get_annotations(record).items()
    return {name: kind for name, kind in own if not name.startswith("_") and "ClassVar" not in str(kind)}


def record_section(heading: str, record: type) -> str:
    """A record: what it is, and its fields."""
    lines = "\n".join(f"    {name}: {annotation(kind)}" for name, kind in fields(record).items())
    return f"\n{heading}\n\n{docstring(record)}\n\n```py\nclass {record.__name__}:\n{lines}\n```\n"


def errors_section() -> str:
    """The error tree."""
    head = "\n## Errors\n\nAll are in `tokenmill.errors`, and each is a `tokenmill.TokenmillError`.\n"
    tree, _, rest = (errors.__doc__ or "").partition("\n\n")[2].partition("\n\n")
    rest = " ".join(rest.split())
    return f"{head}\n```text\n{tree}\n```\n\n{rest}\n"


def docstring(value: Any) -> str:
    """A docstring as Markdown: paragraphs stay as they are, and code becomes a block of code."""
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
