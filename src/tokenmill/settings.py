"""What is said about storage beside addresses: where an S3-compatible store is, and where files of the Hub are kept.

They are environment variables, so that workers, wherever they are started, know them, too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

ENDPOINT = "AWS_ENDPOINT_URL"
REGION = "AWS_REGION"
CACHE = "TOKENMILL_CACHE"


def apply(*, endpoint: str | None = None, region: str | None = None, cache: str | None = None) -> None:
    """Set what was said, for this process and those it starts."""
    said = {ENDPOINT: endpoint, REGION: region, CACHE: None if cache is None else os.path.abspath(cache)}
    os.environ.update({name: value for name, value in said.items() if value is not None})


@contextlib.contextmanager
def using(*, endpoint: str | None = None, region: str | None = None, cache: str | None = None) -> Iterator[None]:
    """Use an S3-compatible store at `endpoint`, in a `region`, and keep whole files of the Hub in `cache`, in a block.

    with tokenmill.using(endpoint="http://localhost:9000"): tokenmill.prepare("s3://bucket/data", ...)
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
    return os.environ.get(CACHE) or None
