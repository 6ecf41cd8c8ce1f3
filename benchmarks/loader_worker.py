"""One contender of `benchmarks.loader` in a process of its own, which may be in an environment of its own.

    python loader_worker.py NAME STORE ROWS

It reads its first batch and prints a line of JSON: the time to that batch (imports apart), the memory, and the bytes of
index and state. Then it reads batches for as many seconds as each line of its input says, and prints the tokens a
second. Nothing but NumPy and the contender's own packages is imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

SEQUENCE = 2048
SEED = 1337


class Reader(NamedTuple):
    """The tokens of one batch after the other, for ever; the state; and the files of the index."""

    batches: Iterator[int]
    state: Callable[[], Any]
    index_files: tuple[str, ...] = ()


def train_file(store: str) -> Any:
    """The export for nanoGPT as a memory map."""
    return np.memmap(os.path.join(store, "nanogpt", "train.bin"), np.uint16, "r")


def get_batch(store: str, rows: int) -> Reader:
    """The get_batch of nanoGPT with torch: the map is opened for each batch, and windows are cast and stacked twice."""
    import torch  # noqa: PLC0415

    torch.set_num_threads(1)

    def windows(data: Any, starts: Any, shift: int) -> Any:
        cut = (data[start + shift : start + shift + SEQUENCE] for start in starts)
        return torch.stack([torch.from_numpy(window.astype(np.int64)) for window in cut])

    def batches() -> Iterator[int]:
        while True:
            data = train_file(store)  # opened each time, so that the memory of the map does not grow
            starts = torch.randint(len(data) - SEQUENCE, (rows,))
            yield min(windows(data, starts, shift).numel() for shift in (0, 1))

    return Reader(batches(), lambda: torch.get_rng_state().tolist())


def windows_only(store: str, rows: int) -> Reader:
    """One copy of each window in the type of the file: what a memory map can give, and no trainer can use."""
    data = train_file(store)
    generator = np.random.default_rng(1)

    def batches() -> Iterator[int]:
        while True:
            starts = generator.integers(0, len(data) - SEQUENCE, rows)
            yield sum(np.array(data[start : start + SEQUENCE]).size for start in starts)

    return Reader(batches(), lambda: generator.bit_generator.state)


def memmap(store: str, rows: int) -> Reader:
    """The get_batch of nanoGPT, without torch."""
    data = train_file(store)
    generator = np.random.default_rng(1)

    def batches() -> Iterator[int]:
        while True:
            starts = generator.integers(0, len(data) - SEQUENCE, rows)
            inputs = np.stack([data[start : start + SEQUENCE].astype(np.int64) for start in starts])
            labels = np.stack([data[start + 1 : start + 1 + SEQUENCE].astype(np.int64) for start in starts])
            yield min(inputs.size, labels.size)

    return Reader(batches(), lambda: generator.bit_generator.state)


def tokenmill_loader(store: str, rows: int, **options: Any) -> Any:
    """The loader of the other contenders that read the store."""
    import tokenmill  # noqa: PLC0415

    return tokenmill.loader(store, sequence_tokens=SEQUENCE, batch_sequences=rows, rank=0, world_size=1, **options)


def ours(store: str, rows: int, **options: Any) -> Reader:
    """The loader, step by step."""
    loader = tokenmill_loader(store, rows, **options)

    def batches() -> Iterator[int]:
        while True:
            for batch in loader:
                yield batch["input_ids"].size

    table = os.path.join(store, "splits", f"val-{options.get('val')}.parquet")
    return Reader(batches(), loader.state_dict, (table,) if "val" in options else ())


def with_torch(store: str, rows: int) -> Reader:
    """The data loader for PyTorch, in this process."""
    from tokenmill.training.torch import TokenDataLoader  # noqa: PLC0415

    feed = TokenDataLoader(tokenmill_loader(store, rows))

    def batches() -> Iterator[int]:
        while True:
            for batch in feed:
                yield batch["input_ids"].numel()

    return Reader(batches(), feed.state_dict)


class Windows:
    """Sequences of a memory map by number, as a random-access source."""

    def __init__(self, store: str) -> None:
        self._data = train_file(store)

    def __len__(self) -> int:
        return (len(self._data) - 1) // SEQUENCE

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = self._data[number * SEQUENCE : (number + 1) * SEQUENCE + 1].astype(np.int64)
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}

    def __repr__(self) -> str:
        return f"Windows({len(self)})"


def with_grain(store: str, rows: int, is_source_ours: bool) -> Reader:
    """Grain, which reads single sequences and batches them: from a loader, or shuffled from a memory map."""
    import grain  # noqa: PLC0415

    if is_source_ours:
        from tokenmill.training.grain import TokenSource  # noqa: PLC0415

        dataset = grain.MapDataset.source(TokenSource(tokenmill_loader(store, rows)))
    else:
        dataset = grain.MapDataset.source(Windows(store)).shuffle(seed=SEED)
    feed = iter(dataset.repeat().batch(rows).to_iter_dataset(grain.ReadOptions(num_threads=0)))
    return Reader((batch["input_ids"].size for batch in feed), feed.get_state)


def index_folder(store: str, form: str) -> str:
    """The directory of an export that has the index of its training shards."""
    return min(top for top, _, names in os.walk(os.path.join(store, form)) if "index.json" in names)


def with_litdata(store: str, rows: int) -> Reader:
    """The streaming dataset of litdata over an export, shuffled, and its data loader."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # noqa: PLC0415

    folder = index_folder(store, "litdata")
    dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=SEQUENCE + 1), shuffle=True)
    feed = StreamingDataLoader(dataset, batch_size=rows)

    def batches() -> Iterator[int]:
        while True:
            for batch in feed:
                yield len(batch) * SEQUENCE

    return Reader(batches(), feed.state_dict, (os.path.join(folder, "index.json"),))


