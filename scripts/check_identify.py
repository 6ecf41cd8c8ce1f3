"""`tokenmill identify` on files whose answer is known: 12 vocabularies, 9 formats, 20 files each.

    TOKENMILL_TEST_DATA=DIR TIKTOKEN_CACHE_DIR=DIR python -m scripts.check_identify [--files N] [--only PART ...]

The files hold documents of the corpora: English and other languages, whole documents and short ones, prose without runs
of spaces, code, with and without end tokens. Format and type have to be right. The tokenizer has to be right, or in a
list with the evidence that is missing. A wrong one must never be stated as sure. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokenmill
from tests.support.families import FAMILIES, byte_fallback_families
from tokenmill.results import Identified
from tokenmill.storage import folder_at
from tokenmill.token_files import FORMATS
from tokenmill.token_files.protocol import CompletedSplit, Content, Shard, ShardRecord, Tokens
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import Tokenizer

ENCODINGS = ("gpt2", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base", "o200k_harmony")
SHAPES = ("Qwen 2.5, Qwen 3", "Llama 3")
FALLBACKS = ("Llama 2, TinyLlama", "Gemma 3")
# Names of the same tokens.
ALIASES = {"gpt2": "r50k_base"}
MIN_DOCUMENTS, MORE_DOCUMENTS = 40, 10
SHORT_CHARACTERS = 300
SEQUENCE_TOKENS = 256


def main() -> int:
    """Write the files, identify them, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=20, help="files of each vocabulary and format")
    parser.add_argument("--only", nargs="*", default=[], help="parts of the names of vocabularies or formats")
    options = parser.parse_args()
    data = os.environ.get("TOKENMILL_TEST_DATA")
    if not data:
        parser.error("TOKENMILL_TEST_DATA is not set")
    corpora = [read_corpus(Path(data, "corpus", name)) for name in ("en", "multi")]
    began, wrong, answers = time.monotonic(), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        tokenizers = write_vocabularies(Path(directory), Path(data, "vocab", "hf"), corpora)
        chosen = [name for name in tokenizers if not options.only or any(part in name for part in options.only)]
        for number, name in enumerate(chosen or list(tokenizers)):
            own = [form for form in FORMATS if not FORMATS[form].SPEC.is_text]
            formats = [form for form in own if form in options.only] or own
            written = write_files(Path(directory, f"{number}"), formats, tokenizers[name], corpora, options.files)
            found = tokenmill.identify(list(written), tokenizer=list(tokenizers.values()))
            by_path = {each.files[0]: each for each in found if len(each.files) == 1}
            for path, (form, dtype) in written.items():
                answer, is_right = judge(by_path[path], form, dtype, tokenizers[name])
                answers[answer] += 1
                wrong += not is_right
                if not is_right:
                    print(f"WRONG {name} {form} {Path(path).parent.name}: {answer}\n{by_path[path]}", flush=True)
            print(f"{name:24} {len(written)} files, {dict(answers)}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{sum(answers.values()):,} files: {dict(answers)}; wrong: {wrong}")
    return int(wrong > 0)


def read_corpus(directory: Path) -> list[str]:
    """Some documents of each file."""
    files = sorted(directory.glob("*.parquet"))
    return [text for file in files for text in pq.read_table(file, columns=["text"])["text"].slice(0, 400).to_pylist()]


def write_vocabularies(directory: Path, huggingface: Path, corpora: Sequence[list[str]]) -> dict[str, str]:
    """The tokenizers by a short name: encodings, files, and shapes of families around a vocabulary."""
    tokenizers = {name: name for name in ENCODINGS}
    tokenizers |= {path.name: str(path) for path in sorted(huggingface.glob("*.json"))}
    model = json.loads((huggingface / "gpt-neox-20b.json").read_text())["model"]
    built = {name: FAMILIES[name](model) for name in SHAPES}
    trained = byte_fallback_families(corpora[0][:600] + corpora[1][:200])
    built |= {name: trained[name]() for name in FALLBACKS}
    for name, content in built.items():
        path = directory / name.split(",")[0].replace(" ", "-") / "tokenizer.json"
        path.parent.mkdir()
        path.write_text(json.dumps(content))
        tokenizers[name] = str(path.parent)
    return tokenizers


