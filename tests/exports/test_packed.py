"""`--packed N`: rows of whole documents with a shifted mask, as the fine-tuning of Megatron-Bridge reads them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.segmented import prepare_store, stored_mask
from tokenmill.errors import CorruptStore, UsageError
from tokenmill.store.reader import Store

Found = Counter[tuple[tuple[int, ...], tuple[bool, ...]]]


@pytest.fixture(scope="module")
def kept_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_store(tmp_path_factory.mktemp("packed"))


@pytest.fixture
def store(kept_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kept_store, tmp_path / "store"))


def expected(store: Store, row_tokens: int) -> Found:
    """The documents that fit, each with the mask of its labels: whether the token after each token is trained on."""
    found: Found = Counter()
    for position in range(len(store)):
        tokens = store[position].tolist()
        mask = stored_mask(store, position) if store.job.segments else [True] * len(tokens)
        if 0 < len(tokens) <= row_tokens:
            found[tuple(tokens), (*mask[1:], False)] += 1
    return found


def as_megatron_bridge_reads(directory: Path, row_tokens: int, pattern: str = "*.parquet") -> Found:
    """The documents of the rows, checked as `megatron/bridge/data/datasets/packed_parquet.py` does.

    `GPTSFTPackedParquetDataset` needs REQUIRED_COLUMNS and at least one row; its `validate_row` wants masks as long as
    the tokens and ascending starts from 0 below their number. `__getitem__` gives `seq_start_id + [len(input_ids)]` as
    the boundaries, and `GPTSFTPackedDataset.collate_fn` (sft.py) takes of each document the tokens without the last as
    inputs, without the first as labels, and `loss_mask[start : end - 1]` for these labels. `fill_packing_strategy`
    (packing_utils.py) writes such masks: `loss_mask[1:] + [False]`. The tokens of a row are at most the longest row.
    """
    found: Found = Counter()
    for file in sorted(directory.glob(pattern)):
        table = pq.read_table(file)
        assert set(table.column_names) == {"input_ids", "seq_start_id", "loss_mask"}
        for row in table.to_pylist():
            ids, mask, starts = row["input_ids"], row["loss_mask"], row["seq_start_id"]
            assert len(mask) == len(ids) <= row_tokens
            assert set(mask) <= {0, 1}
            assert starts[0] == 0
            assert all(before < after for before, after in zip(starts, [*starts[1:], len(ids)], strict=True))
            for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
                assert mask[stop - 1] == 0
                found[tuple(ids[start:stop]), tuple(map(bool, mask[start:stop]))] += 1
    return found


@pytest.mark.parametrize("row_tokens", [40, 64, 1000])
@pytest.mark.parametrize("options", [{}, {"shuffle": 7}, {"shuffle": 7, "val": 0.2}], ids=str)
def test_rows_have_each_document_that_fits(store: Path, row_tokens: int, options: dict[str, Any]) -> None:
    """Whole, once, and with its mask; the others are counted."""
    result = tokenmill.export(
        store, to="parquet", packed=row_tokens, shard_tokens=2000, executor=InlineExecutor(), **options
    )
    opened = tokenmill.open(store)
    assert as_megatron_bridge_reads(Path(result.directory), row_tokens) == expected(opened, row_tokens)
    long = [len(opened[number]) for number in range(len(opened)) if len(opened[number]) > row_tokens]
    assert bool(long) == (row_tokens < 1000)
    splits = result.splits.values()
    assert sum(split.long_documents for split in splits) == len(long)
    assert sum(split.long_tokens for split in splits) == sum(long)
    assert sum(split.tokens for split in splits) == opened.token_count - sum(long)
    assert f"packed_sequence_size={row_tokens}" in result.use
    tokenmill.verify(store, executor=InlineExecutor())
    again = tokenmill.export(
        store, to="parquet", packed=row_tokens, shard_tokens=2000, executor=InlineExecutor(), **options
    )
    assert again.shards_done_now == 0


def test_rows_are_full(store: Path) -> None:
    """Nearly: no two neighbors could be one row."""
    result = tokenmill.export(store, to="parquet", packed=200, executor=InlineExecutor())
    (file,) = Path(result.directory).glob("*.parquet")
    lengths = np.array([len(row) for row in pq.read_table(file)["input_ids"].to_pylist()])
    assert (lengths[:-1] + lengths[1:] > 200).all()
    assert lengths.mean() > 180


def test_a_store_without_a_mask(tmp_path: Path) -> None:
    """Everything is trained on but what has no label: the first token of each document."""
    source = write_parquet(tmp_path / "a.parquet", [f"document {number} " * (number % 9 + 1) for number in range(90)])
    done = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(tmp_path / "store"), executor=InlineExecutor())
    result = tokenmill.export(done.directory, to="parquet", packed=50, executor=InlineExecutor())
    assert as_megatron_bridge_reads(Path(result.directory), 50) == expected(tokenmill.open(done.directory), 50)
    shown = run("export", done.directory, "--to", "parquet", "--packed", "20", "--out", str(tmp_path / "short"))
    assert "longer than a row" in shown.stdout


def test_an_erasure_reaches_the_rows(store: Path) -> None:
    result = tokenmill.export(store, to="parquet", packed=500, shard_tokens=2000, executor=InlineExecutor())
    directory = Path(result.directory)
    before = as_megatron_bridge_reads(directory, 500)
    tokenmill.erase(store, column="id", values=["3", "50", "51"], executor=InlineExecutor())
    after, opened = as_megatron_bridge_reads(directory, 500), tokenmill.open(store)
    assert after == expected(opened, 500) != before
    assert not any(any(mask) for tokens, mask in after if len(set(tokens)) == 1 and len(tokens) > 1)
    tokenmill.verify(store, executor=InlineExecutor())


def test_a_document_is_found_in_its_row(store: Path) -> None:
    """`locate` counts the tokens of all rows of a file."""
    wanted: list[dict[str, Any]] = [{}, {"shuffle": 3}]
    for options in wanted:
        result = tokenmill.export(
            store,
            to="parquet",
            packed=64,
            out=store.parent / f"out{len(options)}",
            executor=InlineExecutor(),
            **options,
        )
        (file,) = Path(result.directory).glob("*.parquet")
        tokens = pq.read_table(file)["input_ids"].combine_chunks().flatten().to_numpy()
        opened = tokenmill.open(store)
        for token in (0, 70, len(tokens) - 1):
            (found,) = tokenmill.locate(file, token, store=store).documents
            assert opened[found.document][found.offset] == tokens[token]


def test_a_changed_mask_is_found(store: Path) -> None:
    """The last token of a document has no label."""
    result = tokenmill.export(store, to="parquet", packed=64, executor=InlineExecutor())
    (file,) = Path(result.directory).glob("*.parquet")
    table = pq.read_table(file)
    masks = [[1] * len(mask) for mask in table["loss_mask"].to_pylist()]
    field = table.schema.field("loss_mask")
    pq.write_table(table.set_column(1, field, pa.chunked_array([pa.array(masks, field.type)])), file)
    with pytest.raises(CorruptStore):
        tokenmill.verify(store, executor=InlineExecutor())
    tokenmill.export(store, to="parquet", packed=64, executor=InlineExecutor())
    tokenmill.verify(store, executor=InlineExecutor())


@pytest.mark.parametrize(
    ("options", "headline"),
    [
        ({"to": "llmc"}, "llmc has no packed rows"),
        ({"mask": "weights"}, "--mask is given with --packed"),
        ({"with_columns": "id"}, "--with is given with --packed"),
        ({"columns": "tokens"}, "--columns is given with --packed"),
        ({"eot_position": "prepended"}, "--eot-position prepended cannot be used with a mask"),
        ({"packed": 0}, "--packed must be at least 1"),
        ({"packed": "1T"}, "--packed 1,000,000,000,000 is too large"),
    ],
)
def test_what_packed_rows_cannot_have_is_refused(store: Path, options: dict[str, Any], headline: str) -> None:
    with pytest.raises(UsageError) as raised:
        tokenmill.export(store, **{"to": "parquet", "packed": 64, "executor": InlineExecutor(), **options})
    assert raised.value.headline.startswith(headline), raised.value


def test_other_rows_are_another_export(store: Path) -> None:
    tokenmill.export(store, to="parquet", packed=64, executor=InlineExecutor())
    with pytest.raises(tokenmill.errors.JobChanged, match="another packed="):
        tokenmill.export(store, to="parquet", packed=65, executor=InlineExecutor())
