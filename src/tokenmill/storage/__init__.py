"""List, read and publish files. Only this package knows file systems, object stores and the Hub.

Addresses are plain strings.
"""

from tokenmill.storage.addresses import FileInfo, absolute, resolved, scheme
from tokenmill.storage.folder import Folder, Locks, free_bytes, publish_new, read_existing
from tokenmill.storage.inputs import check_unchanged, find, identity_at, open_input, prefetch, read_start, stat
from tokenmill.storage.local.listing import Directory, Identity, Listing, SkippedEntry
from tokenmill.storage.local.writing import AlreadyPublishedError
from tokenmill.storage.open_folder import folder_at
from tokenmill.storage.prefetch import Threads, io_threads, prefetch_map, thread_map
from tokenmill.storage.range_file import Span

__all__ = [
    "AlreadyPublishedError",
    "Directory",
    "FileInfo",
    "Folder",
    "Identity",
    "Listing",
    "Locks",
    "SkippedEntry",
    "Span",
    "Threads",
    "absolute",
    "check_unchanged",
    "find",
    "folder_at",
    "free_bytes",
    "identity_at",
    "io_threads",
    "open_input",
    "prefetch",
    "prefetch_map",
    "publish_new",
    "read_existing",
    "read_start",
    "resolved",
    "scheme",
    "stat",
    "thread_map",
]
