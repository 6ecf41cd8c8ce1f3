"""The text of a shard's documents, for formats that hold text instead of tokens."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.storage import folder_at
from tokenmill.store.collection import Collection
from tokenmill.store.job import read_vocabulary, require_run
from tokenmill.store.listed_parts import ListedStore
from tokenmill.token_files.files import rechunk
from tokenmill.token_files.protocol import Content, Shard, Tokens
from tokenmill.tokenization.token_text import NotText, TokenText, lost_text


@functools.lru_cache(maxsize=1)
def _decoder(directory: str, digest: str) -> TokenText:
    """The decoder of a store. The digest is part of the cache key: a store may be another."""
    del digest
    folder = folder_at(directory)
    job = require_run(folder).job
    return TokenText(job.tokenizer, read_vocabulary(folder, job.tokenizer), job.begin, job.end)


@dataclass
class ShardText:
    """Decodes the documents of a shard in their order. `control_tokens` counts the special tokens that it spelled."""

    decode: TokenText
    shard: Shard
    content: Content
    directory: str

    def __post_init__(self) -> None:
        self._size = 0
        self._before = self.decode.control_tokens
        sizes = iter(lambda: self._size, None)
        self._chunks: Iterator[Tokens] = rechunk(self.content.batches, sizes, self.shard.dtype)

    @classmethod
    def of(cls, store: ListedStore, shard: Shard, content: Content) -> ShardText:
        """The text of a shard, with the vocabulary of the first of its stores, which all have."""
        return cls(_decoder(store.directory, store.digest), shard, content, store.directory)

    @property
    def control_tokens(self) -> int:
        """How many special tokens were spelled."""
        return self.decode.control_tokens - self._before

    def __call__(self, start: int, stop: int) -> pa.LargeStringArray:
        """Return the text of documents [start, stop), which begin where those of the last call end."""
        lengths = self.content.lengths[start:stop]
        self._size = int(lengths.sum())
        tokens = next(self._chunks)
        try:
            return self.decode(tokens, lengths)
        except NotText as error:
            document = start + error.position
            raise StoreError(
                error.headline,
                f"source       {self.shard.paths[int(self.content.source[document])].as_py()}",
                f"row          {int(self.content.row[document]):,}",
                *error.details,
                f"Export tokens, or erase the document: `tokenmill erase {self.directory} --rows FILE`.",
            ) from error


def text_notices(stores: Collection) -> list[str]:
    """What the text of an export is not: the text of the sources in every case."""
    tokenizer = stores.job.tokenizer
    lost = lost_text(tokenizer, read_vocabulary(stores.members[0].folder, tokenizer))
    notices = [f"{lost}: there the text is not that of the sources"] if lost else []
    if any(one.run.job.fim_rate is not None for one in stores.members):
        notices.append(
            "documents that were rearranged for fill-in-the-middle stay rearranged, with the spelling of "
            "their control tokens"
        )
    return notices
