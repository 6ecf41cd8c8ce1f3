"""Being the only one of several machines to do something: they ask for it by a name, and one of them gets it.

On a disk the system holds a lock for it, which ends with its holder. In an object store it is a small object, which its
holder writes again and again; whoever has watched it for a while, and has seen it stay the same, takes it over. So
nobody's clock matters. That two do the same for once has to do no harm.
"""

from __future__ import annotations

from typing import Protocol


class Lease(Protocol):
    """Something that one of several machines is to do."""

    def take(self) -> bool:
        """Try to be the one; it may be tried again and again."""

    def release(self) -> None:
        """Let others try."""
