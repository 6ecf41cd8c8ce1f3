"""Recognizes causes by known phrases in error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
