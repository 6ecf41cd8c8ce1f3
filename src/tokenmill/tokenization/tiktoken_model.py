"""Read a model's tiktoken.model, whose split pattern is in Python code beside it.

The code is parsed and never run. A pattern is used only if the configuration names a known class and the code assigns
the known pattern to `pat_str`.
"""

from __future__ import annotations

import ast

import msgspec

from tokenmill.errors import TokenizerError
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.tokenization.engines.tiktoken import format_ranks, parse_ranks
from tokenmill.tokenization.vocabularies import Vocabulary, declared_end, from_ranks

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
# The alternatives of the split pattern, by the class that a tokenizer_config.json names.
PATTERNS = {
    "tokenization_kimi.TikTokenTokenizer": (
        r"[\p{Han}]+",
        rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?",
        rf"{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ),
}
PATTERNS["tokenization_moonshot.TikTokenTokenizer"] = PATTERNS["tokenization_kimi.TikTokenTokenizer"]


def code_file(config: bytes | None) -> str | None:
    """The Python file that a configuration names, if its split pattern is known."""
    name = _parsed(config).class_name
    return f"{name.partition('.')[0]}.py" if name in PATTERNS else None


def from_tiktoken_model(name: str, origin: str, content: bytes, config: bytes | None, code: bytes | None) -> Vocabulary:
    """The vocabulary of a tiktoken.model.

    Args:
        name: The name that is shown.
        origin: The file, for error messages.
        content: The bytes of the file.
        config: The tokenizer_config.json beside it.
        code: The Python file that `code_file` names.
    """
    parsed = _parsed(config)
    class_name = parsed.class_name
    alternatives = PATTERNS.get(class_name or "")
    if alternatives is None:
        named = f"class {class_name}" if class_name else "no class in a tokenizer_config.json"
        raise _unknown_pattern(origin, f"found        {named}")
    pattern = "|".join(alternatives)
    if _assigned_pattern(code or b"") != pattern:
        found = "has another pattern than the known one" if code else "is missing"
        raise _unknown_pattern(origin, f"found        {class_name}, and its Python file {found}")
    ranks = parse_ranks(content, origin)
    special = _special_tokens(parsed, ranks, origin)
    end = special.get(declared_end(config) or "")
    return from_ranks(name, format_ranks(ranks), pattern, special, end)


def _unknown_pattern(origin: str, found: str) -> TokenizerError:
    return TokenizerError(
        f"the split pattern of {origin} is not known",
        found,
        f"known        {', '.join(PATTERNS)}",
        "The file holds tokens only. Its pattern is in Python code of the model, which tokenmill does not run.",
        "Give a tokenizer.json of the model, or a .tiktoken file with the name of a scheme: FILE.tiktoken:cl100k_base",
    )


def _assigned_pattern(code: bytes) -> str | None:
    """The value that Python code assigns to `pat_str`: a string, or strings that are joined by `|`."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in nodes:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["pat_str"]:
            value = node.value
            is_joined = isinstance(value, ast.Call) and ast.unparse(value.func) == "'|'.join" and len(value.args) == 1
            try:
                found = ast.literal_eval(value.args[0] if isinstance(value, ast.Call) and is_joined else value)
                return "|".join(found) if is_joined else str(found)
            except (ValueError, TypeError):
                return None
    return None


class _SpecialEntry(msgspec.Struct):
    """A special token, by its id in the configuration."""

    content: str


class _TokenizerConfig(msgspec.Struct):
    """The used parts of a tokenizer_config.json. The class is a name, or the first of two, slow and fast."""

    auto_map: dict[str, str | list[str | None] | None] = {}
    added_tokens_decoder: dict[str, _SpecialEntry] = {}

    @property
    def class_name(self) -> str | None:
        """The class of the tokenizer."""
        named = self.auto_map.get("AutoTokenizer")
        first = named[0] if isinstance(named, list) and named else named
        return first.rpartition("--")[2] if isinstance(first, str) else None


def _parsed(config: bytes | None) -> _TokenizerConfig:
    try:
        return decode(config or b"{}", _TokenizerConfig)
    except MalformedDataError:
        return _TokenizerConfig()


def _special_tokens(config: _TokenizerConfig, ranks: dict[bytes, int], origin: str) -> dict[str, int]:
    taken = set(ranks.values())
    for number, token in config.added_tokens_decoder.items():
        if not number.isdecimal() or int(number) in taken:
            raise TokenizerError(
                f"the tokenizer_config.json of {origin} does not fit it",
                f"found        the special token {token.content!r} with the id {number[:20]}",
            )
    return {token.content: int(number) for number, token in config.added_tokens_decoder.items()}
