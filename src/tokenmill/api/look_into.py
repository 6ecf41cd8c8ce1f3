"""Look into files for `identify`: what they hold, and of which tokenizer their ids are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from tokenmill import storage
from tokenmill.api.identified import STORE, UNKNOWN, Identified, merge
from tokenmill.errors import SourceError, StoreError
from tokenmill.humanize import count
from tokenmill.sources import KINDS, UNREADABLE
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.foreign import unsupported
from tokenmill.sources.peek import IDS, Peek, peek
from tokenmill.storage import FileInfo
from tokenmill.store.job import read_run
from tokenmill.token_files.recognize import RAW, examine, open_tokens
from tokenmill.token_files.token_file import TokenFile
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.recognize import Candidate, IdSample, Recognition, Recognizer, candidates_of
from tokenmill.tokenization.round_trip import TokenCheck

# Of many files of a directory and a format, so many are looked into.
MAX_LOOKED = 8
NO_ROWS = "it has no rows"
# How much of a file is read: of a local one also from the middle and the end.
START_TOKENS, LATER_TOKENS = 1 << 20, 1 << 18
START_DOCUMENTS = 400
# No vocabulary has so many ids: a type that gives larger ones is not that of the file.
MAX_VOCABULARY = 1 << 20
# Rows of fewer tokens are documents that happen to have the same length.
MIN_ROW_TOKENS, MIN_ROWS = 16, 3


class Look:
    """Looks into files. The vocabularies are loaded when the first file with ids is met."""

    def __init__(self, named: Sequence[str]) -> None:
        self._named = named
        self._recognizer: Recognizer | None = None

    def alike(self, files: list[FileInfo], form: str) -> list[Identified]:
        """What the files of a directory and a format are. All are looked into if those that were chosen differ."""
        places = np.linspace(0, len(files) - 1, min(len(files), MAX_LOOKED)).astype(int)
        chosen = [files[place] for place in places.tolist()]
        merged = merge([self.one(file, form) for file in chosen])
        if len(chosen) < len(files) and len(merged) > 1:
            return merge([self.one(file, form) for file in files])
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
            if form in KINDS:
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
        sample = IdSample(rows, is_stream=is_stream, largest=max((int(row.max()) for row in rows), default=0))
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
        tried, errors = list[Identified](), list[SourceError]()
        for dtype in dtypes:
            try:
                tried.append(self._opened(file, form, dtype))
            except SourceError as error:  # an index is of another number of tokens
                errors.append(error)
        if not tried:
            raise errors[0]
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

    def _with_tokenizer(self, result: Identified, sample: IdSample, share: float) -> Identified:
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
    others = [each for each in tried if each.dtype not in (fitting[0], "uint64")]
    shown = [f"as {each.dtype} its largest id would be {each.largest:,}" for each in others]
    # A wider type fits hardly ever by chance; in a wider type, every second narrow value is 0.
    return fitting[:2] if file.size < START_TOKENS else fitting[:1], ", ".join(shown)


def _sample(opened: TokenFile, *, is_remote: bool) -> tuple[IdSample, float]:
    """Tokens of the start of a file, and of the middle and the end of a local one; and the share of all tokens."""
    total = opened.tokens
    if opened.documents is not None:
        starts = [0] if is_remote else sorted({0, opened.documents // 2, max(opened.documents - START_DOCUMENTS, 0)})
        documents = [ids for start in starts for ids in _documents(opened, start)]
        return IdSample(documents, largest=_largest(documents)), 0.0
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
    sample = IdSample(pieces, is_stream=True, at_start=not step, at_end=at_end, largest=_largest(pieces))
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
