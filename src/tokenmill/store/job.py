"""The job, which decides the bytes of a store, and the run that applies it to sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.humanize import count
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.text_columns import parse_template, template_of
from tokenmill.storage.digest import differences, digest_of
from tokenmill.tokenizers.control_tokens import control_tokens, marked, marks_of
from tokenmill.tokenizers.spec import TokenizerSpec

# What `--special` and `--template-special` can be.
TEXT, PARSE, REFUSE = "text", "parse", "refuse"

STORE_FORMAT = 1
"""The format of every store, whatever its options. It changes if a reader of before could misread a store."""


class Job(msgspec.Struct, frozen=True):
    """How documents are tokenized. Two runs with equal jobs and equal sources write equal bytes."""

    tokenizer: TokenizerSpec
    column: str
    separator: str | None
    begin: int | None
    end: int | None
    unit_bytes: int
    document_bytes: int
    """Longer documents are not tokenized."""
    keep: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns of the sources that are kept beside the parts. Unset, and not written, without any."""

    deny: str | msgspec.UnsetType = msgspec.UNSET
    """The BLAKE3 of the list of rows that are left out. Unset, and not written, without a list."""

    where: str | msgspec.UnsetType = msgspec.UNSET
    """The filter on columns, in its canonical text. Unset, and not written, without a filter."""

    join: str | msgspec.UnsetType = msgspec.UNSET
    """What stands between the strings of a list. Unset, and not written, if it was not given."""

    template: str | msgspec.UnsetType = msgspec.UNSET
    """The columns and the text around them that make a document. Unset, and not written, without a template."""

    null: str | msgspec.UnsetType = msgspec.UNSET
    """`"empty"` if a null in a column of the template is empty text. Unset, and not written, if its row is skipped."""

    special: str | msgspec.UnsetType = msgspec.UNSET
    """What the spelling of a special token in a column is: `"parse"` makes it the token, `"refuse"` makes its row bad.
    Unset, and not written, if it is text."""

    template_special: str | msgspec.UnsetType = msgspec.UNSET
    """The same for the text of the template: `"parse"` or `"text"`. Unset, and not written, if it was not given."""

    dedup: str | msgspec.UnsetType = msgspec.UNSET
    """The BLAKE3 of the list of duplicates, which are left out; empty before they are found. Unset, and not written,
    if they are not looked for."""

    min_tokens: int | msgspec.UnsetType = msgspec.UNSET
    max_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Documents with fewer or more tokens are left out. Unset, and not written, without such a limit."""

    @property
    def limits_tokens(self) -> bool:
        """Whether documents are left out because of their number of tokens."""
        return any(not isinstance(limit, msgspec.UnsetType) for limit in (self.min_tokens, self.max_tokens))

    def within_limits(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether documents with so many tokens, begin and end token included, are in the store."""
        tokens = lengths - (self.begin is not None) - (self.end is not None)
        is_within = np.ones(len(tokens), np.bool_)
        if not isinstance(self.min_tokens, msgspec.UnsetType):
            is_within &= tokens >= self.min_tokens
        if not isinstance(self.max_tokens, msgspec.UnsetType):
            is_within &= tokens <= self.max_tokens
        return is_within

    @property
    def kept_columns(self) -> tuple[str, ...]:
        """The columns that are kept."""
        return () if isinstance(self.keep, msgspec.UnsetType) else self.keep

    def read_options(self, *, with_marks: bool = True, **options: Any) -> ReadOptions:
        """How the sources are read, with more options for the reader.

        If the control tokens of the template are parsed by themselves, `with_marks` puts marks in their place.
        """
        marks, template = self._marks if with_marks else {}, self.template
        if marks and template:
            parts = parse_template(template)
            template = str(
                replace(parts, literals=tuple(marked(self.tokenizer, part, marks) for part in parts.literals))
            )
        text: dict[str, Any] = {"join": self.join, "template": template, "null": self.null, "where": self.where}
        given = {name: value for name, value in text.items() if not isinstance(value, msgspec.UnsetType)}
        refused = (*marks.values(), *(control_tokens(self.tokenizer) if self.special == REFUSE else ()))
        return ReadOptions(self.column, self.separator, **given, refused=refused, **options)

    @property
    def encoder(self) -> TokenizerSpec:
        """The tokenizer, with what becomes of special tokens that documents spell."""
        ids = {mark: self.tokenizer.special_tokens[token] for token, mark in self._marks.items()}
        return msgspec.structs.replace(
            self.tokenizer, parse_special=self.special == PARSE or msgspec.UNSET, marks=ids or msgspec.UNSET
        )

    @property
    def _marks(self) -> dict[str, str]:
        """The marks of the template's special tokens, if they are parsed and those in the columns are not."""
        if self.template_special != PARSE or self.special == PARSE or not self.template:
            return {}
        return marks_of(self.tokenizer, parse_template(self.template).literals)

    @property
    def text_columns(self) -> str:
        """The columns that hold the text, for a message."""
        return " and ".join(map(repr, template_of(self.read_options()).names))

    @property
    def filter_text(self) -> str:
        """The filter on columns; empty without one."""
        return "" if isinstance(self.where, msgspec.UnsetType) else self.where

    def identity(self) -> dict[str, str]:
        """The choices that decide the bytes, by the name of the option."""
        tokenizer = self.tokenizer
        return {
            "tokenizer": f"sha256 {tokenizer.sha256}",
            "split pattern": tokenizer.pattern or "in the vocabulary",
            "--column": self.column,
            "--separator": repr(self.separator) if self.separator is not None else "none",
            "--bos": _token(self.begin),
            "--eot": _token(self.end),
            "--unit-bytes": str(self.unit_bytes),
            "--max-document-bytes": str(self.document_bytes),
            **({"--keep": ",".join(self.kept_columns)} if self.kept_columns else {}),
            **({} if isinstance(self.deny, msgspec.UnsetType) else {"--deny": f"blake3 {self.deny}"}),
            **({"--where": self.filter_text} if self.filter_text else {}),
            **({} if isinstance(self.join, msgspec.UnsetType) else {"--join": repr(self.join)}),
            **({} if isinstance(self.template, msgspec.UnsetType) else {"--template": repr(self.template)}),
            **({} if isinstance(self.null, msgspec.UnsetType) else {"--null": self.null}),
            **({} if isinstance(self.special, msgspec.UnsetType) else {"--special": self.special}),
            **({"--template-special": self.template_special} if self.template_special else {}),
            **({} if isinstance(self.dedup, msgspec.UnsetType) else {"--dedup": _found(self.dedup)}),
            **({} if isinstance(self.min_tokens, msgspec.UnsetType) else {"--min-tokens": str(self.min_tokens)}),
            **({} if isinstance(self.max_tokens, msgspec.UnsetType) else {"--max-tokens": str(self.max_tokens)}),
        }

    def digest(self) -> str:
        """BLAKE3 of the identity in canonical JSON."""
        return digest_of(self.identity())

    def differences(self, now: Job) -> list[tuple[str, str, str]]:
        """The choices that differ: (name, value in this job, value in the other)."""
        return differences(self.identity(), now.identity())


def _found(dedup: str) -> str:
    return f"exact, blake3 {dedup}" if dedup else "exact"


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)


class Run(msgspec.Struct, frozen=True):
    """The frozen run: the job, totals, the checksums of plan and sources, and the engine and versions at the start.

    `units` are the first units of the plan, which has `planned_units`: fewer with --limit-units, until the run goes on
    with more. `text_bytes` is the text of these units.
    """

    job: Job
    units: int
    planned_units: int
    sources: int
    source_bytes: int
    text_bytes: int
    sources_blake3: str
    plan_blake3: str
    engine: str
    versions: dict[str, str]
    format: int = STORE_FORMAT

    @property
    def trial(self) -> str | None:
        """What a store with --limit-units holds of its sources, in words. None if it holds all units."""
        return None if self.units == self.planned_units else f"the first {count(self.units, 'unit')} (--limit-units)"

    @property
    def erased_token(self) -> int:
        """The token that replaces the tokens of an erased document: the end token, or the best there is for it."""
        return next((token for token in (self.job.end, self.job.tokenizer.end_of_text) if token is not None), 0)
