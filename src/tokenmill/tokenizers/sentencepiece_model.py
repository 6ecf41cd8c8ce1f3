"""Recognize a SentencePiece model, and say how to convert it to a tokenizer.json.

SentencePiece is not an engine here. Its normalization rules are a compiled table in the file, which only its own
library and the conversion of transformers read.
"""

from __future__ import annotations

import re

from tokenmill.errors import TokenizerError

# A line of a .tiktoken file: a token in base64, a space and a rank.
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")


def is_rank_file(content: bytes) -> bool:
    """Whether a `.model` file has the lines of a `.tiktoken` file, and is not SentencePiece's."""
    return _RANK_LINE.match(content) is not None


def sentencepiece_error(origin: str, loadable: str) -> TokenizerError:
    """The error for a SentencePiece model.

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
