"""Parses Python tracebacks and fatal errors in a command's stderr."""

from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass

HEAD = "Traceback (most recent call last):"
FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+),? in (.+)$')
ERROR = re.compile(r"^([A-Za-z_][\w.]*)(?:: ?(.*))?$")
FATAL = re.compile(r"Fatal Python error: (.+)$")
THREAD = re.compile(r"^(?:Current thread|Thread) 0x")
CHAINS = ("The above exception was the direct cause", "During handling of the above exception")
LIBRARY_PREFIX = re.compile(r"^.*(?:/(?:site|dist)-packages/|/lib(?:64)?/python\d[^/]*/)")
LIBRARY_FILE = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<|^[^/].*\.p(?:yx|xi)$")


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str
    code: str = ""

    @property
    def is_users(self) -> bool:
        """Whether it is in the user's own code, not in a library."""
        return LIBRARY_FILE.search(self.file) is None

    def __str__(self) -> str:
        path = self.file.removeprefix(os.getcwd() + os.sep) if self.is_users else LIBRARY_PREFIX.sub("", self.file)
        return f"{path}:{self.line}, in {self.function}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A printed exception or fatal error, with its frames from the outermost to the innermost."""

    kind: str
    message: str
    frames: tuple[Frame, ...]
    follows: bool
    text: str

    @property
    def location(self) -> Frame | None:
        """The innermost frame in the user's code, else the innermost frame."""
        users = [frame for frame in self.frames if frame.is_users]
        return next(iter([*users[-1:], *self.frames[-1:]]), None)

    @property
    def summary(self) -> str:
        """The exception as Python prints it, on one line."""
        message = " ".join(self.message.split())
        return f"{self.kind}: {message}" if message else self.kind


def exceptions(text: str) -> list[Failure]:
    """Returns the tracebacks in a text, in order."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if line.endswith(HEAD)]  # a progress bar may precede it
    spans = itertools.pairwise([*heads, len(lines)])
    failures = [_exception(lines[head + 1 : end], _follows(lines[max(0, head - 5) : head])) for head, end in spans]
    return [failure for failure in failures if failure is not None]


def last_chain(text: str) -> list[Failure]:
    """Returns the last exception with those that led to it, the first of them first."""
    chain: list[Failure] = []
    for failure in exceptions(text):
        chain = [*chain, failure] if failure.follows else [failure]
    return chain


def fatal_errors(text: str) -> list[Failure]:
    """Returns the fatal errors in a text, with the stack of the current thread."""
    lines = text.splitlines()
    heads = [number for number, line in enumerate(lines) if FATAL.search(line)]
    return [_fatal(lines[head:end]) for head, end in itertools.pairwise([*heads, len(lines)])]


def _exception(lines: list[str], follows: bool) -> Failure | None:
    frames: list[Frame] = []
    for number, line in enumerate(lines):
        match = FRAME.match(line)
        if match:
            frames.append(_frame(match, lines[number + 1 : number + 2]))
        elif frames and (error := ERROR.match(line)):
            message = _message(error[2] or "", lines[number + 1 :])
            return Failure(error[1], message, tuple(frames), follows, "\n".join([HEAD, *lines]))
    return None


def _frame(match: re.Match[str], following: list[str]) -> Frame:
    is_code = following and following[0].startswith(" ") and not FRAME.match(following[0])
    return Frame(match[1], int(match[2]), match[3].strip(), following[0].strip() if is_code else "")


def _message(first: str, rest: list[str]) -> str:
    """Joins the lines of an exception's message."""
    lines = [first]
    for line in rest:
        is_other = (line and not line.startswith(" ")) or FRAME.match(line)  # another process may interleave
        if is_other or (not line and lines[-1]):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def _follows(before: list[str]) -> bool:
    """Returns whether the lines before a traceback chain it to the previous one."""
    last = next((line for line in reversed(before) if line.strip()), "")
    return last.startswith(CHAINS)


def _fatal(lines: list[str]) -> Failure:
    """Parses a fatal error. The current thread is printed last, or alone."""
    starts = [number for number, line in enumerate(lines) if THREAD.match(line)]
    current = [number for number in starts if lines[number].startswith("Current")] or starts[-1:]
    frames = []
    for line in lines[current[0] + 1 :] if current else []:
        match = FRAME.match(line)
        if match is None:
            break
        frames.append(_frame(match, []))
    title = FATAL.search(lines[0])
    kind = title[1] if title else ""
    return Failure(kind, "", tuple(reversed(frames)), follows=False, text="\n".join(lines))
