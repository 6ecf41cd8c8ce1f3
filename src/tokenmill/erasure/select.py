"""The selector of an erasure: values, hosts or rows, as the list that `prepare --deny` takes."""

from __future__ import annotations

import csv
import io
import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tokenmill.errors import UsageError
from tokenmill.storage.digest import hash_of
from tokenmill.store.deny import DenyList, DenyRule, canonical_list, host_spellings, parse_list

ONE_SELECTOR = "Give --column with --values or --hosts, or give --rows."


@dataclass(frozen=True, slots=True)
class Selector:
    """What is to be erased: the rules in a fixed order, and the options that gave them, without their values."""

    content: bytes
    options: str

    @property
    def name(self) -> str:
        """The name of a request that has none: from the hash of the rules."""
        return hash_of(self.content)[:16]

    def rules(self) -> DenyList:
        """The rules by kind."""
        return parse_list(self.content)


Named = tuple[str, bytes | Sequence[str]]
"""The name of a file with its content, or of values that are given themselves."""

NamedRows = tuple[str, bytes | Sequence[tuple[str, int]]]
"""The same for rows of sources."""


def select(column: str | None, values: Named | None, hosts: Named | None, rows: NamedRows | None) -> Selector | None:
    """The selector of these options; None without any."""
    given = [name for name, option in (("values", values), ("hosts", hosts), ("rows", rows)) if option is not None]
    if not given and column is None:
        return None
    if len(given) != 1 or (column is None) != (given == ["rows"]):
        raise UsageError("an erasure needs one selector", ONE_SELECTOR)
    if rows is not None:
        name, pairs = rows
        pairs = _rows(name, pairs) if isinstance(pairs, bytes) else pairs
        rules = [DenyRule(source=os.fspath(source).removeprefix("./"), row=row) for source, row in pairs]
    else:
        name, texts = values or hosts or ("", ())
        texts = _lines(name, texts) if isinstance(texts, bytes) else texts
        label, is_host = column or "", hosts is not None
        rules = [DenyRule(label, host=text) if is_host else DenyRule(label, text) for text in texts]
    if not rules:
        raise UsageError(f"{name} is empty", ONE_SELECTOR)
    encoded = b"\n".join(msgspec.json.encode(rule, enc_hook=operator.index) for rule in rules)  # NumPy's integers
    options = f"--{given[0]}" if column is None else f"--column {column} --{given[0]}"
    return Selector(canonical_list(encoded, name), options)


def _lines(name: str, content: bytes) -> list[str]:
    try:
        return [line.strip() for line in content.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text", f"reason       {error}") from error


def _rows(name: str, content: bytes) -> list[tuple[str, int]]:
    """The rows of a CSV file with the columns source and row. A first line of these two names is a header."""
    rows = []
    lines = csv.reader(io.StringIO("\n".join(_lines(name, content))))
    for number, fields in enumerate(lines, 1):
        if number == 1 and [field.strip().lower() for field in fields] == ["source", "row"]:
            continue
        if len(fields) != 2 or not fields[1].strip().isdecimal() or not fields[0].strip():
            raise UsageError(f"line {number} of {name} is not source,row", "Write a line as: data/000.parquet,17")
        rows.append((fields[0].strip(), int(fields[1])))
    return rows


def not_found(
    rules: DenyList, matched: dict[str, tuple[set[str], set[str]]], named: Sequence[tuple[str, int]]
) -> list[str]:
    """The rules that matched nothing, as text."""
    missing = []
    for column, values in rules.values.items():
        found = matched.get(column, (set(), set()))[0]
        missing += [f"{column} {value}" for value in values if value not in found]
    for column, hosts in rules.hosts.items():
        labels = [host.split(".") for host in matched.get(column, (set(), set()))[1]]
        found = {".".join(parts[start:]) for parts in labels for start in range(len(parts))}
        missing += [f"host {host} in {column}" for host in hosts if found.isdisjoint(host_spellings(host))]
    rows = {(source, row) for path, row in named for source in rules.sources_at(path)}
    for source, wanted in rules.rows.items():
        missing += [f"row {row} of {source}" for row in wanted if (source, row) not in rows]
    return sorted(missing)
