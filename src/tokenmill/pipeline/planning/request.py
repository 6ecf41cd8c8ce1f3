"""From the options of a call to a job and its sources: names resolved, defaults filled in, contradictions refused."""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import pyarrow as pa

from tokenmill.chat.spec import EACH
from tokenmill.choices import BadDocumentAction, Dedup, Null, Special, TemplateSpecial
from tokenmill.errors import UsageError
from tokenmill.humanize import parse_size
from tokenmill.options import JobOptions, PrepareOptions
from tokenmill.pipeline.planning.chat import chat_values, make_chat
from tokenmill.pipeline.planning.like import NO_STORE, StoreText
from tokenmill.pipeline.planning.pieces import fraction_of, option_name, piece_options, with_pieces
from tokenmill.pipeline.planning.store_sources import other_tokenizer, refuse_missing_columns
from tokenmill.pipeline.planning.token_sources import token_source
from tokenmill.pipeline.unit import plan
from tokenmill.sources import Discovery, Ignored, SplitChoice, discover
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.named_datasets import DEFAULT_COLUMN, ResolvedSources
from tokenmill.sources.text_columns import SKIP, parse_template
from tokenmill.sources.tokens.find import are_token_files, find_tokens
from tokenmill.sources.where import parse_where
from tokenmill.storage import scheme
from tokenmill.storage.digest import hash_of
from tokenmill.store.deny import parse_list
from tokenmill.store.job import PARSE, REFUSE, TEXT, Job, read_vocabulary
from tokenmill.store.source_store import SourceStore
from tokenmill.system.arguments import column_names
from tokenmill.tokenization.boundary_tokens import begin_note, boundary_token, end_note, end_token
from tokenmill.tokenization.control_tokens import refuse_inexact_cut, spelled_special_tokens
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_text import lost_text
from tokenmill.tokenization.tokenizer import EngineChoice, choose_engine

# A longer document is not tokenized, unless --max-document-bytes allows it. A worker of 1 GB can hold one this long.
DEFAULT_DOCUMENT_BYTES = 32 << 20

# The longest document of segments.
MAX_SEGMENTED_BYTES = (1 << 32) - 1

# The options of a call that gives none.
DEFAULTS = PrepareOptions()

# Of a number that is given as text.
MAX_DIGITS = 18

# The packages whose versions decide the output of a run.
VERSIONED = ("tokenmill", "pyarrow", "numpy", "gigatoken", "tiktoken", "tokenizers")


@dataclass(frozen=True, slots=True)
class BadDocumentPolicy:
    """What happens to rows that do not become documents.

    `max_bad` is the fraction of rows that may be bad, and `max_skipped` the fraction that may be without text.
    """

    on_bad: str
    max_bad: float
    max_skipped: float
    document_seconds: float
    quarantine_text: bool

    @classmethod
    def parse(cls, options: PrepareOptions = DEFAULTS) -> BadDocumentPolicy:
        """The policy that these options describe; raises UsageError for an invalid one."""
        on_bad, timeout = _one_of("--on-bad", options.on_bad, BadDocumentAction), options.document_timeout
        bad = fraction_of("--max-bad", 0 if on_bad == "fail" else options.max_bad)
        skipped = fraction_of("--max-skipped", options.max_skipped)
        seconds = _seconds(str(timeout).strip().removesuffix("s"))
        if not 0 < seconds < math.inf:
            raise UsageError(f"--document-timeout {timeout} is not a time", "Give seconds: 600.")
        return cls(on_bad, bad, skipped, seconds, options.quarantine_text)


def job_options(options: JobOptions) -> dict[str, Any]:
    """The fields of the job that options alone decide.

    Raises UsageError for an option that is invalid for every source and tokenizer.
    """
    if options.separator == "":
        raise UsageError("--separator is empty", "Give the text that separates two documents.")
    if options.template is not None:
        parse_template(options.template)
    _check_template_options(options)
    keep = column_names(options.keep) or ()
    if len(set(keep)) < len(keep) or not all(keep):
        raise UsageError(f"--keep {','.join(keep)} has an empty name, or one twice")
    chat = chat_values(options)
    null = _one_of("--null", options.null, Null)
    special = _one_of("--special", options.special, Special)
    fewest, most = (_tokens(name, getattr(options, name)) for name in ("min_tokens", "max_tokens"))
    if fewest is not None and most is not None and fewest > most:
        raise UsageError(f"--min-tokens {fewest} is more than --max-tokens {most}")
    _size("--unit-bytes", options.unit_bytes)
    longest = _size("--max-document-bytes", options.max_document_bytes) or DEFAULT_DOCUMENT_BYTES
    if (options.segments or chat) and longest > MAX_SEGMENTED_BYTES:
        option = "--segments" if options.segments else "--messages"
        raise UsageError(f"--max-document-bytes is at most 4 GiB with {option}", "They are counted in 32 bits.")
    if chat and chat["turns"] == EACH and (fewest, most) != (None, None):
        raise UsageError(
            "--turns each cannot be used with --min-tokens and --max-tokens",
            "The documents of a row are kept together. Leave some out when you train.",
        )
    return {
        "separator": options.separator,
        "document_bytes": longest,
        "keep": keep,
        "where": str(parse_where(options.where)) if options.where else "",
        "join": options.join,
        "template": options.template or "",
        "null": null or SKIP,
        "special": special or (REFUSE if chat else TEXT),
        "template_special": _one_of("--template-special", options.template_special, TemplateSpecial),
        "dedup": None if _one_of("--dedup", options.dedup, Dedup) is None else "",
        "segments": options.segments or "",
        "messages": options.messages or "",
        "tools": options.tools or "",
        "min_tokens": fewest,
        "max_tokens": most,
        **piece_options(options),
    }


