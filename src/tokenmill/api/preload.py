"""The modules that the workers of each command import before they get work.

This module loads none of them, so that a command starts its workers before it imports its own modules.
"""

from tokenmill.analysis import PRELOAD as FOR_STATISTICS
from tokenmill.exports import PRELOAD as FOR_EXPORTS
from tokenmill.pipeline import worker_modules

__all__ = ["FOR_EXPORTS", "FOR_STATISTICS", "worker_modules"]
