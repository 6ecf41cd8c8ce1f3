"""Turns the evidence about a command into findings. The first death counts; later ones are consequences."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from tokenmill.diagnosis.causes import Finding, Level, finding, ordered
from tokenmill.diagnosis.watching import messages
from tokenmill.diagnosis.watching.deaths import SEVERE, Death, root_cause
from tokenmill.diagnosis.watching.hangs import POOL_DIED, Hang, Stack
from tokenmill.diagnosis.watching.messages import LOST_WORKER, Failure, Symptom
from tokenmill.humanize import count, duration, size
from tokenmill.system import machine, procfs

SHORT_CHARACTERS = 300
SHOWN_WAITS = 6
# Names of limits in /proc.
FILE_LIMIT, ADDRESS_LIMIT = "Max open files", "Max address space"
# Other file systems may be on a network, where asking for free space can block.
LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "tmpfs", "overlay"}
FULL_FRACTION = 0.001
UNOBSERVED = "a worker ended without an error code, or too soon to be seen"
NO_MEMORY = "there is not enough memory"
HOLD_LESS = "Let it hold less at a time: a smaller batch_size and writer_batch_size, and no cache that only grows."
EVEN_ONE = (HOLD_LESS, "Fewer processes alone may not be enough: even one may not fit.")
MORE_MEMORY = (f"Give it more memory. {HOLD_LESS}",)
LARGER_SHM = ("Make /dev/shm larger: docker run --shm-size=8g, or mount -o remount,size=8G /dev/shm.",)
COMMAND_GREW = ("The command itself grew, not its workers: let it write results away as they come, not keep them.",)
UNPICKLABLE_EXCEPTION = (
    "The exception of a worker may not be buildable again in the parent.",
    "Pass all its arguments to super().__init__(), or give its class a __reduce__.",
)
NEVER_NOTICED = "a multiprocessing.Pool never notices that it has lost a worker, and waits for its result for ever"
RUN_WITH_STOP = "Run it again with --stop-hung: then each process says at which line it waits."
NO_REASON = ("The command gives no reason that the doctor knows: begin with what it printed last.",)


@dataclass(slots=True)
class Evidence:
    """What was observed of a command.

    Attributes:
        exit_code: The command's exit code, None if a signal ended it.
        stderr: The end of the command's stderr.
        max_processes: The largest number of processes at a time.
        received_signal: The signal by which the user ended the command through the doctor.
        hang: The hang for which the command was ended.
        restart_deaths: The number of workers that had died in a row when an endless restart was detected.
    """

    exit_code: int | None = None
    stderr: str = ""
    max_processes: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    deaths: list[Death] = field(default_factory=list)
    received_signal: int | None = None
    hang: Hang | None = None
    restart_deaths: int | None = None
    stacks: list[Stack] = field(default_factory=list)

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended the command, from the terminal or by a signal to the doctor."""
        return self.received_signal is not None and self.exit_code != 0

    @property
    def worker_exceptions(self) -> list[Failure]:
        """The exceptions, without those of a parent that reports a lost worker."""
        return [failure for failure in messages.exceptions(self.stderr) if not LOST_WORKER.search(failure.summary)]


def diagnose(evidence: Evidence) -> list[Finding]:
    """Returns the findings, the first one to fix first."""
    cause = _main_finding(evidence)
    findings = [cause] if cause is not None else []
    hash_lines = [line.strip() for line in evidence.stderr.splitlines() if messages.FINGERPRINT.search(line)]
    # An object that cannot be pickled cannot be hashed either: one finding is enough.
    if hash_lines and not (cause is not None and cause.cause.startswith("captured")):
        findings.append(finding("unstable-fingerprint", "warning", _shorten(hash_lines[-1].partition(". ")[0])))
    return ordered(findings)


def _main_finding(evidence: Evidence) -> Finding | None:
    if evidence.exit_code == 0:
        severe = [death for death in evidence.deaths if death.killer in SEVERE]
        return _death_finding(evidence, severe[0], "warning") if severe else None
    if evidence.hang is not None:
        return _hang_finding(evidence, evidence.hang)
    if evidence.restart_deaths is not None:
        return _restart_finding(evidence, evidence.restart_deaths)
    return None if evidence.was_interrupted or _is_end_of_pipe(evidence) else _failure_finding(evidence)


def _is_end_of_pipe(evidence: Evidence) -> bool:
    """Returns whether the command failed only because the reader of its stdout, such as `head`, ended."""
    last_line = evidence.stderr.rstrip().rpartition("\n")[2]
    cause = root_cause(evidence.deaths)
    return last_line.startswith("BrokenPipeError") if cause is None else cause.signal == "SIGPIPE"