def _check_template_options(options: JobOptions) -> None:
    """Raise UsageError for options about a template without one, or that contradict each other."""
    if options.template is None:
        for name, value, about in (
            ("--null", options.null, "nulls in the columns that a template names"),
            ("--template-special", options.template_special, "the text of a template"),
        ):
            if value is not None:
                raise UsageError(f"{name} needs --template", f"It is about {about}.")
    if options.special == PARSE and options.template_special == TEXT:
        raise UsageError(
            "--special parse cannot be used with --template-special text",
            "It parses the whole document. Use --template-special parse.",
        )


def _one_of(option: str, value: Any, choices: Any) -> Any:
    """The value, if it is one of the choices of a Literal."""
    if value is not None and value not in (names := get_args(choices)):
        raise UsageError(f"{option} is {', '.join(names[:-1])} or {names[-1]}, not {value!r}")
    return value


def _size(option: str, value: str | int | None) -> int | None:
    """A size in bytes; None if it is not given."""
    size = None if value is None else parse_size(value)
    if size == 0:
        raise UsageError(f"{option} must be at least 1")
    return size


def _tokens(name: str, value: str | int | None) -> int | None:
    """A number of tokens, which may be given as text."""
    if value is None:
        return None
    text, option = str(value), f"--{name.replace('_', '-')}"
    if not (text.isdecimal() and len(text) <= MAX_DIGITS):
        raise UsageError(f"{option} {value} is not a number of tokens", "Give a whole number, or none.")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# The sources of a job that is checked before there are any.
