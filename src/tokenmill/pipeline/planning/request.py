"""From the options of a call to a job and its sources: names resolved, defaults filled in, contradictions refused."""

from __future__ import annotations

import hashlib
import importlib.metadata
import math
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import UsageError
from tokenmill.humanize import parse_size
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.position import DEFAULT_SECONDS
from tokenmill.sources import Discovery, SplitChoice, discover
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.named_datasets import ResolvedSources
from tokenmill.sources.text_columns import EMPTY, SKIP, parse_template
from tokenmill.sources.where import parse_where
from tokenmill.storage import scheme
from tokenmill.store.deny import parse_list
from tokenmill.store.job import PARSE, REFUSE, TEXT, Job
from tokenmill.tokenizers.boundary_tokens import begin_note, boundary_token, end_note, end_token
from tokenmill.tokenizers.control_tokens import refuse_inexact_cut, spelled_special_tokens
from tokenmill.tokenizers.objects import TokenizerObject
from tokenmill.tokenizers.resolve import Vocabulary, resolve
from tokenmill.tokenizers.tokenizer import EngineChoice, choose_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# A longer document is not tokenized, unless --max-document-bytes allows it. A worker of 1 GB can hold one this long.
DEFAULT_DOCUMENT_BYTES = 32 << 20

# The packages whose versions decide the output of a run.
VERSIONED = ("tokenmill", "pyarrow", "numpy", "gigatoken", "tiktoken", "tokenizers")


@dataclass(frozen=True, slots=True)
class BadDocumentPolicy:
    """What happens to rows that do not become documents.

    `max_bad` is the fraction of rows that may be bad, and `max_skipped` the fraction that may be without text.
    """

    on_bad: str = "quarantine"
    max_bad: float = 0.001
    max_skipped: float = 0.01
    document_seconds: float = DEFAULT_SECONDS
    quarantine_text: bool = False

    @classmethod
    def parse(
        cls,
        on_bad: str = "quarantine",
        max_bad: str | float = 0.001,
        max_skipped: str | float = 0.01,
        document_timeout: str | float = DEFAULT_SECONDS,
        *,
        quarantine_text: bool = False,
    ) -> BadDocumentPolicy:
        """The policy that these options describe; raises UsageError for an invalid one.

        Args:
            on_bad: "quarantine", or "fail" to end the run at the first bad document.
            max_bad: A fraction of the rows: 0.001, or 0.1%.
            max_skipped: A fraction of the rows: 0.01, or 1%.
            document_timeout: The seconds that one document may take.
            quarantine_text: Keep the text of bad documents.
        """
        if on_bad not in ("quarantine", "fail"):
            raise UsageError(f"--on-bad is quarantine or fail, not {on_bad!r}")
        bad = _fraction("--max-bad", 0 if on_bad == "fail" else max_bad)
        skipped = _fraction("--max-skipped", max_skipped)
        seconds = _number(str(document_timeout).strip().removesuffix("s"))
        if not 0 < seconds < math.inf:
            raise UsageError(f"--document-timeout {document_timeout} is not a time", "Give seconds: 600.")
        return cls(on_bad, bad, skipped, seconds, quarantine_text)


