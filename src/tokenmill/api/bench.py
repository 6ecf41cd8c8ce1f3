"""`tokenmill.bench`: what this machine does with a sample, and how long the whole corpus will take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenmill.api.parameters import output_text, path_texts
from tokenmill.errors import UsageError
from tokenmill.executors import progress, progress_bar
from tokenmill.options import StrPath
from tokenmill.pipeline.bench.result import BenchResult
from tokenmill.pipeline.bench.run import BenchOptions, parse_worker_counts, run_bench
from tokenmill.system.arguments import checked
from tokenmill.tokenization.objects import TokenizerObject


@checked
def bench(  # noqa: PLR0913 - the options of the command, by their names
    sources: StrPath | Sequence[StrPath] = (),
    *,
    tokenizer: StrPath | TokenizerObject = "gpt2",
    version: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    workers: str | int | Sequence[int] | None = None,
    seconds: float = 30.0,
    out: StrPath | None = None,
    reporter: progress.Reporter | None = None,
) -> BenchResult:
    """Measure each engine with each number of workers on a sample, and forecast the time of all sources.

    Args:
        sources: Files, directories, globs or addresses, or the name of a dataset; one or several. Default: the
            standard library of Python, without a forecast.
        tokenizer: An encoding of OpenAI (`"gpt2"`); a model on the Hub (`"ORG/MODEL"`); a `.tiktoken` file; a
            `tokenizer.json` or its directory; a tokenizer of `tokenizers`, `tiktoken` or `transformers`.
        version: The version of a named dataset. `tokenmill datasets` lists them.
        column: The column with the text. Default: `text`, or the column of the named dataset.
        separator: The separator of documents in .txt files. Default: each file is one document.
        workers: The numbers of workers to measure, such as `[1, 2, 4]` or `"1,2,4"`. Default: 1, 2, 4, ... up to one
            per core.
        seconds: The time for all measurements together.
        out: A directory on the disk to measure. Parts are written below it and removed at the end. Default: the
            directory for temporary files.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
    """
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is not a time", "Give the seconds that measuring may take: 30.")
    options = BenchOptions(
        sources=path_texts(sources),
        tokenizer=tokenizer,
        version=version,
        column=column,
        separator=separator,
        worker_counts=parse_worker_counts(workers),
        seconds=seconds,
        out=None if out is None else output_text(out),
    )
    return run_bench(options, reporter if reporter is not None else progress_bar.for_python())
