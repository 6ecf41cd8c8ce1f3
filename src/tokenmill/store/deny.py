"""The list of `--deny`: rows of the sources that must not be tokenized, as JSON Lines.

A line names a value of a column, a host with its subdomains in a column of URLs, or a row of a source:

    {"column": "url", "value": "https://example.org/page"}
    {"column": "url", "host": "example.org"}
    {"source": "data/000.parquet", "row": 17}

The lists of erasures name hashes of values and hosts, so that they hold nothing of what was erased:

    {"column": "url", "key": "1c2f...", "value_hash": "9a41..."}

The store has a copy of the list, named by its hash, without repeated lines and in a fixed order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import UsageError
from tokenmill.sources.plain_values import MAX_EXACT, TEXT, host
from tokenmill.storage import Folder
from tokenmill.storage.digest import Hasher, hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.layout import DENY, damaged, errors_of

IsWanted = Callable[[pa.Array], npt.NDArray[np.bool_]]
"""Which of some texts are wanted."""

# A name without an empty label, or an IPv6 address in brackets.
_HOST = re.compile(r"[^\s*/@?#:\\.\[\]]+(\.[^\s*/@?#:\\.\[\]]+)*\.?|\[[0-9A-Fa-f:.]+\]")

_KEY = re.compile("[0-9a-f]{64}")

# A host with more labels than this is compared by its last ones only.
MAX_LABELS = 127


class DenyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the list."""

    column: str = ""
    value: str | int | float | bool | None = None
    host: str = ""
    source: str = ""
    row: int | None = None
    key: str = ""
    value_hash: str = ""
    number_hash: str = ""
    host_hash: str = ""

    @property
    def hashed(self) -> tuple[str, str]:
        """What the line names by its hash, `value`, `number` or `host`, and the hash."""
        hashes = {"value": self.value_hash, "number": self.number_hash, "host": self.host_hash}
        return next(((kind, content) for kind, content in hashes.items() if content), ("", ""))

    @property
    def is_valid(self) -> bool:
        """Whether the line names exactly one thing."""
        by_value = bool(self.column) and self.value is not None
        by_host = bool(self.column) and bool(self.host)
        by_row = bool(self.source) and self.row is not None
        hashes = [bool(self.column) and bool(each) for each in (self.value_hash, self.number_hash, self.host_hash)]
        is_one = by_value + by_host + by_row + sum(hashes) == 1 and bool(self.column) + bool(self.source) == 1
        return is_one and any(hashes) == bool(self.key)