@dataclass(frozen=True, slots=True)
class ColumnOptions:
    """The options about rows and columns of the sources (see `Job`)."""

    keep: tuple[str, ...] = ()
    deny: bytes = b""
    where: str = ""
    join: str | None = None
    template: str | None = None
    null: str | None = None
    special: str | None = None
    template_special: str | None = None
    dedup: str | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an option that is invalid for every source."""
        if self.template is not None:
            parse_template(self.template)
        if self.null not in (None, SKIP, EMPTY):
            raise UsageError(f"--null is skip or empty, not {self.null!r}")
        if self.null is not None and self.template is None:
            raise UsageError("--null needs --template", "It is about nulls in the columns that a template names.")
        self._check_special()
        if self.where:
            parse_where(self.where)
        if self.dedup not in (None, "exact"):
            raise UsageError(f"--dedup is exact or none, not {self.dedup!r}")
        _check_limits(self.min_tokens, self.max_tokens)
        if len(set(self.keep)) < len(self.keep) or not all(self.keep):
            raise UsageError(f"--keep {','.join(self.keep)} has an empty name, or one twice")

    def _check_special(self) -> None:
        if self.special not in (None, TEXT, PARSE, REFUSE):
            raise UsageError(f"--special is text, parse or refuse, not {self.special!r}")
        if self.template_special not in (None, TEXT, PARSE):
            raise UsageError(f"--template-special is parse or text, not {self.template_special!r}")
        if self.template_special is not None and self.template is None:
            raise UsageError("--template-special needs --template", "It is about the text of a template.")
        if self.special == PARSE and self.template_special == TEXT:
            raise UsageError(
                "--special parse cannot be used with --template-special text",
                "It parses the whole document. Use --template-special parse.",
            )


def _check_limits(least: int | None, most: int | None) -> None:
    for option, value in (("--min-tokens", least), ("--max-tokens", most)):
        if value is not None and (not isinstance(value, int) or value < 0):
            raise UsageError(f"{option} {value} is not a number of tokens")
    if least is not None and most is not None and least > most:
        raise UsageError(f"--min-tokens {least} is more than --max-tokens {most}")


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """The options that decide the job, checked when they are packed. None stands for an option that was not given."""

    sources: Sequence[str]
    tokenizer: str | TokenizerObject
    column: str = "text"
    separator: str | None = None
    engine: str = "auto"
    eot: str | int | None = None
    bos: str | int | None = None
    unit_bytes: str | int | None = None
    limit_units: int | None = None
    max_document_bytes: str | int | None = None
    columns: ColumnOptions = ColumnOptions()
    splits: SplitChoice | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for an option that is invalid for every source and tokenizer."""
        if self.separator == "":
            raise UsageError("--separator is empty", "Give the text that separates two documents.")
        if self.limit_units is not None and self.limit_units < 1:
            raise UsageError("--limit-units must be at least 1")
        if self.unit_bytes is not None and parse_size(self.unit_bytes) == 0:
            raise UsageError("--unit-bytes must be at least 1")
        if self.max_document_bytes is not None and parse_size(self.max_document_bytes) == 0:
            raise UsageError("--max-document-bytes must be at least 1")


