"""The error tree, and the exit code that each error gives a command.

TokenmillError                base class of all errors that tokenmill raises on purpose: exit code 1
├── UsageError                the call itself is wrong: exit code 2
├── SourceError               a source cannot be found or read
│   └── BadDocument           one document of a source cannot be used; the message names its file and row
├── TokenizerError            a tokenizer cannot be found, read or used
│   └── EngineMismatch        the fast engine and the reference gave different tokens for a document
├── StoreError                a store cannot be written or read
│   ├── JobChanged            the directory belongs to another job
│   ├── IncompleteStore       some units are not committed yet
│   └── CorruptStore          a file does not match its checksum: exit code 3
├── StorageError              an object store or the Hub does not answer or denies access: exit code 75
├── LimitReached              a system limit on files, processes or memory is too low
├── MemoryShortage            a document needs more memory than the budget: exit code 75
└── RunFailed                 units failed or the run was aborted: the exit code of its failures

An error caused by a transient system error (a full disk, a broken connection) has exit code 75. The code that raises an
error may set another exit code than that of its class.

A message is a headline that says what is wrong, then indented lines: where, what was expected, what was found, what to
do. It names options as the command line does (`--eot none`). Commands print `headline` and `details` as they are; `str`
gives the message in the words of Python (`eot="none"`).
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable

DONE = 0
# The same command will fail again: bad data, a changed job, a refused login.
FAILED = 1
USAGE = 2
CORRUPT = 3
# The same command can succeed later: network, full disk, expired credentials. EX_TEMPFAIL of sysexits.h.
TRY_AGAIN = 75
# A signal interrupted the command.
INTERRUPTED = 130

# Errors of disks, networks and machines that may work again later.
TRANSIENT_ERRNOS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.ESTALE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EAGAIN,
        errno.EBUSY,
        errno.ETIMEDOUT,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EREMOTEIO if hasattr(errno, "EREMOTEIO") else errno.EIO,
    }
)

# Options without a value, which are True in Python.
SWITCHES = frozenset(
    {
        "all",
        "allow-http",
        "drop-spool",
        "dry-run",
        "force",
        "quarantine-text",
        "repair",
        "retry-quarantine",
        "skipped",
        "stop-hung",
        "trust-tokens",
    }
)

# Options whose names are no names in Python.
PYTHON_NAMES = {"with": "with_columns"}

# Words after an option that continue the sentence. Any other word is the value of the option.
_WORDS = (
    "a adds allows and another at can cannot change changes chooses counts for has in is it must names needs of on "
    "once or that to was with would"
)
SENTENCE_WORDS = _WORDS.split()

# Quoted commands and whole command lines, which stay as they are; or an option, with its value if there is one. A line
# that begins with a word in lower case and an option is the command line of another program.
_OPTION = re.compile(
    r"`[^`]*`|(?<![\w/.-])tokenmill [a-z]+ .*|^ *[a-z][a-z0-9]* --?[a-z].*"
    r"|(?<![\w-])--(?P<name>[a-z][a-z-]*[a-z])"
    rf"(?: (?!--|(?:{'|'.join(SENTENCE_WORDS)})\b)"
    r"(?P<value>'[^']*'|[\d.]+ [kKMGT]?i?B\b|[^\s'(][^\s)]*(?<![,;:.])))?",
    re.MULTILINE,
)
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")
_PLACEHOLDER = re.compile(r"[A-Z_]+")


def in_python(message: str) -> str:
    """A message with parameters (`eot="none"`) in place of options (`--eot none`). Commands in it stay as they are."""
    return _OPTION.sub(_parameter, message)


def _parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if name is None:
        return match[0]
    parameter = PYTHON_NAMES.get(name, name.replace("-", "_")) + "="
    if name in SWITCHES:
        return f"{parameter}True" + match[0].removeprefix(f"--{name}")
    if value is None:
        return parameter
    if _NUMBER.fullmatch(value):
        return parameter + value.replace(",", "_")
    is_literal = _PLACEHOLDER.fullmatch(value) or value.startswith("'")
    return parameter + (value if is_literal else f'"{value}"')


def is_transient(error: BaseException | None) -> bool:
    """Whether the same operation may succeed later."""
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno in TRANSIENT_ERRNOS
    return isinstance(error, MemoryError)


def is_interrupt(error: BaseException | None) -> bool:
    """Whether an error is KeyboardInterrupt, or was raised because of one.

    Python 3.11 raises RuntimeError from what interrupts `__set_name__` while a class is created.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, KeyboardInterrupt):
            return True
        seen.add(id(error))
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return False


