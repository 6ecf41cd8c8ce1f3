"""The state of a loader: the number of sequences given out, and the choices that decide which ones they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tokenmill.errors import UsageError
from tokenmill.storage.digest import differences
from tokenmill.store.chain import StoreVersion

# The format of a state. It changes if a state has other fields, or the same choices give other sequences.
FORMAT = 1

# More than any training has: sequences and their positions are counted in 64 bits.
MAX_SEQUENCES = 1 << 48


def encode_identity(identity: dict[str, str]) -> str:
    """The choices as one text, such as `seed=1337 grain=8192`. Names and values have no white space."""
    return " ".join(f"{name}={value}" for name, value in identity.items())


def decode_identity(text: str) -> dict[str, str]:
    """The choices of a text that `encode_identity` made."""
    return dict(entry.partition("=")[::2] for entry in text.split())


def state_of(sequences: int, digest: str, stores: dict[str, list[Any]]) -> dict[str, Any]:
    """The state of a loader that has given out so many sequences, with the versions of its stores."""
    return {"format": FORMAT, "sequences": sequences, "digest": digest, "stores": stores}


def sequences_of(state: Any) -> tuple[int, str]:
    """The sequences and the digest of a state. Raises UsageError if it is not a state of this format."""
    known: dict[str, Any] = state if isinstance(state, dict) else {}
    written = known.get("format")
    if isinstance(written, int) and written != FORMAT:
        raise UsageError(
            f"the state has format {written}, and this tokenmill reads {FORMAT}",
            "Continue with the version of tokenmill that wrote it.",
        )
    sequences, digest = known.get("sequences"), known.get("digest")
    if (
        written != FORMAT
        or not isinstance(sequences, int)
        or isinstance(sequences, bool)
        or not 0 <= sequences < MAX_SEQUENCES
        or not isinstance(digest, str)
    ):
        raise UsageError("this is not the state of a loader", "A state has `format`, `sequences` and `digest`.")
    return sequences, digest


def versions_of(state: Any) -> dict[str, StoreVersion]:
    """The versions of the stores in a state, by their identities."""
    try:
        return msgspec.convert(state["stores"], dict[str, StoreVersion])
    except (KeyError, TypeError, msgspec.ValidationError) as error:
        raise UsageError("this is not the state of a loader", "A state has `stores`, the versions of them.") from error


def check_state(state: Any, identity: dict[str, str]) -> int:
    """The sequences of a state. Raises UsageError if it is not a state, or its sequences were chosen in another way."""
    sequences, digest = sequences_of(state)
    before = decode_identity(digest)
    if not sequences or before == identity:
        return sequences
    if before.keys() != identity.keys():
        raise UsageError("this is the state of a loader of another kind", f"state        {digest[:200]}")
    changes = differences(before, identity)
    raise UsageError(
        f"the state is of a loader with {list_others(name for name, _, _ in changes)}",
        *(f"{name:<16} was {was}, is now {now}" for name, was, now in changes),
        "The sequences that were given out are not those that this loader would have given out.",
    )


def list_others(names: Iterable[str]) -> str:
    """What differs, each once: another seed, another grain and another val."""
    others = [f"another {name}" for name in dict.fromkeys(names)]
    return others[0] if len(others) == 1 else f"{', '.join(others[:-1])} and {others[-1]}"
