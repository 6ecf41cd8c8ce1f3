"""A data source for Grain, as used with JAX: `grain.MapDataset.source(TokenSource(loader))`.

Grain batches, divides among hosts and saves its own state; the order is that of the loader, so `shuffle` is not needed.
"""

from __future__ import annotations

from tokenmill.training.loader import SequenceView


class TokenSource(SequenceView):
    """The sequences of a loader as a `grain.sources.RandomAccessDataSource`."""
