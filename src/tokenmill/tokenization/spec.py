"""The record that describes a tokenizer, shared by jobs and engines."""

from __future__ import annotations

import msgspec


class TokenizerSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A vocabulary file by its hash, and what the file itself does not contain.

    `file` is a name in the run's `tokenizer/` folder. `pattern` is the split regex of a `.tiktoken` vocabulary, and
    `scheme` the name of that regex if it is known; a `tokenizer.json` contains its own. `vocabulary_size` is the
    largest id plus one, added tokens included. `plain_tokens` are the added tokens that are not special: their spelling
    in a text becomes their id. `source` is the name of a model on the Hub that was asked for, and `commit` the one that
    the vocabulary is from; both are empty for other vocabularies.

    Two fields are for engines (see `Job.encoder`). `parse_special` says that the spelling of a special token becomes
    its id. `marks` are the ids of characters that stand for control tokens of a template.
    """

    name: str
    kind: str
    file: str
    sha256: str
    vocabulary_size: int
    special_tokens: dict[str, int]
    pattern: str | None = None
    scheme: str | None = None
    end_of_text: int | None = None
    source: str = ""
    commit: str = ""
    plain_tokens: dict[str, int] = {}
    parse_special: bool = False
    marks: dict[str, int] = {}

    @property
    def added_tokens(self) -> dict[str, int]:
        """The ids of all added tokens, special or not, by their spelling."""
        return self.special_tokens | self.plain_tokens

    def shown(self, token: int) -> str:
        """An id, with its spelling if it is an added token."""
        return f"{token} {self.spelling(token) or ''}".rstrip()

    def spelling(self, token: int) -> str | None:
        """The text of an added token; None for another id."""
        return next((text for text, number in self.added_tokens.items() if number == token), None)

    @property
    def dtype(self) -> str:
        """The type that holds every id: uint16 up to 65,536 ids, else uint32."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "uint32"