def _failure_finding(evidence: Evidence) -> Finding:
    """Returns the finding for a command that failed: by a death, an exception or its own exit code."""
    death = root_cause(evidence.deaths)
    chain = messages.last_chain(evidence.stderr)
    worker_lost = not chain or any(LOST_WORKER.search(failure.summary) for failure in chain)
    if death is not None and (worker_lost or death.role == "command" or death.killer in SEVERE):
        return _death_finding(evidence, death)
    if worker_lost and (crashes := messages.fatal_errors(evidence.stderr)):  # it died before it was observed
        return finding("native-crash", "problem", crashes[0].kind, *_crash_location(crashes))
    if chain and worker_lost and not evidence.worker_exceptions:
        return finding("exit", "problem", _shorten(chain[-1].summary), UNOBSERVED)
    if chain:
        return _chain_finding(evidence, chain)
    symptom = messages.recognize(evidence.stderr, evidence.stderr)
    return _symptom_finding(evidence, symptom) if symptom is not None else _exit_finding(evidence)


def _death_finding(evidence: Evidence, death: Death, level: Level = "problem") -> Finding:
    roles = {"command": "the command itself", "worker": f"a worker of {death.parent}"}
    who = f"pid {death.pid}, {roles.get(death.role, death.name)}"
    if death.killer == "kernel":
        return memory_finding(death, f"{who}, was killed by {death.why}", level)
    crashes = messages.fatal_errors(evidence.stderr)
    if death.killer == "crash" or (death.killer == "unknown" and crashes):
        symptom = messages.recognize(evidence.stderr, only="memory")
        if symptom is not None:
            return _symptom_finding(evidence, symptom, f"{who}, then ended: {death.why}")
        return finding("native-crash", level, f"{who}, died of {death.why}", *_crash_location(crashes))
    if death.killer == "itself":
        errors = evidence.worker_exceptions
        if errors and death.exit_code == 1:  # it printed the exception; another code comes without a message
            return _chain_finding(evidence, errors[-1:])
        return finding("exit", "problem", f"{who}, ended after {duration(death.seconds)}: {death.why}")
    excluded = ["it was not for lack of memory: the kernel's counters of that have not moved"]
    more = excluded if death.signal == "SIGKILL" else []
    return finding("killed", level, f"{who}, was ended by {death.why}", *more)


def memory_finding(death: Death, killed: str, level: Level) -> Finding:
    """Returns what was held when the kernel killed a process, and how many processes would have fit."""
    peak, limit, workers = death.peak_bytes or 0, death.limit_bytes or 0, death.workers
    held = [f"it held {size(peak)}, as far as was seen"] if peak else []
    if death.role == "command" or workers < 2:
        fix = COMMAND_GREW if death.role == "command" and workers else MORE_MEMORY
        return finding("memory", level, killed, *held, fix=fix, title=NO_MEMORY)
    if peak > limit / 2:
        return finding("memory", level, killed, *held, fix=EVEN_ONE, title=NO_MEMORY)
    share = f"{workers} workers had to share {size(limit)}"
    use_fewer = f"Use num_proc={workers // 2}: {workers} did not fit into {size(limit)}."
    return finding("memory", level, killed, *held, share, fix=(use_fewer, HOLD_LESS))


def _crash_location(crashes: list[Failure]) -> list[str]:
    for crash in [crash for crash in crashes[:1] if crash.location is not None]:
        innermost = [f"it was in {crash.frames[-1]}"]
        return innermost if crash.location == crash.frames[-1] else [*innermost, f"called from {crash.location}"]
    return []


def _exit_finding(evidence: Evidence) -> Finding:
    lines = [line.strip() for line in evidence.stderr.splitlines() if line.strip()]
    output = f"its last words: {_shorten(lines[-1])}" if lines else "it wrote nothing to stderr"
    return finding("exit", "problem", f"the command ended with exit code {evidence.exit_code}", output, fix=NO_REASON)


def _chain_finding(evidence: Evidence, chain: list[Failure], *extra: str) -> Finding:
    """Returns the finding for a chain of exceptions, with extra evidence."""
    message = "\n".join(failure.summary for failure in chain)
    symptom = messages.recognize(message, "\n".join(failure.text for failure in chain))
    if symptom is not None:
        return _symptom_finding(evidence, symptom, *_location(chain), *extra)
    return finding("own-exception", "problem", _shorten(chain[-1].summary), *_location(chain), *extra)


def _symptom_finding(evidence: Evidence, symptom: Symptom, *extra: str) -> Finding:
    """Returns the finding for a symptom, with what the limits add to it."""
    cause, cores = symptom.cause, machine.cores()
    more: list[str] = []
    fix: tuple[str, ...] | None = None
    if cause == "disk-full":
        more = _full_disks()
    elif messages.SHARED_MEMORY.search(symptom.evidence):
        fix = LARGER_SHM
    elif cause == "memory" and ADDRESS_LIMIT in evidence.limits:
        more = [f"each process may have {size(evidence.limits[ADDRESS_LIMIT])} of addresses (ulimit -v)"]
        fix = ("Raise or remove that limit (ulimit -v unlimited); fewer processes do not help.", HOLD_LESS)
    elif cause == "memory":
        fix = (f"Use fewer processes. {HOLD_LESS}",) if evidence.max_processes > 1 else MORE_MEMORY
    elif cause == "too-many-processes":
        more = [f"there were {evidence.max_processes} processes on {count(cores, 'core')}"]
        if FILE_LIMIT in evidence.limits:
            more.append(f"a process may have {evidence.limits[FILE_LIMIT]:,} open files (ulimit -n)")
        fix = (f"Use num_proc={cores}: more processes than cores do not make it faster.",)
        if evidence.max_processes <= 2 * cores + 2:
            cause, fix = (
                "own-exception",
                ("Raise the limit (ulimit -n 65536), or close files when they are done with.",),
            )
    return finding(cause, "problem", symptom.evidence, *extra, *more, fix=fix)


