"""Choose the implementation of Folder for a path or URL."""

from __future__ import annotations

from tokenmill.errors import UsageError
from tokenmill.storage.addresses import HUB, OBJECT_STORES, absolute, check, scheme, shown
from tokenmill.storage.folder import Folder
from tokenmill.storage.local.disk import DiskFolder
from tokenmill.storage.objects.bucket import BucketFolder
from tokenmill.system.arguments import check_text


def folder_at(root: str) -> Folder:
    """The folder at a path or URL. Raises UsageError if nothing can be written there."""
    check(root)
    check_text(absolute(root))
    kind = scheme(root)
    if not kind:
        return DiskFolder(root)
    if kind in OBJECT_STORES:
        return BucketFolder(root)
    schemes = ", ".join(f"{name}://" for name in OBJECT_STORES)
    advice = f"Use a local directory, or {schemes}."
    if kind == HUB:
        headline = "there are no stores on the Hub, and nothing can be written to it"
        raise UsageError(headline, f"given        {root}", advice)
    raise UsageError(f"{kind}:// is not known", f"given        {shown(root)}", advice)
