"""Read Mistral's tekken.json: ranks, split pattern and special tokens.

A text token's id is its rank plus the number of special tokens, whose ids come first. The ranks that are returned are
those ids: tiktoken compares ranks only with each other, so adding the same number to each does not change a merge.
"""

from __future__ import annotations

import base64
import binascii
import re

import msgspec

from tokenmill.errors import TokenizerError
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.tokenization.engines.tiktoken import format_ranks, parse_ranks
from tokenmill.tokenization.vocabularies import Vocabulary, from_ranks

# The special tokens of files before version 8, which do not list them.
UNLISTED = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] "
    "[IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]"
)
LAST_UNLISTED_VERSION = 7
END_OF_TEXT = "</s>"
# Names of ids that are reserved for later.
_RESERVED = re.compile(r"<SPECIAL_\d+>")


class _Token(msgspec.Struct):
    """A token of text: its rank, and its bytes in base64."""

    rank: int
    token_bytes: str


class _SpecialToken(msgspec.Struct):
    """A special token. Its rank is its id."""

    rank: int
    token_str: str


class _Config(msgspec.Struct):
    """The split pattern, the number of ids, and how many of them are special."""

    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str = ""


class _Tekken(msgspec.Struct):
    """The used parts of the file."""

    config: _Config
    vocab: list[_Token]
    special_tokens: list[_SpecialToken] | None = None


def from_tekken(name: str, origin: str, content: bytes) -> Vocabulary:
    """The vocabulary of a tekken.json. Raises TokenizerError."""
    try:
        file = decode(content, _Tekken)
        special = _special_tokens(file)
        ranks = format_ranks(_ids(file))
    except (MalformedDataError, binascii.Error) as damage:
        raise TokenizerError(f"{origin} is not a tekken.json", f"found        {damage}") from damage
    parse_ranks(ranks, origin)  # raises if a byte has no token
    return from_ranks(name, ranks, file.config.pattern, special, special.get(END_OF_TEXT))


def _ids(file: _Tekken) -> dict[bytes, int]:
    """The id of each text token. The file may list more tokens than the model has."""
    reserved = file.config.default_num_special_tokens
    used = file.config.default_vocab_size - reserved
    if reserved < 0 or not 0 < used <= len(file.vocab):
        raise MalformedDataError(f"it has {len(file.vocab):,} tokens, and its config states {used:,}")
    tokens = {base64.b64decode(token.token_bytes, validate=True): token.rank for token in file.vocab[:used]}
    if sorted(tokens.values()) != list(range(used)):
        raise MalformedDataError("its tokens or their ranks are not unique, or ranks are missing")
    return {token: rank + reserved for token, rank in tokens.items()}


def _special_tokens(file: _Tekken) -> dict[str, int]:
    """The special tokens, without names that are reserved for later."""
    if file.special_tokens is None:
        version = re.match(r"v(\d+)", file.config.version)
        if version is None or int(version[1]) > LAST_UNLISTED_VERSION:
            raise MalformedDataError(f"it lists no special tokens, and its version is {file.config.version[:20]!r}")
        return {spelling: number for number, spelling in enumerate(UNLISTED.split())}
    listed = {token.token_str: token.rank for token in file.special_tokens}
    reserved = file.config.default_num_special_tokens
    if not all(0 <= rank < reserved for rank in listed.values()) or len(set(listed.values())) != len(listed):
        raise MalformedDataError("the ids of its special tokens are not unique, or are ids of text")
    return {spelling: rank for spelling, rank in listed.items() if not _RESERVED.fullmatch(spelling)}
