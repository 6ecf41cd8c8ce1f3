"""tiktoken: the reference engine for OpenAI's encodings and other `.tiktoken` vocabularies."""

from __future__ import annotations

import base64
import binascii
import hashlib

import pyarrow as pa

from tokenmill.errors import TokenizerError
from tokenmill.tokenization.engines.protocol import Encoded, Tokens, encode_documents, raising
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.vocabularies import PUBLISHED


class TiktokenEngine:
    """Encodes with `tiktoken`, without special tokens unless asked for, so that their spelling is encoded as text."""

    name = "tiktoken"

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        import tiktoken  # noqa: PLC0415 - heavy, and needed by this engine only

        self._spec = spec
        ranks = parse_ranks(content, spec.name)
        special = spec.special_tokens if spec.parse_special else {}
        with raising(lambda error: TokenizerError(f"tiktoken cannot load {spec.name}", str(error))):
            self._encoding = tiktoken.Encoding(
                spec.name, pat_str=spec.pattern or "", mergeable_ranks=ranks, special_tokens=special
            )

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Equal to `encode_ordinary` for every document, or to `encode(allowed_special="all")`."""
        return encode_documents(self._spec, self.name, text.to_pylist(), self._encode)

    def _encode(self, texts: list[str]) -> list[Tokens]:
        return [self._encoding.encode_to_numpy(text, allowed_special="all") for text in texts]


def parse_ranks(data: bytes, origin: str) -> dict[bytes, int]:
    """The ranks of a `.tiktoken` file. Each line is a token in base64 and its rank; both must be unique."""
    if hashlib.sha256(data).hexdigest() in PUBLISHED:
        words = data.split()
        return dict(zip(map(binascii.a2b_base64, words[::2]), map(int, words[1::2]), strict=True))
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line:
            continue
        token, rank = _token_and_rank(line, number, origin)
        if not token or token in ranks:
            found = f"line {number} has {'the token of an earlier line' if token else 'an empty token'}"
            raise TokenizerError(f"{origin} is not a usable vocabulary", f"found        {found}")
        ranks[token] = rank
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) != len(ranks):
        found = f"byte {missing[0]} has no token" if missing else "two tokens have the same rank"
        raise TokenizerError(f"{origin} is not a usable vocabulary", f"found        {found}")
    return ranks


def _token_and_rank(line: bytes, number: int, origin: str) -> tuple[bytes, int]:
    try:
        token, rank = line.split()
        return base64.b64decode(token, validate=True), int(rank)
    except (ValueError, binascii.Error):
        raise TokenizerError(
            f"line {number} of {origin} is not a token and its rank",
            "A .tiktoken file has one line for each token: its bytes in base64, a space, its rank.",
        ) from None


def format_ranks(ranks: dict[bytes, int]) -> bytes:
    """The canonical `.tiktoken` file of these ranks; for OpenAI's encodings, the bytes that OpenAI publishes."""
    ordered = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ordered)
