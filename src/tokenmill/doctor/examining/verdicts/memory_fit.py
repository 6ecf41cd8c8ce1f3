"""Judges the memory of all workers against the available memory."""

from __future__ import annotations

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, Level, finding, ordered
from tokenmill.doctor.examining.answers import Called, Ended, MeasuredCall
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.memory import Growth, text_until
from tokenmill.doctor.examining.verdicts.calling import ran_out_of_memory

# More than this fraction of the free memory is a warning.
TIGHT_FRACTION = 0.9
# Text per worker: if less than this fills the memory, it is a problem.
SOON_BYTES = 1_000_000_000
# If it takes more than this, it is no finding.
LATE_BYTES = 20_000_000_000


def memory_fit(case: Case) -> Verdict:
    """Judges whether the workers fit into memory."""
    findings = [*_failures(case), *_outgrew(case)]
    measured = case.measured
    if findings or measured is None:
        level: Level = "problem" if findings else "warning"
        return Check("memory", level, "not enough" if findings else "not measured"), findings[:1]
    summary = (
        f"{humanize.size(measured.own_bytes)} a process x {case.num_proc} + {humanize.size(case.loaded.held_bytes)} "
        f"in the parent; {humanize.size(case.available_bytes)} are free{'; still growing' * (measured.growth_rate > 0)}"
    )
    findings = ordered([*_growing(case, measured), *_too_large(case, measured)])[:1]
    return Check("memory", findings[0].level if findings else "ok", summary), findings


def _failures(case: Case) -> list[Finding]:
    """Returns a finding for MemoryErrors and deaths that look like them."""
    raised = [error for called in case.worker.all(Called) for error in (*called.raised, called.unready)]
    raised += [measured.raised for measured in case.worker.all(MeasuredCall)]
    lines = [error.line for error in raised if error is not None and error.type == "MemoryError"]
    evidence = [f"MemoryError in {case.target.line(line)}" for line in lines[:1]] + ran_out_of_memory(case)
    if not evidence:
        return []
    limit = case.loaded.address_space
    if limit is not None:
        ulimit = f"the limit of address space (ulimit -v) is {humanize.size(limit)} a process"
        fix = ("Raise the limit (ulimit -v, RLIMIT_AS), or let the function keep less.",)
        return [finding("memory", "problem", *evidence, ulimit, fix=fix)]
    return [finding("memory", "problem", *evidence, f"{humanize.size(case.available_bytes)} are free")]


def _outgrew(case: Case) -> list[Finding]:
    ended = next((answer for answer in case.parent.all(Ended) if answer.outcome == "outgrew"), None)
    if ended is None and not (case.spawned is not None and case.spawned.end == "outgrew"):
        return []
    per_worker, free = humanize.size(case.available_bytes // case.num_proc), humanize.size(case.available_bytes)
    evidence = (
        f"one worker took more than {per_worker} while it was called on made-up text, and was stopped",
        f"that is what {free} leave to each of {case.num_proc}",
    )
    fix = ("Let the function keep less: bound its caches, read large files piece by piece. Or use fewer processes.",)
    return [finding("memory", "problem", *evidence, fix=fix)]


def _too_large(case: Case, measured: MeasuredCall) -> list[Finding]:
    need, available = case.loaded.held_bytes + case.num_proc * measured.own_bytes, case.available_bytes
    if need <= TIGHT_FRACTION * available:
        return []
    level: Level = "problem" if need > available else "warning"
    fit = int((TIGHT_FRACTION * available - case.loaded.held_bytes) / max(1, measured.own_bytes))
    evidence = (
        f"one worker takes {humanize.size(measured.own_bytes)} on a sample; {case.num_proc} need {humanize.size(need)}",
        f"{humanize.size(available)} are free",
    )
    fix = f"Use {fit} processes." if fit > 1 else "Use one process, on a machine with more memory."
    return [finding("memory", level, *evidence, fix=(fix,))]


def _growing(case: Case, measured: MeasuredCall) -> list[Finding]:
    """Returns a finding for a cache that still grows at the end of the sample: when it fills the memory."""
    if measured.growth_rate <= 0:
        return []
    left = max(0, case.available_bytes // case.num_proc - measured.own_bytes)
    if case.loaded.address_space is not None:
        left = min(left, case.loaded.address_space)
    text = text_until(left, measured.text_bytes, Growth(measured.growth_rate, measured.growth_power))
    if text > LATE_BYTES:
        return []
    level: Level = "problem" if text < SOON_BYTES else "warning"
    half, free = measured.text_bytes / 2, humanize.size(case.available_bytes)
    grown = humanize.size(measured.growth_rate * half)
    evidence = (
        f"one worker grew by {grown} over the last {humanize.size(half)} of the sample's text, and did not stop",
        f"if it goes on like this, {case.num_proc} of them fill {free} after {humanize.size(text)} of text each",
    )
    fix = ("Bound what the function keeps: functools.lru_cache(maxsize=100_000), or empty it now and then.",)
    return [finding("memory", level, *evidence, fix=fix)]
