"""A probe of the server: whether it refuses to create an object that exists already."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill.errors import TokenmillError
from tokenmill.storage.objects.errors import no_conditional_create

if TYPE_CHECKING:
    from tokenmill.storage.folder import Folder

PREFIX = ".probe-"  # how the names of probes begin
CONTENTS = (b"first\n", b"second\n")  # what a probe writes, and what it tries to replace that with
MAX_AGE = timedelta(minutes=5)  # an older probe was left by a driver that was killed


def check_conditional_create(folder: Folder, list_times: Callable[[], dict[str, datetime]]) -> None:
    """Raise StorageError if the server would let two drivers create the same object.

    A probe creates an object twice. The server must refuse the second request and keep the first content. `list_times`
    returns the names directly inside the folder, with the times at which they were written.
    """
    name, (first, second) = f"{PREFIX}{secrets.token_hex(8)}", CONTENTS
    try:
        folder.publish_if_absent(name, pa.py_buffer(first))
        replaced = folder.publish_if_absent(name, pa.py_buffer(second)) or folder.read(name) != first
    finally:
        with contextlib.suppress(TokenmillError):  # the probe may not exist, and an error above matters more
            for probe in [name, *_stale_probes(name, list_times)]:  # listed before any is removed
                folder.discard(probe)
    if replaced:
        raise no_conditional_create(folder.root, "the server ignores If-None-Match and replaces the object")


def _stale_probes(name: str, list_times: Callable[[], dict[str, datetime]]) -> list[str]:
    """The probes that killed drivers left behind; empty if they cannot be listed.

    The server's clock decides their age: the server has just written the probe `name`.
    """
    written: dict[str, datetime] = {}
    with contextlib.suppress(TokenmillError):
        written = list_times()
    now = written.get(name)
    probes = {probe: time for probe, time in written.items() if probe.startswith(PREFIX)}
    return [probe for probe, time in probes.items() if now is not None and now - time > MAX_AGE]
