"""Derives the code points on which gigatoken and the reference engines may disagree, for the installed versions.

    python scripts/derive_unicode_gap.py            # prints the ranges, for src/tokenmill/tokenization/unicode_gap.txt
    python scripts/derive_unicode_gap.py --check    # exits with 1 if that file lacks one of them

No vocabulary is needed. A synthetic one, of all bytes and all pairs of bytes, shows where a text was split: a token of
two bytes lies within one piece. Pairs that cross from one character to the next are merged first, so every boundary at
a character of two or more bytes is visible. Real vocabularies can be compared as well (--tokenizer).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import tempfile
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from unittest import mock

import gigatoken
import tiktoken
import tiktoken_ext.openai_public
import tokenizers

from tokenmill.tokenization import unicode_gap
from tokenmill.tokenization.split_patterns import DEEPSEEK_SPLITS, JSON_SPLITS

Encode = Callable[[list[str]], list[list[int]]]

# What has been assigned up to Unicode 17, and all planes of the standard; surrogates are not characters.
ASSIGNED = [*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000)]
OUTER = [*range(0x34000, 0xE0000), *range(0xE1000, 0x110000)]

# The first five tell letters, numbers, spaces, marks, both cases and the rest apart in all schemes.
CONTEXTS: tuple[str, ...] = (
    "a{0}a ",
    "1{0}1 ",
    ".{0}. ",
    "..{0}.. ",
    "A{0}A ",
    "a{0}B ",
    "'{0} ",
    "'l{0} ",
    "'{0}e ",
    "'{0}l ",
    " {0} ",
)
CONTEXTS += ("\n{0}\n", "{0}{0} ", "\t{0}a ", "{0}'s ", "12{0}34 ", " {0}\r\n", "/{0}/ ")
QUICK = 5
END_CONTEXTS = ("{0}", "a{0}", " {0}", "\n{0}")  # the end of a document has rules of its own

# The Split regexes for which gigatoken has code. Left out: two that it treats as cl100k although Hugging Face's regex
# engine reads them differently for any text (\p{N}{1,3}+ is not possessive there; \s++$ is missing in the other).
SPLITS: dict[str, list[str]] = {
    "gpt2": [],
    **{name: [pattern] for name, pattern in JSON_SPLITS.items()},
    "deepseek": list(DEEPSEEK_SPLITS),
}


@dataclass(frozen=True)
class Engines:
    """A reference and the fast engine for the same tokenizer."""

    name: str
    reference: Encode
    fast: Encode


def synthetic_tokens() -> list[bytes]:
    """All bytes, then all pairs of bytes in order of merging: first those that join two characters."""

    def order(pair: bytes) -> tuple[int, bytes]:
        left_ends = pair[0] < 0xC0
        right_begins = not 0x80 <= pair[1] < 0xC0
        both_ascii = pair[0] < 0x80 and pair[1] < 0x80
        return (1 if both_ascii else 0 if left_ends and right_begins else 2, pair)

    pairs = sorted((bytes((a, b)) for a in range(256) for b in range(256)), key=order)
    return [bytes((b,)) for b in range(256)] + pairs


def tiktoken_engines(name: str, scheme: str, pattern: str, ranks: dict[bytes, int]) -> Engines:
    """Both engines for a tiktoken encoding without special tokens."""
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "ranks.tiktoken")
        with open(path, "wb") as file:
            file.writelines(b"%s %d\n" % (base64.b64encode(token), rank) for token, rank in ranks.items())
        fast = gigatoken.Tokenizer.from_tiktoken(path, pretokenizer=scheme, special_tokens=None)
    return Engines(name, lambda texts: [encoding.encode_ordinary(text) for text in texts], _fast_encode(fast))


def tiktoken_patterns() -> dict[str, str]:
    """The split regex of each scheme, read without loading a vocabulary."""
    public = tiktoken_ext.openai_public
    with mock.patch.object(public, "load_tiktoken_bpe", return_value={}):
        return {
            "gpt2": public.r50k_pat_str,
            "gpt4": str(public.cl100k_base()["pat_str"]),
            "o200k": str(public.o200k_base()["pat_str"]),
        }


def synthetic_tiktoken() -> Iterator[Engines]:
    """Engines of each tiktoken scheme over the synthetic vocabulary."""
    ranks = {token: rank for rank, token in enumerate(synthetic_tokens())}
    for scheme, pattern in tiktoken_patterns().items():
        yield tiktoken_engines(f"tiktoken {scheme}", scheme, pattern, ranks)


def _fast_encode(tokenizer: gigatoken.Tokenizer) -> Encode:
    return lambda texts: tokenizer.encode_batch_list(texts, parallel=False)


def json_engines(name: str, text: str) -> Engines:
    """Both engines for a tokenizer.json, without its special tokens."""
    reference = tokenizers.Tokenizer.from_str(text)
    reference.encode_special_tokens = True
    content = json.loads(text)
    content["added_tokens"] = [token for token in content["added_tokens"] if not token["special"]]
    fast = gigatoken.Tokenizer.from_json(json.dumps(content))

    def encode(texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in reference.encode_batch_fast(texts, add_special_tokens=False)]

    return Engines(name, encode, _fast_encode(fast))


def synthetic_json(splits: list[str], *, nfc: bool = False) -> str:
    """A byte-level tokenizer.json over the synthetic vocabulary with these Split regexes, or else GPT-2's own."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = {byte: chr(byte) for byte in visible} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    tokens = ["".join(letters[byte] for byte in token) for token in synthetic_tokens()]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": not splits}
    steps = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} for regex in splits
    ]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [],
            "normalizer": {"type": "NFC"} if nfc else None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*steps, byte_level]} if splits else byte_level,
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": {token: rank for rank, token in enumerate(tokens)},
                "merges": [list(token) for token in tokens[256:]],
            },
        }
    )


