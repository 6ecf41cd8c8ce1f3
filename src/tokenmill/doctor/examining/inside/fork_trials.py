"""The experiments with forked children: before the parent has called the function, again, on odd texts, and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Answer, Form, Outcome, Place, ProbeRequest, Trying
from tokenmill.doctor.examining.forking import Fork
from tokenmill.doctor.examining.inside import sample
from tokenmill.doctor.examining.inside.worker import ProbedWorker
from tokenmill.system import machine

FORKS_SECONDS = 0.5
WARM_IDLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class ForkTrials:
    """Forks this process, which has loaded the script, and calls the function in the children."""

    request: ProbeRequest
    worker: ProbedWorker
    report: Callable[[Answer], None]

    def fork(self) -> Outcome:
        """Call the function in a forked child, and again if that went well; how the first one ended."""
        fork = Fork(self.request.folder, self.request.most_bytes)
        ended = fork.run("fork", self.begin_and_measure)
        self.report(ended)
        if ended.outcome == "done":
            self.report(fork.run("odd texts", self.try_odd_texts))
            self.fork_again(fork)
        return ended.outcome

    def begin_and_measure(self) -> None:
        """All that a worker does, in the child."""
        called = self.worker.begin("fork", self.request.forms)
        self.report(called)
        if called.form is not None:
            self.report(self.worker.measure("fork", called.form, self.request.sample_seconds))

    def fork_again(self, fork: Fork) -> None:
        """Where there are threads, a lock may be held at one fork and not at another."""
        until = time.monotonic() + FORKS_SECONDS
        while machine.threads() > 1 and time.monotonic() < until:
            ended = fork.run("fork again", lambda: self.try_once("fork again", self.request.forms))
            if ended.outcome != "done":
                self.report(ended)
                break

    def call(self) -> Form | None:
        """Call the function in this process; the form that it took."""
        return self.try_once("parent", self.request.forms)

    def fork_after_call(self, form: Form) -> None:
        """Call the function in a child, now that this process has called it."""
        fork = Fork(self.request.folder, self.request.most_bytes, idle_seconds=WARM_IDLE_SECONDS)
        self.report(fork.run("fork after call", lambda: self.try_once("fork after call", (form,))))

    def try_once(self, place: Place, forms: tuple[Form, ...]) -> Form | None:
        """Call the function, and report how it went."""
        called = self.worker.begin(place, forms)
        self.report(called)
        return called.form

    def try_odd_texts(self, form: Form | None = None) -> None:
        """Call the function on texts that are rare but occur. It may raise: only its death is looked for."""
        form = form or self.worker.begin("odd texts", self.request.forms).form
        if form is None:
            return
        for text in sample.ODD_TEXTS:
            self.report(Trying(text[:20]))
            self.worker.fails(form, [text])
