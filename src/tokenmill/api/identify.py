"""`identify`: what files are: format, type, tokens, documents, begin and end tokens, and the tokenizer that fits."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
import numpy as np

from tokenmill import storage
from tokenmill.api.parameters import path_texts
from tokenmill.errors import USAGE, SourceError, StoreError, TokenmillError
from tokenmill.humanize import Readable, count
from tokenmill.options import StrPath
from tokenmill.sources import UNREADABLE, StoreGuard, kind_of
from tokenmill.sources.discovery import EXPLICIT_EXTENSIONS, natural_key
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.foreign import unsupported
from tokenmill.sources.peek import IDS, MESSAGES, SEGMENTS, Peek, peek
from tokenmill.storage import FileInfo
from tokenmill.store.job import read_run
from tokenmill.system.arguments import checked
from tokenmill.token_files.recognize import EXTENSIONS, RAW, START_BYTES, examine, open_tokens, recognize
from tokenmill.token_files.token_file import TokenFile
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.recognize import Candidate, Recognition, Recognizer, Sample, candidates_of
from tokenmill.tokenization.round_trip import TokenCheck

STORE, UNKNOWN = "store", "unknown"
# Of many files of a directory and a format, so many are looked into.
MAX_LOOKED = 8
# A command names so many files if no glob stands for them.
MAX_NAMED = 3
NO_ROWS = "it has no rows"
# How much of a file is read: of a local one also from the middle and the end.
START_TOKENS, LATER_TOKENS = 1 << 20, 1 << 18
START_DOCUMENTS = 400
# No vocabulary has so many ids: a type that gives larger ones is not that of the file.
MAX_VOCABULARY = 1 << 20
# Rows of fewer tokens are documents that happen to have the same length.
MIN_ROW_TOKENS, MIN_ROWS = 16, 3


class Identified(Readable, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What some files are that are alike.

    Attributes:
        files: Their paths.
        format: A kind of source, a format of token files, `store`, or `unknown`.
        bytes: Their size.
        looked: The number of files that were looked into.
        dtype: The type of the tokens.
        dtype_evidence: Why it is that type, if the files do not state it.
        tokens: All tokens.
        documents: All documents.
        rows: The rows of files that have columns.
        estimated: Which of these numbers were estimated from the start of the files.
        row_tokens: The length of rows that have one length.
        rows_are: What such rows are: `documents`, `stream` or `overlap`.
        columns: What each column holds.
        column: The column that is probably meant.
        holds: What the files hold: `text`, `messages`, `segments` or `ids`.
        begin: The token that begins documents.
        end: The token that ends documents, or stands between them.
        end_first: Whether the end token stands before each document; None if that is not known.
        names: The spelling of begin and end token.
        tokenizers: The tokenizers that fit, best first, with the shares of documents.
        others: The others that were tried.
        is_sure: Whether only the first tokenizer fits.
        evidence: What is missing to tell those that fit from each other.
        notes: What is remarkable.
        problem: Why the files cannot be read.
        next: The next command.
    """

    files: list[str]
    format: str
    bytes: int
    looked: int = 1
    dtype: str = ""
    dtype_evidence: str = ""
    tokens: int | None = None
    documents: int | None = None
    rows: int | None = None
    estimated: list[str] = []
    row_tokens: int | None = None
    rows_are: str = ""
    columns: dict[str, str] = {}
    column: str = ""
    holds: str = ""
    begin: int | None = None
    end: int | None = None
    end_first: bool | None = None
    names: dict[str, str] = {}
    tokenizers: list[TokenCheck] = []
    others: list[TokenCheck] = []
    is_sure: bool = False
    evidence: list[str] = []
    notes: list[str] = []
    problem: str = ""
    next: str = ""


@checked
def identify(
    files: StrPath | Sequence[StrPath], *, tokenizer: StrPath | Sequence[StrPath] | None = None
) -> list[Identified]:
    """Say what files are: format, tokens, documents, begin and end tokens, and which tokenizer they are of.

    Files that are alike are one entry. Only the start of a remote file is read.

    Args:
        files: Files, directories, globs or stores.
        tokenizer: Tokenizers to try first. Those on this machine are tried, too.
    """
    patterns = path_texts(files)
    named = path_texts([] if tokenizer is None else tokenizer)
    by_path = {file.path: (file, form) for file, form in _entries(patterns)}
    entries = sorted(by_path.values(), key=_place)
    if not entries:
        raise SourceError(
            "there is no file to identify", *(f"given        {each}" for each in patterns), exit_code=USAGE
        )
    look = _Look(named)
    results: list[Identified] = []
    for (_, form), group in itertools.groupby(entries, lambda each: _place(each)[:2]):
        members = [file for file, _ in group]
        results += look.alike(members, form)
    if all(result.format == UNKNOWN for result in results):
        first = results[0]
        raise SourceError(
            "no file could be identified", f"file         {first.files[0]}", first.problem, exit_code=USAGE
        )
    paths = [path for result in results for path in result.files]
    return [msgspec.structs.replace(result, next=_next(result, named, paths)) for result in results]