def _full_disks() -> list[str]:
    """Returns a line per local file system that is full now. Space may have been freed since the failure."""
    full = {}
    for line in procfs.read(f"{procfs.PROC}/self/mountinfo").decode(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        device, directory = mount.split()[2], mount.split()[4]
        if source.split()[0] in LOCAL_FILE_SYSTEMS and os.path.isdir(directory):
            stats = os.statvfs(directory)
            if stats.f_blocks and stats.f_bavail <= FULL_FRACTION * stats.f_blocks:
                full[device] = f"full: {directory} ({size(stats.f_bavail * stats.f_frsize)} free)"
    return list(full.values())


def _location(failures: list[Failure]) -> list[str]:
    """Describes the first failure's line in the user's code, with its source below it."""
    frames = [failure.location for failure in failures if failure.location is not None]
    for frame in [*(frame for frame in frames if frame.is_users), *frames][:1]:
        return [f"at {frame}", f"    {frame.code}"] if frame.code else [f"at {frame}"]
    return []


def _shorten(text: str) -> str:
    return text if len(text) <= SHORT_CHARACTERS else f"{text[: SHORT_CHARACTERS - 3]}..."


def _hang_finding(evidence: Evidence, hang: Hang) -> Finding:
    """Returns why nothing moves. An earlier death of a worker is the reason, if there was one."""
    still = f"nothing has moved for {duration(hang.seconds)}"
    lost = root_cause([death for death in evidence.deaths if death.role == "worker"])
    if lost is not None:
        cause = _death_finding(evidence, lost)
        return finding(cause.cause, "problem", still, *cause.evidence, NEVER_NOTICED, fix=cause.fix, title=cause.title)
    _, thread, printed = evidence.stderr.partition(POOL_DIED.decode())
    if thread:
        died = f"the pool's thread that takes the results{thread[:-1]} died, so no thread takes them any more"
        raised = [_shorten(failure.summary) for failure in messages.exceptions(printed)[:1]]
        return finding("hang", "problem", still, died, *raised, fix=UNPICKLABLE_EXCEPTION)
    stopped_at = _stopped_at(evidence)
    locked = [waiting for waiting in hang.waits if waiting.is_deadlocked]
    if locked:
        process, threads = locked[0].process, locked[0].threads_at_fork
        more = f" (and {count(len(locked) - 1, 'other')} like it)" if len(locked) > 1 else ""
        waits = f"pid {process.pid}, a worker, {locked[0].wait.description}{more}"
        parent = f"its parent, pid {process.parent}, ran {threads} threads when it was forked"
        return finding("threads-before-fork", "problem", still, waits, parent, *stopped_at)
    fix = f"Begin where {stopped_at[0].replace(' was at', ' waits,')}." if stopped_at else RUN_WITH_STOP
    return finding("hang", "problem", still, *_wait_evidence(hang), *stopped_at, fix=(fix,))


def _wait_evidence(hang: Hang) -> list[str]:
    lines = [f"pid {waiting.process.pid}, {waiting.process.role}, {waiting.wait.description}" for waiting in hang.waits]
    return [*lines[:SHOWN_WAITS], f"... and {len(lines) - SHOWN_WAITS} more"] if len(lines) > SHOWN_WAITS else lines


def _stopped_at(evidence: Evidence) -> list[str]:
    """Returns the user's lines at which the stopped processes were, without duplicates."""
    lines: dict[str, str] = {}
    for stack in evidence.stacks:
        frames = stack.failure.frames
        # In a forked worker, frames before the fork belong to its parent.
        starts = [index for index, frame in enumerate(frames) if frame.function == "_bootstrap"]
        for frame in [frame for frame in frames[max(starts, default=0) :] if frame.is_users][-1:]:
            lines.setdefault(str(frame), f"pid {stack.pid} was at {frame}")
    return list(lines.values())


def _restart_finding(evidence: Evidence, deaths: int) -> Finding:
    """Returns why workers die as soon as they start."""
    died = f"{count(deaths, 'worker')} in a row died as soon as they were started, and new ones were started for ever"
    errors = evidence.worker_exceptions
    return _chain_finding(evidence, errors, died) if errors else finding("exit", "problem", died)
