"""The job, which decides the bytes of a store, and the run that applies it to sources: `run.json`, read and checked."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.chat.spec import EACH, Chat
from tokenmill.errors import USAGE, StoreError, UsageError
from tokenmill.humanize import count
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.text_columns import SKIP, parse_template, text_template
from tokenmill.sources.token_source import DOCUMENTS, ID_TYPE, OVERLAP, STREAM, StoreInput, TokenInput
from tokenmill.sources.where import parse_where
from tokenmill.storage import Folder, read_existing
from tokenmill.storage.digest import differences, digest_of, hash_of
from tokenmill.storage.local.listing import did_you_mean
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.layout import MAX_JSON_BYTES, RUN, TOKENIZER, damaged, errors_of, refuse_other_format
from tokenmill.tokenization.control_tokens import control_tokens, marked, marks_of
from tokenmill.tokenization.engines.ids import IDS, STORED
from tokenmill.tokenization.fim import CHARACTER, LINE
from tokenmill.tokenization.fim_tokens import PIECES
from tokenmill.tokenization.spec import TokenizerSpec

# What `--special` and `--template-special` can be.
TEXT, PARSE, REFUSE = "text", "parse", "refuse"

# The options of fill-in-the-middle that are not given.
DEFAULT_FIM_SPM, DEFAULT_FIM_SEED = 0.5, 1337

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
    keep: tuple[str, ...] = ()
    """Columns of the sources that are kept beside the parts."""

    deny: str = ""
    """The BLAKE3 of the list of rows that are left out; empty without a list."""

    where: str = ""
    """The filter on columns, in its canonical text; empty without a filter."""

    join: str | None = None
    """What stands between the strings of a list, if it was given."""

    template: str = ""
    """The columns and the text around them that make a document; empty without a template."""

    null: str = SKIP
    """What a null in a column of the template is: `"skip"` skips its row, `"empty"` makes it empty text."""

    special: str = TEXT
    """What the spelling of a special token in a column is: `"text"`, `"parse"` makes it the token, `"refuse"` makes its
    row bad."""

    template_special: str | None = None
    """The same for the text of the template, if it was given: `"parse"` or `"text"`."""

    dedup: str | None = None
    """The BLAKE3 of the list of duplicates, which are left out; empty before they are found. None if they are not
    looked for."""

    segments: str = ""
    """The column of lists of segments, of which a document is made; empty without one."""

    messages: str = ""
    tools: str = ""
    """The columns of messages and of tools, which `chat` renders; empty without them."""

    chat: Chat | None = None
    tokens: TokenInput | None = None
    """Where the ids of documents are, if the sources hold tokens."""

    source_tokenizer: TokenizerSpec | None = None
    """The tokenizer of these ids, if they are decoded and `tokenizer` encodes their text."""

    fim_rate: float | None = None
    """The fraction of documents that are rearranged for fill-in-the-middle; None without the option."""

    fim_spm: float = DEFAULT_FIM_SPM
    """The fraction of them that get the order SPM; the others get PSM."""

    fim_split: str = CHARACTER
    """Where they are cut: `"character"` or `"line"`."""

    fim_tokens: tuple[str, ...] = ()
    """The control tokens before prefix, suffix and middle."""

    fim_seed: int = DEFAULT_FIM_SEED
    """The key of the hashes that choose all of it."""

    prefix: str = ""
    """The template of the text before each document; empty without one."""

    prefix_rate: float = 1.0
    """The fraction of documents that get it."""

    min_tokens: int | None = None
    max_tokens: int | None = None
    """Documents with fewer or more tokens are left out."""

    @property
    def has_spans(self) -> bool:
        """Whether only some tokens of the documents are trained on."""
        return bool(self.segments or self.messages or (self.source_store is not None and self.source_store.has_spans))

    @property
    def has_ids(self) -> bool:
        """Whether the ids of the sources are the tokens of the documents."""
        return self.tokens is not None and self.source_tokenizer is None

    @property
    def ids_tokenizer(self) -> TokenizerSpec:
        """The tokenizer of the ids in the sources."""
        return self.source_tokenizer or self.tokenizer

    @property
    def stored_frame(self) -> tuple[int | None, int | None]:
        """The begin and the end token that documents of ids have when they are read: those of a store have theirs."""
        if self.tokens is None or self.tokens.store is None:
            return None, None
        return self.tokens.begin, self.tokens.end

    @property
    def ids_type(self) -> str:
        """The type of these ids while the sources are read."""
        return ID_TYPE if self.source_store is None else self.ids_tokenizer.dtype

    @property
    def tokenizers(self) -> tuple[TokenizerSpec, ...]:
        """The tokenizers whose vocabularies the store has."""
        return (self.tokenizer,) if self.source_tokenizer is None else (self.tokenizer, self.source_tokenizer)

    @property
    def source_store(self) -> StoreInput | None:
        """The store that is read in place of files; None if files are read."""
        return None if self.tokens is None else self.tokens.store

    @property
    def splits_rows(self) -> bool:
        """Whether a row may be several documents."""
        is_stream = self.tokens is not None and self.tokens.rows in (STREAM, OVERLAP)
        is_stream |= self.source_store is not None and self.source_store.splits_rows
        return is_stream or (self.chat is not None and self.chat.turns == EACH)

    @property
    def limits_tokens(self) -> bool:
        """Whether documents are left out because of their number of tokens."""
        return self.min_tokens is not None or self.max_tokens is not None

    def within_limits(self, lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whether documents with so many tokens, begin and end token included, are in the store."""
        tokens = lengths - (self.begin is not None) - (self.end is not None)
        is_within = np.ones(len(tokens), np.bool_)
        if self.min_tokens is not None:
            is_within &= tokens >= self.min_tokens
        if self.max_tokens is not None:
            is_within &= tokens <= self.max_tokens
        return is_within

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
        # What a tokenizer does not call special is a token in the text of a conversation for its reference, too.
        control = filter(None, self.tokenizer.special_tokens) if self.messages else control_tokens(self.tokenizer)
        refused = (*marks.values(), *(control if self.special == REFUSE else ()))
        return ReadOptions(
            column=self._content_column,
            tokens=self.tokens,
            segments=bool(self.segments),
            messages=bool(self.messages),
            tools=self.tools,
            separator=self.separator,
            where=self.where,
            join=self.join,
            template=template,
            null=self.null,
            refused=refused,
            prefix=self.prefix,
            **options,
        )

    @property
    def _content_column(self) -> str:
        """The column of what a document is made of."""
        return (self.tokens.column if self.tokens is not None else self.messages or self.segments) or self.column

    @property
    def encoder(self) -> TokenizerSpec:
        """The tokenizer, with what becomes of special tokens that documents spell. Ids are not encoded."""
        if self.has_ids:
            return msgspec.structs.replace(self.tokenizer, kind=IDS if self.source_store is None else STORED)
        ids = {mark: self.tokenizer.special_tokens[token] for token, mark in self._marks.items()}
        is_parsed = self.special == PARSE or (self.chat is not None and not self.chat.marks)
        return msgspec.structs.replace(self.tokenizer, parse_special=is_parsed, marks=ids)

    @property
    def _marks(self) -> dict[str, str]:
        """The marks of the template's special tokens, if they are parsed and those in the columns are not."""
        if self.chat is not None:
            return self.chat.marks
        if self.template_special != PARSE or self.special == PARSE or not self.template:
            return {}
        return marks_of(self.tokenizer, parse_template(self.template).literals)

    @property
    def text_columns(self) -> str:
        """The columns that hold the text, for a message."""
        return " and ".join(map(repr, text_template(self.read_options()).names))

    def identity(self) -> dict[str, str]:
        """The choices that decide the bytes, by the name of the option."""
        tokenizer = self.tokenizer
        given = {
            "--keep": ",".join(self.keep),
            "--deny": self.deny and f"blake3 {self.deny}",
            "--where": self.where,
            "--segments": self.segments,
            "--messages": self.messages,
            "--tools": self.tools,
            **({} if self.chat is None else _chat_identity(self.chat)),
            **({} if self.tokens is None else _tokens_identity(self.tokens)),
            "--source-tokenizer": self.source_tokenizer and f"sha256 {self.source_tokenizer.sha256}",
            "--join": "" if self.join is None else repr(self.join),
            "--template": self.template and repr(self.template),
            "--null": "" if self.null == SKIP else self.null,
            "--special": "" if self.special == TEXT else self.special,
            "--template-special": self.template_special,
            "--dedup": "" if self.dedup is None else f"exact, blake3 {self.dedup}" if self.dedup else "exact",
            "--prefix": self.prefix and repr(self.prefix),
            "--prefix-rate": "" if self.prefix_rate == 1 else repr(self.prefix_rate),
            "--min-tokens": "" if self.min_tokens is None else str(self.min_tokens),
            "--max-tokens": "" if self.max_tokens is None else str(self.max_tokens),
        }
        if self.fim_rate is not None:
            given |= {
                "--fim-rate": repr(self.fim_rate),
                "--fim-spm": repr(self.fim_spm),
                "--fim-split": self.fim_split,
                "--fim-tokens": ",".join(self.fim_tokens),
                "--fim-seed": str(self.fim_seed),
            }
        return {
            "tokenizer": f"sha256 {tokenizer.sha256}",
            "split pattern": tokenizer.pattern or "in the vocabulary",
            "--column": self.column,
            "--separator": repr(self.separator) if self.separator is not None else "none",
            "--bos": _token(self.begin),
            "--eot": _token(self.end),
            "--unit-bytes": str(self.unit_bytes),
            "--max-document-bytes": str(self.document_bytes),
            **{name: value for name, value in given.items() if value},
        }

    def digest(self) -> str:
        """BLAKE3 of the identity in canonical JSON."""
        return digest_of(self.identity())

    def differences(self, now: Job) -> list[tuple[str, str, str]]:
        """The choices that differ: (name, value in this job, value in the other)."""
        return differences(self.identity(), now.identity())


