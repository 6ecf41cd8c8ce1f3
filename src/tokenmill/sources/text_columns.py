r"""Build the text of documents from nested columns, lists of strings and templates.

A name is that of a column, or a path: `data.text` is the field `text` of the column `data`. A path goes through lists,
too: `messages.content` is the content of each message. Strings of a list are joined; nulls among them are skipped. A
template has names in braces: `{title}\n\n{text}`. A row with a null in one of its columns is null. With `--null empty`,
a null is empty text there, and a row with nothing but nulls is null.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import UsageError
from tokenmill.sources.documents import ReadOptions, as_text
from tokenmill.sources.prefixes import join_prefix

DEFAULT_JOIN = "\n"
# The key of a message that says who speaks.
ROLE = "role"
SKIP, EMPTY = "skip", "empty"  # what `--null` can be
_TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


@dataclass(frozen=True, slots=True)
class Template:
    """The names of a template, and the text before, between and after them."""

    names: tuple[str, ...]
    literals: tuple[str, ...]

    @property
    def is_plain(self) -> bool:
        """Whether the text is that of one column alone."""
        return len(self.names) == 1 and not any(self.literals)

    def __str__(self) -> str:
        """The template as it is given."""
        escaped = [literal.replace("{", "{{").replace("}", "}}") for literal in self.literals]
        return escaped[0] + "".join(f"{{{name}}}{text}" for name, text in zip(self.names, escaped[1:], strict=True))

    def fill(self, columns: list[pa.LargeStringArray], null: str) -> pa.LargeStringArray:
        """The text of each row, from the text of each column. `null` is that of `ReadOptions`."""
        if self.is_plain:
            return columns[0]
        pieces: list[Any] = [pa.scalar(self.literals[0], pa.large_string())]
        for column, literal in zip(columns, self.literals[1:], strict=True):
            pieces += [column.fill_null(""), pa.scalar(literal, pa.large_string())]
        text = pc.binary_join_element_wise(*pieces, pa.scalar("", pa.large_string()))
        combine = pc.or_ if null == EMPTY else pc.and_
        has_value = functools.reduce(combine, (column.is_valid() for column in columns))
        return pc.if_else(has_value, text, pa.scalar(None, pa.large_string()))


@dataclass(frozen=True, slots=True)
class PrefixedTemplate:
    """The template of a text, and that of its prefix. A row with a null in a column of `prefix` has none."""

    prefix: Template
    text: Template
    is_plain = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of both."""
        return (*self.prefix.names, *self.text.names)

    def fill(self, columns: list[pa.LargeStringArray], null: str) -> pa.LargeStringArray:
        """The text of each row after its prefix, as `prefixes.with_prefix` takes them apart."""
        count = len(self.prefix.names)
        return join_prefix(self.prefix.fill(columns[:count], SKIP), self.text.fill(columns[count:], null))


@dataclass(frozen=True, slots=True)
class NotAnObject:
    """A value of JSON in the middle of a path, and how many steps of the path are after it."""

    value: Any
    steps: int


def template_of(options: ReadOptions) -> Template | PrefixedTemplate:
    """How what is read of a row is made: its text, and what is before it."""
    text = text_template(options)
    return PrefixedTemplate(parse_template(options.prefix), text) if options.prefix else text


@functools.lru_cache(maxsize=8)
def text_template(options: ReadOptions) -> Template:
    """How the text of a document is made. Of segments and messages, the names are those of all that is read."""
    if options.messages:
        names = tuple(filter(None, (options.column, options.tools)))
        return Template(names, ("",) * (1 + len(names)))
    if options.segments:
        return Template((f"{options.column}.text", f"{options.column}.train"), ("", "", ""))
    return parse_template(options.template) if options.template else Template((options.column,), ("", ""))


def refuse_conversation(path: str, name: str) -> NoReturn:
    """Raise UsageError: joined messages would lose who says what."""
    raise UsageError(
        f"the column {name!r} holds messages with roles",
        f"file         {path}",
        f"Render them with the chat template of the model: --messages {name.rpartition('.')[0] or name}",
        "Or join the texts of all messages, without their roles: --join '\\n'.",
    )


def is_conversation(record: dict[str, Any], name: str) -> bool:
    """Whether a path of a parsed JSON object ends at, or goes through, a list of objects with a role."""
    first, *steps = (name,) if name in record else name.split(".")
    value = record.get(first)
    for step in (*steps, ""):
        if isinstance(value, list):
            value = next((item for item in value if isinstance(item, dict)), None)
            if value is not None and ROLE in value:
                return True
        value = value.get(step) if isinstance(value, dict) else None
    return False


def join_of(options: ReadOptions) -> str:
    """What stands between the strings of a list."""
    return DEFAULT_JOIN if options.join is None else options.join


