"""List, read and publish files. Only this package knows file systems, object stores and the Hub.

Addresses are plain strings.
"""

from tokenmill.storage.addresses import FileInfo as FileInfo
from tokenmill.storage.addresses import absolute as absolute
from tokenmill.storage.addresses import resolved as resolved
from tokenmill.storage.addresses import scheme as scheme
from tokenmill.storage.folder import Folder as Folder
from tokenmill.storage.folder import Locks as Locks
from tokenmill.storage.folder import Threads as Threads
from tokenmill.storage.folder import free_bytes as free_bytes
from tokenmill.storage.folder import io_threads as io_threads
from tokenmill.storage.folder import prefetch_map as prefetch_map
from tokenmill.storage.folder import publish_new as publish_new
from tokenmill.storage.folder import read_existing as read_existing
from tokenmill.storage.folder import thread_map as thread_map
from tokenmill.storage.inputs import check_unchanged as check_unchanged
from tokenmill.storage.inputs import find as find
from tokenmill.storage.inputs import identity_at as identity_at
from tokenmill.storage.inputs import open_input as open_input
from tokenmill.storage.inputs import prefetch as prefetch
from tokenmill.storage.inputs import read_start as read_start
from tokenmill.storage.inputs import stat as stat
from tokenmill.storage.local.files import AlreadyPublishedError as AlreadyPublishedError
from tokenmill.storage.local.listing import Directory as Directory
from tokenmill.storage.local.listing import Identity as Identity
from tokenmill.storage.local.listing import Listing as Listing
from tokenmill.storage.local.listing import SkippedEntry as SkippedEntry
from tokenmill.storage.open_folder import folder_at as folder_at
from tokenmill.storage.range_file import Span as Span