def write_files(
    directory: Path, formats: Sequence[str], tokenizer: str, corpora: Sequence[list[str]], count: int
) -> dict[str, tuple[str, str]]:
    """Files of each format, each in a directory of its own, with their format and type."""
    vocabulary = resolve(tokenizer)
    spec, engine = vocabulary.spec, Tokenizer(vocabulary.spec, vocabulary.content, "reference")
    end = spec.end_of_text if spec.end_of_text is not None else spec.added_tokens.get("</s>")
    written = {}
    for number in range(count):
        texts = choose_texts(corpora, number)
        encoded = engine.encode(pa.array(texts, pa.large_string()))
        frame = np.array([] if end is None or number % 10 == 9 else [end], encoded.tokens.dtype)
        documents = [encoded.document(index) for index in range(len(texts))]
        for form in formats:
            each = FORMATS[form].SPEC
            fits = [dtype for dtype in each.dtypes if spec.vocabulary_size <= np.iinfo(dtype).max + 1]
            dtype = fits[0] if fits else spec.dtype  # nanoGPT's files with another type, as people write them
            is_first = each.defaults.end == "prepended"
            framed = [np.concatenate((frame, ids) if is_first else (ids, frame)) for ids in documents]
            path = write_shard(directory / form / f"{number:02}", form, dtype, tokenizer, framed)
            written[str(path)] = form, dtype
    return written


def choose_texts(corpora: Sequence[list[str]], number: int) -> list[str]:
    """The documents of one file: a language, and what is made of its documents."""
    corpus = corpora[number % 2]
    start = number * 97 % (len(corpus) - 200)
    texts = corpus[start : start + MIN_DOCUMENTS + MORE_DOCUMENTS * (number % 4)]
    match number // 2 % 5:
        case 1:
            return [text[:SHORT_CHARACTERS] for text in texts]
        case 2:
            return [re.sub(r"\s+", " ", text) for text in texts]
        case 3:
            return [code for text in texts for code in re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)] or texts
        case 4:
            return ["\n\n".join(texts[at : at + 4]) for at in range(0, len(texts), 4)] + texts[:20]
        case _:
            return texts


def write_shard(directory: Path, form: str, dtype: str, tokenizer: str, documents: Sequence[Tokens]) -> Path:
    """One file of a format."""
    directory.mkdir(parents=True)
    folder, each = folder_at(str(directory)), FORMATS[form]
    paths = pa.array(["a.parquet"])
    shard = Shard(0, 1, "train", "", "", dtype, tokenizer, False, SEQUENCE_TOKENS, "input_ids source row", paths)
    tokens = np.concatenate(documents).astype(dtype)
    lengths = np.array([len(ids) for ids in documents], np.int64)
    if form == "mds":
        tokens = tokens[: len(tokens) // SEQUENCE_TOKENS * SEQUENCE_TOKENS]
        lengths = np.array([len(tokens)])
    rows = np.arange(len(lengths), dtype=np.uint64)
    content = Content(lengths, np.zeros(len(lengths), np.uint32), rows, iter([tokens]))
    written = each.write(folder, shard, content)
    record = ShardRecord(0, "train", 0, 0, len(lengths), int(lengths.sum()), written)
    each.finish(folder, CompletedSplit("", dtype, [record], lambda: iter([lengths]), SEQUENCE_TOKENS))
    return directory / each.files(shard)[0]


def judge(found: Identified, form: str, dtype: str, tokenizer: str) -> tuple[str, bool]:
    """The kind of answer, and whether it is right."""
    if found.format != form or found.dtype not in ("", dtype):
        return f"format {found.format} {found.dtype}", False
    names = [check.tokenizer for check in found.tokenizers]
    if tokenizer not in names and ALIASES.get(tokenizer) not in names:
        return f"tokenizers {names}", False
    if found.is_sure:
        return "sure", len(names) == 1
    return ("a list", True) if len(names) > 1 and found.evidence else ("one, not sure", len(names) == 1)


if __name__ == "__main__":
    sys.exit(main())
