"""What is said about storage beside addresses: where an S3-compatible store is, and where files of the Hub are kept.

They are environment variables, so that workers, wherever they are started, know them, too.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from tokenmill.errors import UsageError

ENDPOINT = "AWS_ENDPOINT_URL"
REGION = "AWS_REGION"
CACHE = "TOKENMILL_CACHE"
SHARED = (ENDPOINT, REGION, CACHE, "AWS_DEFAULT_REGION", "HF_ENDPOINT")


def apply(*, endpoint: str | None = None, region: str | None = None, cache: str | None = None) -> None:
    """Set what was said, for this process and those it starts."""
    if endpoint is not None:
        check_server("--endpoint", endpoint)
    said = {ENDPOINT: endpoint, REGION: region, CACHE: None if cache is None else _directory("--cache", cache)}
    os.environ.update({name: value for name, value in said.items() if value is not None})


def shared() -> dict[str, str]:
    """What other machines that work for this one have to know. Keys and tokens are not in it: they have their own."""
    return {name: os.environ[name] for name in SHARED if os.environ.get(name)}


def adopt(settings: dict[str, str]) -> None:
    """Use the settings of another machine."""
    os.environ.update({name: value for name, value in settings.items() if name in SHARED})


@contextlib.contextmanager
def using(*, endpoint: str | None = None, region: str | None = None, cache: str | None = None) -> Iterator[None]:
    """Use an S3-compatible store at `endpoint`, in a `region`, and keep whole files of the Hub in `cache`, in a block.

    with tokenmill.using(endpoint="http://localhost:9000"):
        tokenmill.prepare("s3://bucket/data", ...)
    """
    before = dict(os.environ)
    apply(endpoint=endpoint, region=region, cache=cache)
    try:
        yield
    finally:
        for name in (ENDPOINT, REGION, CACHE):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def cache() -> str | None:
    """The directory in which whole files of the Hub are kept, if there is one."""
    named = os.environ.get(CACHE)
    return _directory(CACHE, named) if named else None


def check_server(name: str, address: str) -> None:
    """Refuse what is no address of a server, under the name it was given by; it is shown without any password."""
    if re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", address):
        return
    shown, advice = _without_secrets(address), "Write it such as https://host:9000, without a user name or password."
    if re.match(r"[^\s/@?#]+(/|$)", address) and not re.match("[A-Za-z0-9+.-]*:/", address):
        advice = f"{name} needs http:// or https:// before it: http://{shown}"
    raise UsageError(f"{name} is not the address of a server", f"given        {shown}", advice)


def _directory(name: str, path: str) -> str:
    """The absolute path of a directory of this machine."""
    if path and not re.match("[A-Za-z][A-Za-z0-9+.-]*://|(s3|gs|az|hf):", path, re.IGNORECASE):
        return os.path.abspath(os.path.expanduser(path))
    raise UsageError(
        f"{name} is not a directory of this machine",
        f"given        {_without_secrets(path)}",
        "Whole files of the Hub are kept on a disk: name a directory such as ~/hub-files.",
    )


def _without_secrets(address: str) -> str:
    """An address without the user name and password, or the signature, that may be in it."""
    before, at, after = address.rpartition("@")
    if at:
        return "..." if re.search("[?#]", before + after) else f"...@{after}"
    return re.sub(r"(?<=[?#]).*", "...", address, count=1, flags=re.DOTALL) or "nothing"
