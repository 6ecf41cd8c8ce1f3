"""llm.c has no package. Its headers are checked here as its Python readers do, then batches are read by a C program
that makes the same demands as its data loader (which takes the uint16 layout only), if there is a C compiler.
"""

import os
import shutil
import subprocess

import numpy as np
from expected import Check

LAYOUTS = {(20240520, 1): np.dtype("<u2"), (20240801, 7): np.dtype("<u4")}
HEADER_BYTES = 1024
MAX_BYTES = 2**31
ROWS, COLUMNS = 4, 1024


def main() -> None:
    """Compare the stream over all shards, that of val first, and the batches that a C program reads."""
    check = Check()
    paths = [
        path for split in ("val", "train") for path in check.files(".bin") if f"_{split}_" in os.path.basename(path)
    ]
    shards = [read_shard(check, path) for path in paths]
    check.same_documents([check.split_at_ends(np.concatenate(shards))])
    read = f"header, size and tokens of {len(shards)} shards"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler and check.dtype.itemsize == 2:
        read += f"; {read_batches(check, compiler, paths, shards):,} batches of {ROWS} x {COLUMNS:,} in C"
    check.report("numpy", read)


def read_shard(check: Check, path: str) -> np.ndarray:
    """A shard's tokens, by its own header."""
    name = os.path.basename(path)
    header = np.fromfile(path, "<i4", 256)
    dtype = LAYOUTS.get((int(header[0]), int(header[1])))
    check.require(dtype == check.dtype, f"{name}: magic {header[0]} and version {header[1]} are not for {check.dtype}")
    dtype, count = dtype or check.dtype, int(header[2])
    check.require(not header[3:].any(), f"{name}: the rest of the header is not zero")
    size = os.path.getsize(path)
    check.require(size == HEADER_BYTES + count * dtype.itemsize, f"{name}: {size:,} bytes for {count:,} tokens")
    check.require(size < MAX_BYTES, f"{name}: {size:,} bytes, and llm.c seeks with an int")
    check.require(count >= ROWS * COLUMNS + 1, f"{name}: {count:,} tokens are less than a batch")
    return np.fromfile(path, dtype, offset=HEADER_BYTES)


def read_batches(check: Check, compiler: str, paths: list[str], shards: list[np.ndarray]) -> int:
    """Compare every batch of every shard, as C reads it; how many there were."""
    program = os.path.join(check.scratch, "llmc_batches")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "llmc_batches.c")
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-o", program, source], check=True)
    batches = 0
    for path, tokens in zip(paths, shards, strict=True):
        done = subprocess.run([program, str(ROWS), str(COLUMNS), path], capture_output=True, check=False)
        check.require(done.returncode == 0, f"{os.path.basename(path)}: {done.stderr.decode().strip()}")
        found = np.frombuffer(done.stdout, np.uint16).reshape(-1, ROWS * COLUMNS + 1)
        starts = np.arange(0, len(tokens) - ROWS * COLUMNS, ROWS * COLUMNS)
        check.require(len(found) == len(starts), f"{len(found):,} of {len(starts):,} batches")
        for start, batch in zip(starts, found, strict=False):
            check.same(f"batch at {start:,}", batch, tokens[start : start + ROWS * COLUMNS + 1])
        batches += len(found)
    return batches


main()