def differing(engines: Engines, points: list[int], contexts: Iterable[str], together: int = 32) -> set[int]:
    """The code points that, in one of the contexts, are encoded differently by the two engines.

    Many code points share a document, which is fast; those of a document that differs are looked at one by one.
    """
    form = "".join(contexts) + "z\n"
    texts = [form.format(chr(point)) for point in points]
    found: set[int] = set()
    for begin in range(0, len(texts), 256 * together):
        starts = range(begin, min(begin + 256 * together, len(texts)), together)
        documents = ["".join(texts[start : start + together]) for start in starts]
        both = zip(starts, engines.reference(documents), engines.fast(documents), strict=True)
        suspects = [i for start, a, b in both if a != b for i in range(start, min(start + together, len(texts)))]
        alone = [texts[i] for i in suspects]
        outcome = zip(suspects, engines.reference(alone), engines.fast(alone), strict=True)
        found |= {points[i] for i, a, b in outcome if a != b}
    return found


def differing_at_end(engines: Engines, points: list[int]) -> set[int]:
    """The code points that are encoded differently as the last character of a document."""
    found: set[int] = set()
    for context in END_CONTEXTS:
        for begin in range(0, len(points), 8192):
            some = points[begin : begin + 8192]
            texts = [context.format(chr(point)) for point in some]
            outcome = zip(some, engines.reference(texts), engines.fast(texts), strict=True)
            found |= {point for point, a, b in outcome if a != b}
    return found


def split_gap(engines: Engines, *, quick: bool) -> set[int]:
    """All code points at which the engines split differently; `quick` leaves out what is all but impossible."""
    if quick:
        return differing(engines, ASSIGNED, CONTEXTS[:QUICK])
    found = differing(engines, ASSIGNED, CONTEXTS) | differing(engines, OUTER, CONTEXTS[:QUICK])
    return found | differing_at_end(engines, ASSIGNED)


