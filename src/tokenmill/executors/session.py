"""Where work is done: on this machine, or on a Ray cluster."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.local import LocalExecutor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenmill.executors.outcomes import Pool

LOCAL = "local"
RAY = "ray"


@contextmanager
def open_executor(
    on: str, preload: tuple[str, ...], executor: Pool | None, reporter: progress.Reporter | None
) -> Iterator[tuple[Pool, progress.Reporter]]:
    """An executor at the place that was named, unless there is one already, and whoever is shown what goes on."""
    check_executor(on)
    # Workers take over a second to load their libraries; meanwhile, what is to be done is found out.
    here = LocalExecutor(preload) if executor is None and on == LOCAL else None
    with here or nullcontext(), reporter if reporter is not None else progress.for_python() as report:
        known = executor or here
        if known is None:
            report.pending(f"cluster      joining {'the one of this machine' if on == RAY else on}")
        with nullcontext(known) if known is not None else _on_ray(on, preload, report.say) as pool:
            yield pool, report


def check_executor(on: str) -> None:
    """Raise UsageError if there is no such place."""
    if on not in (LOCAL, RAY) and not on.startswith(f"{RAY}://"):
        raise UsageError(f"--on is local, ray or ray://HOST:PORT, not {on!r}")


def _on_ray(on: str, preload: tuple[str, ...], say: Callable[[str], None]) -> Pool:
    from tokenmill.executors.ray.executor import RayExecutor  # noqa: PLC0415 - an extra

    return RayExecutor(None if on == RAY else on, preload, say)
