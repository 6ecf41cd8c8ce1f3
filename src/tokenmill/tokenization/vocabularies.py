"""Build the spec of a tokenizer from the content of its files."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tokenmill.errors import TokenizerError
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.tokenizer_json import read_tokenizer_json

# The tokens that end a document, in the vocabularies that people train with.
DOCUMENT_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
END_OF_TEXT_SPELLINGS = (*DOCUMENT_ENDS, "<|im_end|>")


@dataclass(frozen=True, slots=True)
class Scheme:
    """A split pattern of OpenAI, with the hash and the end token of the vocabulary published for it."""

    pattern: str
    sha256: str
    end_of_text: int


_GPT2_PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
_CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_R50K_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"
_P50K_SHA256 = "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"
_CL100K_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
_O200K_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
SCHEMES = {
    "gpt2": Scheme(_GPT2_PATTERN, _R50K_SHA256, 50256),
    "r50k_base": Scheme(_GPT2_PATTERN, _R50K_SHA256, 50256),
    "p50k_base": Scheme(_GPT2_PATTERN, _P50K_SHA256, 50256),
    "cl100k_base": Scheme(_CL100K_PATTERN, _CL100K_SHA256, 100257),
    "o200k_base": Scheme(_O200K_PATTERN, _O200K_SHA256, 199999),
}
# The hashes of the files that OpenAI publishes. Files with these need no check.
PUBLISHED = frozenset(scheme.sha256 for scheme in SCHEMES.values())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A resolved tokenizer: its spec, and the content of its vocabulary file."""

    spec: TokenizerSpec
    content: bytes


def from_ranks(
    name: str, content: bytes, pattern: str, special_tokens: dict[str, int], end_of_text: int | None = None
) -> Vocabulary:
    """The vocabulary of a canonical `.tiktoken` file, its split pattern and its special tokens."""
    sha256 = hashlib.sha256(content).hexdigest()
    ids = [int(content.partition(b"\n")[0].rpartition(b" ")[2]), *special_tokens.values()]
    ids.append(int(content[:-1].rpartition(b" ")[2]))
    spec = TokenizerSpec(
        name=name,
        kind="tiktoken",
        file=f"{sha256}.tiktoken",
        sha256=sha256,
        vocabulary_size=_size(name, min(ids), max(ids)),
        special_tokens=special_tokens,
        pattern=pattern,
        scheme=next((scheme for scheme, known in SCHEMES.items() if known.pattern == pattern), None),
        end_of_text=special_tokens.get("<|endoftext|>") if end_of_text is None else end_of_text,
    )
    return Vocabulary(spec, content)


def from_tokenizer_json(name: str, origin: str, content: bytes, end_spelling: str | None) -> Vocabulary:
    """The vocabulary of a tokenizer.json.

    Args:
        name: The name that is shown.
        origin: The file, for error messages.
        content: The bytes of the file.
        end_spelling: The end token that a tokenizer_config.json declares, if there is one.
    """
    try:
        parsed = read_tokenizer_json(content)
    except MalformedDataError as damage:
        raise TokenizerError(f"{origin} is not a Hugging Face tokenizer.json", f"found        {damage}") from damage
    special = {token.content: token.id for token in parsed.added_tokens or [] if token.special}
    plain = {token.content: token.id for token in parsed.added_tokens or [] if not token.special}
    ids = parsed.ids().values()
    sha256 = hashlib.sha256(content).hexdigest()
    spec = TokenizerSpec(
        name=name,
        kind="huggingface",
        file=f"{sha256}.json",
        sha256=sha256,
        vocabulary_size=_size(origin, min(ids, default=-1), max(ids, default=-1)),
        special_tokens=special,
        end_of_text=_end_of_text(end_spelling, plain | special),
        plain_tokens=plain,
    )
    return Vocabulary(spec, content)


def declared_end(config: bytes | None) -> str | None:
    """The spelling of the end token in a tokenizer_config.json."""
    try:
        declared = json.loads(config or b"{}").get("eos_token")
    except (ValueError, AttributeError, RecursionError):
        return None
    spelling = declared.get("content") if isinstance(declared, dict) else declared
    return spelling if isinstance(spelling, str) else None


def _end_of_text(declared: str | None, added: dict[str, int]) -> int | None:
    """The end token: the declared one, or the only known spelling in the vocabulary."""
    if declared in added:
        return added[declared]
    found = [added[spelling] for spelling in END_OF_TEXT_SPELLINGS if spelling in added]
    return found[0] if len(found) == 1 else None


def _size(origin: str, smallest: int, largest: int) -> int:
    """The largest id plus one. Raises TokenizerError if an id does not fit into 32 bits."""
    if not 0 <= smallest <= largest < 1 << 32:
        raise TokenizerError(f"{origin} is not a usable vocabulary", f"found        ids from {smallest} to {largest}")
    return largest + 1
