"""What Python users call. `tokenmill` itself offers the same names, loaded on first use."""

from tokenmill.api.benching import Benchmark, bench
from tokenmill.api.estimate import Estimate, plan
from tokenmill.api.exporter import Exported
from tokenmill.api.exporting import export
from tokenmill.api.finishing import Finished, finish
from tokenmill.api.locating import Located, locate
from tokenmill.api.mapping import map_dataset
from tokenmill.api.preparation import Prepared, prepare
from tokenmill.api.reporting import Reported, report
from tokenmill.api.state import Status, status
from tokenmill.api.statistics import stats
from tokenmill.api.verification import Verification, verify
from tokenmill.census.figures import Statistics
from tokenmill.drop_in import tokenize_fn
from tokenmill.store import Store


def open(directory: str) -> Store:  # noqa: A001 - the name users know: tokenmill.open
    """Open a complete store."""
    return Store(directory)


__all__ = [
    "Benchmark",
    "Estimate",
    "Exported",
    "Finished",
    "Located",
    "Prepared",
    "Reported",
    "Statistics",
    "Status",
    "Store",
    "Verification",
    "bench",
    "export",
    "finish",
    "locate",
    "map_dataset",
    "open",
    "plan",
    "prepare",
    "report",
    "stats",
    "status",
    "tokenize_fn",
    "verify",
]
