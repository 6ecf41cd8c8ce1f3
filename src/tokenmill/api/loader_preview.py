"""What `tokenmill loader` shows: an epoch in numbers, one batch as text, and the speed of this process."""

from __future__ import annotations

import msgspec

from tokenmill.api.open import Store
from tokenmill.humanize import Readable
from tokenmill.loader.batches import Batch
from tokenmill.loader.loader import Loader
from tokenmill.loader.measure import RowStatistics, count_pieces, tokens_per_second


class LoaderPreview(Readable, msgspec.Struct, frozen=True):
    """A loader in numbers. `fields` has the type and shape of each array of the batch of `step`.

    `rows` is the text of each of its rows, if `input_ids` or `tokens` are among the fields.
    """

    stores: list[str]
    sequences: int
    tokens: int
    tail_tokens: int
    steps: int
    digest: str
    documents: RowStatistics
    tokens_per_second: float | None
    rank: int
    world_size: int
    step: int
    fields: dict[str, str]
    rows: list[str]


def preview(loader: Loader, step: int, seconds: float) -> LoaderPreview:
    """Read the batch of a step, and measure for some seconds; 0 seconds measure nothing."""
    batch = loader[step]
    return LoaderPreview(
        stores=list(loader.options.stores),
        sequences=loader.sequences,
        tokens=loader.tokens,
        tail_tokens=loader.tail_tokens,
        steps=len(loader),
        digest=loader.state_dict()["digest"],
        documents=count_pieces(loader),
        tokens_per_second=tokens_per_second(loader, seconds) if seconds else None,
        rank=loader.rank.rank,
        world_size=loader.rank.world_size,
        step=step,
        fields={name: f"{array.dtype} {list(array.shape)}" for name, array in batch.items()},
        rows=_texts(loader, batch),
    )


def _texts(loader: Loader, batch: Batch) -> list[str]:
    """The text of each row of a batch."""
    store = Store(loader.options.stores[:1])
    rows: list[list[int]] = next((batch[name].tolist() for name in ("input_ids", "tokens") if name in batch), [])
    return [b"".join(map(store.token_bytes, tokens)).decode(errors="replace") for tokens in rows]