def _place(entry: tuple[FileInfo, str]) -> tuple[str, str, tuple[str, str]]:
    """The order of files: by directory and format. Those are looked at together."""
    file, form = entry
    return os.path.dirname(file.path), form, natural_key(file.path)


def _entries(patterns: Sequence[str]) -> Iterator[tuple[FileInfo, str]]:
    """The files that are named, each with its format or kind. Files that belong to another one are left out."""
    for pattern in patterns:
        listing = storage.find(pattern, StoreGuard())
        yield from ((FileInfo(path, 0, ""), STORE) for path in listing.skipped)
        names = {file.path for file in listing.files}
        found = [(file, _format(file, names, is_named=listing.is_named)) for file in listing.files]
        yield from ((file, form) for file, form in found if form is not None)


def _format(file: FileInfo, names: set[str], *, is_named: bool) -> str | None:
    """The format or the kind of a file; None for a file that says something about another one."""
    directory, name = os.path.split(file.path)
    if name.lower().endswith(EXTENSIONS):
        stem = os.path.splitext(name)[0]
        companions = ("index.json", f"{name}.index", f"{stem}.idx", f"{stem}.csv.gz")
        beside = {each for each in companions if f"{directory}/{each}" in names or _exists(f"{directory}/{each}")}
        try:
            return recognize(file.path, storage.read_start(file, START_BYTES), beside) or UNKNOWN
        except SourceError:
            return UNKNOWN
    kind = kind_of(file.path)
    if kind is None and is_named and not name.endswith((".idx", ".csv.gz", ".index")):
        endings = (kind for ending, kind in EXPLICIT_EXTENSIONS.items() if name.lower().endswith(ending))
        kind = next(endings, UNKNOWN)
    return kind


def _exists(path: str) -> bool:
    with suppress(TokenmillError):
        return storage.stat(path) is not None
    return False