def _fraction(option: str, value: str | float) -> float:
    text = str(value).strip()
    fraction = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= fraction <= 1:
        raise UsageError(f"{option} {text} is not a fraction", "Give a fraction of the documents: 0.001, or 0.1%.")
    return fraction


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A job, its sources and its tokenizer: all that is needed to freeze a run."""

    job: Job
    vocabulary: Vocabulary
    discovery: Discovery
    choice: EngineChoice
    named: ResolvedSources
    unit_bytes_given: bool = False
    deny: bytes = b""

    @property
    def options(self) -> ReadOptions:
        """How planning reads the sources."""
        filtered = parse_where(self.job.filter_text).columns if self.job.filter_text else ()
        required = dict.fromkeys((*self.job.kept_columns, *parse_list(self.deny).columns, *filtered))
        return self.job.read_options(required=tuple(required))

    @property
    def source_bytes(self) -> int:
        """The size of all sources."""
        return total_bytes(self.discovery)


def total_bytes(discovery: Discovery) -> int:
    """The size of all sources."""
    return int(discovery.table["size"].to_numpy().sum())


def find_sources(
    options: PrepareOptions, pending: Callable[[str], None] = lambda _: None, out: str | None = None
) -> Discovery:
    """The files that the sources match, without those of the store at `out`. Reports addresses through `pending`."""
    patterns = [options.sources] if isinstance(options.sources, str | os.PathLike) else list(options.sources)
    for address in patterns:
        if scheme(str(address)):
            pending(f"looking at   {address}")
    return discover(patterns, out=out, splits=options.splits)


def refuse_without_effect(
    discovery: Discovery, *, column: str | None = None, separator: str | None = None, join: str | None = None
) -> None:
    """Raise UsageError if an option was given that has no effect on any of the sources."""
    kinds = set(discovery.table["kind"].cast("string").unique().to_pylist())
    if not kinds:
        return
    of_rows = "Each row of these sources is a document."
    unused = {
        "--column": (
            column,
            kinds <= {"text"},
            "text files have no columns",
            "Each file, or each piece, is a document.",
        ),
        "--join": (join, kinds <= {"text", "csv"}, "no source has lists of strings", ""),
        "--separator": (separator, "text" not in kinds, "no source is a .txt file", of_rows),
    }
    for option, (value, has_no_effect, reason, advice) in unused.items():
        if value is not None and has_no_effect:
            found = f"sources      {', '.join(sorted(kinds))}"
            raise UsageError(f"{option} {value!r} has no effect: {reason}", found, f"{advice} Remove {option}.".strip())


def make_request(
    options: PrepareOptions,
    discovery: Discovery,
    vocabulary: Vocabulary | None = None,
    named: ResolvedSources | None = None,
) -> PrepareRequest:
    """Resolve the tokenizer, unless its vocabulary is given, and fill in the defaults."""
    vocabulary = vocabulary or resolve(options.tokenizer)
    spec = vocabulary.spec
    unit_bytes = parse_size(options.unit_bytes) if options.unit_bytes is not None else None
    columns = options.columns
    job = Job(
        tokenizer=spec,
        column=options.column,
        separator=options.separator,
        begin=boundary_token(spec, "--bos", options.bos, None),
        end=end_token(spec, options.eot),
        unit_bytes=unit_bytes or plan.default_unit_bytes(total_bytes(discovery)),
        limit_units=options.limit_units,
        document_bytes=parse_size(options.max_document_bytes or DEFAULT_DOCUMENT_BYTES),
        keep=columns.keep or msgspec.UNSET,
        deny=hashlib.sha256(columns.deny).hexdigest() if columns.deny else msgspec.UNSET,
        where=str(parse_where(columns.where)) if columns.where else msgspec.UNSET,
        join=msgspec.UNSET if columns.join is None else columns.join,
        template=columns.template or msgspec.UNSET,
        null=EMPTY if columns.null == EMPTY else msgspec.UNSET,
        special=msgspec.UNSET if columns.special in (None, TEXT) else columns.special,
        template_special=columns.template_special or msgspec.UNSET,
        dedup=msgspec.UNSET if columns.dedup is None else "",
        min_tokens=msgspec.UNSET if columns.min_tokens is None else columns.min_tokens,
        max_tokens=msgspec.UNSET if columns.max_tokens is None else columns.max_tokens,
    )
    choice = choose_engine(Vocabulary(job.encoder, vocabulary.content), options.engine)
    named = named or ResolvedSources([])
    notes = [begin_note(vocabulary, options.bos), end_note(spec, options.eot), template_note(job, vocabulary)]
    named = replace(named, notes=[*named.notes, *filter(None, notes)])
    return PrepareRequest(job, vocabulary, discovery, choice, named, unit_bytes is not None, columns.deny)


def template_note(job: Job, vocabulary: Vocabulary) -> str | None:
    """The note that `--template-special` has no effect. Raises UsageError if a template has to choose, and does not."""
    if not job.template:
        return None
    spec = job.tokenizer
    tokens = spelled_special_tokens(spec, parse_template(job.template).literals)
    if tokens and not job.template_special:
        raise UsageError(
            f"the template spells {tokens[0]}, a special token of {spec.name}",
            f"template     {job.template!r}",
            f"Use --template-special parse to make it the token {spec.special_tokens[tokens[0]]}.",
            "Use --template-special text to encode its letters, as in the values of columns.",
        )
    if job.template_special and not tokens:
        return f"--template-special has no effect: the template spells no special token of {spec.name}"
    if job.encoder.marks:
        refuse_inexact_cut(vocabulary, tokens)
    return None


def versions() -> dict[str, str]:
    """The installed versions of tokenmill and of the packages that decide its output."""
    installed = {}
    for name in VERSIONED:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed
