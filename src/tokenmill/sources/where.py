"""Filter expressions on columns: `language = 'en' and language_score > 0.8`.

A comparison has a column on its left and a value on its right: = != < <= > >=, in (...), not in (...), is null, is not
null. `and`, `or`, `not` and parentheses combine comparisons. Strings are in single quotes, column names with other
characters than letters, digits, underscores and dots in double quotes.

Nulls are treated as in SQL: a comparison with null is neither true nor false, and a row is kept if the whole expression
is true. `not` is resolved while parsing (`not a < 1` is `a >= 1`), so NaN satisfies no comparison but `!=`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import SourceError, UsageError
from tokenmill.sources.plain_values import MAX_EXACT, hashable

Value = str | int | float | bool

# Deeper parentheses and more comparisons than this are refused, because pyarrow follows them by recursion.
MAX_DEPTH = 50
MAX_COMPARISONS = 500
# Characters of a long expression that an error shows on each side of the place.
SHOWN = 60
MAX_INT = 1 << 63

_OPPOSITES = (("=", "!="), ("<", ">="), (">", "<="), ("in", "not in"), ("is null", "is not null"), ("and", "or"))
NEGATED = {one: other for pair in _OPPOSITES for one, other in (pair, pair[::-1])}
SPELLINGS = {"==": "=", "<>": "!="}
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}

_PART = r'(?:"(?:[^"]|"")+"|[^\W\d]\w*)'
_TOKEN = re.compile(
    rf"""(?P<string>'(?:[^']|'')*')|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"""
    rf"""|(?P<name>{_PART}(?:\.{_PART})*)|(?P<sign><=|>=|!=|<>|==|[=<>(),])|(?P<other>\S)"""
)
_PLAIN_NAME = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One column compared with values: one for an operator, several for a list, none for null."""

    column: str
    operator: str
    values: tuple[Value, ...] = ()

    def __str__(self) -> str:
        values = ", ".join(map(_spell, self.values))
        if self.operator in {"in", "not in"}:
            values = f"({values})"
        return f"{_spell_column(self.column)} {self.operator} {values}".rstrip()

    def evaluate(self, column: Callable[[Comparison], Any]) -> Any:
        """The comparison of the values of the column. A null may become false, never true."""
        operand = column(self)
        if self.operator in COMPARE:
            return COMPARE[self.operator](operand, pa.scalar(self.values[0]))
        if self.operator == "is null":
            return pc.is_null(operand)
        is_valid = pc.is_valid(operand)
        if self.operator == "is not null":
            return is_valid
        is_in = pc.is_in(hashable(operand), value_set=hashable(pa.array(self.values)))
        return is_in if self.operator == "in" else pc.and_kleene(is_valid, pc.invert(is_in))


@dataclass(frozen=True, slots=True)
class Group:
    """Comparisons and groups, combined by `and` or by `or`."""

    operator: str
    parts: tuple[Comparison | Group, ...]

    def __str__(self) -> str:
        return f" {self.operator} ".join(f"({part})" if isinstance(part, Group) else str(part) for part in self.parts)

    def evaluate(self, column: Callable[[Comparison], Any]) -> Any:
        """The parts, combined."""
        combine = pc.and_kleene if self.operator == "and" else pc.or_kleene
        return functools.reduce(combine, (part.evaluate(column) for part in self.parts))


@dataclass(frozen=True, slots=True)
class Where:
    """A filter expression that was parsed. `str()` gives its canonical text, which parses to the same filter."""

    root: Comparison | Group

    def __str__(self) -> str:
        return str(self.root)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns that the expression reads, sorted."""
        return tuple(sorted({comparison.column for comparison in comparisons(self.root)}))

    def matches(self, values: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table of plain values satisfy the expression.

        Raises SourceError if a column cannot be compared with its value.
        """
        try:
            kept = self.root.evaluate(lambda comparison: _operand(values[comparison.column], comparison))
        except pa.ArrowInvalid as error:
            raise SourceError(f"the filter cannot compare a value: {error}", f"where        {self}") from error
        kept = kept.combine_chunks() if isinstance(kept, pa.ChunkedArray) else kept
        return np.asarray(kept.fill_null(False))


def parse_where(text: str) -> Where:
    """Parse a filter expression. Raises UsageError that shows the place of the first mistake."""
    return Where(_Parser(text).parse())


def comparisons(node: Comparison | Group) -> list[Comparison]:
    """All comparisons of an expression, from left to right."""
    if isinstance(node, Comparison):
        return [node]
    return [comparison for part in node.parts for comparison in comparisons(part)]


class _Parser:
    """A recursive descent parser over the tokens of an expression."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = self._tokens()
        self.next = 0
        self.depth = 0
        self.comparisons = 0

    def parse(self) -> Comparison | Group:
        if len(self.tokens) == 1:
            raise self._error("the filter is empty")
        node = self._group("or", is_negated=False)
        if self._kind() != "end":
            raise self._error("expected and, or, or the end")
        return node

    def _group(self, operator: str, *, is_negated: bool) -> Comparison | Group:
        parts: list[Comparison | Group] = []
        joined = NEGATED[operator] if is_negated else operator
        while not parts or self._take(operator):
            part = self._group("and", is_negated=is_negated) if operator == "or" else self._term(is_negated=is_negated)
            parts += part.parts if isinstance(part, Group) and part.operator == joined else (part,)
        return parts[0] if len(parts) == 1 else Group(joined, tuple(parts))

    def _term(self, *, is_negated: bool) -> Comparison | Group:
        while self._take("not"):
            is_negated = not is_negated
        if not self._take("("):
            return self._comparison(is_negated=is_negated)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._error(f"more than {MAX_DEPTH} parentheses inside each other")
        node = self._group("or", is_negated=is_negated)
        self._expect(")", "and, or, or a closing parenthesis")
        self.depth -= 1
        return node

    def _comparison(self, *, is_negated: bool) -> Comparison:
        self.comparisons += 1
        if self.comparisons > MAX_COMPARISONS:
            raise self._error(f"more than {MAX_COMPARISONS} comparisons", "Write in (...) for many values of a column.")
        column = self._column()
        operator = self._operator()
        values: tuple[Value, ...] = ()
        if operator in COMPARE:
            values = (self._value(),)
        elif operator in {"in", "not in"}:
            values = self._list()
        return Comparison(column, NEGATED[operator] if is_negated else operator, values)

    def _column(self) -> str:
        kind, token, _ = self.tokens[self.next]
        if kind != "name" or token.lower() in KEYWORDS:
            raise self._error("expected the name of a column")
        self.next += 1
        return re.sub(r'"((?:[^"]|"")+)"', lambda quoted: quoted[1].replace('""', '"'), token)

    def _operator(self) -> str:
        sign = self._token()
        if SPELLINGS.get(sign, sign) in COMPARE:
            self.next += 1
            return SPELLINGS.get(sign, sign)
        if self._take("is"):
            operator = "is not null" if self._take("not") else "is null"
            self._expect("null", "null or not null")
            return operator
        if self._take("not"):
            self._expect("in", "in")
            return "not in"
        if self._take("in"):
            return "in"
        raise self._error("expected =, !=, <, <=, >, >=, in, not in, is null or is not null")

    def _list(self) -> tuple[Value, ...]:
        self._expect("(", "a list in parentheses")
        values: list[Value] = []
        while not values or self._take(","):
            values.append(self._value())
            if type_name(values[-1]) != type_name(values[0]):
                self.next -= 1
                raise self._error("all values of a list must be strings, or numbers, or booleans")
        self._expect(")", "a comma or a closing parenthesis")
        return tuple(sorted(dict.fromkeys(values)))

    def _value(self) -> Value:
        kind, token, _ = self.tokens[self.next]
        if kind == "string":
            self.next += 1
            return token[1:-1].replace("''", "'")
        if kind == "number":
            return self._number(token)
        if token.lower() in {"true", "false"}:
            self.next += 1
            return token.lower() == "true"
        if token.lower() == "null":
            raise self._error("a comparison with null is never true", "Write is null or is not null.")
        if kind == "name":
            text = token.strip('"').replace("'", "''")
            raise self._error("expected a value", f"A string is in single quotes: '{text}'.")
        raise self._error("expected a string, a number, true or false")

    def _number(self, token: str) -> Value:
        value = int(token) if re.fullmatch(r"[-+]?\d{1,20}", token) else float(token)
        if isinstance(value, int) and not -MAX_INT <= value < MAX_INT:
            raise self._error("a whole number has more than 64 bits")
        if abs(value) == float("inf"):
            raise self._error("a number is too large")
        self.next += 1
        return value

    def _take(self, token: str) -> bool:
        is_next = self._token() == token
        self.next += is_next
        return is_next

    def _expect(self, token: str, description: str) -> None:
        if not self._take(token):
            raise self._error(f"expected {description}")

    def _kind(self) -> str:
        return self.tokens[self.next][0]

    def _token(self) -> str:
        """The next keyword, name or sign. A value gives an empty string."""
        kind, token, _ = self.tokens[self.next]
        return token.lower() if kind in {"name", "sign"} else ""

    def _tokens(self) -> list[tuple[str, str, int]]:
        """The kind, the text and the place of each token, and a last one of the kind `end`."""
        tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(self.text):
            if match.lastgroup == "other":
                what = "a quote is not closed" if match[0] in "'\"" else "unexpected character"
                raise self._error_at(match.start(), what)
            tokens.append((str(match.lastgroup), match[0], match.start()))
        return [*tokens, ("end", "", len(self.text))]

    def _error(self, message: str, *advice: str) -> UsageError:
        return self._error_at(self.tokens[self.next][2], message, *advice)

    def _error_at(self, place: int, message: str, *advice: str) -> UsageError:
        start = max(0, place - SHOWN)
        shown = "".join(character if character.isprintable() else " " for character in self.text[start : place + SHOWN])
        return UsageError(
            f"the filter cannot be read at character {place + 1}: {message}",
            f"where        {shown}",
            f"             {' ' * (place - start)}^",
            *advice,
        )


def _operand(values: pa.ChunkedArray, comparison: Comparison) -> pa.ChunkedArray:
    """The values in a type that the comparison takes. A column without a value has no type of its own."""
    kind = values.type
    if not comparison.values:
        return values
    wanted = type_name(comparison.values[0])
    if values.null_count == len(values):
        return pa.chunked_array([pa.nulls(len(values), pa.scalar(comparison.values[0]).type)])
    if (found := kind_name(kind)) != wanted:
        raise SourceError(
            f"the filter compares the column {comparison.column!r} with a {wanted}, but its values are {found}s",
            f"where        {comparison}",
        )
    _refuse_inexact(values, comparison)
    return values


def _refuse_inexact(values: pa.ChunkedArray, comparison: Comparison) -> None:
    """Raise SourceError if a whole number beyond 2^53 would be compared with floating point numbers."""
    is_whole = [isinstance(value, int) and not isinstance(value, bool) for value in comparison.values]
    if pa.types.is_floating(values.type) or not all(is_whole):
        named = [value for value, whole in zip(comparison.values, is_whole, strict=True) if whole]
        bounds = [] if not pa.types.is_integer(values.type) else pc.min_max(values).as_py().values()
        number = next((number for number in (*named, *bounds) if abs(number) > MAX_EXACT), None)
        if number is not None:
            raise SourceError(
                f"the filter compares {number} with floating point numbers, which are exact only up to 2^53",
                f"where        {comparison}",
                f"2^53 is {int(MAX_EXACT)}. For a column of whole numbers, compare with whole numbers only.",
                "For another column, write the number with a point: it becomes the nearest one.",
            )


def kind_name(kind: pa.DataType) -> str:
    """What values of a plain type are compared as."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return "number" if is_number else "boolean" if pa.types.is_boolean(kind) else "string"


def type_name(value: Value) -> str:
    """What a value is compared as."""
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def _spell(value: Value) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value).lower()


def _spell_column(name: str) -> str:
    is_plain = _PLAIN_NAME.fullmatch(name) and not KEYWORDS & {part.lower() for part in name.split(".")}
    return name if is_plain else '"' + name.replace('"', '""') + '"'