NO_SOURCES = Discovery(pa.table({"kind": pa.array([], pa.string()), "size": pa.array([], pa.int64())}), Ignored())


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
    limit_units: int | None = None
    source: SourceStore | None = None
    source_vocabulary: Vocabulary | None = None

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """The vocabularies that the store has."""
        return (self.vocabulary,) if self.source_vocabulary is None else (self.vocabulary, self.source_vocabulary)

    def units_of(self, planned: int) -> int:
        """How many of the planned units are asked for."""
        return planned if self.limit_units is None else min(self.limit_units, planned)

    @property
    def options(self) -> ReadOptions:
        """How planning reads the sources."""
        return self.job.read_options(required=self.required)

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that are read."""
        filtered = parse_where(self.job.where).columns if self.job.where else ()
        prefix = parse_template(self.job.prefix).names if self.job.prefix else ()
        return tuple(dict.fromkeys((*self.job.keep, *parse_list(self.deny).columns, *filtered, *prefix)))

    @property
    def source_bytes(self) -> int:
        """The size of all sources."""
        return total_bytes(self.discovery)


def total_bytes(discovery: Discovery) -> int:
    """The size of all sources."""
    return int(discovery.table["size"].to_numpy().sum())


def find_sources(
    sources: Sequence[str],
    pending: Callable[[str], None] = lambda _: None,
    out: str | None = None,
    splits: SplitChoice | None = None,
) -> Discovery:
    """The files that the sources match, without those of the store at `out`. Reports addresses through `pending`."""
    for address in sources:
        if scheme(str(address)):
            pending(f"looking at   {address}")
    return discover(sources, out=out, splits=splits)


def refuse_without_effect(discovery: Discovery, **given: str | None) -> None:
    """Raise UsageError if an option was given that has no effect on any of the sources."""
    kinds = set(discovery.table["kind"].cast("string").unique().to_pylist())
    if not kinds:
        return
    if kinds <= {"tokens"}:
        name = next((name for name, value in given.items() if value is not None), None)
        if name is not None:
            raise UsageError(f"{option_name(name)} has no effect: the sources are files of tokens", "Remove it.")
        return
    of_rows, of_files = "Each row of these sources is a document.", "Each file, or each piece, is a document."
    unused = {
        "column": (kinds <= {"text"}, "text files have no columns", of_files),
        "segments": (kinds <= {"text", "csv"}, "no source has lists of segments", ""),
        "tokens_column": (kinds <= {"text", "csv"}, "no source has lists", ""),
        "messages": (kinds <= {"text"}, "text files have no columns", of_files),
        "join": (kinds <= {"text", "csv"}, "no source has lists of strings", ""),
        "separator": ("text" not in kinds, "no source is a .txt file", of_rows),
    }
    for name, value in given.items():
        has_no_effect, reason, advice = unused[name]
        option = option_name(name)
        if value is not None and has_no_effect:
            found = f"sources      {', '.join(sorted(kinds))}"
            raise UsageError(f"{option} {value!r} has no effect: {reason}", found, f"{advice} Remove {option}.".strip())


def make_request(
    options: JobOptions,
    discovery: Discovery,
    vocabulary: Vocabulary | None = None,
    named: ResolvedSources | None = None,
    store: StoreText = NO_STORE,
) -> PrepareRequest:
    """Resolve the tokenizer, unless its vocabulary is given, and fill in the defaults."""
    vocabulary = vocabulary or resolve(options.tokenizer)
    spec, source = vocabulary.spec, store.source
    are_files = source is None and are_token_files(discovery.table)
    source_vocabulary = _source_vocabulary(options, source, spec)
    source_tokenizer = None if source_vocabulary is None else source_vocabulary.spec
    of_ids, found = source_tokenizer or spec, list[str]()
    tokens = token_source(options, of_ids, are_files=are_files) if source is None else source.tokens
    begin = boundary_token(spec, "--bos", options.bos, None)
    end = boundary_token(spec, "--eot", options.eot, None) if options.messages else end_token(spec, options.eot)
    if tokens is not None and are_files:
        own = (end, begin) if source_tokenizer is None else (None, None)
        control = dict.fromkeys((own[0], of_ids.end_of_text, *of_ids.special_tokens.values(), own[1]))
        given = [token for token in control if token is not None]
        table, tokens, found = find_tokens(discovery.table, tokens, of_ids.vocabulary_size, given)
        discovery = replace(discovery, table=table)
    unit_bytes = None if options.unit_bytes is None else parse_size(options.unit_bytes)
    unit_bytes = unit_bytes if source is None else source.job.unit_bytes
    job = Job(
        tokenizer=spec,
        column=options.column or DEFAULT_COLUMN,
        begin=begin,
        end=end,
        unit_bytes=unit_bytes or plan.default_unit_bytes(total_bytes(discovery)),
        deny=hash_of(store.deny) if store.deny else "",
        chat=make_chat(options, spec, store.chat),
        tokens=tokens,
        source_tokenizer=source_tokenizer,
        **job_options(options),
    )
    job = with_pieces(job, options)
    choice = choose_engine(Vocabulary(job.encoder, vocabulary.content), options.engine)
    named = named or ResolvedSources([])
    notes = [begin_note(vocabulary, options.bos), end_note(spec, options.eot), template_note(job, vocabulary)]
    notes = [_boundaries_note(job)] if job.chat is not None else notes
    if source_vocabulary is not None:
        notes.append(lost_text(source_vocabulary.spec, source_vocabulary.content))
    named = replace(named, notes=[*named.notes, *found, *filter(None, notes)])
    is_given = unit_bytes is not None
    request = PrepareRequest(
        *(job, vocabulary, discovery, choice, named, is_given, store.deny, options.limit_units, source),
        source_vocabulary,
    )
    if source is not None:
        refuse_missing_columns(source, request.required)
    return request


def _source_vocabulary(options: JobOptions, source: SourceStore | None, spec: TokenizerSpec) -> Vocabulary | None:
    """The tokenizer of the ids in the sources, if they are decoded."""
    if source is None:
        return None if options.source_tokenizer is None else resolve(options.source_tokenizer)
    other = other_tokenizer(options, source, spec)
    return None if other is None else Vocabulary(other, read_vocabulary(source.folder, other))


def _boundaries_note(job: Job) -> str | None:
    """The note that the chat template alone writes the tokens around a conversation."""
    if (job.begin, job.end) != (None, None):
        return None
    return "no bos and no eot is added: the chat template writes the tokens around a conversation"


def template_note(job: Job, vocabulary: Vocabulary) -> str | None:
    """The note that `--template-special` has no effect. Raises UsageError if a template has to choose, and does not."""
    if job.chat is not None:
        refuse_inexact_cut(vocabulary, job.chat.marks)
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
