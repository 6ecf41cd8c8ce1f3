"""Reads a command's stderr: Python tracebacks, fatal errors, and phrases that reveal a cause."""

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

# Messages of a parent that lost a worker and does not know why.
LOST_WORKER = re.compile(
    r"abruptly died|terminated abruptly|BrokenProcessPool|DataLoader worker .*(?:exited unexpectedly|killed by signal)"
    r"|WorkerLostError|TerminatedWorkerError|^EOFError|^BrokenPipeError|^ConnectionResetError",
    re.MULTILINE,
)
FINGERPRINT = re.compile(r"couldn't be hashed properly")
SHARED_MEMORY = re.compile(
    r"insufficient shared memory|No space left on device: '?/dev/shm|unable to open shared memory"
)
DISK = re.compile(r"\[[Ee]rrno (?:28|122)\][^\n]*|No space left on device[^\n]*|Disk quota exceeded[^\n]*")
GUARD = re.compile(r"current process has finished its bootstrapping phase")
NAMELESS = re.compile(
    r"Can't (?:pickle|get) local object '?([^'\n]+?)'?(?:\n|$)"
    r"|Can't pickle <function (\S+) at 0x[0-9a-f]+>: (?:attribute lookup|it's not found)"
    r"|Can't get attribute '(\w+)' on <module '__m(?:p_m)?ain__'"
)
UNPICKLABLE = re.compile(r"[Cc]an(?:no|')t pickle '?([\w.]+)'? objects?")
NO_REDUCE = re.compile(r"no default __reduce__ due to non-trivial __cinit__")
UNPICKLABLE_RESOURCE = re.compile(
    r"can(?:no|')t pickle '?((?=[\w.]*(?:thread\.|\bR?Lock\b|_io\.|\bsocket|connection|cursor|generator|coroutine"
    r"|\bmodule\b|SSLContext|Thread|Popen|weakref|Semaphore|Condition|Event|Queue|memoryview|mmap|Context|Client|Session))"
    r"[\w.]+)'? objects?",
    re.IGNORECASE,
)
NETWORK = re.compile(
    r"ConnectionError|MaxRetryError|NameResolutionError|gaierror|ConnectTimeout|ReadTimeout|ProxyError|HTTPError"
    r"|Network is unreachable|Temporary failure in name resolution|LocalEntryNotFoundError|OfflineModeIsEnabled"
    r"|couldn't connect to '?https?://|Connection refused"
)
VOCABULARY = re.compile(r"tiktoken|openaipublic|tokenizer|vocab|from_pretrained|\.bpe\b")
HOST = re.compile(r"host='([\w.-]+)'|https?://([\w.-]+)")
LOCAL = ("127.", "localhost")
MEMORY = re.compile(
    r"\bMemoryError[^\n]*|memory allocation of \d+ bytes failed|std::bad_alloc|\[[Ee]rrno 12\][^\n]*"
    r"|Cannot allocate memory|malloc of size \d+ failed|Unable to allocate [\d.]+ [KMGT]iB[^\n]*"
    r"|DefaultCPUAllocator: can't allocate memory"
)
PROCESSES = re.compile(
    r"\[[Ee]rrno 24\][^\n]*|Too many open files[^\n]*|can't start new thread"
    r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
)
# Cause, pattern, and evidence about the first group of the pattern, or about the whole match. The first match counts.
PATTERNS = (
    ("memory", SHARED_MEMORY, "{}: /dev/shm is too small"),
    ("disk-full", DISK, "{}"),
    ("main-guard", GUARD, "each new process imports the script, which starts processes again"),
    ("nameless-function", NAMELESS, "{} cannot be found by its name in the new process"),
    ("captured-resource", UNPICKLABLE_RESOURCE, "an object of type {} cannot be pickled"),
    ("captured-native-object", UNPICKLABLE, "an object of type {} cannot be pickled"),
    ("captured-native-object", NO_REDUCE, "an object of a native extension cannot be pickled"),
    ("vocabulary-offline", NETWORK, "it asked {} and got no answer"),
    ("memory", MEMORY, "{}"),
    ("too-many-processes", PROCESSES, "{}"),
)


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
    failures = []
    for head, end in itertools.pairwise([*heads, len(lines)]):
        before = [line for line in lines[max(0, head - 5) : head] if line.strip()]
        follows = bool(before) and before[-1].startswith(CHAINS)  # it is chained to the previous one
        failures.append(_exception(lines[head + 1 : end], follows))
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


@dataclass(frozen=True, slots=True)
class Symptom:
    """A cause that an error message reveals, with the evidence."""

    cause: str
    evidence: str


def recognize(message: str, context: str = "", only: str | None = None) -> Symptom | None:
    """Returns the cause that an error message reveals, or None. `context` is more text, such as the frames.

    With `only`, no other cause is looked for.
    """
    for cause, pattern, evidence in PATTERNS:
        if only not in (None, cause) or not (match := pattern.search(message)):
            continue
        what = next((group for group in match.groups() if group), match[0].strip())
        if cause == "vocabulary-offline":
            everything = f"{message}\n{context}"
            if not VOCABULARY.search(everything):
                continue
            hosts = [
                host for match in HOST.finditer(everything) if not (host := match[1] or match[2]).startswith(LOCAL)
            ]
            what = hosts[0] if hosts else "a server"
        return Symptom(cause, evidence.format(what))
    return None
