"""A loaded tokenizer: the fast engine encodes most documents, the reference engine the others.

The fast engine is probed when it is loaded, and audited on a sample of the documents while it runs. The reference
encodes documents that contain a character on which the engines' Unicode versions disagree, and documents on which the
reference may fail.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tokenmill.errors import EngineMismatch, TokenizerError, UsageError
from tokenmill.spans import Spans
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.system import machine
from tokenmill.tokenization.audit import Audit, AuditMismatchError, Batch
from tokenmill.tokenization.control_tokens import plain_content
from tokenmill.tokenization.cutting import Cutter
from tokenmill.tokenization.engines.gigatoken import EngineFailed, GigatokenEngine
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.engines.ids import IDS, STORED, IdsEngine
from tokenmill.tokenization.engines.protocol import CannotEncode, Encoded, Engine, Tokens
from tokenmill.tokenization.engines.tiktoken import TiktokenEngine
from tokenmill.tokenization.gigatoken_support import unsupported
from tokenmill.tokenization.resolve import Vocabulary
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_places import TokenPlaces
from tokenmill.tokenization.unicode_gap import ByteArray, IntArray, Ranges, documents_with_gap

__all__ = ["ENGINES", "REFERENCES", "AuditMismatchError", "EngineChoice", "Tokenizer", "choose_engine"]

Result = TypeVar("Result")
ENGINES = ("auto", "gigatoken", "tiktoken", "tokenizers")
REFERENCES: dict[str, type[TiktokenEngine | HuggingFaceEngine | IdsEngine]] = {
    "tiktoken": TiktokenEngine,
    "huggingface": HuggingFaceEngine,
    IDS: IdsEngine,
    STORED: IdsEngine,
}
REFERENCE_NAMES = tuple(engine.name for engine in REFERENCES.values())

# How much a process may grow before the fast engine's word cache is emptied. About 80 MB of it are buffers. The rest
# holds 3.5 million words; the words of 190 MB of text in 25 languages take 170 MB.
CACHE_BYTES = 320 << 20
# How much the process must have grown since the cache was last emptied before it is emptied again.
MIN_GROWTH_BYTES = 32 << 20
# Texts that reveal an engine that splits or merges differently.
PROBE = (
    "",
    " ",
    "Hello, world! It's 3:45 o'clock; they'LL've done 1234567 things.",
    "    indented\n\n\tcode = {'a': [1, 2.5e-3]}  # trailing   \r\n\r\n  ",
    "<|endoftext|><|fim_prefix|></s><s>[INST] <|im_start|>user",
    "naïve café Ünïcödé ǅ ß ﬁ İı \u0301\u0300e\u0301 a\u0308\u0323",
    "日本語のテキスト、中文文本。한국어 텍스트 हिन्दी पाठ தமிழ் ไทย العربية עברית Ελληνικά Русский",
    "👩‍👩‍👧‍👦🏳️‍🌈🇩🇪 ❤️ \u200b\u200d\u2060\ufeff\u00a0\u2028\u2029\u3000",
    "٣٤٥ १२३ Ⅷ ½ x² \U0001d7d8\U0001d7d9 \U0001d573\U0001d58a\U0001d591 \U000e0100\U0010ffff\ue000\ufffd\x00\x7f\x85",
    "a" * 300 + "." * 300 + "1" * 300 + " " * 300 + "\n" * 300 + "é" * 300,
)

# The reference encodes a document with more white space in a row: a quarter of the least that fails.
MAX_WHITE_SPACE_BYTES = 256 << 10
# Only every so many bytes of a long document is examined.
SAMPLE_STEP = 4 << 10
# White space that is too long contains at least this many consecutive samples.
MIN_SAMPLES = MAX_WHITE_SPACE_BYTES // SAMPLE_STEP - 1

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
_BYTES = np.zeros(256, np.bool_)
_BYTES[list(f"{_WHITE_SPACE}\u202f\u205f\u3000".encode())] = True


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine, and the reason if the user could expect the fast engine but gets the reference."""

    engine: str
    reason: str | None = None


