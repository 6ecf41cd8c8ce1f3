"""JSON in other layouts than one object per line: an array of objects, or pretty-printed objects one after the other.

Such a file is read as JSON Lines of the same length. The brackets and commas of the array become line ends, and the
line ends within an object become spaces. So a row is a byte offset in the file, as in JSON Lines: that of the line, or
of the byte after the comma, with which its object starts.
"""

from __future__ import annotations

import functools
import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.sources.delimited import BYTE_ORDER_MARK, read_sample
from tokenmill.sources.documents import SourceFile
from tokenmill.storage.untrusted.malformed import MalformedDataError

# The ending of a name that may stand for any layout. Files of other names are JSON Lines, and are not looked at.
ENDING = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
# How much of a file decides its layout.
LAYOUT_BYTES = 4096
# An array of objects, or an empty one; an object whose first brace is alone in its line.
_ARRAY = re.compile(rb"\s*\[\s*[{\]]")
_PRETTY = re.compile(rb'\s*\{[ \t\r]*\n\s*["}]')

_QUOTE, _BACKSLASH, _COMMA, _LINE_END, _SPACE, _BRACKET = b'"\\,\n ['
# The change of depth after each byte, and the bytes that matter outside of strings.
_DEPTHS = np.zeros(256, np.int64)
_DEPTHS[list(b"{[")], _DEPTHS[list(b"}]")] = 1, -1
_MATTERS = (_DEPTHS != 0) | np.isin(np.arange(256), [_COMMA, _LINE_END])
# The bytes that JSON has outside of strings, those of NaN and Infinity, which Python writes, and of a byte order mark.
_OUTSIDE = np.isin(np.arange(256), list(b" \t\r\n{}[]:,+-.0123456789eE" + b"truefalsenullNaNInfinity\xef\xbb\xbf"))

Positions = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=256)
def has_values(file: SourceFile) -> bool:
    """Whether a file holds JSON values that are not one per line. Reads the start of a file whose name allows both."""
    return bool(ENDING.search(file.path)) and are_values(read_sample(file)[0])


def are_values(start: bytes) -> bool:
    """Whether a file that starts with these bytes holds an array of objects, or pretty-printed objects."""
    start = start[:LAYOUT_BYTES].removeprefix(BYTE_ORDER_MARK)
    return bool(_ARRAY.match(start) or _PRETTY.match(start))


class ValueLines:
    """Turns JSON values into JSON Lines, chunk by chunk. The content of strings is not changed.

    The result for a chunk depends on the chunks before it.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._is_array: bool | None = None

    @property
    def is_complete(self) -> bool:
        """Whether no value and no array is open."""
        return not self._depth and not self._in_string

    def convert(self, chunk: bytes) -> bytes:
        """A chunk of JSON Lines, as long as the given one. Raises MalformedDataError for text that cannot be JSON.

        A quote too many would make one bad row of all objects until the next one, so it must not pass.
        """
        data = np.frombuffer(chunk, np.uint8)
        is_quote = np.zeros(len(data), np.bool_)
        is_quote[self._open_quotes(data)] = True
        in_string = np.logical_xor.accumulate(is_quote) ^ self._in_string
        is_outside = ~(in_string | is_quote)
        if (is_outside & ~_OUTSIDE[data]).any():
            raise MalformedDataError("there is text outside of quotes, so it is not JSON")
        found = np.flatnonzero(is_outside & _MATTERS[data])
        self._in_string = bool(in_string[-1])
        byte, change = data[found], _DEPTHS[data[found]]
        after = self._depth + np.cumsum(change)
        if len(after) and int(after.min()) < 0:
            raise MalformedDataError("a bracket of the JSON text closes nothing")
        if self._is_array is None and change.any():
            self._is_array = bool(byte[np.flatnonzero(change)[0]] == _BRACKET)
        before, outside = after - change, 1 if self._is_array else 0
        if self._is_array and ((byte == _BRACKET) & (before == 1)).any():
            raise MalformedDataError("an element of the array is an array, not an object")
        self._depth = int(after[-1]) if len(after) else self._depth
        lines = data.copy()
        lines[found[(byte == _LINE_END) & (before > outside)]] = _SPACE
        if self._is_array:
            is_comma = (byte == _COMMA) & (before == 1)
            lines[found[is_comma | ((change != 0) & (np.minimum(before, after) == 0))]] = _LINE_END
        return lines.tobytes()

    def _open_quotes(self, data: npt.NDArray[np.uint8]) -> Positions:
        """The quotes that open or close a string: an odd number of backslashes before a quote makes it text."""
        quotes, slashes = (np.flatnonzero(data == byte) for byte in (_QUOTE, _BACKSLASH))
        is_first = np.diff(slashes, prepend=-2) != 1
        starts = slashes[is_first][np.cumsum(is_first) - 1]
        # A backslash at the start of the chunk may be text itself, because of the last backslash of the chunk before.
        starts[starts == 0] += self._is_escaped
        is_odd = (slashes - starts) % 2 == 0
        escaped = slashes[is_odd] + 1
        if self._is_escaped:
            escaped = np.append(0, escaped)
        self._is_escaped = bool(len(escaped)) and int(escaped[-1]) == len(data)
        return np.setdiff1d(quotes, escaped, assume_unique=True)


class ValueStream:
    """A stream of JSON values that is read as JSON Lines."""

    def __init__(self, stream: pa.NativeFile) -> None:
        self._stream = stream
        self._lines = ValueLines()

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`. Raises EOFError if the stream ends within a value or an array."""
        data = self._stream.read(size)
        if not data and not self._lines.is_complete:
            raise EOFError("it ends within a JSON value")
        return self._lines.convert(data) if data else b""
