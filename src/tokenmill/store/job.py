"""The job: everything that decides the bytes of a store, frozen, with a canonical digest."""

from __future__ import annotations

import msgspec

from tokenmill.digest import differences, digest_of
from tokenmill.tokenizers.spec import TokenizerSpec


class Job(msgspec.Struct, frozen=True):
    """How documents are tokenized. Two runs with equal jobs and equal sources write equal bytes."""

    tokenizer: TokenizerSpec
    column: str
    separator: str | None
    begin: int | None
    end: int | None
    unit_bytes: int
    limit_units: int | None = None
    document_bytes: int | None = None
    """Longer documents are not tokenized. None in stores of format 5, whose limit depended on the memory."""

    def identity(self) -> dict[str, str]:
        """The choices that decide the bytes, by the name of the option."""
        tokenizer = self.tokenizer
        limit = {} if self.document_bytes is None else {"--max-document-bytes": str(self.document_bytes)}
        return {
            "tokenizer": f"sha256 {tokenizer.sha256}",
            "split pattern": tokenizer.pattern or "in the vocabulary",
            "--column": self.column,
            "--separator": repr(self.separator) if self.separator is not None else "none",
            "--bos": _token(self.begin),
            "--eot": _token(self.end),
            "--unit-bytes": str(self.unit_bytes),
            "--limit-units": str(self.limit_units) if self.limit_units is not None else "none",
            **limit,
        }

    def digest(self) -> str:
        """SHA-256 of the identity in canonical JSON."""
        return digest_of(self.identity())

    def differences(self, now: Job) -> list[tuple[str, str, str]]:
        """The choices that differ: (name, value in this job, value in the other)."""
        return differences(self.identity(), now.identity())


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)
