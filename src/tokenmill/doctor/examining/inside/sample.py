"""Generates text for trying a function. Rare and new words occur as in real text, so that caches grow as usual."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

SYLLABLES = (
    *("the", "of", "and", "to", "in", "is", "it", "on", "as", "at", "be", "by", "we", "or", "an", "he", "so", "no"),
    *("up", "if", "me", "do", "go", "us", "am", "al", "er", "re", "ti", "en", "st", "ar", "te", "ed", "ing", "ion"),
    *("con", "pro", "ver", "ment", "ness", "able", "over", "under", "inter", "trans", "data", "token", "ville", "19"),
    *("höf", "né", "ça", "ño", "ığ", "ów", "для", "ние", "の", "的", "20", "7"),
)
# Word n has a frequency of about n ** -1.33: twice the text has 68 % more distinct words.
RARITY = -3.0
# The most frequent words are built once.
COMMON = 4096
# The first texts are short, so that runaway growth shows before it exhausts the memory.
SHORT_TEXTS = 64

ODD_TEXTS = ("", " ", "\n", "\x00", "a" * 1000, "<|endoftext|>", "Żółć 🦊\u200d", "7" * 1000)


def word(rank: int) -> str:
    """Returns the word of a rank: the rarer, the longer."""
    rest, syllable = divmod(rank, len(SYLLABLES))
    return SYLLABLES[syllable] + (word(rest - 1) if rest else "")


def random_words(rng: random.Random) -> Iterator[str]:
    """Yields words without end, some capitalized or with punctuation."""
    common = [word(rank) for rank in range(COMMON)]
    random_float = rng.random
    while True:
        rank = int((1.0 - random_float()) ** RARITY)
        text = common[rank] if rank < COMMON else word(rank % 10**9)
        variant = random_float() * 20
        yield text if variant > 3 else text.capitalize() if variant < 1 else text + ("," if variant < 2 else ".")


def texts(seed: int = 7) -> Iterator[str]:
    """Yields texts without end, from a sentence to two pages. The first ones are short."""
    rng = random.Random(seed)  # noqa: S311 - not for security
    endless_words = random_words(rng)
    number = 0
    while True:
        number += 1
        count = 12 if number <= SHORT_TEXTS else int(min(600, rng.lognormvariate(5.3, 0.7)))
        yield " ".join(itertools.islice(endless_words, max(3, count)))
