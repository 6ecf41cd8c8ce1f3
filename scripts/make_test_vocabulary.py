"""Make the small vocabularies of the tests: `python scripts/make_test_vocabulary.py` writes tests/data/small.*.

They are trained on the tests' own documents, so they merge what the documents hold and nothing else. The two files
hold the same merges: one as a `.tiktoken` rank file for the gpt2 split, one as a Hugging Face tokenizer.json.
"""

from __future__ import annotations

import base64
import runpy
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

DATA = Path(__file__).parent.parent / "tests" / "data"
VOCABULARY_SIZE = 1200


def main() -> None:
    """Train once, write twice."""
    documents = runpy.run_path(str(DATA / "documents.py"))["DOCUMENTS"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY_SIZE, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
    write_ranks(tokenizer.get_vocab())
    tokenizer.add_tokens([AddedToken("    ", normalized=False)])
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(DATA / "small.json"), pretty=False)


def write_ranks(vocabulary: dict[str, int]) -> None:
    """Ids are ranks: the trainer gives them in the order of the merges."""
    characters = byte_characters()
    lines = [
        base64.b64encode(bytes(characters[character] for character in token)).decode() + f" {rank}\n"
        for token, rank in sorted(vocabulary.items(), key=lambda item: item[1])
    ]
    (DATA / "small.tiktoken").write_text("".join(lines))


def byte_characters() -> dict[str, int]:
    """How a byte-level vocabulary writes bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


if __name__ == "__main__":
    main()
