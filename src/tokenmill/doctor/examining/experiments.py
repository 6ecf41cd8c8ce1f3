"""Runs the experiments of one examination: which processes start, and in which order.

The script is loaded once before anything else starts, because loading may download a vocabulary for the others.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Hashed, Loaded, Parts, ProbeRequest, Role
from tokenmill.doctor.examining.case import Case, ProbeReport, report_of
from tokenmill.doctor.examining.load_failures import load_error
from tokenmill.doctor.examining.probing import ProbeProcess
from tokenmill.doctor.examining.script import Script
from tokenmill.doctor.examining.targets import Target

LOAD_SECONDS = 60.0
GRACE_SECONDS = 5.0
WORK_SECONDS = 120.0
SAMPLE_SECONDS = 1.5
PICKLERS = ("pickle", "dill", "cloudpickle")
SAFE_FRACTION = 0.7


@dataclass(frozen=True, slots=True)
class Experiments:
    """The function to examine, the folder for files, and the limits."""

    target: Target
    script: Script
    num_proc: int
    column: str
    available_bytes: int
    folder: str

    def run(self) -> Case:
        """Runs all experiments. Raises `LoadFailedError` or `UsageError` if the script cannot be loaded."""
        with contextlib.ExitStack() as stack:
            parent = stack.enter_context(self._probe("parent"))
            loaded = parent.wait_for(Loaded, LOAD_SECONDS + GRACE_SECONDS)
            if loaded is None or not _is_examinable(loaded):
                raise load_error(self.target, loaded, report_of(parent), LOAD_SECONDS)
            if loaded.held_bytes * 4 > self.available_bytes or not self._forks:
                parent.wait(WORK_SECONDS)
            rehash = stack.enter_context(self._probe("hash", hash_seed=2)) if self._hashes else None
            spawned = None if self._forks else stack.enter_context(self._probe("spawned"))
            parent.wait(WORK_SECONDS)
            if spawned is not None:
                spawned.wait_for(Loaded, LOAD_SECONDS + GRACE_SECONDS)
                spawned.wait(WORK_SECONDS)
            if rehash is not None:
                rehash.wait(LOAD_SECONDS + GRACE_SECONDS)
            parent_report = report_of(parent)
            hash_again = report_of(rehash) if rehash is not None else None
            return Case(
                target=self.target,
                script=self.script,
                num_proc=self.num_proc,
                available_bytes=self.available_bytes,
                loaded=loaded,
                parent=parent_report,
                spawned=report_of(spawned) if spawned is not None else None,
                hash_again=hash_again,
                differing=self._differing(parent_report, hash_again),
            )

    @property
    def _forks(self) -> bool:
        return self.script.start_method == "fork"

    @property
    def _hashes(self) -> bool:
        is_relevant = self.script.uses_datasets or not self.script.picklers
        return is_relevant and importlib.util.find_spec("datasets") is not None

    @property
    def _bytes_per_worker(self) -> int:
        """The memory that one worker may take while it is measured."""
        return int(min(self.available_bytes / self.num_proc, SAFE_FRACTION * self.available_bytes))

    def _differing(self, parent: ProbeReport, hash_again: ProbeReport | None) -> tuple[str, ...]:
        """Returns the innermost objects whose fingerprints differ between processes, if the function's differs."""
        first, second = parent.first(Hashed), hash_again.first(Hashed) if hash_again is not None else None
        if first is None or second is None or first.digest is None or first.digest == second.digest:
            return ()
        digests: list[dict[str, str]] = []
        for seed in (1, 2):
            with self._probe("parts", hash_seed=seed) as probe:
                answer = probe.wait_for(Parts, LOAD_SECONDS)
                digests.append(answer.digests if answer is not None else {})
        paths = [path for path in digests[0] if path in digests[1] and digests[0][path] != digests[1][path]]
        return tuple(path for path in paths if not any(other != path and other.startswith(path) for other in paths))

    def _probe(self, role: Role, hash_seed: int = 1) -> ProbeProcess:
        max_bytes = self._bytes_per_worker if role == "spawned" else int(SAFE_FRACTION * self.available_bytes)
        return ProbeProcess(self._request(role, hash_seed), hash_seed=hash_seed, max_bytes=max_bytes)

    def _request(self, role: Role, hash_seed: int) -> ProbeRequest:
        picklers = self.script.picklers
        return ProbeRequest(
            role=role,
            script=self.target.path,
            function=self.target.function,
            column=self.column,
            folder=os.path.join(self.folder, f"{role}{hash_seed}"),
            pickles=self.folder,
            forms=self.script.forms,
            picklers=(*picklers, *(name for name in PICKLERS if name not in picklers)),
            initializer=self.script.initializer,
            initargs=self.script.initargs,
            fork=self._forks,
            hashes=self._hashes,
            imports_main=self.script.imports_main,
            load_seconds=LOAD_SECONDS,
            sample_seconds=SAMPLE_SECONDS,
            most_bytes=self._bytes_per_worker,
        )


def _is_examinable(loaded: Loaded) -> bool:
    """Returns whether the script defines something that can be called."""
    is_method = loaded.misnamed is not None and loaded.misnamed.kind == "method"
    return loaded.exists and loaded.is_callable and not is_method