@dataclass(frozen=True, slots=True)
class DenyList:
    """A list that was read: values and hosts by column, and rows by source.

    Values are compared as text, and every number has one spelling. `hashed` has hashes by column, kind and key.
    """

    values: dict[str, list[str]] = field(default_factory=dict)
    hosts: dict[str, list[str]] = field(default_factory=dict)
    rows: dict[str, list[int]] = field(default_factory=dict)
    hashed: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that have to be read."""
        return tuple(sorted({*self.values, *self.hosts, *(column for column, _, _ in self.hashed)}))

    def matches(self, values: pa.Table) -> npt.NDArray[np.bool_]:
        """Which rows of a table with these columns are denied."""
        denied = np.zeros(len(values), np.bool_)
        for name, wanted in self.values.items():
            column = values[name].combine_chunks()
            denied |= _is_in(_spelled(column), [*wanted, *_as_numbers(column.type, wanted).values()])
        for name, wanted in self.hosts.items():
            denied |= _is_below(host(values[name].combine_chunks()), _in_list(wanted))
        for (name, kind, key), hashes in self.hashed.items():
            column, has_hash = values[name].combine_chunks(), partial(_is_hashed, key=key, wanted=hashes)
            if kind == "host":
                denied |= _is_below(host(column), has_hash)
            elif kind == "value" or _is_number(column.type):
                denied |= has_hash(_spelled(column))
        return denied

    def matched(self, values: pa.Table) -> dict[str, tuple[set[str], set[str]]]:
        """For each column, the values and the hosts in a table that the list names."""
        matched: dict[str, tuple[set[str], set[str]]] = {name: (set(), set()) for name in self.columns}
        for name, wanted in self.values.items():
            column = values[name].combine_chunks()
            texts, numbers = _spelled(column), _as_numbers(column.type, wanted)
            found = texts.filter(pa.array(_is_in(texts, [*wanted, *numbers.values()]))).unique().to_pylist()
            matched[name][0].update(found, (text for text, number in numbers.items() if number in found))
        for name, wanted in self.hosts.items():
            hosts = host(values[name].combine_chunks())
            matched[name][1].update(hosts.filter(pa.array(_is_below(hosts, _in_list(wanted)))).unique().to_pylist())
        return matched

    def sources_at(self, path: str) -> list[str]:
        """The names in the list that mean the source at a path: the path itself, or the end of it."""
        ends = [path, *(path[at + 1 :] for at, character in enumerate(path) if character == "/")]
        return [end for end in ends if end in self.rows]

    def rows_of(self, path: str) -> npt.NDArray[np.uint64]:
        """The rows that are denied in a source by their numbers."""
        return np.unique(np.array([row for name in self.sources_at(path) for row in self.rows[name]], np.uint64))


def hashed_list(content: bytes, key: str) -> bytes:
    """A canonical list with the keyed hashes of values and hosts in their place."""
    rules = {msgspec.json.encode(hashed) + b"\n" for line in content.splitlines() for hashed in _hashed(line, key)}
    return b"".join(sorted(rules))


def _hashed(line: bytes, key: str) -> Iterator[DenyRule]:
    rule = decode(line, DenyRule)
    if rule.host:
        for spelling in host_spellings(rule.host.lower().rstrip(".")):
            yield DenyRule(rule.column, key=key, host_hash=keyed_hash(spelling, key))
    elif rule.value is not None:
        text = _text(rule.value)
        yield DenyRule(rule.column, key=key, value_hash=keyed_hash(text, key))
        for spelled in _as_numbers(pa.float64(), [text]).values():
            yield DenyRule(rule.column, key=key, number_hash=keyed_hash(spelled, key))
    else:
        yield rule


def keyed_hash(text: str, key: str) -> str:
    """The hash of a value with a key, 128 bits: equal values of two stores have different hashes."""
    return Hasher(text.encode(errors="surrogatepass"), key=bytes.fromhex(key)).hexdigest(length=16)


def canonical_list(data: bytes, path: str) -> bytes:
    """The content of a list without repeated lines, in a fixed order. Raises UsageError for a line that is no rule."""
    lines = ((number, line) for number, line in enumerate(data.splitlines(), 1) if line.strip())
    rules = {msgspec.json.encode(_parse(line, number, path)) + b"\n" for number, line in lines}
    return b"".join(sorted(rules))


def deny_name(blake3: str) -> str:
    """The name of the list in the store."""
    return f"{DENY}/{blake3}.jsonl"


def read_rules(folder: Folder, blake3: str) -> DenyList:
    """The rules of the list of a store. Raises CorruptStore if a line is no rule."""
    with errors_of(folder, deny_name(blake3)):
        return parse_list(read_content(folder, blake3))


def read_content(folder: Folder, blake3: str) -> bytes:
    """The content of the list of a store."""
    with errors_of(folder, deny_name(blake3)):
        content = folder.read(deny_name(blake3))
    if hash_of(content) != blake3:
        raise damaged(folder, deny_name(blake3), "it is not the list that the job names")
    return content


def parse_list(content: bytes) -> DenyList:
    """The rules of a canonical list, by kind. Raises MalformedDataError if a line is no rule."""
    rules = DenyList()
    for line in content.splitlines():
        rule = decode(line, DenyRule)
        if rule.row is not None:
            rules.rows.setdefault(rule.source, []).append(rule.row)
        elif rule.key:
            kind, value_hash = rule.hashed
            rules.hashed.setdefault((rule.column, kind, rule.key), set()).add(value_hash)
        elif rule.host:
            rules.hosts.setdefault(rule.column, []).append(rule.host.lower().rstrip("."))
        else:
            rules.values.setdefault(rule.column, []).append(_text(rule.value))
    return rules


def _parse(line: bytes, number: int, path: str) -> DenyRule:
    try:
        rule = decode(line, DenyRule)
    except MalformedDataError as error:
        raise UsageError(f"line {number} of {path} is not a rule: {error}", *_ADVICE) from error
    if not rule.is_valid or (rule.row is not None and not 0 <= rule.row < 1 << 64):
        raise UsageError(f"line {number} of {path} names nothing, or two things", *_ADVICE)
    if rule.key and not _KEY.fullmatch(rule.key):
        raise UsageError(f"line {number} of {path} has a key that is no hexadecimal number", *_ADVICE)
    if rule.host and not _HOST.fullmatch(rule.host):
        raise UsageError(
            f"line {number} of {path}: {rule.host!r} is not a host",
            "Write example.org, without a port: its subdomains are denied, too.",
        )
    return rule


_ADVICE = (
    'A line is {"column": "url", "value": "..."}, {"column": "url", "host": "example.org"}, or',
    '{"source": "data/000.parquet", "row": 17}.',
)


def _text(value: str | float | None) -> str:
    """A value of the list, as `_spelled` spells it in a column."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)  # it may have more than 64 bits
    return str(_spelled(pa.array([value]))[0].as_py())


