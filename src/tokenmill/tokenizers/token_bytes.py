"""From an id to the bytes it stands for, to show tokens to people."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import CorruptStore
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.tokenizers.tokenizer_json import TokenizerJson, read_tokenizer_json

if TYPE_CHECKING:
    from tokenmill.tokenizers.spec import TokenizerSpec

Find = Callable[[int], bytes | None]
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
"""How vocabularies without bytes in them write those that they fall back to."""


def piece_lookup(spec: TokenizerSpec, content: bytes) -> Callable[[int], bytes]:
    """A function that gives the bytes of a token of this vocabulary; unknown ids give their number in brackets."""
    if hashlib.sha256(content).hexdigest() != spec.sha256:
        raise CorruptStore(f"the vocabulary {spec.file} is damaged", f"expected     sha256 {spec.sha256}")
    try:
        find = _tiktoken_pieces(content) if spec.kind == "tiktoken" else _huggingface_pieces(content)
    except MalformedDataError as damage:
        raise CorruptStore(f"the vocabulary {spec.file} is no tokenizer.json", f"found        {damage}") from damage
    special = {token: spelling.encode() for spelling, token in spec.special_tokens.items()}

    def piece(token: int) -> bytes:
        if token in special:
            return special[token]
        try:
            found = find(token)
        except ValueError:  # whoever made the hash made a file that is no vocabulary
            found = None
        return b"<%d>" % token if found is None else found

    return piece


def _tiktoken_pieces(content: bytes) -> Find:
    """Only the lines of tokens that are asked for are taken apart: a vocabulary has hundreds of thousands."""
    lines = content.splitlines()

    @functools.cache
    def elsewhere() -> dict[int, bytes]:
        return {int(rank): token for token, rank in (line.split() for line in lines if line)}

    def find(token: int) -> bytes | None:
        written, _, rank = lines[token].partition(b" ") if token < len(lines) else (b"", b"", b"")
        if rank != b"%d" % token:  # the file is in another order, or there are gaps
            written = elsewhere().get(token, b"")
        return base64.b64decode(written) if written else None

    return find


def _huggingface_pieces(content: bytes) -> Find:
    parsed = read_tokenizer_json(content)
    vocabulary = parsed.model.vocab
    if isinstance(vocabulary, dict):
        tokens = {number: token for token, number in vocabulary.items()}
    else:
        tokens = {number: token for number, (token, _) in enumerate(vocabulary)}
    added = {token.id: token.content.encode() for token in parsed.added_tokens or []}
    to_bytes = _spelling(parsed)

    def find(token: int) -> bytes | None:
        if token in added:
            return added[token]
        return to_bytes(tokens[token]) if token in tokens else None

    return find


def _spelling(parsed: TokenizerJson) -> Callable[[str], bytes]:
    """How the tokens of a vocabulary are written."""
    if b"ByteLevel" in msgspec.json.encode([parsed.decoder, parsed.pre_tokenizer]):
        return _byte_level_bytes
    return _word_bytes if parsed.model.type in ("WordPiece", "WordLevel") else _plain_bytes


def _plain_bytes(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def _word_bytes(token: str) -> bytes:
    """Words stand apart, and what goes on with one is marked."""
    return token[2:].encode() if token.startswith("##") else f" {token}".encode()


def _byte_level_bytes(token: str) -> bytes:
    return b"".join(bytes([_BYTES[character]]) if character in _BYTES else character.encode() for character in token)


def _byte_characters() -> dict[str, int]:
    """How byte-level vocabularies write bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_characters()
BYTE_CHARACTERS = frozenset(_BYTES)
"""The characters that byte-level vocabularies write bytes with."""

TEXT_CHARACTERS = frozenset(char for char, byte in _BYTES.items() if byte not in (0xC0, 0xC1, *range(0xF5, 0x100)))
"""Those of bytes that UTF-8 has."""