def _chat_identity(chat: Chat) -> dict[str, str]:
    constants, roles = (msgspec.json.encode(values, order="sorted").decode() for values in (chat.constants, chat.roles))
    return {
        "--chat-template": f"blake3 {hash_of(chat.template.encode())}",
        "--chat-set": constants,
        "--train": ",".join(chat.train),
        "--turns": chat.turns,
        "--prefilled": chat.prefilled,
        "--roles": roles if chat.roles else "",
    }


def _tokens_identity(tokens: TokenInput) -> dict[str, str]:
    return {
        "--tokens-column": tokens.column,
        "format of the sources": tokens.format,
        "type of their tokens": tokens.dtype,
        "--rows": "" if tokens.rows == DOCUMENTS else tokens.rows,
        "--source-bos": _token(tokens.begin),
        "--source-eot": _token(tokens.end),
        "place of the source's eot": "first" if tokens.end_first else "",
        "source store": "" if tokens.store is None else f"blake3 {tokens.store.digest}",
    }


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)


class Run(msgspec.Struct, frozen=True):
    """The frozen run: the job, totals, the checksums of plan and sources, and the engine and versions at the start.

    `units` are the first units of the plan, which has `planned_units`: fewer with --limit-units, until the run goes on
    with more. `text_bytes` is the text of these units. `token_check` counts the sampled documents of a source of tokens
    by what decoding and encoding gave.
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
    token_check: dict[str, int] = {}

    @property
    def trial(self) -> str | None:
        """What a store with --limit-units holds of its sources, in words. None if it holds all units."""
        return None if self.units == self.planned_units else f"the first {count(self.units, 'unit')} (--limit-units)"

    @property
    def erased_token(self) -> int:
        """The token that replaces the tokens of an erased document: the end token, or the best there is for it."""
        return next((token for token in (self.job.end, self.job.tokenizer.end_of_text) if token is not None), 0)


_HASH = re.compile("[0-9a-f]{64}")
_EXTENSIONS = {"tiktoken": "tiktoken", "huggingface": "json"}
"""The file extension of the vocabulary, by the kind of the tokenizer."""


def run_record(run: Run) -> dict[str, Any]:
    """The content of `run.json`: the run, and the checksum of it."""
    record: dict[str, Any] = msgspec.to_builtins(run)
    return {**record, "checksum": digest_of(record)}


def read_run(folder: Folder) -> Run | None:
    """Read and check the frozen run of a directory; None if the directory has no run. The tables are not read."""
    data = read_existing(folder, RUN, MAX_JSON_BYTES)
    if data is None:
        return None
    with errors_of(folder, RUN):
        refuse_other_format(folder, data, STORE_FORMAT, "Prepare it again.")
        content = _check_checksum(data)
        _refuse_unknown_options(folder, content.get("job"))
        run = decode(data, Run)
        _check_counts(run)
        _check_tokenizer(run.job)
        _check_options(run.job)
        _check_pieces(run.job)
        _check_files(run)
    return run


def require_run(folder: Folder) -> Run:
    """Read the frozen run of a directory. Raises StoreError if the directory has no run."""
    run = read_run(folder)
    if run is None:
        raise no_store(folder)
    return run


def no_store(folder: Folder) -> StoreError:
    """The error for a directory without a run."""
    if not folder.is_remote and not os.path.lexists(folder.root):
        return StoreError(f"no such store: {folder.root}", *did_you_mean(folder.root), exit_code=USAGE)
    return StoreError(
        f"{folder.root} is not a tokenmill store",
        f"There is no {RUN} in it. `tokenmill prepare SOURCE --tokenizer T --out DIR` makes one.",
        exit_code=USAGE,
    )


def read_vocabulary(folder: Folder, tokenizer: TokenizerSpec) -> bytes:
    """Read the vocabulary of a run and compare it with its BLAKE3."""
    name = f"{TOKENIZER}/{tokenizer.file}"
    with errors_of(folder, name):
        content = folder.read(name)
    if hashlib.sha256(content).hexdigest() != tokenizer.sha256:
        raise damaged(folder, name, f"it is not the vocabulary that {RUN} names")
    return content


def _check_checksum(data: bytes) -> dict[str, Any]:
    """Compare the content of `run.json` with its checksum, and return it."""
    content = decode(data, dict[str, Any])
    if content.pop("checksum", None) != digest_of(content):
        raise MalformedDataError("it is not as it was written")
    return content


def _refuse_unknown_options(folder: Folder, job: Any) -> None:
    """Refuse a job with options that came after this version: their documents would be read as if they had none."""
    unknown = sorted(job.keys() - set(Job.__struct_fields__)) if isinstance(job, dict) else []
    if unknown:
        raise StoreError(
            f"{folder.root} was made by a newer tokenmill, with options that this one does not know",
            f"options      {', '.join(unknown)[:200]}",
        )


def _check_counts(run: Run) -> None:
    job = run.job
    counts = [run.units, run.planned_units - run.units, run.planned_units, run.sources, run.source_bytes]
    counts += [run.text_bytes, job.unit_bytes, job.document_bytes]
    counts += [limit for limit in (job.min_tokens, job.max_tokens) if limit is not None]
    if not 0 <= min(counts) <= max(counts) < 1 << 62:
        raise MalformedDataError("it has negative or impossible counts")


def _check_tokenizer(job: Job) -> None:
    """Refuse tokenizers that are not valid, and tokens outside their vocabularies."""
    _check_spec(job.tokenizer, job.begin, job.end)
    if job.tokens is not None:
        _check_spec(job.ids_tokenizer, job.tokens.begin, job.tokens.end)


def _check_spec(tokenizer: TokenizerSpec, *framing: int | None) -> None:
    """Refuse an unknown kind, an impossible size, a file not named by its hash, or a token outside the vocabulary."""
    if tokenizer.kind not in _EXTENSIONS or not 0 < tokenizer.vocabulary_size <= 1 << 32:
        raise MalformedDataError(
            f"there is no vocabulary of {tokenizer.vocabulary_size} ids and of kind {tokenizer.kind[:20]!r}"
        )
    expected = f"{tokenizer.sha256}.{_EXTENSIONS[tokenizer.kind]}"
    if not _HASH.fullmatch(tokenizer.sha256) or tokenizer.file != expected:
        raise MalformedDataError(f"the vocabulary has the name {tokenizer.file[:100]!r}")
    if not re.fullmatch("([0-9a-f]{40})?", tokenizer.commit or "") or not (tokenizer.source or "").isprintable():
        raise MalformedDataError(f"the commit of the tokenizer is {str(tokenizer.commit)[:40]!r}")
    tokens = [tokenizer.end_of_text, *framing]
    tokens += [*tokenizer.special_tokens.values(), *tokenizer.plain_tokens.values()]
    if any(token is not None and not 0 <= token < tokenizer.vocabulary_size for token in tokens):
        raise MalformedDataError(f"a token is not among the {tokenizer.vocabulary_size} ids")


def _check_options(job: Job) -> None:
    """Refuse a filter or a template that cannot be parsed, and names of kept columns that are not valid."""
    try:
        if job.where:
            parse_where(job.where)
        if job.template:
            parse_template(job.template)
        if job.prefix:
            parse_template(job.prefix)
        _ = job.encoder
    except UsageError as error:
        raise MalformedDataError(error.headline) from error
    if job.special not in (TEXT, PARSE, REFUSE) or job.template_special not in (None, TEXT, PARSE):
        raise MalformedDataError("its special or template_special is unknown")
    if bool(job.messages) != (job.chat is not None):
        raise MalformedDataError("it has messages without a chat template, or the other way round")
    if len(set(job.keep)) < len(job.keep) or not all(job.keep):
        raise MalformedDataError("a kept column has no name, or is listed twice")


def _check_pieces(job: Job) -> None:
    """Refuse control tokens and fractions that are not possible."""
    if job.fim_rate is not None:
        is_known = len(job.fim_tokens) == len(PIECES) and set(job.fim_tokens) <= set(job.tokenizer.added_tokens)
        if not is_known or job.fim_split not in {CHARACTER, LINE}:
            raise MalformedDataError(
                "its fim_tokens are not three tokens of the vocabulary, or its fim_split is unknown"
            )
    if not all(0 <= rate <= 1 for rate in (job.fim_rate or 0, job.fim_spm, job.prefix_rate)):
        raise MalformedDataError("its fim_rate, fim_spm or prefix_rate is not a fraction")


def _check_files(run: Run) -> None:
    """Refuse a hash that cannot be part of the name of a file."""
    lists = [*([run.job.deny] if run.job.deny else []), *([] if run.job.dedup is None else [run.job.dedup])]
    for blake3 in (run.plan_blake3, run.sources_blake3, *lists):
        if not _HASH.fullmatch(blake3):
            raise MalformedDataError(f"a file has the hash {blake3[:100]!r}")