class _Look:
    """Looks into files. The vocabularies are loaded when the first file with ids is met."""

    def __init__(self, named: Sequence[str]) -> None:
        self._named = named
        self._recognizer: Recognizer | None = None

    def alike(self, files: list[FileInfo], form: str) -> list[Identified]:
        """What the files of a directory and a format are. All are looked into if those that were chosen differ."""
        places = np.linspace(0, len(files) - 1, min(len(files), MAX_LOOKED)).astype(int)
        chosen = [files[place] for place in places.tolist()]
        merged = _merge([self.one(file, form) for file in chosen])
        if len(chosen) < len(files) and len(merged) > 1:
            return _merge([self.one(file, form) for file in files])
        left = [file for file in files if file not in chosen]
        if not left:
            return merged
        (only,) = merged
        more = 1 + sum(file.size for file in left) / max(only.bytes, 1)
        numbers = {name: getattr(only, name) for name in ("tokens", "documents", "rows")}
        return [
            msgspec.structs.replace(
                only,
                files=[file.path for file in files],
                bytes=sum(file.size for file in files),
                estimated=[name for name, number in numbers.items() if number is not None],
                **{name: None if number is None else round(number * more) for name, number in numbers.items()},
            )
        ]

    def one(self, file: FileInfo, form: str) -> Identified:
        """What one file is."""
        try:
            if form == STORE:
                return _store(file.path)
            if form == UNKNOWN:
                raise unsupported(file.path, [])
            if form in ("parquet", "arrow", "jsonl", "csv", "text"):
                return self._source(SourceFile(0, file.path, form, file.size, file.fingerprint))
            return self._token_file(file, form)
        except (SourceError, StoreError) as error:
            reasons = [line.split(maxsplit=1)[1] for line in error.details if line.startswith(("reason ", "found "))]
            problem = "; ".join([error.headline, *reasons])
        except UNREADABLE as error:
            problem = str(error)
        return Identified(files=[file.path], format=UNKNOWN, bytes=file.size, problem=problem)

    def _source(self, file: SourceFile) -> Identified:
        held = peek(file)
        column = held.column or ""
        ids = [name for name, kind in held.columns.items() if kind == IDS and name != column]
        notes = [f"the column {name!r} holds token ids: --tokens-column {name}" for name in ids]
        result = Identified(
            files=[file.path],
            format=file.kind,
            bytes=file.size,
            rows=held.rows,
            estimated=["rows"] if held.is_estimate else [],
            columns=held.columns,
            column=column,
            holds="text" if file.kind == "text" else held.columns.get(column, ""),
            notes=[NO_ROWS] if held.rows == 0 else notes,
        )
        return (
            self._ids(msgspec.structs.replace(result, notes=[]), held) if result.holds == IDS and held.rows else result
        )

    def _ids(self, result: Identified, held: Peek) -> Identified:
        """What a column of ids holds."""
        rows = [row for row in held.documents(result.column) if len(row)]
        length, rows_are = _rows_of(rows)
        ends_all = length is not None and len({int(row[-1]) for row in rows}) == 1
        is_stream = rows_are == "overlap" or (length is not None and not ends_all)
        sample = Sample(rows, is_stream=is_stream, largest=max((int(row.max()) for row in rows), default=0))
        mean = sum(map(len, rows)) / max(len(rows), 1)
        result = msgspec.structs.replace(
            result,
            tokens=None if held.rows is None else round(held.rows * mean),
            documents=None if is_stream else held.rows,
            estimated=[*result.estimated, "tokens", *(result.estimated and ["documents"])],
            row_tokens=length,
            rows_are=rows_are if is_stream else "",
        )
        return self._with_tokenizer(result, sample, share=0.0)

    def _token_file(self, file: FileInfo, form: str) -> Identified:
        dtypes, evidence = _dtypes(file) if form in (RAW, "olmo") else ([""], "")
        tried = [self._opened(file, form, dtype) for dtype in dtypes]
        best = max(tried, key=lambda each: each.tokenizers[0].equal_share if each.tokenizers else 0.0)
        return msgspec.structs.replace(best, dtype_evidence=evidence)

    def _opened(self, file: FileInfo, form: str, dtype: str) -> Identified:
        opened = open_tokens(file, form, dtype)
        sample, share = _sample(opened, is_remote=bool(storage.scheme(file.path)))
        result = Identified(
            files=[file.path],
            format=form,
            bytes=file.size,
            dtype=opened.dtype,
            tokens=opened.tokens,
            documents=opened.documents,
            row_tokens=opened.row_tokens,
            rows_are="stream" if opened.row_tokens else "",
            holds=IDS,
        )
        return self._with_tokenizer(result, sample, share)

    def _with_tokenizer(self, result: Identified, sample: Sample, share: float) -> Identified:
        """The same with the tokenizers that fit. `share` is that of the tokens in the sample, or 0."""
        if not any(map(len, sample.pieces)):
            return msgspec.structs.replace(result, notes=[*result.notes, "it has no tokens"])
        if self._recognizer is None:
            self._recognizer = Recognizer(*candidates_of(self._named))
        found = self._recognizer.recognize(sample)
        best = found.likely[0] if found.likely else None
        if best is None:
            notes = [f"its largest id is {sample.largest:,}"]
            notes += ["nothing but its name says that it holds tokens"] if result.format == RAW else []
            return msgspec.structs.replace(result, others=_checks(found.others), notes=[*result.notes, *notes])
        frame, spec = best.frame, best.vocabulary.spec
        documents, estimated = result.documents, result.estimated
        if documents is None and share and frame.end is not None:
            documents = round(frame.documents / share)
            estimated = [*estimated, *(["documents"] if share < 1 else [])]
        edges = {"begin": frame.begin, "end": frame.end}
        return msgspec.structs.replace(
            result,
            documents=documents,
            estimated=estimated,
            begin=frame.begin,
            end=frame.end,
            end_first=frame.is_first,
            names={name: spec.spelling(token) or "" for name, token in edges.items() if token is not None},
            tokenizers=_checks(found.likely),
            others=_checks(found.others),
            is_sure=found.is_sure,
            evidence=found.evidence,
            notes=[*result.notes, *_notes(result, found)],
        )


def _checks(candidates: Sequence[Candidate]) -> list[TokenCheck]:
    return [msgspec.structs.replace(each.check, tokenizer=each.names[0]) for each in candidates]