def choose_engine(vocabulary: Vocabulary, wanted: str) -> EngineChoice:
    """The engine a run starts with. Does not load an engine."""
    spec = vocabulary.spec
    reference = REFERENCES[spec.kind].name
    if wanted not in ENGINES:
        raise UsageError(f"there is no engine called {wanted!r}", f"engines      {', '.join(ENGINES)}")
    if wanted == reference or (wanted == "auto" and spec.kind in {IDS, STORED}):
        return EngineChoice(reference)
    if spec.kind in {IDS, STORED}:
        raise UsageError(f"--engine {wanted} has no effect: the documents are token ids already", "Remove --engine.")
    if wanted in REFERENCE_NAMES:
        raise UsageError(f"{wanted} cannot read {spec.name}", f"Use --engine {reference}, or auto.")
    reason = unsupported(vocabulary)
    if reason is None and spec.parse_special:
        reason = unsupported(Vocabulary(spec, _fast_content(spec, vocabulary.content)))
    if reason is None:
        return EngineChoice("gigatoken")
    if wanted == "gigatoken":
        raise UsageError(f"gigatoken cannot encode {spec.name}: {reason}", f"Use --engine {reference}, or auto.")
    return EngineChoice(reference, f"not with gigatoken, which is faster: {reason}")


class Tokenizer:
    """Encodes documents exactly as the reference does, with the fast engine where possible."""

    def __init__(self, spec: TokenizerSpec, content: bytes, engine: str) -> None:
        self.spec = spec
        self.notices: list[str] = []
        self.mismatch: str | None = None  # the message of an audit that failed in this process
        self._content = content
        self._marks = Cutter.of(spec.marks) if spec.marks else None
        self._reference: Engine | None = None
        self._places: TokenPlaces | None = None
        self._fast: GigatokenEngine | None = None
        fast_content = _fast_content(spec, content) if engine == "gigatoken" else content
        self._audit = Audit(spec, fast_content)
        self._first_bytes = 0
        self._emptied_bytes = 0
        if engine == "gigatoken":
            self._load_fast(fast_content)

    @property
    def engine(self) -> str:
        """The name of the engine in use."""
        return (self._fast or self.reference).name

    @property
    def reference(self) -> Engine:
        """The engine that defines the correct tokens, built on first use."""
        if self._reference is None:
            self._reference = REFERENCES[self.spec.kind](self.spec, self._content)
        return self._reference

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document, without begin and end tokens. Raises EngineMismatch if an audit fails."""
        if self._marks is None:
            return self._encode(text)
        data, offsets = text_buffers(text)
        return self._marks.encode(data, offsets, lambda slices: self._encode_slices(data, slices, offsets))

    def _encode_slices(self, data: ByteArray, slices: IntArray, offsets: IntArray) -> Encoded:
        """The tokens of the text between marks, each encoded as a document. An error names the document it is of."""
        buffers = pa.py_buffer(slices), pa.py_buffer(np.ascontiguousarray(data))
        try:
            return self._encode(pa.LargeStringArray.from_buffers(len(slices) - 1, *buffers))
        except (AuditMismatchError, CannotEncode) as failure:
            failure.position = int(np.searchsorted(offsets, slices[failure.position], side="right")) - 1
            raise

    def _encode(self, text: pa.LargeStringArray) -> Encoded:
        if self._fast is None:
            return self.reference.encode(text)
        data, offsets = text_buffers(text)
        by_reference = _for_reference(data, offsets, self._fast.gap)
        try:
            encoded = self._fast.encode(text)
        except EngineFailed as failure:
            self.use_reference(failure.headline)
            return self.reference.encode(text)
        except TokenizerError as error:  # an id that the vocabulary does not have
            raise EngineMismatch(error.headline) from error
        if len(by_reference):
            encoded = self._replace(encoded, by_reference, text)
        self._audit.check(Batch(encoded, data, offsets, by_reference), self._fast, self.reference)
        return encoded

    def encode_pieces(self, text: pa.LargeStringArray, trained: Spans | None) -> Encoded:
        """The same, with the tokens that overlap the bytes of documents that are trained on. None stands for all."""
        encoded = self.encode(text)
        if trained is None:
            return encoded
        if self.spec.kind in {IDS, STORED}:
            return replace(encoded, train=trained)
        if self._places is None:
            self._places = TokenPlaces(self.spec, self._content)
        return replace(encoded, train=self._places.covering(text, encoded, trained))

    def use_threads(self, threads: int) -> None:
        """Let the fast engine share large batches among this many threads."""
        if self._fast is not None and threads > 1:
            self._fast.use_threads(threads)

    def load(self) -> Tokenizer:
        """Load the engine now, so that loading does not count as the first document's time. Returns self."""
        if self._fast is None:
            _ = self.reference
        else:
            self._audit.load()
        return self

    def use_reference(self, reason: str) -> None:
        """Stop using the fast engine in this process."""
        self.notices.append(f"{reason}; going on with {REFERENCES[self.spec.kind].name}, which is slower")
        self._fast = None

    def retry_with_reference(self, encode: Callable[[], Result]) -> Result:
        """Call `encode`. If an audit fails in it, stop using the fast engine and call it once more."""
        try:
            return encode()
        except EngineMismatch as mismatch:
            self.mismatch = str(mismatch)
            self.use_reference(self.mismatch)
            return encode()

    def take_notices(self) -> tuple[str, ...]:
        """The notices for the user since the last call."""
        notices = tuple(self.notices)
        self.notices.clear()
        return notices

    def trim(self, max_bytes: int) -> None:
        """Empty the fast engine's word cache if it has grown large, or if the process holds more than `max_bytes`.

        Rebuilding the cache halves the speed for a while. So it is not emptied again before the process has grown,
        whatever else makes the process large.
        """
        if self._fast is None:
            return
        held = machine.private_bytes()
        self._first_bytes = self._first_bytes or held
        is_large = held > min(self._first_bytes + CACHE_BYTES, max_bytes)
        if is_large and held > self._emptied_bytes + MIN_GROWTH_BYTES:
            self._fast.clear_cache()
            pa.default_memory_pool().release_unused()
            machine.give_back_memory()
            self._emptied_bytes = machine.private_bytes()

    def _load_fast(self, content: bytes) -> None:
        try:
            self._fast = GigatokenEngine(self.spec, content)
        except TokenizerError as error:
            self.use_reference(f"{error.headline} ({'; '.join(error.details)})")
            return
        probe = pa.array(PROBE, pa.large_string())
        try:
            fast = self._fast.encode(probe)
        except TokenizerError as error:
            self.use_reference(f"gigatoken failed its probe ({error.headline})")
            return
        reference = self.reference.encode(probe)
        by_reference = _for_reference(*text_buffers(probe), self._fast.gap)
        for index, text in enumerate(PROBE):
            if index not in by_reference and not np.array_equal(fast.document(index), reference.document(index)):
                self.use_reference(f"gigatoken failed its probe on {text[:40]!r}")
                return

    def _replace(self, encoded: Encoded, indices: np.ndarray, text: pa.LargeStringArray) -> Encoded:
        """Replace the tokens of some documents by those of the reference."""
        corrected = self.reference.encode(text.take(pa.array(indices)))
        lengths = np.diff(encoded.offsets)
        lengths[indices] = np.diff(corrected.offsets)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        return Encoded(np.concatenate(list(_interleave(encoded, indices, corrected))), offsets)


