"""The job: everything that decides the bytes of a store, frozen, with a canonical digest."""

from __future__ import annotations

import msgspec

from tokenmill.digest import differences, digest_of
from tokenmill.tokenizers.spec import TokenizerSpec


class Job(msgspec.Struct, frozen=True):
    """What is done to each document. Two runs with equal jobs and equal sources give equal bytes."""

    tokenizer: TokenizerSpec
    column: str
    separator: str | None
    begin: int | None
    end: int | None
    unit_bytes: int
    limit_units: int | None = None
    document_bytes: int | None = None
    """A longer document is not tokenized. None in stores of format 5, whose limit followed from the memory."""

    def identity(self) -> dict[str, str]:
        """The choices that decide the bytes, each under the name that people know it by."""
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
        """What differs between this job and another: (name, here, there)."""
        return differences(self.identity(), now.identity())


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)
