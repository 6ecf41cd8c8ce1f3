"""Calls the function in forked children: before the parent has called it, repeatedly, on unusual texts, and after."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Answer, Form, Outcome, ProbeRequest, Trial, Trying
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

    def call_in_child(self) -> Outcome:
        """Calls the function in a forked child, and in more children if that succeeds. Returns the first outcome."""
        fork = Fork(self.request.folder, self.request.most_bytes)
        ended = fork.run("fork", self.call_and_measure)
        self.report(ended)
        if ended.outcome == "done":
            self.report(fork.run("odd texts", self.try_odd_texts))
            self.call_in_more_children(fork)
        return ended.outcome

    def call_and_measure(self) -> None:
        """Runs all that a worker does, in the child."""
        called = self.worker.try_forms("fork", self.request.forms)
        self.report(called)
        if called.form is not None:
            self.report(self.worker.measure("fork", called.form, self.request.sample_seconds))

    def call_in_more_children(self, fork: Fork) -> None:
        """Forks repeatedly if there are threads: a lock may be held at one fork and not at another."""
        until = time.monotonic() + FORKS_SECONDS
        while machine.threads() > 1 and time.monotonic() < until:
            ended = fork.run("fork again", lambda: self.call_once("fork again", self.request.forms))
            if ended.outcome != "done":
                self.report(ended)
                break

    def call_in_parent(self) -> Form | None:
        """Calls the function in this process. Returns the form of input that it accepted."""
        return self.call_once("parent", self.request.forms)

    def call_in_child_after_parent(self, form: Form) -> None:
        """Calls the function in a child after this process has called it."""
        fork = Fork(self.request.folder, self.request.most_bytes, idle_seconds=WARM_IDLE_SECONDS)
        self.report(fork.run("fork after call", lambda: self.call_once("fork after call", (form,))))

    def call_once(self, trial: Trial, forms: tuple[Form, ...]) -> Form | None:
        """Calls the function and reports the result."""
        called = self.worker.try_forms(trial, forms)
        self.report(called)
        return called.form

    def try_odd_texts(self, form: Form | None = None) -> None:
        """Calls the function on rare texts that occur in practice. It may raise; only its death counts."""
        form = form or self.worker.try_forms("odd texts", self.request.forms).form
        if form is None:
            return
        for text in sample.ODD_TEXTS:
            self.report(Trying(text[:20]))
            self.worker.failure_on(form, [text])
