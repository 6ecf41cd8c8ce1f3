"""Look up the bytes of a token id, to show tokens to users."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable

import msgspec

from tokenmill.errors import CorruptStore
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.tokenizer_json import TokenizerJson, read_tokenizer_json

Lookup = Callable[[int], bytes | None]
# How vocabularies that are not byte-level write single bytes (byte fallback).
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes_lookup(spec: TokenizerSpec, content: bytes) -> Callable[[int], bytes]:
    """A function that returns the bytes of a token id; for an unknown id, its number in angle brackets."""
    find = known_bytes_lookup(spec, content)

    def lookup(token: int) -> bytes:
        token_bytes = find(token)
        return b"<%d>" % token if token_bytes is None else token_bytes

    return lookup


def known_bytes_lookup(spec: TokenizerSpec, content: bytes) -> Lookup:
    """A function that returns the bytes of a token id; None for an unknown id."""
    if hashlib.sha256(content).hexdigest() != spec.sha256:
        raise CorruptStore(f"the vocabulary {spec.file} is damaged", f"expected     sha256 {spec.sha256}")
    try:
        find = _tiktoken_lookup(content) if spec.kind == "tiktoken" else _huggingface_lookup(content)
    except MalformedDataError as damage:
        raise CorruptStore(f"the vocabulary {spec.file} is damaged", f"found        {damage}") from damage
    special = {token: spelling.encode() for spelling, token in spec.special_tokens.items()}

    def lookup(token: int) -> bytes | None:
        if token in special:
            return special[token]
        try:
            return find(token)
        except ValueError:  # the file matches its hash but is not a vocabulary
            return None

    return lookup


def _tiktoken_lookup(content: bytes) -> Lookup:
    """Decodes only the requested tokens, because a vocabulary has hundreds of thousands."""
    try:
        encoded = {int(rank): token for token, rank in (line.split() for line in content.splitlines() if line)}
    except ValueError as error:
        raise MalformedDataError(str(error)) from error
    return lambda token: base64.b64decode(encoded[token]) if token in encoded else None


def _huggingface_lookup(content: bytes) -> Lookup:
    parsed = read_tokenizer_json(content)
    tokens = {number: token for token, number in parsed.ids().items()}
    added = {token.id: token.content.encode() for token in parsed.added_tokens or []}
    to_bytes = _decoder(parsed)
    return lambda token: added.get(token) or (to_bytes(tokens[token]) if token in tokens else None)


def _decoder(parsed: TokenizerJson) -> Callable[[str], bytes]:
    """The function that turns a token of this vocabulary into bytes."""
    if b"ByteLevel" in msgspec.json.encode([parsed.decoder, parsed.pre_tokenizer]):
        return _byte_level_bytes
    return _word_bytes if parsed.model.type in ("WordPiece", "WordLevel") else _plain_bytes


def _plain_bytes(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace("\u2581", " ").encode()


def _word_bytes(token: str) -> bytes:
    """A token begins a word, which follows a space, unless `##` marks it as a continuation."""
    return token[2:].encode() if token.startswith("##") else f" {token}".encode()


def _byte_level_bytes(token: str) -> bytes:
    return b"".join(bytes([_BYTES[character]]) if character in _BYTES else character.encode() for character in token)


def _byte_characters() -> dict[str, int]:
    """The byte of each character in byte-level vocabularies: printable Latin-1 as itself, others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_characters()
# The characters with which byte-level vocabularies write bytes.
BYTE_CHARACTERS = frozenset(_BYTES)
# The characters of the bytes that occur in UTF-8.
TEXT_CHARACTERS = frozenset(char for char, byte in _BYTES.items() if byte not in (0xC0, 0xC1, *range(0xF5, 0x100)))
