"""Recognizes causes by known phrases in error messages."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Symptom:
    """A cause that an error message reveals, with the evidence."""

    cause: str
    evidence: tuple[str, ...]
    fix: tuple[str, ...] | None = None


# Messages of a parent that lost a worker and does not know why.
LOST_WORKER = re.compile(
    r"abruptly died|terminated abruptly|BrokenProcessPool|DataLoader worker .*(?:exited unexpectedly|killed by signal)"
    r"|WorkerLostError|TerminatedWorkerError|^EOFError|^BrokenPipeError|^ConnectionResetError",
    re.MULTILINE,
)
DISK = re.compile(r"\[[Ee]rrno (?:28|122)\][^\n]*|No space left on device[^\n]*|Disk quota exceeded[^\n]*")
GUARD = re.compile(r"current process has finished its bootstrapping phase")
NAMELESS = (
    re.compile(r"Can't (?:pickle|get) local object '?([^'\n]+?)'?(?:\n|$)"),
    re.compile(r"Can't pickle <function (\S+) at 0x[0-9a-f]+>: (?:attribute lookup|it's not found)"),
    re.compile(r"Can't get attribute '(\w+)' on <module '__m(?:p_m)?ain__'"),
)
UNPICKLABLE = (
    re.compile(r"[Cc]an(?:no|')t pickle '?([\w.]+)'? objects?"),
    re.compile(r"no default __reduce__ due to non-trivial (__cinit__)"),
)
RESOURCES = re.compile(
    r"_?thread\.|\bR?Lock\b|^_io\.|\bsocket|connection|cursor|generator|coroutine|\bmodule\b|SSLContext|Thread|Popen"
    r"|weakref|Semaphore|Condition|Event|Queue|memoryview|mmap|Context|Client|Session",
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
SHARED_MEMORY = re.compile(
    r"insufficient shared memory|No space left on device: '?/dev/shm|unable to open shared memory"
)
PROCESSES = re.compile(
    r"\[[Ee]rrno 24\][^\n]*|Too many open files[^\n]*|can't start new thread"
    r"|BlockingIOError: \[Errno 11\] Resource temporarily unavailable"
)
FINGERPRINT = re.compile(r"couldn't be hashed properly")


def recognize(message: str, context: str = "") -> Symptom | None:
    """Returns the cause that an error message reveals, or None. `context` is more text, such as the frames."""
    return (
        _shared_memory(message)
        or _whole_match("disk-full", DISK, message)
        or _guard(message)
        or _nameless(message)
        or _unpicklable(message)
        or _vocabulary(message, context)
        or _memory(message)
        or _whole_match("too-many-processes", PROCESSES, message)
    )


def memory_symptom(message: str) -> Symptom | None:
    """Returns the symptom of a failed allocation, which a program may report before it crashes."""
    return _shared_memory(message) or _memory(message)


def _whole_match(cause: str, pattern: re.Pattern[str], message: str) -> Symptom | None:
    match = pattern.search(message)
    return Symptom(cause, (match[0],)) if match else None


def _guard(message: str) -> Symptom | None:
    evidence = ("each new process imports the script, which starts processes again",)
    return Symptom("main-guard", evidence) if GUARD.search(message) else None


def _nameless(message: str) -> Symptom | None:
    for pattern in NAMELESS:
        if match := pattern.search(message):
            return Symptom("nameless-function", (f"{match[1]} cannot be found by its name in the new process",))
    return None


def _unpicklable(message: str) -> Symptom | None:
    for pattern in UNPICKLABLE:
        if match := pattern.search(message):
            what = "an object of a native extension" if match[1] == "__cinit__" else f"an object of type {match[1]}"
            cause = "captured-resource" if RESOURCES.search(match[1]) else "captured-native-object"
            return Symptom(cause, (f"{what} cannot be pickled",))
    return None


def _vocabulary(message: str, context: str) -> Symptom | None:
    combined = f"{message}\n{context}"
    if not NETWORK.search(message) or not VOCABULARY.search(combined):
        return None
    hosts = [host for match in HOST.finditer(combined) if not (host := match[1] or match[2]).startswith(LOCAL)]
    return Symptom("vocabulary-offline", (f"it asked {hosts[0]} and got no answer",) if hosts else ())


def _shared_memory(message: str) -> Symptom | None:
    match = SHARED_MEMORY.search(message)
    fix = ("Make /dev/shm larger: docker run --shm-size=8g, or mount -o remount,size=8G /dev/shm.",)
    return Symptom("memory", (f"{match[0]}: /dev/shm is too small",), fix) if match else None


def _memory(message: str) -> Symptom | None:
    match = MEMORY.search(message)
    return Symptom("memory", (match[0].strip(),)) if match and "CUDA" not in message else None
