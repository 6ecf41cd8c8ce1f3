"""Fetch the vocabularies and corpora that tests marked `data` need, by tiktoken and the Hub's own client.

    python -m scripts.fetch_test_data DIR
    TOKENMILL_TEST_DATA=DIR pytest

About 60 MB: OpenAI's vocabularies in tiktoken's cache layout (`vocab/`), two `tokenizer.json` files (`vocab/hf/`),
English documents of FineWeb (`corpus/en`) and documents of FineWeb-2 in other scripts (`corpus/multi`), as zstd Parquet
in row groups of 1,000. Files that are there are kept, so a cached DIR needs no network.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tiktoken
from huggingface_hub import HfFileSystem, hf_hub_download

ENCODINGS = ("gpt2", "r50k_base", "p50k_base", "cl100k_base", "o200k_base")
TOKENIZERS = {"gpt2.json": "openai-community/gpt2", "gpt-neox-20b.json": "EleutherAI/gpt-neox-20b"}
COLUMNS = ["text", "id", "dump", "url", "language", "language_score"]
ROWS_PER_FILE = 4_000
ENGLISH = "datasets/HuggingFaceFW/fineweb/sample/10BT/{}.parquet"
ENGLISH_FILES = ("000_00000", "001_00000")
OTHERS = "datasets/HuggingFaceFW/fineweb-2/data/{}/test/000_00000.parquet"
OTHER_LANGUAGES = ("arb_Arab", "cmn_Hani", "hin_Deva", "jpn_Jpan", "rus_Cyrl")


def fetch_vocabularies(folder: Path) -> None:
    """Let tiktoken fill its cache, and take the tokenizer.json files from the Hub."""
    (folder / "hf").mkdir(parents=True, exist_ok=True)
    os.environ["TIKTOKEN_CACHE_DIR"] = str(folder)
    for name in ENCODINGS:
        tiktoken.get_encoding(name)
    for name, model in TOKENIZERS.items():
        if not (folder / "hf" / name).exists():
            shutil.copyfile(hf_hub_download(model, "tokenizer.json"), folder / "hf" / name)


def fetch_corpus(folder: Path, pattern: str, names: tuple[str, ...]) -> None:
    """Write the first documents of each file of the Hub to a file of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        target = folder / f"{number:03}.parquet"
        if not target.exists():
            write_first_rows(pattern.format(name), target)


def write_first_rows(path: str, target: Path) -> None:
    """Write the first rows of a Parquet file of the Hub; only their row groups are read."""
    with HfFileSystem().open(path) as file:
        batches, rows = [], 0
        for batch in pq.ParquetFile(file).iter_batches(ROWS_PER_FILE, columns=COLUMNS):
            batches.append(batch.slice(0, ROWS_PER_FILE - rows))
            rows += len(batches[-1])
            if rows == ROWS_PER_FILE:
                break
    part = target.with_suffix(".part")
    pq.write_table(pa.Table.from_batches(batches), part, row_group_size=1_000, compression="zstd")
    part.rename(target)


def main() -> None:
    """Fetch what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    directory = parser.parse_args().directory
    fetch_vocabularies(directory / "vocab")
    fetch_corpus(directory / "corpus" / "en", ENGLISH, ENGLISH_FILES)
    fetch_corpus(directory / "corpus" / "multi", OTHERS, OTHER_LANGUAGES)


if __name__ == "__main__":
    main()
