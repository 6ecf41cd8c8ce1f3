"""litdata: blocks of its StreamingDataset with the TokensLoader, of a usual size and as long as each chunk."""

import json
import os

import numpy as np
from expected import Check, Documents, chain
from litdata import StreamingDataset, TokensLoader


def main() -> None:
    """Compare the documents of every chunk read as one block, then all blocks of a usual size."""
    check = Check()
    splits, blocks, dropped = [], 0, 0
    for folder in check.folders():
        with open(os.path.join(folder, "index.json")) as file:
            told = json.load(file)["chunks"]
        chunks = [read_chunk(check, folder, told, number) for number in range(len(told))]
        splits.append(chain(chunks))
        blocks += compare_blocks(check, folder, chunks)
        dropped += sum(len(chunk.tokens) % check.window for chunk in chunks)
    check.same_documents(splits)
    check.report(
        "litdata",
        f"each document (StreamingDataset, TokensLoader of a chunk's length); {blocks:,} blocks of {check.window:,} "
        f"(drops {dropped:,} tokens at ends of chunks)",
    )


def stream(folder: str, block_size: int) -> StreamingDataset:
    """A directory in blocks of some size."""
    return StreamingDataset(folder, item_loader=TokensLoader(block_size=block_size), shuffle=False)


def read_chunk(check: Check, folder: str, told: list[dict], number: int) -> Documents:
    """The documents of a chunk, which is one block of a dataset that cuts blocks of just its length.

    The loader skips the table of offsets, so the documents are found by their end tokens; the table has to agree.
    """
    chunk, length = told[number], told[number]["dim"]
    position = sum(earlier["dim"] // length for earlier in told[:number])
    tokens = np.asarray(stream(folder, length)[position])
    check.require(tokens.dtype == check.dtype, f"{chunk['filename']} is {tokens.dtype}")
    documents = check.split_at_ends(tokens)
    path = os.path.join(folder, chunk["filename"])
    check.require(os.path.getsize(path) == chunk["chunk_bytes"], f"{path} is not as long as index.json tells")
    table = np.fromfile(path, np.uint32, chunk["chunk_size"] + 2)
    check.require(int(table[0]) == chunk["chunk_size"], f"{path} holds {table[0]:,} items")
    check.same(
        f"offsets of {path}", (table[1:].astype(np.int64) - table.nbytes) // tokens.itemsize, [0, *documents.ends]
    )
    return documents


def compare_blocks(check: Check, folder: str, chunks: list[Documents]) -> int:
    """Compare the blocks of a directory with its documents; how many there were."""
    dataset = stream(folder, check.window)
    expected = (
        chunk.tokens[start : start + check.window]
        for chunk in chunks
        for start in range(0, len(chunk.tokens) - check.window + 1, check.window)
    )
    position = 0
    for position, (found, block) in enumerate(zip(dataset, expected, strict=True), 1):
        check.same(f"block {position:,}", np.asarray(found), block)
    return position


main()
