"""Decode documents of token ids and encode their text again: only the tokenizer that made them gives the same ids.

Other vocabularies give nearly no equal document, unless they share a prefix with the right one, as p50k_base does with
gpt2.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import compress

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import SourceError, TokenizerError, UsageError
from tokenmill.humanize import Readable
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_bytes import token_bytes_lookup
from tokenmill.tokenization.tokenizer import Tokenizer
from tokenmill.tokenization.vocabularies import Vocabulary

# A sample of documents: so many, and so many tokens of each.
SAMPLE_DOCUMENTS, SAMPLE_TOKENS = 300, 2048
# Documents with fewer tokens are equal by chance.
MIN_TOKENS = 4
# Of a document that is cut, the tokens beside a cut are not compared: the rest of a word is encoded in another way.
CUT_TOKENS = 16
# `prepare` refuses a tokenizer that gives a smaller share of equal documents, of at least so many.
MIN_EQUAL, MIN_DOCUMENTS = 0.9, 20
# Of fewer documents, it refuses one that gives less than half of them.
MIN_EQUAL_OF_FEW, FEW_DOCUMENTS = 0.5, 3
SHOWN_CHARACTERS = 60

ADVICE = (
    "`tokenmill identify` names the tokenizers that fit.",
    "Tokens of text that was cut or normalized differ rightly: --trust-tokens allows them.",
)


class TokenCheck(Readable, msgspec.Struct, frozen=True, omit_defaults=True):
    """How many sampled documents a tokenizer decodes and encodes to the same ids.

    Attributes:
        tokenizer: The tokenizer.
        documents: The documents that were compared.
        equal: Those that have the same ids again.
        differs: Those whose text has other ids.
        not_utf8: Those whose bytes are not text.
        outside: Those with an id that the vocabulary does not have.
        equal_example: The start of the text of an equal document.
        differs_example: The first tokens that differ, and what they are encoded to.
        not_utf8_example: The bytes around the first error.
        outside_example: An id that the vocabulary does not have.
    """

    tokenizer: str
    documents: int
    equal: int
    differs: int
    not_utf8: int
    outside: int
    equal_example: str = ""
    differs_example: str = ""
    not_utf8_example: str = ""
    outside_example: int | None = None

    @property
    def equal_share(self) -> float:
        """The share of equal documents."""
        return self.equal / self.documents if self.documents else 0.0

    @property
    def is_refused(self) -> bool:
        """Whether so few documents are equal that the tokens are probably of another tokenizer."""
        if self.outside:
            return True
        if self.documents >= MIN_DOCUMENTS:
            return self.equal_share < MIN_EQUAL
        return self.documents >= FEW_DOCUMENTS and self.equal_share < MIN_EQUAL_OF_FEW

    def lines(self) -> list[str]:
        """The counts with an example of each, as lines of a message."""
        shown = [f"equal        {self.equal:,} of {self.documents:,} sampled documents"]
        for label, number, example in (
            ("differs", self.differs, self.differs_example),
            ("not UTF-8", self.not_utf8, self.not_utf8_example),
            ("outside", self.outside, f"id {self.outside_example}"),
        ):
            shown += [f"{label:<12} {number:,}, such as {example}"] if number else []
        return shown


def choose_sample(documents: Sequence[Tokens]) -> list[Tokens]:
    """Up to SAMPLE_DOCUMENTS documents from all places, of those that are long enough if there are any."""
    long = [document for document in documents if len(document) >= MIN_TOKENS] or list(documents)
    step = max(len(long) / SAMPLE_DOCUMENTS, 1)
    return [long[int(index * step)] for index in range(min(len(long), SAMPLE_DOCUMENTS))]


def check_tokens(vocabulary: Vocabulary, documents: Sequence[Tokens], *, is_cut: bool = False) -> TokenCheck:
    """Compare a sample of documents, without the begin and end tokens of their source.

    `is_cut` says that they begin and end within documents, as rows of a stream do.
    """
    return RoundTrip(vocabulary).check(choose_sample(documents), is_cut=is_cut)[0]


def refuse_tokens(check: TokenCheck, path: str) -> None:
    """Raise UsageError if the tokens of a source are probably of another tokenizer."""
    if check.is_refused:
        headline = f"the tokens of a source are not those of {check.tokenizer}"
        raise UsageError(headline, f"file         {path}", *check.lines(), *ADVICE)


def require_ids(spec: TokenizerSpec, tokens: Tokens, path: str, first: int) -> None:
    """Raise SourceError if a source has an id that the vocabulary does not have. `first` is the place of its tokens."""
    if not len(tokens) or int(tokens.max()) < spec.vocabulary_size:
        return
    place = int(np.argmax(tokens >= spec.vocabulary_size))
    raise SourceError(
        f"a source has an id that {spec.name} does not have",
        f"file         {path}",
        f"token        {first + place:,}",
        f"id           {int(tokens[place]):,}",
        f"vocabulary   {spec.vocabulary_size:,} ids",
        "`tokenmill identify` names the tokenizers that fit.",
    )


class RoundTrip:
    """Decodes and encodes documents by one vocabulary. The engine is the reference, loaded when it is needed."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.spec = vocabulary.spec
        self.token_bytes = functools.cache(token_bytes_lookup(vocabulary.spec, vocabulary.content))
        self._content = vocabulary.content
        self._controls = np.array(sorted(self.spec.special_tokens.values()), np.uint32)

    def check(self, documents: Sequence[Tokens], *, is_cut: bool = False) -> tuple[TokenCheck, list[bool]]:
        """Compare documents. Returns which are equal, too. `is_cut` says that they begin and end within documents."""
        is_inside = [int(ids.max(initial=0)) < self.spec.vocabulary_size for ids in documents]
        inside = [ids[:SAMPLE_TOKENS] for ids in compress(documents, is_inside)]
        cuts = [is_cut or len(ids) > SAMPLE_TOKENS for ids in compress(documents, is_inside)]
        data = [b"".join(map(self.token_bytes, ids.tolist())) for ids in inside]
        texts = [_as_text(each, may_cut=cut) for each, cut in zip(data, cuts, strict=True)]
        equal, differing = self._compare(inside, texts, cuts)
        not_utf8 = [each for each, text in zip(data, texts, strict=True) if text is None]
        outside = [int(ids.max()) for ids, fits in zip(documents, is_inside, strict=True) if not fits]
        check = TokenCheck(
            tokenizer=self.spec.name,
            documents=len(documents),
            equal=sum(equal),
            differs=len(inside) - sum(equal) - len(not_utf8),
            not_utf8=len(not_utf8),
            outside=len(outside),
            equal_example=_shown(next(compress(texts, equal), None)),
            differs_example=differing,
            not_utf8_example=_around_error(not_utf8[0]) if not_utf8 else "",
            outside_example=max(outside, default=None),
        )
        results = iter(equal)
        return check, [fits and next(results) for fits in is_inside]

    def _compare(
        self, documents: Sequence[Tokens], texts: Sequence[str | None], cuts: Sequence[bool]
    ) -> tuple[list[bool], str]:
        """Whether each document is equal, and the first difference."""
        equal, difference = [False] * len(documents), ""
        chosen = [index for index, text in enumerate(texts) if text is not None]
        again = self._encode([texts[index] or "" for index in chosen])
        for index, ids in zip(chosen, again, strict=True):
            document = documents[index]
            equal[index] = _is_equal(document, ids, is_cut=cuts[index])
            if not equal[index]:
                equal[index] = _is_equal(document, self._between_controls(document), is_cut=cuts[index])
            if not equal[index] and not difference and ids is not None:
                difference = self._difference(document, ids)
        return equal, difference

    def _between_controls(self, document: Tokens) -> Tokens | None:
        """The ids of a document again, if the text between its control tokens is encoded piece by piece."""
        places = np.flatnonzero(np.isin(document, self._controls))
        if not len(places):
            return None
        pieces = [document[: places[0]], *(ids[1:] for ids in np.split(document, places)[1:])]
        texts = [_as_text(b"".join(map(self.token_bytes, ids.tolist())), may_cut=True) for ids in pieces]
        again = self._encode([text or "" for text in texts])
        if None in texts or any(ids is None for ids in again):
            return None
        controls = [document[:0], *document[places].reshape(-1, 1)]
        return np.concatenate([ids for pair in zip(controls, again, strict=True) for ids in pair if ids is not None])

    @functools.cached_property
    def _prefix(self) -> str:
        """What the tokenizer puts before each text: a space, in some vocabularies."""
        (ids,) = self._encode(["a"], is_raw=True)
        text = b"" if ids is None else b"".join(map(self.token_bytes, ids.tolist()))
        return text.decode(errors="replace").removesuffix("a") if text.endswith(b"a") else ""

    def _encode(self, texts: Sequence[str], *, is_raw: bool = False) -> list[Tokens | None]:
        """The ids of each text; None for one that the reference cannot encode."""
        plain = list(texts) if is_raw else [text.removeprefix(self._prefix) for text in texts]
        try:
            encoded = self._tokenizer.encode(pa.array(plain, pa.large_string()))
        except TokenizerError:
            if len(plain) == 1:
                return [None]
            halves = plain[: len(plain) // 2], plain[len(plain) // 2 :]
            return [ids for half in halves for ids in self._encode(half, is_raw=True)]
        return [encoded.document(index) for index in range(len(plain))]

    @functools.cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.spec, self._content, "reference")

    def _difference(self, document: Tokens, again: Tokens) -> str:
        """The first tokens that differ, with their text."""
        shared = min(len(document), len(again))
        places = np.flatnonzero(document[:shared] != again[:shared])
        place = int(places[0]) if len(places) else shared
        sides = (" ".join(map(str, ids[place : place + 3].tolist())) or "nothing" for ids in (document, again))
        text = b"".join(map(self.token_bytes, document[place : place + 3].tolist()))
        before, after = sides
        return f"{before} ({_shown(text.decode(errors='backslashreplace'))}), which is encoded to {after}"


def _is_equal(document: Tokens, again: Tokens | None, *, is_cut: bool) -> bool:
    if again is None:
        return False
    if not is_cut or np.array_equal(document, again):
        return np.array_equal(document, again)
    inner = document[CUT_TOKENS:-CUT_TOKENS].astype("<u4").tobytes()
    return bool(inner) and inner in again.astype("<u4").tobytes()


def _as_text(data: bytes, *, may_cut: bool) -> str | None:
    """Bytes as text; None if they are not UTF-8. With `may_cut`, characters that are cut at the edges are left out."""
    start = next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0) if may_cut else 0
    try:
        return data[start:].decode()
    except UnicodeDecodeError as error:
        is_cut = may_cut and error.reason == "unexpected end of data"
        return data[start : start + error.start].decode() if is_cut else None


def _around_error(data: bytes) -> str:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return _shown(data[max(error.start - 20, 0) : error.start + 20].decode(errors="backslashreplace"))
    return ""


def _shown(text: str | None) -> str:
    if text is None:
        return ""
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
