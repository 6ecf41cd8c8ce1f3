"""The record that describes a tokenizer, shared by jobs and engines."""

from __future__ import annotations

import msgspec


class TokenizerSpec(msgspec.Struct, frozen=True):
    """A vocabulary file by its hash, and what the file itself does not contain.

    `file` is a name in the run's `tokenizer/` folder. `pattern` is the split regex of a `.tiktoken` vocabulary, and
    `scheme` the name of that regex if it is known; a `tokenizer.json` contains its own. `vocabulary_size` is the
    largest id plus one, added tokens included. `source` is the name of a model on the Hub that was asked for, and
    `commit` the one that the vocabulary is from; specs of other tokenizers do not have these fields on disk.
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
    source: str | msgspec.UnsetType = msgspec.UNSET
    commit: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def dtype(self) -> str:
        """The type that holds every id: uint16 up to 65,536 ids, else uint32."""
        return "uint16" if self.vocabulary_size <= 1 << 16 else "uint32"
