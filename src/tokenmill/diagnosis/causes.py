"""The causes of death that the doctor knows, and the records of its findings.

A cause has the same name in code, messages, JSON and docs/why-it-dies.md, which has one section per cause.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from tokenmill.humanize import Readable

Level = Literal["ok", "warning", "problem"]


# Each cause with what happens and the default fix, in the order to fix them: an earlier cause can produce a later one.
CAUSES: dict[str, tuple[str, ...]] = {
    "disk-full": (
        "the disk is full",
        "Free some space, or point HF_DATASETS_CACHE (or cache_file_name) at a larger disk.",
    ),
    "main-guard": (
        "the script starts processes while it is imported",
        "Put what starts the work under a guard:",
        '    if __name__ == "__main__":',
        "        main()",
    ),
    "captured-native-object": (
        "the function holds a native object that cannot be sent to another process",
        "Let each process build its own, on first use:",
        '    tokenize = tokenmill.tokenize_fn("gpt2")',
    ),
    "captured-resource": (
        "the function holds a lock, file or connection that cannot be sent to another process",
        "Make it where it is used, inside the function or in the worker's initializer.",
    ),
    "nameless-function": (
        "a lambda or inner function cannot be sent to a process that is started anew",
        "Define it with `def` at the top of the module.",
    ),
    "vocabulary-offline": (
        "each process fetches its vocabulary from the network",
        "Fetch it once and tell every process where it is:",
        "    export TIKTOKEN_CACHE_DIR=$HOME/.cache/tiktoken",
        "    python -c \"import tiktoken; tiktoken.get_encoding('gpt2')\"",
    ),
    "memory": (
        "there is not enough memory for so many processes",
        "Use fewer processes.",
    ),
    "too-many-processes": (
        "there are far more processes than cores",
        "Use one process per core.",
    ),
    "threads-before-fork": (
        "the process was forked while it ran threads, and the child waits for a lock that no thread of it holds",
        "Start the threads, or use the library that does, in the children only; or start the children anew:",
        '    multiprocessing.set_start_method("spawn")  # for datasets: multiprocess.set_start_method("spawn")',
    ),
    "native-crash": (
        "native code crashed",
        "Find the library in the traceback; update it, or leave out the input it dies of.",
    ),
    "killed": (
        "a process was killed from outside",
        "Ask who sent the signal: a scheduler's limit, a colleague, a container that was stopped.",
    ),
    "own-exception": (
        "the function raised an exception",
        "Mend what the traceback names; one process shows it fastest (num_proc=None).",
    ),
    "exit": (
        "a process ended itself",
        "Raise an exception instead of calling exit() or os._exit() in the function.",
    ),
    "hang": (
        "nothing moves any more",
        "See where each process waits, below.",
    ),
    "heavy-task": (
        "every task carries a lot of data",
        "Keep large objects in globals or files that each process opens; pass names, not contents.",
    ),
    "work-at-import": (
        "importing the script does a lot of work, which every new process does again",
        'Move the work into a function that is called under `if __name__ == "__main__":`.',
    ),
    "unstable-fingerprint": (
        "datasets cannot tell that the function is the same, so its cache is never used",
        "Let the function hold nothing that changes or cannot be pickled; tokenmill.tokenize_fn does not.",
    ),
}


class Finding(Readable, msgspec.Struct, frozen=True):
    """A cause that occurred or may occur, with evidence and a fix. `fix` may contain indented lines of code."""

    cause: str
    level: Level
    title: str
    evidence: tuple[str, ...]
    fix: tuple[str, ...]


class Check(Readable, msgspec.Struct, frozen=True):
    """One row of the table: the topic, its level and what was observed."""

    name: str
    level: Level
    seen: str


def finding(
    cause: str, level: Level, *evidence: str, fix: tuple[str, ...] | None = None, title: str | None = None
) -> Finding:
    """Returns a finding. `title` and `fix` default to those of the cause."""
    default_title, *default_fix = CAUSES[cause]
    return Finding(cause, level, title or default_title, evidence, fix or tuple(default_fix))


def ordered(findings: list[Finding]) -> list[Finding]:
    """Sorts findings: problems before warnings, then in the order of CAUSES."""
    names = list(CAUSES)
    return sorted(findings, key=lambda item: (item.level != "problem", names.index(item.cause)))
