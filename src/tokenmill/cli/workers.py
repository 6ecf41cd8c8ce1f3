"""What the commands start: workers on this machine, and the display of progress."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from tokenmill.cli import options

if TYPE_CHECKING:
    from tokenmill.executors.forkserver_main import Preload
    from tokenmill.executors.local import LocalExecutor
    from tokenmill.executors.progress import Reporter


def start_workers(preload: Preload, on: str = "local") -> AbstractContextManager[LocalExecutor | None]:
    """Start local workers, which preload while the command imports its own modules; None if `on` is not local."""
    from tokenmill.executors.local import LocalExecutor  # noqa: PLC0415 - after click has checked the options

    return LocalExecutor(preload) if on == "local" else nullcontext()


def reporter() -> Reporter:
    """The display of progress, which --quiet turns off."""
    from tokenmill.executors import progress_bar  # noqa: PLC0415 - imported while the workers start

    return progress_bar.for_command(options.quiet())
