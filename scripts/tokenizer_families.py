"""Compare the engines on the shapes of all tokenizer families: which engine is used, differences, speed on one core.

The vocabulary is GPT-NeoX's from the test data; the shapes are those of tests/support/families.py. Three byte-fallback
families have a vocabulary that is trained here. Compared are both corpora (--documents of each file), random awkward
texts with spelled added tokens, and every code point. The reference is the installed version of `tokenizers`; run the
script in environments with different versions to compare those, too: --save and --against compare the tokens of runs.

    TOKENMILL_TEST_DATA=DIR python -m scripts.tokenizer_families [FAMILY]...
"""

from __future__ import annotations

import argparse
import glob
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from tests.support.families import FAMILIES, adversarial, byte_fallback_families
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.tokenizer import REFERENCES, Tokenizer, choose_engine

DOCUMENTS_PER_BATCH = 500
# OpenAI's encodings, whose reference is tiktoken.
ENCODINGS = ("gpt2", "cl100k_base", "o200k_base")


def main() -> int:
    """Compare, and print a line per family. Exit code 1 if a token differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="parts of the names of families (default: all)")
    parser.add_argument("--documents", type=int, default=250, help="documents of each file of the corpora")
    parser.add_argument("--adversarial", type=int, default=20_000)
    parser.add_argument("--save", help="write the hash of each family's tokens to this JSON file")
    parser.add_argument("--against", help="compare with the hashes that another run saved")
    options = parser.parse_args()
    data = os.environ.get("TOKENMILL_TEST_DATA")
    if not data:
        parser.error("TOKENMILL_TEST_DATA is not set")
    corpus = read_corpus(Path(data, "corpus"), options.documents)
    texts = corpus + adversarial(options.adversarial, 5) + code_points()
    print(f"tokenizers {tokenizers.__version__}; {len(texts):,} texts, {size(texts) / 1e6:.1f} MB")
    print(f"{'family':28} {'engine':10} {'documents':>9} {'differ':>6} {'MB/s':>7} {'reference':>9} {'ratio':>6}")
    model = json.loads(Path(data, "vocab", "hf", "gpt-neox-20b.json").read_text())["model"]
    vocabularies: dict[str, Callable[[], Vocabulary]] = {name: partial(resolve, name) for name in ENCODINGS}
    vocabularies |= {name: partial(from_content, partial(build, model)) for name, build in FAMILIES.items()}
    vocabularies |= {name: partial(from_content, build) for name, build in byte_fallback_families(corpus).items()}
    hashes: dict[str, str] = {}
    failed = False
    for name, vocabulary in vocabularies.items():
        if not options.families or any(part in name for part in options.families):
            hashes[name], differences = compare(name, vocabulary(), corpus, texts)
            failed |= differences > 0
    if options.save:
        Path(options.save).write_text(json.dumps(hashes))
    if options.against:
        other = json.loads(Path(options.against).read_text())
        unequal = [name for name in hashes if other.get(name) != hashes[name]]
        print(f"families with other tokens than in {options.against}: {', '.join(unequal) or 'none'}")
        failed |= bool(unequal)
    return int(failed)


def from_content(build: Callable[[], dict[str, Any]]) -> Vocabulary:
    """The vocabulary of a tokenizer.json."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "tokenizer.json")
        path.write_text(json.dumps(build()))
        return resolve(str(path))


def compare(name: str, vocabulary: Vocabulary, corpus: list[str], texts: list[str]) -> tuple[str, int]:
    """Print the line of one family; return the hash of the reference's tokens, and how many texts differ."""
    choice = choose_engine(vocabulary, "auto")
    reference = REFERENCES[vocabulary.spec.kind](vocabulary.spec, vocabulary.content)
    tokenizer = Tokenizer(vocabulary.spec, vocabulary.content, choice.engine)
    expected, own = encode(reference.encode, texts), encode(tokenizer.encode, texts)
    differences = sum(
        not np.array_equal(a.document(i), b.document(i))
        for a, b in zip(expected, own, strict=True)
        for i in range(len(a.offsets) - 1)
    )
    fresh = Tokenizer(vocabulary.spec, vocabulary.content, choice.engine)
    slow, fast = speed(reference.encode, corpus[:: max(1, len(corpus) // 1000)]), speed(fresh.encode, corpus)
    digest = hashlib.sha256(b"".join(batch.tokens.astype(np.uint32).tobytes() for batch in expected)).hexdigest()
    notices = "; ".join(filter(None, [choice.reason, *tokenizer.take_notices()]))
    print(
        f"{name:28} {tokenizer.engine:10} {len(texts):9,} {differences:6} {fast:7.1f} {slow:9.2f} {fast / slow:6.1f}"
        f"{'  ' + notices if notices else ''}",
        flush=True,
    )
    return digest, differences


def encode(function: Callable[[pa.LargeStringArray], Encoded], texts: list[str]) -> list[Encoded]:
    """The tokens of all texts, in batches."""
    starts = range(0, len(texts), DOCUMENTS_PER_BATCH)
    return [function(pa.array(texts[start : start + DOCUMENTS_PER_BATCH], pa.large_string())) for start in starts]


def speed(function: Callable[[pa.LargeStringArray], Encoded], texts: list[str]) -> float:
    """MB of text in a CPU second, on texts that the engine has not seen, after as many others."""
    encode(function, texts[::2])
    started = time.process_time()
    encode(function, texts[1::2])
    return size(texts[1::2]) / (time.process_time() - started) / 1e6


def size(texts: list[str]) -> int:
    """The bytes of the texts."""
    return sum(len(text.encode()) for text in texts)


def read_corpus(directory: Path, documents: int) -> list[str]:
    """Some documents of each file of both corpora, evenly spaced."""
    texts: list[str] = []
    for path in sorted(glob.glob(str(directory / "*" / "*.parquet"))):
        column = [text for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]
        texts += column[:: max(1, len(column) // documents)][:documents]
    return texts


def code_points() -> list[str]:
    """Every code point between letters, digits and spaces, in texts of 64 code points."""
    points = [chr(point) for point in (*range(0xD800), *range(0xE000, 0x34000), *range(0xE0000, 0xE1000))]
    return ["".join(f"a{c}b 1{c}2 .{c} {c}{c}\n" for c in points[i : i + 64]) for i in range(0, len(points), 64)]


if __name__ == "__main__":
    sys.exit(main())