def exit_code_of(error: BaseException) -> int:
    """The exit code of a command that ends with this error."""
    if is_interrupt(error):
        return INTERRUPTED
    if isinstance(error, TokenmillError):
        return error.exit_code
    return TRY_AGAIN if is_transient(error) else FAILED


def combined_exit_code(codes: Iterable[int]) -> int:
    """The exit code of several failures: 75 if all are transient; otherwise that of the others if it is the same."""
    permanent = set(codes) - {TRY_AGAIN}
    if not permanent:
        return TRY_AGAIN
    return permanent.pop() if len(permanent) == 1 else FAILED


_classes: dict[str, type[TokenmillError]] = {}


def error_class(name: str) -> type[TokenmillError]:
    """Return the error class of that name; TokenmillError if this process has not imported it."""
    return _classes.get(name, TokenmillError)


class TokenmillError(Exception):
    """An error with a message made for people: a headline and indented details.

    `may_succeed_elsewhere` marks the errors that one machine alone can cause: an executor repeats the work on another.
    """

    may_succeed_elsewhere = False
    _exit_code = FAILED
    _is_stated = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _classes.setdefault(cls.__name__, cls)

    def __init__(self, headline: str, *details: str, exit_code: int | None = None) -> None:
        super().__init__(headline, *details)
        self.headline = headline
        self.details = details
        if exit_code is not None:
            self._exit_code, self._is_stated = exit_code, True

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this error."""
        if self._exit_code == FAILED and not self._is_stated and is_transient(self.__cause__):
            return TRY_AGAIN
        return self._exit_code

    @property
    def text(self) -> str:
        """The whole message, with options as the command line names them."""
        return "\n".join([self.headline, *(f"  {line}" for line in self.details)])

    def __str__(self) -> str:
        return "\n".join([in_python(self.headline), *(f"  {in_python(line)}" for line in self.details)])


class UsageError(TokenmillError):
    """The call is wrong. Nothing was done."""

    _exit_code = USAGE


class SourceError(TokenmillError):
    """A source cannot be found or read."""

    may_succeed_elsewhere = True


class BadDocument(SourceError):
    """One document cannot be used; the message names its file and row."""

    may_succeed_elsewhere = False


class TokenizerError(TokenmillError):
    """A tokenizer cannot be found, read or used."""


class EngineMismatch(TokenizerError):
    """The fast engine and the reference gave different tokens for one document."""


class StoreError(TokenmillError):
    """A store cannot be written or read."""

    may_succeed_elsewhere = True


class JobChanged(StoreError):
    """The directory holds a run of another job, tokenizer or set of sources."""

    may_succeed_elsewhere = False


class IncompleteStore(StoreError):
    """Some units of the plan are not committed yet."""

    may_succeed_elsewhere = False


class CorruptStore(StoreError):
    """A file of the store is damaged."""

    _exit_code = CORRUPT


class StorageError(TokenmillError):
    """An object store or the Hub does not answer or denies access. Committed parts stay."""

    may_succeed_elsewhere = True
    _exit_code = TRY_AGAIN


class LimitReached(TokenmillError):
    """A system limit on files, processes or memory is too low for this process or its user."""

    may_succeed_elsewhere = True


class MemoryShortage(TokenmillError):
    """The memory budget is smaller than the memory that a document of the job may need."""

    _exit_code = TRY_AGAIN


class RunFailed(TokenmillError):
    """The run ended with failed units. `advice` are the last details: what helps, for `status`."""

    def __init__(self, headline: str, *details: str, advice: Iterable[str] = (), exit_code: int | None = None) -> None:
        self.advice = tuple(advice)
        super().__init__(headline, *details, *self.advice, exit_code=exit_code)
