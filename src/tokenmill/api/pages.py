"""Writes the HTML pages that public functions make."""

from __future__ import annotations

import os

from tokenmill.analysis.html.destination import existing_folder
from tokenmill.errors import UsageError

PAGE_SUFFIX = ".html"


def write_page(path: str, content: str) -> None:
    """Write a page in place of an older one. Raises UsageError if the name is not that of a page."""
    if not path.lower().endswith(PAGE_SUFFIX):
        raise UsageError(f"--html {path} is not the name of a page", f"Give a name that ends in {PAGE_SUFFIX}.")
    parent, name = os.path.split(path)
    folder = existing_folder("--html", parent or ".")
    with folder.publish(name) as file:
        file.write(content.encode())
