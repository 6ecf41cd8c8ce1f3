"""A cache of vocabularies on this machine, by hash, for processes that have only a tokenizer's name and hash.

A pickled function holds the name and hash of its tokenizer. On the same machine, the process that unpickles it finds
the same bytes here, without the network. On another machine, it resolves the name and refuses a different hash.

The directories are private. Another user could create one below the temporary directory first, under the expected name,
and change its files later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable

import msgspec

from tokenmill.errors import StoreError, TokenizerError
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.digest import canonical, digest_of, hash_of
from tokenmill.storage.local.files import writing
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.spec import TokenizerSpec

ROOT = 0
MAX_LISTED = 100
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def vocabulary_digest(vocabulary: Vocabulary) -> str:
    """The hash of a tokenizer: of its spec, which contains the hash of the vocabulary file, without its origin."""
    return digest_of(_without_origin(vocabulary.spec))


def _without_origin(spec: TokenizerSpec) -> TokenizerSpec:
    """A spec without the model and commit that it is from: a branch and its commit name the same tokenizer."""
    return msgspec.structs.replace(spec, source="", commit="")


def save(vocabulary: Vocabulary) -> None:
    """Save a tokenizer in the cache."""
    for folder in _cache_folders():
        try:
            _save_in(folder, vocabulary)
        except StoreError:
            continue
        return
    raise TokenizerError(
        "there is no directory for the vocabulary cache",
        f"tried        {', '.join(folder.root for folder in _cache_folders())}",
        "Set XDG_CACHE_HOME or TMPDIR to a directory that can be written to.",
    )


def find(name: str, digest: str) -> Vocabulary:
    """The tokenizer of this name and hash."""
    for folder in _cache_folders():
        vocabulary = _load_from(folder, digest)
        if vocabulary is not None:
            return vocabulary
    vocabulary = resolve(name)
    if vocabulary_digest(vocabulary) != digest:
        raise TokenizerError(
            f"the tokenizer {name} is not the one that the function was made with",
            f"expected     {digest}",
            f"found        {vocabulary_digest(vocabulary)}",
            "Give every machine the same file, or make the function where it runs.",
        )
    save(vocabulary)
    return vocabulary


def saved() -> list[Vocabulary]:
    """The tokenizers in the cache, at most MAX_LISTED."""
    found: dict[str, Vocabulary] = {}
    for folder in _cache_folders():
        names = folder.names(".") if folder.exists(".") else []
        for digest in (name.removesuffix(".json") for name in sorted(names) if name.endswith(".json")):
            with contextlib.suppress(msgspec.DecodeError):  # a tokenizer.json, which is a vocabulary and no record
                vocabulary = _load_from(folder, digest) if len(found) < MAX_LISTED else None
                found |= {} if vocabulary is None else {digest: vocabulary}
    return list(found.values())


def _cache_folders() -> list[Folder]:
    """The cache folders, in order. The second is for machines whose home directory is not writable."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [
        folder_at(os.path.join(home, "tokenmill", "tokenizers")),
        folder_at(os.path.join(tempfile.gettempdir(), f"tokenmill-{os.getuid()}", "tokenizers")),
    ]


def _save_in(folder: Folder, vocabulary: Vocabulary) -> None:
    digest = vocabulary_digest(vocabulary)
    if _load_from(folder, digest) is not None:
        return
    _make_private(folder.root)
    for name, content in (
        (vocabulary.spec.file, vocabulary.content),
        (f"{digest}.json", canonical(_without_origin(vocabulary.spec))),
    ):
        with folder.publish(name) as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(content)


def _load_from(folder: Folder, digest: str) -> Vocabulary | None:
    """A cached tokenizer, if it matches its hash and no other user can change it after this check."""
    try:
        if not _is_private(folder.root) or not _is_private_file(folder.path(f"{digest}.json")):
            return None
        stored = folder.read(f"{digest}.json")
        if hash_of(stored) != digest:
            return None
        spec = msgspec.json.decode(stored, type=TokenizerSpec)
        if not _is_private_file(folder.path(spec.file)):
            return None
        content = folder.read(spec.file)
    except StoreError:
        return None
    return Vocabulary(spec, content) if hashlib.sha256(content).hexdigest() == spec.sha256 else None


def _make_private(directory: str) -> None:
    """Make a directory and its parent so that only this user can write to them. Raises StoreError if that fails."""
    with writing(directory):
        os.makedirs(os.path.dirname(os.path.dirname(directory)), exist_ok=True)
        for path in (os.path.dirname(directory), directory):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            _close_to_others(path)
    if not _is_private(directory):
        raise StoreError(f"{directory} is not used", "reason       it is a link, or another user can write to it")


def _is_private(directory: str) -> bool:
    """Whether a directory and its parent belong to this user or root, and no other user can write to them."""
    return all(_is_safe(path, stat.S_ISDIR) for path in (os.path.dirname(directory), directory))


def _is_private_file(path: str) -> bool:
    """Whether a path is a regular file of this user or root, not a link, and no other user can write to it."""
    return _is_safe(path, stat.S_ISREG)


def _is_safe(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = status.st_uid in (os.geteuid(), ROOT)
    return is_kind(status.st_mode) and is_ours and not status.st_mode & OTHERS_WRITE


def _close_to_others(path: str) -> None:
    """Remove the write permission of group and others, which a umask may have left."""
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS_WRITE:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE, follow_symlinks=False)
