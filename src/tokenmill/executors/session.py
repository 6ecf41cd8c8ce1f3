"""Open the executor that --on names: this machine, or a Ray cluster."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError
from tokenmill.executors import progress, progress_bar
from tokenmill.executors.forkserver_main import Preload
from tokenmill.executors.local import LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.executors.outcomes import Pool

LOCAL = "local"
RAY = "ray"


@contextmanager
def open_executor(
    on: str, preload: Preload, executor: Pool | None, reporter: progress.Reporter | None
) -> Iterator[tuple[Pool, progress.Reporter]]:
    """Yield the given executor and reporter, or new ones where they are None."""
    check_executor(on)
    # A local executor starts first: its workers load their libraries, which takes over a second, in the background.
    new = LocalExecutor(preload) if executor is None and on == LOCAL else None
    with new or nullcontext(), reporter if reporter is not None else progress_bar.for_python() as report:
        local = executor or new
        if local is not None:
            yield local, report
            return
        from tokenmill.executors.ray.executor import RayExecutor  # noqa: PLC0415 - an extra

        report.pending(f"cluster      joining {'the cluster of this machine' if on == RAY else on}")
        with RayExecutor(None if on == RAY else on, preload, report.say) as cluster:
            yield cluster, report


def check_executor(on: str) -> None:
    """Raise UsageError if --on names no executor."""
    if on not in (LOCAL, RAY) and not on.startswith(f"{RAY}://"):
        raise UsageError(f"--on is local, ray or ray://HOST:PORT, not {on!r}")
