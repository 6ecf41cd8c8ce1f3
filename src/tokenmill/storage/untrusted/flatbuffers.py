"""Read tables of flatbuffers, the format of Arrow's headers, to check them before pyarrow reads them."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt

from tokenmill.storage.untrusted.malformed import MalformedDataError


class Table:
    """A table, whose fields are found through a list of offsets.

    A field that is missing is zero. An offset outside the bytes raises MalformedDataError.
    """

    def __init__(self, data: bytes, position: int | None = None) -> None:
        self.data = data
        self.position = self._at("<I", 0) if position is None else position

    def has(self, index: int) -> bool:
        """Whether a field is present."""
        return self._field(index) is not None

    def number(self, index: int, layout: str) -> int:
        """A field that is a number."""
        field = self._field(index)
        return 0 if field is None else self._at(layout, field)

    def child(self, index: int) -> Table:
        """A field that is a table."""
        field = self._field(index)
        if field is None:
            raise _outside()
        return Table(self.data, field + self._at("<I", field))

    def tuples(self, index: int, width: int) -> npt.NDArray[np.int64]:
        """A field that is a list of tuples of `width` 64-bit numbers."""
        field = self._field(index)
        if field is None:
            return np.empty((0, width), dtype=np.int64)
        start = field + self._at("<I", field)
        count = self._at("<I", start)
        if start + 4 + 8 * width * count > len(self.data):
            raise _outside()
        return np.frombuffer(self.data, dtype="<i8", count=width * count, offset=start + 4).reshape(-1, width)

    def _field(self, index: int) -> int | None:
        fields = self.position - self._at("<i", self.position)
        entry = 4 + 2 * index
        offset = self._at("<H", fields + entry) if entry < self._at("<H", fields) else 0
        return self.position + offset if offset else None

    def _at(self, layout: str, position: int) -> int:
        if position < 0:
            raise _outside()
        try:
            return int(struct.unpack_from(layout, self.data, position)[0])
        except struct.error as error:
            raise _outside() from error


def _outside() -> MalformedDataError:
    return MalformedDataError("a header points outside of itself")