def _notes(result: Identified, found: Recognition) -> list[str]:
    """What is remarkable about the tokens."""
    best = found.likely[0]
    notes = []
    if best.frame.end is None and best.frame.begin is None:
        notes.append("no control token stands before, after or between documents")
    elif best.frame.end is not None and best.frame.is_first is None and not result.rows_are:
        notes.append("the file begins and ends within a document: the end token may stand before or after each")
    if best.check.equal_share < 1:
        differing = [line for line in best.check.lines() if not line.startswith("equal")]
        notes += [" ".join(line.split()) for line in differing]
    return notes


def _rows_of(rows: Sequence[Tokens]) -> tuple[int | None, str]:
    """The length of rows of one length, the last one aside, and whether they overlap by one token."""
    lengths = {len(row) for row in rows[:-1]}
    if len(rows) < MIN_ROWS or len(lengths) != 1 or min(lengths) < MIN_ROW_TOKENS:
        return None, ""
    overlaps = all(one[-1] == other[0] for one, other in itertools.pairwise(rows))
    return lengths.pop(), "overlap" if overlaps else "stream"


def _dtypes(file: FileInfo) -> tuple[list[str], str]:
    """The types that the tokens of a raw file may have, the most probable first, and why."""
    if not file.size:
        raise SourceError(f"{file.path} is empty")
    tried = [each for each in examine(file, 0, MAX_VOCABULARY, None) if file.size % np.dtype(each.dtype).itemsize == 0]
    fitting = [each.dtype for each in tried if each.largest < MAX_VOCABULARY]
    if not fitting:
        raise SourceError(
            f"{file.path} holds no tokens", *(f"{each.dtype:<13}largest id {each.largest:,}" for each in tried)
        )
    shown = [f"as {each.dtype} its largest id would be {each.largest:,}" for each in tried if each.dtype != fitting[0]]
    # A wider type fits hardly ever by chance; in a wider type, every second narrow value is 0.
    return fitting[:2] if file.size < START_TOKENS else fitting[:1], ", ".join(shown)


def _sample(opened: TokenFile, *, is_remote: bool) -> tuple[Sample, float]:
    """Tokens of the start of a file, and of the middle and the end of a local one; and the share of all tokens."""
    total = opened.tokens
    if opened.documents is not None:
        starts = [0] if is_remote else sorted({0, opened.documents // 2, max(opened.documents - START_DOCUMENTS, 0)})
        documents = [ids for start in starts for ids in _documents(opened, start)]
        return Sample(documents, largest=_largest(documents)), 0.0
    ranges = [(0, min(START_TOKENS, total))]
    if not is_remote and total > START_TOKENS:
        middle = total // 2
        ranges += [(middle, min(middle + LATER_TOKENS, total)), (max(total - LATER_TOKENS, 0), total)]
    step = opened.row_tokens
    if step:
        ranges = [
            (at, at + step) for start, stop in ranges for at in range(start // step * step, stop - step + 1, step)
        ]
    pieces = [opened.read(start, stop).astype(np.uint32) for start, stop in ranges]
    at_end = bool(ranges) and ranges[-1][1] == total and not step
    sample = Sample(pieces, is_stream=True, at_start=not step, at_end=at_end, largest=_largest(pieces))
    return sample, sum(map(len, pieces)) / max(total, 1)


def _documents(opened: TokenFile, start: int) -> Iterator[Tokens]:
    """Some documents of a file with an index."""
    stop = min(start + START_DOCUMENTS, opened.documents or 0)
    edges = opened.edges(start, stop)
    stop_token = min(int(edges[-1]), int(edges[0]) + START_TOKENS)
    tokens = opened.read(int(edges[0]), stop_token).astype(np.uint32)
    for one, other in itertools.pairwise((edges - edges[0]).tolist()):
        if other <= len(tokens):
            yield tokens[one:other]


def _largest(pieces: Sequence[Tokens]) -> int:
    return max((int(ids.max()) for ids in pieces if len(ids)), default=0)


def _store(path: str) -> Identified:
    run = read_run(storage.folder_at(path))
    if run is None:
        raise StoreError(f"{path} is no store")
    job = run.job
    columns = {"messages": job.messages, "segments": job.segments}
    given = next(((name, column) for name, column in columns.items() if column), ("text", job.column))
    return Identified(
        files=[path],
        format=STORE,
        bytes=run.source_bytes,
        dtype=job.tokenizer.dtype,
        holds=IDS,
        begin=job.begin,
        end=job.end,
        end_first=False if job.end is not None else None,
        names={
            name: job.tokenizer.spelling(token) or ""
            for name, token in (("begin", job.begin), ("end", job.end))
            if token is not None
        },
        tokenizers=[TokenCheck(job.tokenizer.name, 0, 0, 0, 0, 0)],
        is_sure=True,
        notes=[f"made of {count(run.sources, 'file')}: {given[0]} of the column {given[1]!r}"],
    )


def _merge(found: list[Identified]) -> list[Identified]:
    """Files that are alike as one entry, with the sum of their numbers."""
    merged: list[Identified] = []
    for each in found:
        index = next((index for index, other in enumerate(merged) if _are_alike(each, other)), None)
        if index is None:
            merged.append(each)
        else:
            merged[index] = _joined(merged[index], each)
    return merged


def _are_alike(one: Identified, other: Identified) -> bool:
    """Whether two files differ in nothing but their names, sizes and counts."""
    if one.format in (UNKNOWN, STORE):
        return False
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("format", "dtype", "column", "holds", "columns", "row_tokens", "rows_are", "begin", "end")
    )
    names = [{check.tokenizer for check in each.tokenizers} for each in (one, other)]
    is_same_place = one.end_first == other.end_first or None in (one.end_first, other.end_first)
    return same and is_same_place and (names[0] == names[1] or bool(names[0] & names[1]))


def _joined(one: Identified, other: Identified) -> Identified:
    """One entry for two. What one file tells apart holds for both."""
    checks = {check.tokenizer: check for check in other.tokenizers}
    both = [_added(check, checks[check.tokenizer]) for check in one.tokenizers if check.tokenizer in checks]
    clearer = one if len(one.tokenizers) <= len(other.tokenizers) else other
    sums = {
        name: None if None in (values := (getattr(one, name), getattr(other, name))) else sum(values)
        for name in ("tokens", "documents", "rows")
    }
    return msgspec.structs.replace(
        clearer,
        files=[*one.files, *other.files],
        bytes=one.bytes + other.bytes,
        looked=one.looked + other.looked,
        estimated=list(dict.fromkeys([*one.estimated, *other.estimated])),
        end_first=one.end_first if other.end_first is None else other.end_first,
        tokenizers=both,
        is_sure=one.is_sure or other.is_sure,
        notes=[note for note in one.notes if note in other.notes],
        **sums,
    )


def _added(one: TokenCheck, other: TokenCheck) -> TokenCheck:
    """The shares over the documents of both."""
    names = ("documents", "equal", "differs", "not_utf8", "outside")
    return msgspec.structs.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})


