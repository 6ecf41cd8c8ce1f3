"""From an id to the bytes it stands for, to show tokens to people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from tokenmill.errors import CorruptStore
from tokenmill.storage.damage import Damage
from tokenmill.tokenizers.tiktoken_engine import parse_ranks
from tokenmill.tokenizers.tokenizer_json import TokenizerJson, read_tokenizer_json

if TYPE_CHECKING:
    from tokenmill.job import TokenizerSpec


def piece_lookup(spec: TokenizerSpec, content: bytes) -> Callable[[int], bytes]:
    """A function that gives the bytes of a token of this vocabulary; unknown ids give their number in brackets."""
    if hashlib.sha256(content).hexdigest() != spec.sha256:
        raise CorruptStore(f"the vocabulary {spec.file} is damaged", f"expected     sha256 {spec.sha256}")
    if spec.kind == "tiktoken":
        pieces = {rank: token for token, rank in parse_ranks(content, spec.name).items()}
    else:
        try:
            pieces = _huggingface_pieces(read_tokenizer_json(content))
        except Damage as damage:
            raise CorruptStore(f"the vocabulary {spec.file} is no tokenizer.json", f"found        {damage}") from damage
    pieces |= {token: spelling.encode() for spelling, token in spec.special_tokens.items()}
    return lambda token: pieces.get(token, b"<%d>" % token)


def _huggingface_pieces(content: TokenizerJson) -> dict[int, bytes]:
    vocabulary = content.model.vocab
    if isinstance(vocabulary, dict):
        tokens = {number: token for token, number in vocabulary.items()}
    else:
        tokens = {number: token for number, (token, _) in enumerate(vocabulary)}
    to_bytes = _byte_level_bytes if "ByteLevel" in json.dumps(content.decoder) else _plain_bytes
    pieces = {number: to_bytes(token) for number, token in tokens.items()}
    return pieces | {token.id: token.content.encode() for token in content.added_tokens or []}


def _plain_bytes(token: str) -> bytes:
    return token.replace("\u2581", " ").encode()


def _byte_level_bytes(token: str) -> bytes:
    return b"".join(bytes([_BYTES[character]]) if character in _BYTES else character.encode() for character in token)


def _byte_characters() -> dict[str, int]:
    """How byte-level vocabularies write bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


_BYTES = _byte_characters()