class NormalForms:
    """NFC by the reference and by the fast engine, text to text."""

    def __init__(self) -> None:
        self._reference = tokenizers.normalizers.NFC()
        self._fast = gigatoken.Tokenizer.from_json(synthetic_json([], nfc=True))

    def reference(self, texts: list[str]) -> list[str]:
        """NFC as Hugging Face tokenizers sees it."""
        return [self._reference.normalize_str(text) for text in texts]

    def fast(self, texts: list[str]) -> list[str]:
        """NFC as gigatoken sees it, read back from its tokens."""
        return [self._fast.decode(self._fast.encode(text)).decode() for text in texts]

    def changed(self, texts: list[str]) -> Iterator[tuple[str, str, str]]:
        """Text, the reference's form and the fast form, where one of the three differs; no text has a line feed."""
        for begin in range(0, len(texts), 256):
            some = texts[begin : begin + 256]
            document = ["\n".join(some)]
            if not self.reference(document) == self.fast(document) == document:
                outcome = zip(some, self.reference(some), self.fast(some), strict=True)
                yield from (each for each in outcome if len(set(each)) > 1)


def combining_gap(forms: NormalForms) -> set[int]:
    """The code points whose decomposition or combining class differs.

    A mark moves before U+0345 (class 240, the highest) if its class is lower, and after U+0334 (class 1) if higher.
    Those that move at all are then compared with a mark of every class.
    """
    found: set[int] = set()
    moving: set[int] = set()
    for context in ("{0}", "a{0}\u0334", "a\u0345{0}", "a{0}\u0301", "{0}\u0301"):
        texts = {context.format(chr(point)): point for point in ASSIGNED if point != 0x0A}
        for text, reference, fast in forms.changed(list(texts)):
            moving.add(texts[text])
            if reference != fast:
                found.add(texts[text])
    old = unicodedata.ucd_3_2_0
    of_class = {old.combining(chr(point)): chr(point) for point in range(0x300, 0x20000)}
    for mark in (mark for rank, mark in of_class.items() if rank):
        for context in ("q{0}{1}", "q{1}{0}"):
            texts = {context.format(chr(point), mark): point for point in moving}
            outcome = zip(texts, forms.reference(list(texts)), forms.fast(list(texts)), strict=True)
            found |= {texts[text] for text, a, b in outcome if a != b}
    return found


def composition_gap(forms: NormalForms, known: set[int]) -> set[int]:
    """The code points that compose with a neighbour in one engine only, other than those already known.

    Characters that both had before never begin to compose (a promise of Unicode), so one of each pair is newer than
    Unicode 3.2; the other is a known second part, or near to it (the same 256 code points).
    """
    old = unicodedata.ucd_3_2_0
    points = [point for point in _letters_and_marks() if point not in known]
    near: dict[int, list[str]] = {}
    for point in points:
        near.setdefault(point >> 8, []).append(chr(point))
    parts = [unicodedata.decomposition(chr(point)).split() for point in range(0x110000)]
    pairs = [(int(part[0], 16), int(part[1], 16)) for part in parts if len(part) == 2 and not part[0].startswith("<")]
    seconds = sorted({chr(second) for _, second in pairs})
    texts = [chr(first) + chr(second) for first, second in pairs]
    for character in (chr(point) for point in points if old.category(chr(point)) == "Cn"):
        partners = [*near[ord(character) >> 8], *seconds]
        texts += [character + other for other in partners]
        texts += [other + character for other in near[ord(character) >> 8]]
    involved = {
        character
        for text, reference, fast in forms.changed([text for text in texts if known.isdisjoint(map(ord, text))])
        if reference != fast
        for character in text + fast
    }
    return {ord(character) for character in involved if old.category(character) == "Cn"}


def _letters_and_marks() -> list[int]:
    """The code points that the fast engine takes for letters or marks, without the large blocks that never compose."""
    tokens = synthetic_tokens()
    scheme = tiktoken_engines("o200k", "o200k", tiktoken_patterns()["o200k"], {t: i for i, t in enumerate(tokens)})
    blocks = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xF8FF), (0x12000, 0x1467F), (0x17000, 0x18DFF))
    points = [p for p in range(0x80, 0x20000) if not any(first <= p <= last for first, last in blocks)]
    encoded = scheme.fast([f"A{chr(point)}" for point in points])
    return [point for point, ids in zip(points, encoded, strict=True) if len(tokens[ids[0]]) == 2]


