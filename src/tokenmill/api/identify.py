"""`identify`: what files are: format, type, tokens, documents, begin and end tokens, and the tokenizer that fits."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from tokenmill import storage
from tokenmill.api.identified import STORE, UNKNOWN, Identified
from tokenmill.api.look_into import NO_ROWS, Look
from tokenmill.api.parameters import path_texts
from tokenmill.errors import USAGE, SourceError, TokenmillError
from tokenmill.options import StrPath
from tokenmill.sources import StoreGuard, kind_of
from tokenmill.sources.discovery import EXPLICIT_EXTENSIONS, natural_key
from tokenmill.sources.peek import IDS, MESSAGES, SEGMENTS
from tokenmill.storage import FileInfo
from tokenmill.system.arguments import checked
from tokenmill.token_files.recognize import EXTENSIONS, START_BYTES, companions, recognize

# A command names so many files if no glob stands for them.
MAX_NAMED = 3


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
    look = Look(named)
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
        belonging = {path for each in names for path in companions(each)}
        files = [file for file in listing.files if file.path not in belonging]
        found = [(file, _format(file, names, is_named=listing.is_named)) for file in files]
        yield from ((file, form) for file, form in found if form is not None)


def _format(file: FileInfo, names: set[str], *, is_named: bool) -> str | None:
    """The format or the kind of a file; None for a file that says something about another one."""
    directory, name = os.path.split(file.path)
    if name.lower().endswith(EXTENSIONS):
        try:
            start = storage.read_start(file, START_BYTES)
            return recognize(file.path, start, lambda each: _exists(f"{directory}/{each}", names)) or UNKNOWN
        except SourceError:
            return UNKNOWN
    kind = kind_of(file.path)
    if kind is None and is_named and not name.endswith((".idx", ".csv.gz", ".index")):
        endings = (kind for ending, kind in EXPLICIT_EXTENSIONS.items() if name.lower().endswith(ending))
        kind = next(endings, UNKNOWN)
    return kind


def _exists(path: str, names: set[str]) -> bool:
    if path in names:
        return True
    with suppress(TokenmillError):
        return storage.stat(path) is not None
    return False


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
    words = " ".join([files, *options])
    return f"tokenmill prepare {words} --tokenizer {shlex.quote(tokenizer)} --out tokens"


def _pattern(files: Sequence[str], paths: Sequence[str]) -> str:
    """Files as arguments of a command: a glob for several, if it matches no other one of `paths`."""
    first, last = min(files), max(files)
    before = os.path.commonprefix([first, last])  # noqa: RUF071 - of names, not of directories
    after = os.path.commonprefix([path[len(before) :][::-1] for path in files])[::-1]  # noqa: RUF071 - as above
    matching = [path for path in paths if path.startswith(before) and path.endswith(after)]
    if len(files) > 1 and len(matching) == len(files):
        return shlex.quote(f"{before}*{after}")
    return " ".join([*map(shlex.quote, files[:MAX_NAMED]), *(["..."] if len(files) > MAX_NAMED else [])])
