"""Resolve a tokenizer to a vocabulary and its spec. Only this step may use the network.

A tokenizer is a name of OpenAI's, a path, a model on the Hub, or an object of `tokenizers`, `tiktoken` or
`transformers`. A path that exists is used before a name of the Hub.
"""

from __future__ import annotations

import hashlib
import os
from types import FunctionType
from typing import Any

from tokenmill.errors import FAILED, TRY_AGAIN, TokenizerError, UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.tokenization import hub_models
from tokenmill.tokenization.engines.tiktoken import format_ranks, parse_ranks
from tokenmill.tokenization.model_files import VOCABULARIES, ModelFiles, read_bytes, vocabulary_of
from tokenmill.tokenization.objects import from_object, is_tokenizer_object
from tokenmill.tokenization.vocabularies import PUBLISHED, SCHEMES, Scheme, Vocabulary, from_ranks

__all__ = ["SCHEMES", "Scheme", "Vocabulary", "absolute_name", "directory_name", "resolve"]


def resolve(tokenizer: Any) -> Vocabulary:
    """Resolve the name of an encoding, a path, a model on the Hub, or a tokenizer object."""
    if is_tokenizer_object(tokenizer):
        return from_object(tokenizer)
    name = _as_name(tokenizer)
    path, scheme = _path_and_scheme(name)
    if path.endswith(".tiktoken") and not name.startswith(hub_models.SCHEME):
        return _from_tiktoken_file(path, scheme)
    if not hub_models.is_local(name):
        model = hub_models.parse(name)
        if model is not None:
            return hub_models.from_hub(model)
    if os.path.isdir(path):
        return vocabulary_of(local_files(path, os.path.basename(os.path.abspath(path))))
    if hub_models.is_local(name) or path.endswith((".json", ".model")):
        return _from_file(path)
    return _from_encoding(name)


def resolve_offline(name: str) -> Vocabulary | None:
    """Resolve a name or a path without the network; None if that would need it."""
    if not hub_models.is_local(name) and hub_models.parse(name) is not None:
        return None
    import tiktoken.load  # noqa: PLC0415 - heavy, and needed for names only

    def refuse(blobpath: str) -> bytes:
        raise TokenizerError(f"the vocabulary of {name} is not in the cache", blobpath)

    read_file, tiktoken.load.read_file = tiktoken.load.read_file, refuse
    try:
        return resolve(name)
    finally:
        tiktoken.load.read_file = read_file


def absolute_name(tokenizer: Any, vocabulary: Vocabulary) -> str:
    """A name that gives the same tokenizer in every working directory, and on the Hub at every time."""
    spec = vocabulary.spec
    if is_tokenizer_object(tokenizer):
        return spec.name
    name = _as_name(tokenizer)
    model = hub_models.parse(name) if spec.commit and not hub_models.is_local(name) else None
    if model is not None and spec.commit:
        return model.at(spec.commit).address
    path, scheme = _path_and_scheme(name)
    if not os.path.exists(path):
        return name
    return os.path.abspath(path) + (f":{scheme}" if scheme else "")


def directory_name(tokenizer: Any) -> str:
    """The name of a tokenizer as that of a directory: `gpt2`, `Qwen--Qwen3-8B`."""
    if is_tokenizer_object(tokenizer):
        name = from_object(tokenizer).spec.name
    else:
        path, _ = _path_and_scheme(_as_name(tokenizer))
        name = _display_name(path) if os.path.exists(path) else _as_name(tokenizer)
    return name.removeprefix(hub_models.SCHEME).strip("/").replace("/", "--")


def _as_name(tokenizer: Any) -> str:
    if isinstance(tokenizer, str | os.PathLike):
        return os.fsdecode(tokenizer)
    raise UsageError(
        f"a {type(tokenizer).__name__} is not a tokenizer",
        "Give a name, a path, or an object of tokenizers, tiktoken or transformers (a fast tokenizer).",
    )


def _path_and_scheme(name: str) -> tuple[str, str | None]:
    path, mark, scheme = name.partition(".tiktoken:")
    return os.path.expanduser(f"{path}.tiktoken" if mark else name), scheme or None


