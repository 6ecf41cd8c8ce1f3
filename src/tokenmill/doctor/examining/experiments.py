"""The experiments of one examination: which processes are started, in which order, and what they saw.

Nothing else is started before the script has been loaded once, for that may fetch a vocabulary that the others find.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Hashed, Loaded, Parts, ProbeRequest, Role
from tokenmill.doctor.examining.case import Case, Seen, seen
from tokenmill.doctor.examining.load_failures import stillborn
from tokenmill.doctor.examining.probing import ProbeProcess
from tokenmill.doctor.examining.script import Script
from tokenmill.doctor.examining.targets import Target

LOAD_SECONDS = 60.0
GRACE_SECONDS = 5.0
WORK_SECONDS = 120.0
SAMPLE_SECONDS = 1.5
PICKLERS = ("pickle", "dill", "cloudpickle")
SAFE_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Experiments:
    """What is examined, where, and within which limits."""

    target: Target
    script: Script
    num_proc: int
    column: str
    available_bytes: int
    folder: str

    def run(self) -> Case:
        """Do them all. Raises `Stillborn` if the script cannot be loaded."""
        with contextlib.ExitStack() as stack:
            parent = stack.enter_context(self._probe("parent"))
            loaded = parent.wait_for(Loaded, LOAD_SECONDS + GRACE_SECONDS)
            if loaded is None or not _is_fit(loaded):
                raise stillborn(self.target, loaded, seen(parent), LOAD_SECONDS)
            if loaded.held_bytes * 4 > self.available_bytes or not self._forks:
                parent.wait(WORK_SECONDS)
            again = stack.enter_context(self._probe("hash", hash_seed=2)) if self._hashes else None
            spawned = None if self._forks else stack.enter_context(self._probe("spawned"))
            parent.wait(WORK_SECONDS)
            if spawned is not None:
                spawned.wait_for(Loaded, LOAD_SECONDS + GRACE_SECONDS)
                spawned.wait(WORK_SECONDS)
            if again is not None:
                again.wait(LOAD_SECONDS + GRACE_SECONDS)
            hash_again = seen(again) if again is not None else None
            return self._case(loaded, seen(parent), seen(spawned) if spawned is not None else None, hash_again)

    @property
    def _forks(self) -> bool:
        return self.script.start_method == "fork"

    @property
    def _hashes(self) -> bool:
        wanted = self.script.uses_datasets or not self.script.picklers
        return wanted and importlib.util.find_spec("datasets") is not None

    @property
    def _share_bytes(self) -> int:
        """What one worker may take while it is measured."""
        return int(min(self.available_bytes / self.num_proc, SAFE_SHARE * self.available_bytes))

    def _case(self, loaded: Loaded, parent: Seen, spawned: Seen | None, hash_again: Seen | None) -> Case:
        return Case(
            target=self.target,
            script=self.script,
            num_proc=self.num_proc,
            available_bytes=self.available_bytes,
            loaded=loaded,
            parent=parent,
            spawned=spawned,
            hash_again=hash_again,
            differing=self._differing(parent, hash_again),
        )

    def _differing(self, parent: Seen, hash_again: Seen | None) -> tuple[str, ...]:
        """What has another fingerprint in another process, if the function has: the innermost things."""
        one, other = parent.first(Hashed), hash_again.first(Hashed) if hash_again is not None else None
        if one is None or other is None or one.digest is None or one.digest == other.digest:
            return ()
        found = []
        for seed in (1, 2):
            with self._probe("parts", hash_seed=seed) as probe:
                answer = probe.wait_for(Parts, LOAD_SECONDS)
                found.append(answer.digests if answer is not None else {})
        paths = [path for path in found[0] if path in found[1] and found[0][path] != found[1][path]]
        return tuple(path for path in paths if not any(other != path and other.startswith(path) for other in paths))

    def _probe(self, role: Role, hash_seed: int = 1) -> ProbeProcess:
        worker = role == "spawned"
        most_bytes = self._share_bytes if worker else int(SAFE_SHARE * self.available_bytes)
        return ProbeProcess(self._request(role, hash_seed), hash_seed=hash_seed, most_bytes=most_bytes)

    def _request(self, role: Role, hash_seed: int) -> ProbeRequest:
        used = self.script.picklers
        return ProbeRequest(
            role=role,
            script=self.target.path,
            function=self.target.function,
            column=self.column,
            folder=os.path.join(self.folder, f"{role}{hash_seed}"),
            pickles=self.folder,
            forms=self.script.forms,
            picklers=(*used, *(name for name in PICKLERS if name not in used)),
            initializer=self.script.initializer,
            initargs=self.script.initargs,
            fork=self._forks,
            hashes=self._hashes,
            imports_main=self.script.imports_main,
            load_seconds=LOAD_SECONDS,
            sample_seconds=SAMPLE_SECONDS,
            most_bytes=self._share_bytes,
        )


def _is_fit(loaded: Loaded) -> bool:
    """Whether there is something that can be called."""
    is_method = loaded.misnamed is not None and loaded.misnamed.kind == "method"
    return loaded.exists and loaded.is_callable and not is_method
