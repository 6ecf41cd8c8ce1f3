"""`tokenmill.stats`: what complete stores hold."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence

import numpy as np

from tokenmill.analysis import PRELOAD
from tokenmill.analysis.count_store import StoreCounter
from tokenmill.analysis.statistics import Statistics
from tokenmill.api.parameters import store_paths
from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import LOCAL, FanOut, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.options import Stores
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.store.collection import open_collection
from tokenmill.system.arguments import checked

# The largest vocabulary that is counted, many times larger than any in use.
MAX_IDS = 1 << 23


@checked
def stats(  # noqa: PLR0913 - the options of the command, by their names
    directory: Stores,
    *,
    by: str | Sequence[str] = (),
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> Statistics:
    """Count what complete stores hold: tokens, lengths, sources, vocabulary, duplicates, and the course of the run.

    The search for duplicates takes up to 36 bytes per document in the directory for temporary files, which are removed
    at the end.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`. Several stores are counted together.
        by: Columns of text, numbers or booleans. Tokens are counted by their values; with `"host:url"`, by the hosts of
            the URLs in the column `url`. A column that the store does not keep is read from the sources again.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    stores = open_collection(store_paths(directory))
    spec = stores.job.tokenizer
    if spec.vocabulary_size > MAX_IDS:
        raise UsageError(f"a vocabulary of {spec.vocabulary_size:,} ids is too large to be counted")
    columns = list(dict.fromkeys([by] if isinstance(by, str) else by))
    with (
        tempfile.TemporaryDirectory(prefix="tokenmill-census-", ignore_cleanup_errors=True) as scratch,
        open_executor(LOCAL, PRELOAD, executor, reporter) as (pool, report),
    ):
        resources = plan_resources(workers, memory, most_workers=max(len(stores.manifest), 1), room=pool.room)
        pool.start(resources.workers, resources.worker_bytes)
        fan_out = FanOut(pool, report, resources.workers, np.dtype(spec.dtype).itemsize)
        counter = StoreCounter(stores, fan_out, resources, scratch)
        counter.count(columns)
    return counter.statistics()
