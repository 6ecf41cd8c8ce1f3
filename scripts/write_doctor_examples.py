"""Write what the doctor says of every script of examples/why_it_dies into docs/why-it-dies.md, as it says it now.

    python -m scripts.write_doctor_examples

Runs each script under the watching doctor, and asks the other mode where it can know. Needs root for the cgroup and the
small disk. A test compares the words that do not change from run to run.
"""

from __future__ import annotations

import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
from tests.support import dying  # noqa: E402

PAGE = ROOT / "docs" / "why-it-dies.md"
BLOCK = re.compile(r"<!-- doctor: ([\w-]+) -->\n\n(?:```text\n.*?^```\n\n)?", re.MULTILINE | re.DOTALL)
STOP = ("--hang-seconds", "5", "--stop-hung")
LIMIT_BYTES = 512 << 20
DISK_BYTES = 8 << 20


@dataclass(frozen=True)
class Example:
    """A script, the options it is watched with, and whether the other mode knows its cause too."""

    script: str
    options: tuple[str, ...] = ()
    examined: bool = True


EXAMPLES = {
    "memory": Example("too_much_memory"),
    "main-guard": Example("no_main_guard", STOP),
    "threads-before-fork": Example("threads_before_fork", STOP),
    "too-many-processes": Example("num_proc_512"),
    "native-crash": Example("segfault", examined=False),
    "captured-native-object": Example("captured_encoder"),
    "captured-resource": Example("captured_lock"),
    "nameless-function": Example("lambda_spawn"),
    "vocabulary-offline": Example("vocabulary_offline"),
    "disk-full": Example("disk_full", examined=False),
    "unstable-fingerprint": Example("unstable_fingerprint", examined=False),
    "killed": Example("killed", STOP, examined=False),
    "exit": Example("exits", examined=False),
    "own-exception": Example("own_exception", examined=False),
}


def doctor(*words: str, cgroup: Path | None = None) -> str:
    """What the doctor prints."""
    return dying.run(sys.executable, "-m", "tokenmill", "doctor", *words, cgroup=cgroup, cwd=dying.SCRIPTS).output


def said(name: str) -> str:
    """Both commands and what comes of them, without what the script itself prints."""
    example = EXAMPLES[name]
    file, arguments = f"{example.script}.py", ["DISK"] * (name == "disk-full")
    shown = " ".join(["tokenmill doctor", *example.options, "--", "python", file, *arguments])
    with tempfile.TemporaryDirectory() as scratch:
        watched = watch(name, example, Path(scratch))
    text = f"$ {shown}\n{watched[watched.index('doctor       ') :]}"
    if example.examined:
        text += f"\n$ tokenmill doctor {file}:tokenize\n{examine(name, file)}"
    return text


def watch(name: str, example: Example, scratch: Path) -> str:
    """The watching mode, in surroundings that kill the script."""
    command = [*example.options, "--", "python", f"{example.script}.py"]
    if name == "memory":
        with dying.memory_cgroup(LIMIT_BYTES) as cgroup:
            return doctor(*command, cgroup=cgroup)
    if name == "disk-full":
        with dying.small_disk(scratch / "disk", DISK_BYTES) as disk:
            return doctor(*command, str(disk)).replace(str(disk), "DISK")
    return doctor(*command)


def examine(name: str, file: str) -> str:
    """The other mode: its findings, without the checks that are well."""
    if name == "memory":
        with dying.memory_cgroup(LIMIT_BYTES) as cgroup:
            printed = doctor(f"{file}:tokenize", cgroup=cgroup)
    else:
        printed = doctor(f"{file}:tokenize")
    head, _, findings = printed.partition("\n\n")
    bad = [line for line in head.splitlines()[1:] if " ok " not in line[:22]]
    return "\n".join([head.splitlines()[0], *bad]) + "\n\n" + findings


def main() -> None:
    """Write the page."""
    page = BLOCK.sub(lambda found: f"<!-- doctor: {found[1]} -->\n\n```text\n{said(found[1])}```\n\n", PAGE.read_text())
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
