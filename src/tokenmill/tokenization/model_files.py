"""The files of a model, in a directory or on the Hub: which of them is the vocabulary, and what is missing."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.errors import USAGE, TokenizerError
from tokenmill.storage.local.listing import did_you_mean
from tokenmill.tokenization.tekken import from_tekken
from tokenmill.tokenization.tiktoken_model import code_file, from_tiktoken_model
from tokenmill.tokenization.vocabularies import Vocabulary, declared_end, from_tokenizer_json

MAX_BYTES = 1 << 30
SHOWN_FILES = 5
TOKENIZER_JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
# The vocabulary of a model is the first of these files that it has.
VOCABULARIES = (TOKENIZER_JSON, "tekken.json", "tiktoken.model", "tokenizer.model")
# Endings of files that are listed if there is no vocabulary.
LISTED = (".json", ".tiktoken", ".model")
# A line of a .tiktoken file: a token in base64, a space and a rank.
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model.

    Attributes:
        label: The directory, or the model's name on the Hub, for error messages.
        name: The name that is shown.
        names: The names of the files.
        read: Returns the content of a file; None if it does not exist.
    """

    label: str
    name: str
    names: Sequence[str]
    read: Callable[[str], bytes | None]


def vocabulary_of(files: ModelFiles, file: str | None = None) -> Vocabulary:
    """The vocabulary in a named file of a model, or in the first of `VOCABULARIES` that it has."""
    chosen = file or next((name for name in VOCABULARIES if name in files.names), TOKENIZER_JSON)
    content, origin = files.read(chosen), os.path.join(files.label, chosen)
    if content is None:
        raise _no_vocabulary(files, chosen)
    directory, base = os.path.split(chosen)
    config = files.read(os.path.join(directory, CONFIG))
    if ".model" in base:
        return _from_model_file(files, chosen, content, config)
    if "tekken" in base and base.endswith(".json"):  # as Mistral's own reader decides
        return from_tekken(files.name, origin, content)
    declared = declared_end(config) if base == TOKENIZER_JSON else None
    return from_tokenizer_json(files.name, origin, content, declared)


def read_bytes(path: str) -> bytes:
    """The content of a file of a tokenizer. Raises TokenizerError."""
    try:
        size = os.path.getsize(path)
        if os.path.exists(path) and not os.path.isfile(path):
            raise TokenizerError(f"the tokenizer {path} is not a regular file")
        if size > MAX_BYTES:
            raise TokenizerError(f"the tokenizer {path} is too large", f"limit        {MAX_BYTES:,} bytes")
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        near = did_you_mean(os.path.abspath(path))
        raise TokenizerError(f"no such tokenizer file: {path}", *near, exit_code=USAGE) from error
    except OSError as error:
        raise TokenizerError(f"cannot read the tokenizer {path}", os.strerror(error.errno or 0)) from error


def _from_model_file(files: ModelFiles, file: str, content: bytes, config: bytes | None) -> Vocabulary:
    """The vocabulary of a `.model` file, which is tiktoken's or SentencePiece's."""
    origin = os.path.join(files.label, file)
    if not _RANK_LINE.match(content):
        raise _sentencepiece_error(origin, files.label)
    code = code_file(config)
    beside = os.path.join(os.path.dirname(file), code) if code else None
    return from_tiktoken_model(files.name, origin, content, config, files.read(beside) if beside else None)


def _no_vocabulary(files: ModelFiles, file: str) -> TokenizerError:
    others = sorted(name for name in files.names if name.endswith(LISTED))
    more = ", ..." if len(others) > SHOWN_FILES else ""
    return TokenizerError(
        f"{files.label} has no {file}",
        f"found        {', '.join(others[:SHOWN_FILES]) or 'no file of a tokenizer'}{more}",
        "Give a tokenizer.json of Hugging Face's tokenizers, a tekken.json, a tiktoken.model or a .tiktoken file.",
    )


def _sentencepiece_error(origin: str, loadable: str) -> TokenizerError:
    """The error for a SentencePiece model, with the command that converts it.

    SentencePiece is not an engine here. Its normalization rules are a compiled table in the file, which only its own
    library and the conversion of transformers read.

    Args:
        origin: The file.
        loadable: The directory or the Hub's name that transformers loads the tokenizer from.
    """
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained({loadable!r}).save_pretrained('converted')"
    return TokenizerError(
        f"{origin} is a SentencePiece model, which tokenmill does not read",
        "Convert it to a tokenizer.json (pip install transformers sentencepiece protobuf), and give its directory:",
        f'python -c "{code}"',
        "--tokenizer converted",
    )
