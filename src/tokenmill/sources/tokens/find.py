"""What files of tokens are: their format, the type of their tokens, and which token divides documents."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError, UsageError
from tokenmill.sources.discovery import files_between, splits_of
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.token_source import DOCUMENTS, OVERLAP, STREAM, TO_BE_FOUND, TokenInput
from tokenmill.sources.tokens.joins import stands_first
from tokenmill.token_files import FORMATS
from tokenmill.token_files.recognize import START_BYTES, choose_dtype, open_tokens, recognize
from tokenmill.token_files.token_file import TokenFile, TypeNotStated

# The kinds of files of tokens: with documents between end tokens, and with an index.
DELIMITED, INDEXED = "tokens", "indexed-tokens"
# The tokens of a file in which the end token is looked for.
SAMPLE_TOKENS = 1 << 20


def are_token_files(sources: pa.Table) -> bool:
    """Whether the sources are files of tokens. Raises SourceError if only some of them are."""
    kinds = sources["kind"].cast(pa.string()).to_pylist()
    is_tokens = [kind in (DELIMITED, INDEXED) for kind in kinds]
    if any(is_tokens) and not all(is_tokens):
        paths = sources["path"].to_pylist()
        raise SourceError(
            "some sources are files of tokens and others are text",
            f"tokens       {paths[is_tokens.index(True)]}",
            f"text         {paths[is_tokens.index(False)]}",
            "Make a store of each, and export them together.",
        )
    return any(is_tokens)


def find_tokens(
    sources: pa.Table, source: TokenInput, vocabulary: int, control: Sequence[int]
) -> tuple[pa.Table, TokenInput, list[str]]:
    """The sources with their kinds, how they hold tokens, and notes.

    If documents are divided by an end token that is TO_BE_FOUND, it is the control token that occurs most often, and of
    about equally frequent ones the first.
    """
    files = files_between(sources, 0, len(sources))
    with storage.Threads(8) as pool:  # mostly waiting
        formats = list(pool.map(_format_of, files))
    for file, name in zip(files, formats, strict=True):
        if name != formats[0]:
            raise SourceError(
                "the sources are files of tokens in several formats",
                f"{formats[0]:<13}{files[0].path}",
                f"{name:<13}{file.path}",
                "Make a store of each, and export them together.",
            )
    known_end = None if source.end == TO_BE_FOUND else source.end
    tokens, notes = _first_tokens(files, formats[0], source.dtype, vocabulary, known_end)
    is_stream = source.rows in {STREAM, OVERLAP}
    source = _with_rows(tokens, msgspec.structs.replace(source, format=formats[0], dtype=tokens.dtype))
    is_indexed = not is_stream and (tokens.documents is not None or source.row_tokens > 0)
    kinds = pa.array([INDEXED if is_indexed else DELIMITED] * len(sources)).dictionary_encode()
    sources = sources.set_column(sources.column_names.index("kind"), "kind", kinds)
    if is_indexed:
        return sources, source, notes
    end = _most_frequent(tokens, control) if source.end == TO_BE_FOUND else source.end
    if end is None:
        raise SourceError(
            "no token divides the documents of the files",
            f"file         {tokens.file.path}",
            "Give the end token of the sources with --source-eot. Or take rows of one length: --rows documents:2048.",
        )
    source, by_default = msgspec.structs.replace(source, end=end), FORMATS[source.format].SPEC.defaults.end
    end_first = stands_first(files, splits_of(sources), source, by_default=by_default == "prepended")
    notes.append(f"documents {'begin' if end_first else 'end'} with token {end} in the sources, which is removed")
    return sources, msgspec.structs.replace(source, end_first=end_first), notes


def _first_tokens(
    files: list[SourceFile], name: str, dtype: str, vocabulary: int, end: int | None
) -> tuple[TokenFile, list[str]]:
    """The first file that has tokens, or the last one, and a note about the type if the files do not state it."""
    notes = list[str]()
    for file in files:
        try:
            tokens = open_tokens(file.info, name, dtype)
        except TypeNotStated:
            found = choose_dtype(file.info, vocabulary, end)
            dtype, tokens = found.dtype, open_tokens(file.info, name, found.dtype)
            notes.append(f"the sources do not state their type. As {dtype}, their largest id is {found.largest}")
        if tokens.tokens:
            break
    return tokens, notes


def _with_rows(tokens: TokenFile, source: TokenInput) -> TokenInput:
    """How the rows of files are used. `--rows stream` is what files without an index are."""
    if tokens.documents is not None and source.rows in {"", DOCUMENTS} and not source.row_tokens:
        return source
    if source.rows not in {DOCUMENTS, OVERLAP}:
        return msgspec.structs.replace(source, rows=DOCUMENTS)
    length = source.row_tokens or tokens.row_tokens or 0
    if not length:
        raise UsageError(
            f"--rows {source.rows} needs the length of the rows, which the files do not state",
            f"file         {tokens.file.path}",
            f"Give it: --rows {source.rows}:2048.",
        )
    return msgspec.structs.replace(source, row_tokens=length)


def _format_of(file: SourceFile) -> str:
    start = storage.read_start(file.info, START_BYTES)
    directory = os.path.dirname(file.path)
    name = recognize(file.path, start, lambda name: _exists(f"{directory}/{name}"))
    if name is None:
        raise SourceError("a source is not a file of tokens", f"file         {file.path}")
    return name


def _exists(path: str) -> bool:
    try:
        storage.stat(path)
    except SourceError:
        return False
    return True


def _most_frequent(tokens: TokenFile, control: Sequence[int]) -> int | None:
    """The first of the control tokens that occur about as often as any at the start of a file.

    A file that ends inside a document has its begin token once more.
    """
    ids = tokens.read(0, min(tokens.tokens, SAMPLE_TOKENS))
    counts = [int(np.count_nonzero(ids == token)) for token in control]
    most = max(counts, default=0)
    return next(
        (token for token, number in zip(control, counts, strict=True) if number and number + 1 > most * 0.9), None
    )
