"""What Python users call. `tokenmill` itself offers the same names, loaded on first use."""

from tokenmill.api.estimate import Estimate, plan
from tokenmill.api.exporter import Exported
from tokenmill.api.exporting import export
from tokenmill.api.finishing import Finished, finish
from tokenmill.api.locating import Located, locate
from tokenmill.api.mapping import map_dataset
from tokenmill.api.preparation import Prepared, prepare
from tokenmill.api.state import Status, status
from tokenmill.api.verification import Verification, verify
from tokenmill.drop_in import tokenize_fn
from tokenmill.store import Store


def open(directory: str) -> Store:  # noqa: A001 - the name users know: tokenmill.open
    """Open a complete store."""
    return Store(directory)


__all__ = [
    "Estimate",
    "Exported",
    "Finished",
    "Located",
    "Prepared",
    "Status",
    "Store",
    "Verification",
    "export",
    "finish",
    "locate",
    "map_dataset",
    "open",
    "plan",
    "prepare",
    "status",
    "tokenize_fn",
    "verify",
]
