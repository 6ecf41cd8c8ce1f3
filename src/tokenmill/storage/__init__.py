"""Files: list, open, publish. The only place that knows file systems and object stores. Addresses are plain strings."""

from tokenmill.storage.addresses import FileInfo, absolute, resolved, scheme
from tokenmill.storage.folder import Folder, folder_at
from tokenmill.storage.inputs import check_unchanged, find, foresee, identity_at, open_input, read_start, stat
from tokenmill.storage.listing import Apart, Directory, Identity, Listing
from tokenmill.storage.ranges import Span, in_background, in_turn
from tokenmill.storage.writing import Overtaken

__all__ = [
    "Apart",
    "Directory",
    "FileInfo",
    "Folder",
    "Identity",
    "Listing",
    "Overtaken",
    "Span",
    "absolute",
    "check_unchanged",
    "find",
    "folder_at",
    "foresee",
    "identity_at",
    "in_background",
    "in_turn",
    "open_input",
    "read_start",
    "resolved",
    "scheme",
    "stat",
]
