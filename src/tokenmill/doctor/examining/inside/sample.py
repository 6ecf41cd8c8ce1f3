"""Made-up text for trying a function: words as rare and as new as those of real text, so that caches grow as usual."""

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
RARITY = -3.0
"""Word number n comes with a share of about n ** -1.33: each doubling of the text brings 68 % more different words."""

COMMON = 4096
SHORT_TEXTS = 64
"""So many texts are short at first, so that what grows without measure shows before it has taken the machine."""

ODD_TEXTS = ("", " ", "\n", "\x00", "a" * 1000, "<|endoftext|>", "Żółć 🦊\u200d", "7" * 1000)


def word(rank: int) -> str:
    """Word number so and so: the rarer, the longer."""
    rest, syllable = divmod(rank, len(SYLLABLES))
    return SYLLABLES[syllable] + (word(rest - 1) if rest else "")


def words(chance: random.Random) -> Iterator[str]:
    """Words without end, some with a capital or a mark of punctuation."""
    common = [word(rank) for rank in range(COMMON)]
    roll = chance.random
    while True:
        rank = int((1.0 - roll()) ** RARITY)
        chosen = common[rank] if rank < COMMON else word(rank % 10**9)
        special = roll() * 20
        yield chosen if special > 3 else chosen.capitalize() if special < 1 else chosen + ("," if special < 2 else ".")


def texts(seed: int = 7) -> Iterator[str]:
    """Texts without end, from a sentence to two pages; the first ones are short."""
    chance = random.Random(seed)  # noqa: S311 - nothing is secret
    supply = words(chance)
    number = 0
    while True:
        number += 1
        count = 12 if number <= SHORT_TEXTS else int(min(600, chance.lognormvariate(5.3, 0.7)))
        yield " ".join(itertools.islice(supply, max(3, count)))