def joins_lists(options: ReadOptions) -> bool:
    """Whether a list in JSON Lines is text. In a plain column only if `join` is given: it was a bad row before."""
    is_path = "." in options.column and options.joins_texts
    return options.join is not None or bool(options.template) or is_path


def parse_template(text: str) -> Template:
    """Parse a template. Raises UsageError if it has a brace without a name, or no name at all."""
    names, literals = list[str](), [""]
    end = 0
    for match in _TEMPLATE_PART.finditer(text):
        literals[-1] += text[end : match.start()]
        end = match.end()
        if match[0] in {"{{", "}}"}:
            literals[-1] += match[0][0]
        elif match[1]:
            names.append(match[1])
            literals.append("")
        else:
            raise UsageError(
                f"the template has a brace without a name at character {match.start() + 1}",
                f"template     {text!r}",
                "Write {{ and }} for braces in the text.",
            )
    literals[-1] += text[end:]
    if not names:
        raise UsageError("the template names no column", f"template     {text!r}", "Write {title}\\n\\n{text}.")
    return Template(tuple(names), tuple(literals))


def strings_at(column: pa.Array, steps: tuple[str, ...], join: str) -> pa.LargeStringArray:
    """The text at the end of a path through structs and lists, one value for each row."""
    values, parents, is_valid = column, None, None
    remaining = list(steps)
    while remaining or is_list(values.type):
        if not is_list(values.type):
            values = pc.struct_field(values, remaining.pop(0))
            continue
        is_valid = values.is_valid() if is_valid is None else is_valid
        # A null may have values below it, which list_flatten skips.
        lengths = pc.list_value_length(values).fill_null(0).to_numpy()
        indices = np.repeat(np.arange(len(values)), lengths)
        parents = indices if parents is None else parents[indices]
        values = pc.list_flatten(values)
    texts = as_text(values.dictionary_decode() if pa.types.is_dictionary(values.type) else values)
    if parents is None or is_valid is None:
        return texts
    counts = np.bincount(parents[texts.is_valid().to_numpy(zero_copy_only=False)], minlength=len(column))
    offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]), pa.int64())
    lists = pa.LargeListArray.from_arrays(offsets, texts.drop_null())
    joined = pc.binary_join(lists, pa.scalar(join, pa.large_string()))
    return pc.if_else(is_valid, joined, pa.scalar(None, pa.large_string()))


def is_list(kind: pa.DataType) -> bool:
    """Whether a path goes through a value of this type without a name."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def value_at(record: dict[str, Any], name: str, options: ReadOptions) -> Any:
    """The text at a path of a parsed JSON object, None, or the first value that is not text."""
    value = record.get(name)
    if value is None and "." in name:
        first, *steps = name.split(".")
        value = _walk(record.get(first), steps)
    if not isinstance(value, list) or not joins_lists(options):
        return value
    flat = [item for item in _flat(value) if item is not None]
    wrong = next((item for item in flat if not isinstance(item, str)), None)
    return join_of(options).join(flat) if wrong is None else wrong


def has_path(record: dict[str, Any], name: str, *, through_lists: bool = True) -> bool | None:
    """Whether a parsed JSON object has a key or a path. None if a null or an empty list is in the way."""
    return name in record or _has_steps(record, name.split("."), through_lists=through_lists)


def _has_steps(value: Any, steps: list[str], *, through_lists: bool) -> bool | None:
    if not steps:
        return True
    if value is None:
        return None
    if isinstance(value, list) and through_lists:
        found = {_has_steps(item, steps, through_lists=through_lists) for item in value}
        return True if True in found else None if None in found or not found else False
    has_step = isinstance(value, dict) and steps[0] in value
    return has_step and _has_steps(value[steps[0]], steps[1:], through_lists=through_lists)


def _walk(value: Any, steps: list[str]) -> Any:
    if isinstance(value, list):
        return [_walk(item, steps) for item in value]
    if not steps or value is None:
        return value
    return _walk(value.get(steps[0]), steps[1:]) if isinstance(value, dict) else NotAnObject(value, len(steps))


def _flat(values: list[Any]) -> list[Any]:
    return [item for value in values for item in (_flat(value) if isinstance(value, list) else [value])]


def json_type(value: Any, steps: tuple[str, ...]) -> pa.DataType:
    """The type with which pyarrow may parse the values of a key, guessed from one of them."""
    if isinstance(value, list):
        return pa.list_(json_type(next((item for item in value if item is not None), None), steps))
    if not steps:
        return pa.large_string()
    inner = value.get(steps[0]) if isinstance(value, dict) else None
    return pa.struct([(steps[0], json_type(inner, steps[1:]))])
