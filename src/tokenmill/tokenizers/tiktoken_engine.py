"""tiktoken: the reference engine for OpenAI's encodings and other `.tiktoken` vocabularies."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engine import Encoded, Tokens, narrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.job import TokenizerSpec


class TiktokenEngine:
    """Encodes with `tiktoken`, special tokens left out so that their spelling stays text."""

    name = "tiktoken"

    def __init__(self, spec: TokenizerSpec, path: str) -> None:
        import tiktoken  # noqa: PLC0415 - heavy, and needed by this engine only

        self._spec = spec
        with open(path, "rb") as file:
            ranks = parse_ranks(file.read(), path)
        self._encoding = tiktoken.Encoding(
            spec.name, pat_str=spec.pattern or "", mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Equal to `encode_ordinary` for every document."""
        return Encoded.join(self._spec, [self._encode_one(document.as_py()) for document in text])

    def _encode_one(self, document: str) -> Tokens:
        return narrowed(self._spec, self._encoding.encode_to_numpy(document, disallowed_special=()))


def parse_ranks(data: bytes, origin: str) -> dict[bytes, int]:
    """The ranks of a `.tiktoken` file: lines of a base64 token and its rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise TokenizerError(
                f"line {number} of {origin} is not a token and its rank",
                "A .tiktoken file has one line for each token: its bytes in base64, a space, its rank.",
            ) from None
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) != len(ranks):
        found = f"byte {missing[0]} has no token" if missing else "two tokens have the same rank"
        raise TokenizerError(f"{origin} is not a usable vocabulary", f"found        {found}")
    return ranks


def format_ranks(ranks: dict[bytes, int]) -> bytes:
    """The canonical `.tiktoken` file of some ranks; for OpenAI's encodings, the very bytes OpenAI publishes."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)
