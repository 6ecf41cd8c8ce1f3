"""From the words of a call to a job and its sources: names resolved, defaults filled in, contradictions refused."""

from __future__ import annotations

import importlib.metadata
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError
from tokenmill.humanize import parse_size
from tokenmill.pipeline import plan
from tokenmill.pipeline.position import DEFAULT_SECONDS
from tokenmill.sources import Discovery, discover
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.named_datasets import ResolvedSources
from tokenmill.storage import scheme
from tokenmill.store.job import Job
from tokenmill.tokenizers.resolve import Vocabulary, boundary_token, end_token, resolve
from tokenmill.tokenizers.tokenizer import EngineChoice, choose_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEFAULT_DOCUMENT_BYTES = 32 << 20
"""A longer document is not tokenized, unless --max-document-bytes allows it. A worker of 1 GB can hold such a one."""

VERSIONED = ("tokenmill", "pyarrow", "numpy", "gigatoken", "tiktoken", "tokenizers")


@dataclass(frozen=True, slots=True)
class PrepareOptions:
    """A call as it was made; None means that nothing was said."""

    sources: Sequence[str]
    tokenizer: str
    column: str = "text"
    separator: str | None = None
    engine: str = "auto"
    eot: str | int | None = None
    bos: str | int | None = None
    unit_bytes: str | int | None = None
    limit_units: int | None = None
    max_document_bytes: str | int | None = None

    def check(self) -> None:
        """Raise UsageError for what cannot be meant, whatever the sources and the tokenizer are."""
        if self.separator == "":
            raise UsageError("--separator is empty", "Give the text that stands between two documents.")
        if self.limit_units is not None and self.limit_units < 1:
            raise UsageError("--limit-units has to be at least 1")
        if self.unit_bytes is not None and parse_size(self.unit_bytes) == 0:
            raise UsageError("--unit-bytes has to be at least 1")
        if self.max_document_bytes is not None and parse_size(self.max_document_bytes) == 0:
            raise UsageError("--max-document-bytes has to be at least 1")


@dataclass(frozen=True, slots=True)
class BadDocumentPolicy:
    """What was said about documents that cannot be tokenized."""

    on_bad: str = "quarantine"
    max_bad: str | float = 0.001
    document_timeout: str | float = DEFAULT_SECONDS
    quarantine_text: bool = False

    def check(self) -> None:
        """Raise UsageError for what cannot be meant."""
        if self.on_bad not in ("quarantine", "fail"):
            raise UsageError(f"--on-bad is quarantine or fail, not {self.on_bad!r}")
        self.share()
        self.timeout_seconds()

    def share(self) -> float:
        """How many of the documents may be bad: 0.001, or 0.1%; none if a bad one is to end the run."""
        if self.on_bad == "fail":
            return 0.0
        text = str(self.max_bad).strip()
        share = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if not 0 <= share <= 1:
            raise UsageError(f"--max-bad {text} is not a share", "Give a share of the documents: 0.001, or 0.1%.")
        return share

    def timeout_seconds(self) -> float:
        """How long one document may take."""
        seconds = _number(str(self.document_timeout).strip().removesuffix("s"))
        if not 0 < seconds < math.inf:
            raise UsageError(f"--document-timeout {self.document_timeout} is not a time", "Give seconds: 600.")
        return seconds


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


@dataclass(frozen=True, slots=True)
class PrepareRequest:
    """A call that can be carried out."""

    job: Job
    vocabulary: Vocabulary
    discovery: Discovery
    choice: EngineChoice
    named: ResolvedSources
    unit_bytes_given: bool = False

    @property
    def options(self) -> ReadOptions:
        """How the sources are read."""
        return ReadOptions(self.job.column, self.job.separator)

    @property
    def source_bytes(self) -> int:
        """The size of all sources."""
        return total_bytes(self.discovery)


def total_bytes(discovery: Discovery) -> int:
    """The size of all sources."""
    return int(discovery.table["size"].to_numpy().sum())


def find_sources(
    words: PrepareOptions, pending: Callable[[str], None] = lambda _: None, out: str | None = None
) -> Discovery:
    """The sources a call names, without what is in its store at `out`; progress over a network is reported."""
    patterns = [words.sources] if isinstance(words.sources, str | os.PathLike) else list(words.sources)
    for address in patterns:
        if scheme(str(address)):
            pending(f"looking at   {address}")
    return discover(patterns, out=out)


def make_request(
    words: PrepareOptions,
    discovery: Discovery,
    vocabulary: Vocabulary | None = None,
    named: ResolvedSources | None = None,
) -> PrepareRequest:
    """Resolve the tokenizer, if that was not done before, and fill in what was not said."""
    words.check()
    vocabulary = vocabulary or resolve(words.tokenizer)
    spec = vocabulary.spec
    unit_bytes = parse_size(words.unit_bytes) if words.unit_bytes is not None else None
    job = Job(
        tokenizer=spec,
        column=words.column,
        separator=words.separator,
        begin=boundary_token(spec, "--bos", words.bos, None),
        end=end_token(spec, words.eot),
        unit_bytes=unit_bytes or plan.default_unit_bytes(total_bytes(discovery)),
        limit_units=words.limit_units,
        document_bytes=parse_size(words.max_document_bytes or DEFAULT_DOCUMENT_BYTES),
    )
    choice = choose_engine(vocabulary, words.engine)
    return PrepareRequest(job, vocabulary, discovery, choice, named or ResolvedSources([]), unit_bytes is not None)


def versions() -> dict[str, str]:
    """The versions of tokenmill and of what decides its output."""
    found = {}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
