"""`map_dataset`: a `datasets.Dataset` with its tokens, as `dataset.map` gives it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import hf_datasets, worker_modules
from tokenmill.pipeline.map_dataset import MAX_ROW_BYTES, DatasetMapper
from tokenmill.pipeline.request import PrepareOptions
from tokenmill.tokenizers.resolve import resolve


def map_dataset(  # noqa: PLR0913 - the options of the command, by their names
    dataset: Any,
    tokenizer: str,
    num_proc: int | None = None,
    *,
    column: str = "text",
    engine: str = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    memory: str | int | None = None,
    cache_dir: str | None = None,
    reporter: progress.Reporter | None = None,
    executor: LocalExecutor | None = None,
) -> Any:
    """A `Dataset` (or `DatasetDict`) with `ids` and `len` in place of the text, as the usual `map` recipe gives it.

    Call it again after any interruption: only what is missing is done. The tokens stay in `cache_dir`, unless said
    otherwise a folder of the datasets cache. An `executor` that is at hand saves the start of new workers.
    """
    if num_proc is not None and num_proc < 1:
        raise UsageError("num_proc must be at least 1")
    options = PrepareOptions((), tokenizer, column, None, engine, eot, bos, max_document_bytes=MAX_ROW_BYTES)
    with (
        nullcontext(executor) if executor is not None else LocalExecutor(worker_modules(engine)) as pool,
        reporter if reporter is not None else progress.for_python() as report,
    ):
        cache = cache_dir or hf_datasets.default_cache()
        mapper = DatasetMapper(options, resolve(tokenizer), num_proc, memory, cache, pool, report)
        return hf_datasets.each_split(dataset, mapper.map)
