"""Find the documents that spell one of some texts, such as control tokens, in one search of their bytes.

Of a part, the documents at some places are searched. So the same unit gives the same count.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.sources.bad_rows import SPELLS, bad_row, without_rows
from tokenmill.sources.documents import Documents, Int64Array, ReadOptions, SourceFile
from tokenmill.sources.text_columns import parse_template, text_template
from tokenmill.storage.arrow_text import text_buffers

# What most control tokens look like. Each pattern begins with one byte, which is searched for quickly.
_BRACKETS = {b"<": rb"<[^<>]{1,%d}>", b"[": rb"\[[^\[\]]{1,%d}\]"}

# The first documents of a part are searched, and then every document at a multiple of the step. In large parts the
# search takes less than 1 % of the time of a worker.
SEARCHED_FIRST, SEARCHED_STEP = 32, 128


@dataclass(frozen=True, slots=True)
class Spellings:
    """Searches for texts. A position counts once, whatever else begins there."""

    texts: frozenset[bytes]
    patterns: tuple[re.Pattern[bytes], ...]

    @classmethod
    @functools.lru_cache(maxsize=8)
    def of(cls, texts: tuple[str, ...]) -> Spellings:
        """A search for these texts."""
        wanted = {text.encode() for text in texts}
        longest = max(map(len, wanted), default=1)
        patterns = {first: re.compile(pattern % longest) for first, pattern in _BRACKETS.items()}
        usual = {text for text in wanted if (pattern := patterns.get(text[:1])) and pattern.fullmatch(text)}
        used = [pattern for first, pattern in patterns.items() if any(text.startswith(first) for text in usual)]
        return cls(frozenset(wanted), (*used, *(re.compile(re.escape(text)) for text in sorted(wanted - usual))))

    def count(self, text: pa.LargeStringArray) -> Int64Array:
        """How often each document spells one of the texts."""
        data, offsets = text_buffers(text)
        spans = np.array(list(self._spans(data.data)), np.int64).reshape(-1, 2)
        documents = np.searchsorted(offsets, spans[:, 0], side="right") - 1
        is_inside = spans[:, 1] <= offsets[documents + 1]
        return np.bincount(documents[is_inside], minlength=len(text)).astype(np.int64)

    def first(self, document: bytes) -> str:
        """The first of the texts in a document that has one."""
        start, stop = min(self._spans(memoryview(document)))
        return document[start:stop].decode()

    def _spans(self, data: memoryview) -> Iterator[tuple[int, int]]:
        for pattern in self.patterns:
            yield from (match.span() for match in pattern.finditer(data) if match.group() in self.texts)


def template_count(spellings: Spellings, options: ReadOptions) -> int:
    """How often the text of the template itself spells one of the texts."""
    literals = text_template(options).literals if options.template else ()
    return int(spellings.count(pa.array(literals, pa.large_string())).sum())


def refuse_spelled(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """The documents without those that spell a refused text more often than the template, which become bad rows."""
    if not options.refused or not len(documents.rows):
        return documents
    spellings = Spellings.of(options.refused)
    is_bad: npt.NDArray[np.bool_] = spellings.count(documents.text) > template_count(spellings, options)
    if documents.prefix is not None:
        literals = pa.array(parse_template(options.prefix).literals, pa.large_string())
        is_bad |= spellings.count(documents.prefix) > spellings.count(literals).sum()
    is_bad &= ~documents.null_mask()
    if not is_bad.any():
        return documents
    bad = []
    for index in np.flatnonzero(is_bad).tolist():
        raw = documents.whole_text()[index].as_py().encode()
        bad.append(bad_row(int(documents.rows[index]), SPELLS, f"found {spellings.first(raw)!r}", raw))
    return without_rows(file, documents, is_bad, bad, options)


def searched(first: int, documents: int) -> npt.NDArray[np.int64]:
    """The indices of the documents that are searched, of so many documents from document `first` of a part on."""
    places = np.arange(first, first + documents)
    return np.flatnonzero((places < SEARCHED_FIRST) | (places % SEARCHED_STEP == 0))


def searched_documents(documents: npt.NDArray[np.int64]) -> int:
    """How many documents of parts of these sizes are searched: the first SEARCHED_FIRST, and every SEARCHED_STEP-th."""
    return int((np.minimum(documents, SEARCHED_FIRST) + np.maximum(documents - 1, 0) // SEARCHED_STEP).sum())
