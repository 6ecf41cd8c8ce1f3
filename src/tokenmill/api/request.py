"""From the words of a call to a job and its sources: names resolved, defaults filled in, contradictions refused."""

from __future__ import annotations

import importlib.metadata
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill import machine, planning
from tokenmill.api.naming import Named
from tokenmill.errors import UsageError
from tokenmill.job import Job, parse_size
from tokenmill.places import USUAL_SECONDS
from tokenmill.sources import Discovery, discover
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import scheme
from tokenmill.tokenizers.tokenizer import Choice, choose_engine
from tokenmill.tokenizers.vocabulary import Vocabulary, boundary_token, end_token, resolve
from tokenmill.work import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

OWN_BYTES = 300 << 20
"""What the calling process and the nursery need for themselves."""

WORKER_SHARE_USED = 0.8
"""How much of its share a worker may hold between batches; a batch needs the rest."""

SMALLEST_WORKER_BYTES = 450 << 20
"""What a worker needs to do anything: its libraries, an engine, a batch."""

DOCUMENT_COPIES = 5
"""How many times its size a document takes at most on its way from a source to a part."""

VERSIONED = ("tokenmill", "pyarrow", "numpy", "gigatoken", "tiktoken", "tokenizers")


@dataclass(frozen=True, slots=True)
class Words:
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


@dataclass(frozen=True, slots=True)
class BadWords:
    """What was said about documents that cannot be tokenized."""

    on_bad: str = "quarantine"
    max_bad: str | float = 0.001
    document_timeout: str | float = USUAL_SECONDS
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
class Request:
    """A call that can be carried out."""

    job: Job
    vocabulary: Vocabulary
    discovery: Discovery
    choice: Choice
    named: Named

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


def find_sources(words: Words, pending: Callable[[str], None] = lambda _: None) -> Discovery:
    """The sources a call names; where that takes a network, it is told."""
    patterns = [words.sources] if isinstance(words.sources, str | os.PathLike) else list(words.sources)
    for address in patterns:
        if scheme(str(address)):
            pending(f"looking at   {address}")
    return discover(patterns)


def make_request(
    words: Words, discovery: Discovery, vocabulary: Vocabulary | None = None, named: Named | None = None
) -> Request:
    """Resolve the tokenizer, if that was not done before, and fill in what was not said."""
    vocabulary = vocabulary or resolve(words.tokenizer)
    spec = vocabulary.spec
    if words.separator == "":
        raise UsageError("--separator is empty", "Give the text that stands between two documents.")
    if words.limit_units is not None and words.limit_units < 1:
        raise UsageError("--limit-units has to be at least 1")
    unit_bytes = parse_size(words.unit_bytes) if words.unit_bytes is not None else None
    if unit_bytes == 0:
        raise UsageError("--unit-bytes has to be at least 1")
    job = Job(
        tokenizer=spec,
        column=words.column,
        separator=words.separator,
        begin=boundary_token(spec, "--bos", words.bos, None),
        end=end_token(spec, words.eot),
        unit_bytes=unit_bytes or planning.default_unit_bytes(total_bytes(discovery)),
        limit_units=words.limit_units,
    )
    return Request(job, vocabulary, discovery, choose_engine(vocabulary, words.engine), named or Named([]))


@dataclass(frozen=True, slots=True)
class Means:
    """The processes and the memory a run may use; `worker_bytes` is what each may hold between two batches.

    All workers together may hold `crew_bytes`, also within a batch.
    """

    workers: int
    worker_bytes: int
    crew_bytes: int
    memory_bytes: int
    notice: str | None = None

    def limits(self, words: BadWords | None = None) -> Limits:
        """What each worker is told: strict about bad rows if nothing else is said."""
        document_bytes = self.crew_bytes // DOCUMENT_COPIES
        if words is None:
            return Limits(self.worker_bytes, document_bytes)
        return Limits(self.worker_bytes, document_bytes, words.timeout_seconds(), words.on_bad, words.quarantine_text)


def choose_means(
    workers: int | None,
    memory: str | int | None,
    most_workers: int,
    smallest_worker_bytes: int = SMALLEST_WORKER_BYTES,
) -> Means:
    """One worker per core, no more than there is work for, and no more than fit into the memory budget."""
    budget = parse_size(memory) if memory is not None else machine.default_memory_budget()
    if workers is not None and workers < 1:
        raise UsageError("--workers has to be at least 1")
    wanted = min(workers if workers is not None else machine.cores(), max(most_workers, 1))
    fitting = max(1, (budget - OWN_BYTES) // smallest_worker_bytes)
    count = min(wanted, fitting)
    notice = None
    if count < wanted:
        notice = f"{count} of {wanted} workers: --memory {budget / 1e9:.1f} GB has no room for more"
    elif budget > machine.memory_bytes():
        notice = f"--memory is more than the {machine.memory_bytes() / 1e9:.1f} GB there are"
    crew_bytes = max(budget - OWN_BYTES, count * smallest_worker_bytes)
    return Means(count, int(crew_bytes // count * WORKER_SHARE_USED), crew_bytes, budget, notice)


def versions() -> dict[str, str]:
    """The versions of tokenmill and of what decides its output."""
    found = {}
    for name in VERSIONED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