def _fast_content(spec: TokenizerSpec, content: bytes) -> bytes:
    """The vocabulary for the fast engine: with special tokens that are parsed, they are like the other added ones."""
    return plain_content(content) if spec.parse_special and spec.kind == "huggingface" else content


def _interleave(encoded: Encoded, indices: np.ndarray, corrected: Encoded) -> Iterator[Tokens]:
    start = 0
    for number, index in enumerate(indices):
        yield encoded.tokens[encoded.offsets[start] : encoded.offsets[index]]
        yield corrected.document(number)
        start = index + 1
    yield encoded.tokens[encoded.offsets[start] : encoded.offsets[-1]]


def _for_reference(data: ByteArray, offsets: IntArray, gap: Ranges) -> IntArray:
    """The sorted indices of the documents that the reference encodes even if the fast engine is in use."""
    with_gap = documents_with_gap(data, offsets, gap)
    long = documents_with_long_white_space(data, offsets)
    return np.union1d(with_gap, long).astype(np.int64) if long else with_gap


def documents_with_long_white_space(data: ByteArray, offsets: IntArray) -> list[int]:
    """The indices of the documents that have a run of white space longer than MAX_WHITE_SPACE_BYTES.

    tiktoken's regex engine fails (`StackOverflow`) on 999,999 white space characters in a row that are followed by
    text. `tokenizers` encodes them but needs seconds. The reference encodes such documents with every engine setting,
    so the result depends on the document only, never on an engine.

    Document i is data[offsets[i]:offsets[i + 1]]. A false positive is possible if the samples of other text are bytes
    that also occur in white space. The reference encodes such a document correctly, only slower.
    """
    long = np.flatnonzero(np.diff(offsets) > MAX_WHITE_SPACE_BYTES)
    return [index for index in long.tolist() if _has_run(data[offsets[index] : offsets[index + 1] : SAMPLE_STEP])]


def _has_run(samples: ByteArray) -> bool:
    others = np.flatnonzero(~_BYTES[samples])
    edges = itertools.chain([-1], others.tolist(), [len(samples)])
    return any(after - before > MIN_SAMPLES for before, after in itertools.pairwise(edges))
