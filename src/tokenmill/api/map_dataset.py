"""`map_dataset`: a `datasets.Dataset` with its tokens, as `dataset.map` gives it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from tokenmill.api.parameters import path_text
from tokenmill.choices import EngineName
from tokenmill.errors import UsageError
from tokenmill.executors import progress, progress_bar
from tokenmill.executors.local import LocalExecutor
from tokenmill.options import JobOptions, StrPath
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.datasets import hf_datasets
from tokenmill.pipeline.datasets.map_dataset import MAX_ROW_BYTES, DatasetMapper
from tokenmill.system.arguments import checked
from tokenmill.tokenization.objects import TokenizerObject
from tokenmill.tokenization.resolve import resolve


@checked
def map_dataset(  # noqa: PLR0913 - the options of the command, by their names
    dataset: Any,
    tokenizer: StrPath | TokenizerObject,
    num_proc: int | None = None,
    *,
    column: str = "text",
    engine: EngineName = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    memory: str | int | None = None,
    cache_dir: StrPath | None = None,
    keep_text: bool = False,
    output: str | None = None,
    reporter: progress.Reporter | None = None,
    executor: LocalExecutor | None = None,
) -> Any:
    """A `Dataset` (or `DatasetDict`) with `ids` and `len` in place of the text, as the usual `map` recipe gives it.

    The rows are stored in the order of the dataset, also of a shuffled or selected one: reading needs no indices.
    Call it again after any interruption: only what is missing is done.

    Args:
        dataset: A `Dataset` or `DatasetDict` of Hugging Face.
        tokenizer: An encoding of OpenAI (`"gpt2"`); a model on the Hub (`"ORG/MODEL"`); a `.tiktoken` file; a
            `tokenizer.json` or its directory; a tokenizer of `tokenizers`, `tiktoken` or `transformers`.
        num_proc: The number of worker processes. Default: one per core.
        column: The column with the text.
        engine: The library that encodes. All engines produce the same tokens.
        eot: The end token: an id, its spelling, or `"none"`. Default: the end token of the tokenizer.
        bos: The begin token: an id, its spelling, or `"none"`. Default: none.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        cache_dir: The directory of the tokens. Default: a directory in the cache of `datasets`.
        keep_text: Keep the column with the text beside the tokens.
        output: The column of the tokens, such as `"input_ids"`. Default: `ids`, with their number in `len`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    if num_proc is not None and num_proc < 1:
        raise UsageError("num_proc must be at least 1")
    options = JobOptions(
        tokenizer=tokenizer, column=column, engine=engine, eot=eot, bos=bos, max_document_bytes=MAX_ROW_BYTES
    )
    with (
        nullcontext(executor) if executor is not None else LocalExecutor(worker_modules(engine)) as pool,
        reporter if reporter is not None else progress_bar.for_python() as report,
    ):
        cache = path_text(cache_dir) or hf_datasets.default_cache()
        mapper = DatasetMapper(options, resolve(tokenizer), num_proc, memory, cache, pool, report, keep_text, output)
        return hf_datasets.each_split(dataset, mapper.map)
