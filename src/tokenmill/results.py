"""The records that the public functions return, and the records in their fields.

>>> from tokenmill.results import PrepareResult
>>> def summary(result: PrepareResult) -> str:
...     return f"{result.documents:,} documents, {result.tokens:,} tokens"
"""

from tokenmill.api.results import *  # noqa: F403 - the public name of that list
from tokenmill.api.results import __all__  # noqa: F401