def import_streaming() -> None:
    """Import MosaicML Streaming. It imports torchvision for datasets of images, which are not read here.

    The torchvision of PyPI needs a torch with CUDA. With another torch, empty modules take its place.
    """
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError):
        names = ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional")
        for name in names:
            module = types.ModuleType(name)
            module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
            module.__dict__.update(VisionDataset=object, to_tensor=None)
            sys.modules[name] = module
    importlib.import_module("streaming")


def with_streaming(store: str, rows: int) -> Reader:
    """MosaicML Streaming over an export, shuffled."""
    from streaming import StreamingDataLoader, StreamingDataset  # noqa: PLC0415

    folder = index_folder(store, "mds")
    feed = StreamingDataLoader(StreamingDataset(local=folder, shuffle=True, batch_size=rows), batch_size=rows)

    def batches() -> Iterator[int]:
        while True:
            for batch in feed:
                yield batch["tokens"].numel()

    return Reader(batches(), feed.state_dict, (os.path.join(folder, "index.json"),))


def with_lance(store: str, rows: int) -> Reader:
    """A Lance dataset with one sequence in each row, read by a permutation of its rows."""
    import lance  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    folder = os.path.join(store, "lance")
    if not os.path.exists(folder):
        data = train_file(store)
        values = np.asarray(data[: len(data) // (SEQUENCE + 1) * (SEQUENCE + 1)])
        lance.write_dataset(pa.table({"tokens": pa.FixedSizeListArray.from_arrays(values, SEQUENCE + 1)}), folder)
    dataset = lance.dataset(folder)
    order = np.random.default_rng(SEED).permutation(dataset.count_rows())
    position = [0]

    def batches() -> Iterator[int]:
        while True:
            chosen = [int(order[(position[0] + number) % len(order)]) for number in range(rows)]
            tokens = dataset.take(chosen)["tokens"].combine_chunks().flatten().to_numpy()
            whole = tokens.reshape(rows, -1).astype(np.int64)
            position[0] += rows
            yield whole[:, :-1].size

    return Reader(batches(), lambda: position[0])


def with_olmo(store: str, rows: int) -> Reader:
    """The dataset and the data loader of OLMo-core over an export."""
    from olmo_core.data import (  # noqa: PLC0415
        DataCollator,
        NumpyDataLoaderConfig,
        NumpyFSLDatasetConfig,
        TokenizerConfig,
    )

    folder = os.path.join(store, "olmo")
    paths = sorted(
        os.path.join(top, name) for top, _, names in os.walk(folder) for name in names if name.endswith(".npy")
    )
    work = os.path.join(store, "olmo-work")
    tokenizer = TokenizerConfig(vocab_size=50257, eos_token_id=50256, pad_token_id=50256)
    dataset = NumpyFSLDatasetConfig(paths=paths, sequence_length=SEQUENCE, tokenizer=tokenizer, work_dir=work).build()
    config = NumpyDataLoaderConfig(global_batch_size=rows * SEQUENCE, seed=SEED, num_workers=0, work_dir=work)
    feed = config.build(dataset, collator=DataCollator(pad_token_id=50256))

    def batches() -> Iterator[int]:
        epoch = 0
        while True:
            epoch += 1
            feed.reshuffle(epoch)
            for batch in feed:
                yield batch["input_ids"].numel()

    return Reader(batches(), feed.state_dict, (work,))


def with_megatron(store: str, rows: int) -> Reader:
    """The GPTDataset of megatron-core over an export; rows are stacked as its data loader does."""
    from types import SimpleNamespace  # noqa: PLC0415

    from megatron.core.datasets.blended_megatron_dataset_builder import (  # noqa: PLC0415
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig  # noqa: PLC0415

    cache = os.path.join(store, "megatron-cache")
    folder = os.path.join(store, "megatron")
    prefix = next(
        os.path.join(top, name[:-4]) for top, _, names in os.walk(folder) for name in names if name.endswith(".idx")
    )
    sequences = (len(train_file(store)) - 1) // SEQUENCE
    config = GPTDatasetConfig(
        random_seed=SEED,
        sequence_length=SEQUENCE,
        blend=([prefix], None),
        split="1,0,0",
        path_to_cache=cache,
        tokenizer=SimpleNamespace(vocab_size=50257, eod=50256, pad=50256, unique_identifiers={"name": "synthetic"}),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [sequences, 0, 0], lambda: True, config)
    dataset = builder.build()[0]
    position = [0]

    def batches() -> Iterator[int]:
        while True:
            items = [dataset[(position[0] + number) % len(dataset)]["tokens"] for number in range(rows)]
            position[0] += rows
            yield np.stack([np.asarray(item) for item in items]).size

    return Reader(batches(), lambda: position[0], (cache,))


ALL_FIELDS = ["input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"]
CONTENDERS: dict[str, Callable[[str, int], Reader]] = {
    "memmap": memmap,
    "get_batch": get_batch,
    "windows only": windows_only,
    "tokenmill": ours,
    "tokenmill, val": functools.partial(ours, val=0.01),
    "tokenmill, fields": functools.partial(ours, fields=ALL_FIELDS),
    "tokenmill, packed": functools.partial(ours, packing="best-fit"),
    "tokenmill, torch": with_torch,
    "tokenmill, grain": functools.partial(with_grain, is_source_ours=True),
    "grain": functools.partial(with_grain, is_source_ours=False),
    "litdata": with_litdata,
    "mds": with_streaming,
    "lance": with_lance,
    "olmo-core": with_olmo,
    "megatron-core": with_megatron,
}


# Modules that a contender imports, so that the time of imports is not measured.
MODULES = {
    "get_batch": ("torch",),
    "tokenmill, torch": ("tokenmill.training.torch",),
    "tokenmill, grain": ("grain",),
    "grain": ("grain",),
    "litdata": ("litdata",),
    "lance": ("lance", "pyarrow"),
    "olmo-core": ("olmo_core.data",),
    "megatron-core": ("megatron.core.datasets.gpt_dataset",),
}


def bytes_of(paths: tuple[str, ...]) -> int:
    """The bytes of some files, and of all files in some directories."""
    files = [os.path.join(top, name) for path in paths for top, _, names in os.walk(path) for name in names]
    return sum(os.path.getsize(path) for path in [*files, *filter(os.path.isfile, paths)])


def main() -> None:
    """Read the first batch, then read for as long as the input says."""
    name, store, rows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print
    if name.startswith("tokenmill"):
        import pyarrow as pa  # noqa: PLC0415

        importlib.import_module("tokenmill.api.loader")
        pa.chunked_array([[0]]).to_numpy()  # imports pandas if it is installed
    if name == "mds":
        import_streaming()
    for module in MODULES.get(name, ()):
        importlib.import_module(module)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    reader = CONTENDERS[name](store, rows)
    next(reader.batches)
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    with open("/proc/self/status", encoding="ascii") as file:
        values = dict(line.split(":", 1) for line in file)
    facts = {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": int(values["VmRSS"].split()[0]) * 1024}
    facts |= {"state_bytes": len(json.dumps(reader.state(), default=str)), "index_bytes": bytes_of(reader.index_files)}
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        tokens, begun, wanted = 0, time.perf_counter(), float(line)
        while (elapsed := time.perf_counter() - begun) < wanted:
            tokens += next(reader.batches)
        print(json.dumps(tokens / elapsed), file=answers, flush=True)


if __name__ == "__main__":
    main()