def _spelled(values: pa.Array) -> pa.Array:
    """Values as text. A whole number has one spelling, also in a column of floating point numbers: 5, not 5.0."""
    texts = values.cast(TEXT)
    if not pa.types.is_floating(values.type):
        return texts
    values = values.cast(pa.float64())
    is_whole = pc.equal(values, pc.trunc(values))
    for kind, low, high in ((pa.int64(), -(2.0**63), 0.0), (pa.uint64(), 0.0, 2.0**64)):
        fits = pc.and_(is_whole, pc.and_(pc.greater_equal(values, low), pc.less(values, high)))
        texts = pc.if_else(fits, pc.if_else(fits, values, 0.0).cast(kind).cast(TEXT), texts)
    return texts


def _as_numbers(kind: pa.DataType, wanted: list[str]) -> dict[str, str]:
    """The numbers among some values for a column of numbers, as `_spelled` spells them: 1.50 is 1.5."""
    numbers: dict[str, str] = {}
    for text in wanted if _is_number(kind) else ():
        with suppress(ValueError):
            value = float(text)
            if abs(value) < MAX_EXACT:  # a larger whole number would be rounded
                numbers[text] = str(_spelled(pa.array([value]))[0].as_py())
    return numbers


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_in(texts: pa.Array, wanted: list[str]) -> npt.NDArray[np.bool_]:
    return np.asarray(pc.is_in(texts, pa.array(wanted, TEXT)))


def host_spellings(name: str) -> set[str]:
    """A host as it is written, in the letters of its language, and as the ASCII name that it has in the network."""
    spellings = {name}
    with suppress(UnicodeError):
        spellings.add(name.encode("idna").decode())
    with suppress(UnicodeError):
        spellings.add(name.encode().decode("idna"))
    return spellings


def _is_hashed(texts: pa.Array, key: str, wanted: set[str]) -> npt.NDArray[np.bool_]:
    """Which texts have one of these hashes. Each text that repeats is hashed once."""
    distinct = texts.unique().drop_null().to_pylist()
    return _is_in(texts, [text for text in distinct if keyed_hash(text, key) in wanted])


def _in_list(names: list[str]) -> IsWanted:
    """Which hosts are one of these, in any spelling."""
    return partial(_is_in, wanted=[spelling for name in names for spelling in host_spellings(name)])


def _is_below(hosts: pa.Array, is_wanted: IsWanted) -> npt.NDArray[np.bool_]:
    """Which hosts are wanted, or are a subdomain of one."""
    denied, rest = np.zeros(len(hosts), np.bool_), hosts.cast(TEXT)
    for _ in range(MAX_LABELS):
        denied |= is_wanted(rest)
        if not pc.any(pc.match_substring(rest, ".")).as_py():
            break
        rest = pc.replace_substring_regex(rest, r"^[^.]*\.?", "")
    return denied