def local_files(directory: str, name: str) -> ModelFiles:
    """The files of a model in a directory."""

    def read(file: str) -> bytes | None:
        path = os.path.join(directory, file)
        return read_bytes(path) if os.path.exists(path) else None

    try:
        names = sorted(os.listdir(directory or "."))
    except OSError:  # the file is read, and the error is that of reading it
        names = []
    return ModelFiles(directory, name, names, read)


def _from_file(path: str) -> Vocabulary:
    """The vocabulary in a file, with the configuration beside it."""
    if not os.path.exists(path):
        read_bytes(path)  # raises
    directory, file = os.path.split(path)
    return vocabulary_of(local_files(directory, _display_name(path)), file)


def _from_encoding(name: str) -> Vocabulary:
    import tiktoken  # noqa: PLC0415 - heavy, and needed for names only

    names = tiktoken.list_encoding_names()
    if name not in names:
        try:
            name = tiktoken.encoding_name_for_model(name)
        except KeyError:
            raise UsageError(f"there is no tokenizer called {name!r}", *_advice(name, names)) from None
    definition = _definition(name)
    ranks = definition["mergeable_ranks"]
    content = format_ranks(ranks) if isinstance(ranks, dict) else ranks
    return from_ranks(name, content, definition["pat_str"], definition["special_tokens"])


def _advice(name: str, names: list[str]) -> list[str]:
    """Advice for an unknown name: a similar one, a path, or a model on the Hub."""
    from tiktoken.model import MODEL_TO_ENCODING  # noqa: PLC0415 - heavy, and needed for names only

    models = {model.replace("-", ""): encoding for model, encoding in MODEL_TO_ENCODING.items()}
    model = models.get(name.lower().replace("-", ""))
    return [
        f"known names  {', '.join(names)}",
        *([f"{name} uses {model}."] if model and name.lower() not in names else did_you_mean(name, names)),
        "Or give a model on the Hub (ORG/MODEL), or a path: a tokenizer.json, its directory, or a .tiktoken file.",
    ]


def _definition(name: str) -> dict[str, Any]:
    """An encoding's ranks, pattern and special tokens, from tiktoken's own cache or the network.

    The ranks are the bytes of a published file if tiktoken reads such a file, which takes no parsing here.
    """
    from tiktoken.registry import ENCODING_CONSTRUCTORS  # noqa: PLC0415 - heavy, and needed for names only

    constructors: dict[str, Any] = ENCODING_CONSTRUCTORS or {}
    # gpt2's own two files take three times as long to read as r50k_base's, which holds the same ranks.
    attempts = ["r50k_base", "gpt2"] if name == "gpt2" else [name]
    failures: list[Exception] = []
    for attempt in attempts:
        try:
            definition: dict[str, Any] = _without_parsing(constructors[attempt])()
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


def _without_parsing(constructor: FunctionType) -> FunctionType:
    """The constructor of an encoding, which returns the bytes of a file that OpenAI publishes instead of its ranks."""
    from tiktoken.load import load_tiktoken_bpe, read_file_cached  # noqa: PLC0415 - heavy, and needed for names only

    def read(address: str, expected_hash: str | None = None) -> bytes | dict[bytes, int]:
        if expected_hash in PUBLISHED:
            return read_file_cached(address, expected_hash)
        return load_tiktoken_bpe(address, expected_hash)

    names = constructor.__globals__
    if names.get("load_tiktoken_bpe") is not load_tiktoken_bpe:  # a plug-in of tiktoken, or another version of it
        return constructor
    return FunctionType(constructor.__code__, {**names, "load_tiktoken_bpe": read})


def _is_unreached(error: Exception) -> bool:
    """Whether no server answered. requests raises an OSError that holds the response if there was one."""
    return isinstance(error, OSError) and getattr(error, "response", None) is None


def _from_tiktoken_file(path: str, scheme: str | None) -> Vocabulary:
    content = read_bytes(path)
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
    return from_ranks(os.path.basename(path), canonical, known.pattern, special_tokens)


def _display_name(path: str) -> str:
    directory, name = os.path.split(os.path.abspath(path))
    if name in VOCABULARIES:
        return os.path.basename(directory)
    return name.removesuffix(".json")
