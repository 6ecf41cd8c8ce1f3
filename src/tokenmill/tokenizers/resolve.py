"""Resolve a tokenizer name to a vocabulary and its spec. Only this step may use the network."""

from __future__ import annotations

import difflib
import glob
import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import FAILED, TRY_AGAIN, USAGE, TokenizerError, UsageError
from tokenmill.storage.local.near_names import did_you_mean
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.tokenizers.engines.tiktoken import format_ranks, parse_ranks
from tokenmill.tokenizers.spec import TokenizerSpec
from tokenmill.tokenizers.tokenizer_json import read_tokenizer_json

MAX_BYTES = 1 << 30
SHOWN_FILES = 5
# The name of a model on the Hub.
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

END_OF_TEXT_SPELLINGS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>")


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


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A resolved tokenizer: its spec, and the content of its vocabulary file."""

    spec: TokenizerSpec
    content: bytes


def resolve(name: str) -> Vocabulary:
    """Resolve the name of an encoding, a `.tiktoken` file, a tokenizer.json or the directory of one."""
    path, scheme = _path_and_scheme(name)
    if path.endswith(".tiktoken"):
        return _from_tiktoken_file(path, scheme)
    if os.path.isdir(path):
        return _from_directory(path)
    if os.path.isfile(path) or path.endswith(".json"):
        return _from_json_file(path)
    return _from_encoding(name)


def absolute_name(name: str) -> str:
    """The name with an absolute path, so that it is valid in every working directory."""
    path, scheme = _path_and_scheme(name)
    if not os.path.exists(path):
        return name
    return os.path.abspath(path) + (f":{scheme}" if scheme else "")


def _path_and_scheme(name: str) -> tuple[str, str | None]:
    path, mark, scheme = name.partition(".tiktoken:")
    return os.path.expanduser(f"{path}.tiktoken" if mark else name), scheme or None


def _from_encoding(name: str) -> Vocabulary:
    import tiktoken  # noqa: PLC0415 - heavy, and needed for names only

    names = tiktoken.list_encoding_names()
    if name not in names:
        try:
            name = tiktoken.encoding_name_for_model(name)
        except KeyError:
            raise UsageError(f"there is no tokenizer called {name!r}", *_advice(name, names)) from None
    definition = _definition(name)
    return _tiktoken_vocabulary(
        name, format_ranks(definition["mergeable_ranks"]), definition["pat_str"], definition["special_tokens"]
    )


def _advice(name: str, names: list[str]) -> list[str]:
    """Advice for an unknown name: how to download a file from the Hub, a similar name, or a path."""
    if REPOSITORY.fullmatch(name):
        return [
            "No such path, and models are not loaded from the Hub by name. Download the file and give its path:",
            f"hf download {name} tokenizer.json --local-dir .",
            "--tokenizer tokenizer.json",
        ]
    close = difflib.get_close_matches(name.lower(), names, 1)
    return [
        f"known names  {', '.join(names)}",
        *(f"Did you mean {match}?" for match in close),
        "Or give a path: a .tiktoken file, a tokenizer.json, or a directory that holds one.",
    ]


def _definition(name: str) -> dict[str, Any]:
    """An encoding's ranks, pattern and special tokens, from tiktoken's own cache or the network."""
    from tiktoken.registry import ENCODING_CONSTRUCTORS  # noqa: PLC0415 - heavy, and needed for names only

    constructors: dict[str, Any] = ENCODING_CONSTRUCTORS or {}
    # gpt2's own two files take three times as long to read as r50k_base's, which holds the same ranks.
    attempts = ["r50k_base", "gpt2"] if name == "gpt2" else [name]
    failures: list[Exception] = []
    for attempt in attempts:
        try:
            definition: dict[str, Any] = constructors[attempt]()
        except Exception as error:  # noqa: BLE001 - whatever the network stack raises; reported below
            failures.append(error)
        else:
            return definition
    raise TokenizerError(
        f"the vocabulary of {name} could not be loaded",
        f"reason       {type(failures[-1]).__name__}: {str(failures[-1])[:200]}",
        "Set TIKTOKEN_CACHE_DIR to a folder that holds it, connect to the network, or give a .tiktoken file.",
        exit_code=TRY_AGAIN if _is_unreached(failures[-1]) else FAILED,
    ) from failures[-1]


def _is_unreached(error: Exception) -> bool:
    """Whether no server answered. requests raises an OSError that holds the response if there was one."""
    return isinstance(error, OSError) and getattr(error, "response", None) is None


def _from_tiktoken_file(path: str, scheme: str | None) -> Vocabulary:
    content = _read(path)
    named = scheme or os.path.basename(path).removesuffix(".tiktoken")
    if named not in SCHEMES:
        raise UsageError(
            f"the split pattern of {path} is not known",
            "A .tiktoken file holds tokens only. Name the scheme it was made for after a colon:",
            f"--tokenizer {path}:cl100k_base      (known: {', '.join(SCHEMES)})",
        )
    known = SCHEMES[named]
    canonical = format_ranks(parse_ranks(content, path))
    published = hashlib.sha256(canonical).hexdigest() == known.sha256
    special_tokens = {"<|endoftext|>": known.end_of_text} if published else {}
    return _tiktoken_vocabulary(os.path.basename(path), canonical, known.pattern, special_tokens)


def _tiktoken_vocabulary(name: str, content: bytes, pattern: str, special_tokens: dict[str, int]) -> Vocabulary:
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
        end_of_text=special_tokens.get("<|endoftext|>"),
    )
    return Vocabulary(spec, content)


def _from_directory(path: str) -> Vocabulary:
    file = os.path.join(path, "tokenizer.json")
    pattern = os.path.join(glob.escape(path), "*")
    others = sorted(os.path.basename(each) for each in glob.glob(pattern) if each.endswith((".json", ".tiktoken")))
    if os.path.exists(file) or not others:
        return _from_json_file(file)
    more = ", ..." if len(others) > SHOWN_FILES else ""
    raise TokenizerError(
        f"the directory {path} has no tokenizer.json",
        f"found        {', '.join(others[:SHOWN_FILES])}{more}",
        "Give the path of a tokenizer.json of Hugging Face's tokenizers or of a .tiktoken file.",
    )


def _from_json_file(path: str) -> Vocabulary:
    content = _read(path)
    try:
        parsed = read_tokenizer_json(content)
    except MalformedDataError as damage:
        raise TokenizerError(f"{path} is not a Hugging Face tokenizer.json", f"found        {damage}") from damage
    added = {token.content: token.id for token in parsed.added_tokens or []}
    special = {token.content: token.id for token in parsed.added_tokens or [] if token.special}
    ids = parsed.ids().values()
    sha256 = hashlib.sha256(content).hexdigest()
    spec = TokenizerSpec(
        name=_display_name(path),
        kind="huggingface",
        file=f"{sha256}.json",
        sha256=sha256,
        vocabulary_size=_size(path, min(ids, default=-1), max(ids, default=-1)),
        special_tokens=special,
        end_of_text=_end_of_text(path, {**added, **special}),
    )
    return Vocabulary(spec, content)


def _size(origin: str, smallest: int, largest: int) -> int:
    """The largest id plus one. Raises TokenizerError if an id does not fit into 32 bits."""
    if not 0 <= smallest <= largest < 1 << 32:
        raise TokenizerError(f"{origin} is not a usable vocabulary", f"found        ids from {smallest} to {largest}")
    return largest + 1


def _display_name(path: str) -> str:
    directory, name = os.path.split(os.path.abspath(path))
    return os.path.basename(directory) if name == "tokenizer.json" else name.removesuffix(".json")


def _end_of_text(path: str, added: dict[str, int]) -> int | None:
    """The end token: from the tokenizer_config.json next to the file, or the only known spelling in the vocabulary."""
    config = os.path.join(os.path.dirname(path), "tokenizer_config.json")
    if os.path.basename(path) == "tokenizer.json" and os.path.exists(config):
        try:
            declared = json.loads(_read(config)).get("eos_token")
        except (ValueError, AttributeError, RecursionError):
            declared = None
        spelling = declared.get("content") if isinstance(declared, dict) else declared
        if isinstance(spelling, str) and spelling in added:
            return added[spelling]
    found = [added[spelling] for spelling in END_OF_TEXT_SPELLINGS if spelling in added]
    return found[0] if len(found) == 1 else None


def _read(path: str) -> bytes:
    try:
        size = os.path.getsize(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise TokenizerError(f"the tokenizer {path} is not a regular file")
        if size > MAX_BYTES:
            raise TokenizerError(f"the tokenizer {path} is too large", f"limit        {MAX_BYTES:,} bytes")
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            near = did_you_mean(os.path.abspath(path))
            raise TokenizerError(f"no such tokenizer file: {path}", *near, exit_code=USAGE) from error
        raise TokenizerError(f"cannot read the tokenizer {path}", os.strerror(error.errno or 0)) from error


def end_token(spec: TokenizerSpec, value: str | int | None) -> int | None:
    """The id of `--eot`, or the tokenizer's end token if unset. Raises UsageError if there is neither."""
    if value is None and spec.end_of_text is None:
        known = ", ".join(f"{spelling} {token}" for spelling, token in list(spec.special_tokens.items())[:6])
        raise UsageError(
            f"{spec.name} does not define its end-of-text token (eot)",
            f"special tokens   {known or 'none'}",
            "Set it with --eot ID, or use --eot none for no token between documents.",
        )
    return boundary_token(spec, "--eot", value, spec.end_of_text)


def boundary_token(spec: TokenizerSpec, option: str, value: str | int | None, default: int | None) -> int | None:
    """The id of `--eot` or `--bos`, given as an id, a special token's spelling or `none`; the default if unset."""
    if value is None:
        return default
    if value == "none":
        return None
    if isinstance(value, str) and value in spec.special_tokens:
        return spec.special_tokens[value]
    try:
        token = int(value)
    except ValueError:
        known = ", ".join(list(spec.special_tokens)[:8]) or "none"
        raise UsageError(
            f"{option} {value!r} is neither an id, a special token of {spec.name}, nor none",
            f"special tokens   {known}",
        ) from None
    if not 0 <= token < spec.vocabulary_size:
        raise UsageError(
            f"{option} {token} is not a token of {spec.name}", f"ids go from 0 to {spec.vocabulary_size - 1}"
        )
    return token
