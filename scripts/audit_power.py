"""Measure the power of the audit: units of 4 MB until an engine that is sometimes wrong is noticed.

The fast engine is wrapped. The wrapper makes each document wrong with a given probability, by a keyed hash: one of its
tokens is another one of the same number of bytes. The tokenizer and its audit are the real ones. One process is one
worker: a run with n workers notices a fault in the nth part of the time, because each of them audits.

    python scripts/audit_power.py --tokenizer gpt2 --trials 25
"""

from __future__ import annotations

import argparse
import math
import statistics
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokenmill.tokenization import document_hash
from tokenmill.tokenization.audit import AUDIT_FRACTION, FIRST_AUDIT_BYTES, Audit, AuditMismatchError
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.token_lengths import TokenLengths
from tokenmill.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from tokenmill.tokenization.engines.protocol import Engine

UNIT_BYTES = 4 << 20

LETTERS = list("etaoinshrdlucmfwypvbgkjqxz")


class PlantedBug:
    """An engine that is right about everything but the documents that a hash of the trial and the unit chooses."""

    name = "gigatoken"

    def __init__(self, engine: Engine, text: pa.LargeStringArray, lengths: np.ndarray) -> None:
        self.share, self.trial, self.unit = 0.0, 0, 0
        self._engine, self._text = engine, text
        self._right = engine.encode(text)
        self._other = _other_tokens(lengths)

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of a unit, some of them wrong; pieces that the audit asks for are encoded as they are."""
        if text is not self._text:
            return self._engine.encode(text)
        rows = np.arange(len(text), dtype=np.uint64)
        hashes = document_hash.document_keys(self.trial, np.full(1, self.unit, np.uint32), rows)
        wrong = np.flatnonzero(document_hash.in_sample(hashes, self.share))
        sizes = np.diff(self._right.offsets)[wrong]
        places = self._right.offsets[wrong] + (document_hash.mix(hashes[wrong]) % sizes.astype(np.uint64)).astype(
            np.int64
        )
        tokens = self._right.tokens.copy()
        tokens[places] = self._other[tokens[places]]
        return Encoded(tokens, self._right.offsets)


def _other_tokens(lengths: np.ndarray) -> np.ndarray:
    """For each token the next one of the same number of bytes."""
    order = np.lexsort((np.arange(len(lengths)), lengths))
    other = np.empty(len(lengths), np.int64)
    for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
        other[same] = np.roll(same, -1)
    return other


def documents(size: int) -> pa.LargeStringArray:
    """A unit of words of random letters."""
    random = np.random.default_rng(size)
    letters = random.choice(np.array(LETTERS, "S1"), UNIT_BYTES)
    letters[np.cumsum(random.integers(2, 10, UNIT_BYTES // 4)).clip(max=UNIT_BYTES - 1)] = b" "
    text = letters.tobytes().decode()
    return pa.array([text[start : start + size] for start in range(0, UNIT_BYTES, size)], pa.large_string())


def units_until_noticed(tokenizer: Tokenizer, bug: PlantedBug, text: pa.LargeStringArray, most: int) -> float:
    """How many units a new worker encodes until its audit fails."""
    tokenizer._fast = bug  # type: ignore[assignment] # noqa: SLF001 - what is measured
    tokenizer._audit = Audit(tokenizer.spec, tokenizer._content)  # noqa: SLF001 - with a new worker's credit
    for unit in range(most):
        bug.unit = unit
        try:
            tokenizer.encode(text)
        except AuditMismatchError:
            return unit + 1
    return math.inf


def expected_units(size: int, share: float) -> tuple[float, float]:
    """The median and the mean, if every audited byte is as likely as any other to be in a wrong document."""
    rate = share * AUDIT_FRACTION * UNIT_BYTES / size
    first = rate + share * FIRST_AUDIT_BYTES / size
    median = 1 + max(0, math.ceil((math.log(2) - first) / rate))
    return median, 1 + math.exp(-first) / -math.expm1(-rate)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--tokenizer", default="gpt2", help="a vocabulary that gigatoken supports")
    parser.add_argument("--sizes", default="100,1000,3000,30000,1000000", help="bytes of a document")
    parser.add_argument("--shares", default="0.1,0.01,0.001,0.0001", help="how many documents are wrong")
    parser.add_argument("--trials", type=int, default=25)
    parser.add_argument("--max-units", type=int, default=2000, help="give up a trial after so many")
    arguments = parser.parse_args()
    vocabulary = resolve(arguments.tokenizer)
    lengths = TokenLengths(vocabulary.spec, vocabulary.content).lengths
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, "gigatoken")
    fast = tokenizer._fast  # noqa: SLF001
    if fast is None:
        raise SystemExit(f"gigatoken is not used for {arguments.tokenizer}")
    print("| bytes of a document | wrong documents | measured median | expected median | expected mean |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for size in map(int, arguments.sizes.split(",")):
        text = documents(size)
        bug = PlantedBug(fast, text, lengths)
        for share in map(float, arguments.shares.split(",")):
            print(row(tokenizer, bug, text, size, share, arguments), flush=True)


def row(
    tokenizer: Tokenizer,
    bug: PlantedBug,
    text: pa.LargeStringArray,
    size: int,
    share: float,
    arguments: argparse.Namespace,
) -> str:
    """One line of the table; nothing is measured that is expected to take too long."""
    median, mean = expected_units(size, share)
    measured = "not measured"
    if mean <= arguments.max_units / 4:
        counts = []
        for trial in range(arguments.trials):
            bug.share, bug.trial = share, trial
            counts.append(units_until_noticed(tokenizer, bug, text, arguments.max_units))
        measured = f"{statistics.median(counts):,.0f}"
    return f"| {size:,} | 1 in {round(1 / share):,} | {measured} | {median:,.0f} | {mean:,.0f} |"


if __name__ == "__main__":
    main()
