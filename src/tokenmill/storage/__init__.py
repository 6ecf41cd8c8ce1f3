"""Files: list, open, publish. The only place that knows file systems. Paths are plain strings."""

from tokenmill.storage.folder import Folder
from tokenmill.storage.inputs import FileInfo, absolute, find, open_input, read_start, stat

__all__ = ["FileInfo", "Folder", "absolute", "find", "open_input", "read_start", "stat"]