def numbers() -> set[int]:
    """The code points outside of ASCII that the Digits step or a regex for numbers of `tokenizers` isolates."""
    points = [point for point in (*ASSIGNED, *OUTER) if point >= 0x80]
    text = "a" + "a".join(map(chr, points)) + "a"
    steps = (
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\p{N}"), "isolated"),
    )
    isolated = {part for step in steps for part, _ in step.pre_tokenize_str(text) if len(part) == 1}
    return {ord(part) for part in isolated if ord(part) >= 0x80}


def ranges_of(points: Iterable[int]) -> list[tuple[int, int]]:
    """Sorted code points as (first, last) ranges."""
    ranges: list[tuple[int, int]] = []
    for point in sorted(points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return ranges


def spelled(points: Iterable[int]) -> str:
    """Ranges in hexadecimal, on one line."""
    return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in ranges_of(points))


def derive(*, quick: bool, tell: Callable[[str, set[int]], None] = lambda _name, _points: None) -> dict[str, set[int]]:
    """What each table of unicode_gap must hold, by its name; `tell` hears of each scheme as it is done."""
    split: set[int] = set()
    for engines in synthetic_tiktoken():
        points = split_gap(engines, quick=quick)
        tell(engines.name, points)
        split |= points
    symbol: set[int] = set()
    schemes = ("o200k", "deepseek") if quick else tuple(SPLITS)
    for scheme in schemes:
        points = split_gap(json_engines(scheme, synthetic_json(SPLITS[scheme])), quick=quick)
        tell(f"tokenizers {scheme}", points)
        if scheme == "deepseek":
            symbol = points
        else:
            split |= points
    forms = NormalForms()
    combining = combining_gap(forms)
    tell("NFC, combining class", combining)
    composing = composition_gap(forms, combining)
    tell("NFC, composition", composing)
    return {
        "SPLIT_GAP": split,
        "NFC_GAP": combining | composing,
        "SYMBOL_GAP": symbol - split,
        "NUMBERS": numbers(),
    }


def missing(derived: dict[str, set[int]]) -> dict[str, set[int]]:
    """What the tables of unicode_gap lack, by table; empty if they are complete."""
    lacking = {}
    for name, points in derived.items():
        table: unicode_gap.Ranges = getattr(unicode_gap, name)
        lacking[name] = points - {point for first, last in table for point in range(first, last + 1)}
    return {name: points for name, points in lacking.items() if points}


def real_engines(tokenizer: str) -> Engines:
    """Engines for one of tiktoken's encodings, by name, or for a tokenizer.json, by path."""
    if tokenizer.endswith(".json"):
        with open(tokenizer, encoding="utf-8") as file:
            return json_engines(os.path.basename(tokenizer), file.read())
    schemes = {"gpt2": "gpt2", "r50k_base": "gpt2", "cl100k_base": "gpt4", "o200k_base": "o200k"}
    encoding = tiktoken.get_encoding(tokenizer)
    return tiktoken_engines(tokenizer, schemes[tokenizer], encoding._pat_str, encoding._mergeable_ranks)  # noqa: SLF001


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if unicode_gap.txt lacks a code point")
    parser.add_argument("--quick", action="store_true", help="fewer contexts and schemes, no private or empty planes")
    parser.add_argument(
        "--tokenizer", action="append", default=[], help="also compare a real one: tiktoken's name, or a .json"
    )
    options = parser.parse_args()

    def tell(name: str, points: set[int]) -> None:
        print(f"{name}: {len(points)}\n  {spelled(points)}", flush=True)

    derived = derive(quick=options.quick, tell=tell)
    union = set().union(*derived.values())
    for name, points in derived.items():
        tell(name, points)
        print(" ".join(f"{first:X}" if first == last else f"{first:X}-{last:X}" for first, last in ranges_of(points)))
    tell("union", union)
    beyond: set[int] = set()
    for tokenizer in options.tokenizer:
        points = split_gap(real_engines(tokenizer), quick=options.quick)
        tell(tokenizer, points)
        beyond |= points - union
    if beyond:
        tell("real vocabularies differ beyond the union at", beyond)
    lacking = missing(derived) if options.check else {}
    for name, points in lacking.items():
        tell(f"error: unicode_gap.{name} lacks", points)
    return 1 if lacking or beyond else 0


if __name__ == "__main__":
    sys.exit(main())