def _next(result: Identified, named: Sequence[str], paths: Sequence[str]) -> str:
    """The next command. `paths` are all files that were identified."""
    if result.format == UNKNOWN or NO_ROWS in result.notes:
        return ""
    files = _pattern(result.files, paths)
    if result.format == STORE:
        return f"tokenmill inspect {files}"
    column = shlex.quote(result.column)
    if result.holds == MESSAGES:
        return f"tokenmill prepare {files} --messages {column} --tokenizer Qwen/Qwen3-8B --out tokens"
    if result.holds != IDS:
        option = "--segments" if result.holds == SEGMENTS else "--column"
        chosen = f" {option} {column}" if result.column not in ("", "text") else ""
        return f"tokenmill prepare {files}{chosen} --tokenizer gpt2 --out tokens"
    if not result.tokenizers:
        return f"tokenmill identify {files} --tokenizer ORG/MODEL"
    names = [check.tokenizer for check in result.tokenizers]
    tokenizer = next((name for name in named if name in names), names[0])
    options = [f"--tokens-column {column}"] if result.column else []
    options += [f"--rows {result.rows_are}"] if result.rows_are else []
    return " ".join(["tokenmill prepare", files, *options, f"--tokenizer {shlex.quote(tokenizer)}", "--out tokens"])


def _pattern(files: Sequence[str], paths: Sequence[str]) -> str:
    """Files as arguments of a command: a glob for several, if it matches no other one of `paths`."""
    first, last = min(files), max(files)
    before = os.path.commonprefix([first, last])  # noqa: RUF071 - of names, not of directories
    after = os.path.commonprefix([path[len(before) :][::-1] for path in files])[::-1]  # noqa: RUF071 - as above
    matching = [path for path in paths if path.startswith(before) and path.endswith(after)]
    if len(files) > 1 and len(matching) == len(files):
        return shlex.quote(f"{before}*{after}")
    return " ".join([*map(shlex.quote, files[:MAX_NAMED]), *(["..."] if len(files) > MAX_NAMED else [])])
