"""Read YAML that another user may have written: plain scalars, bounded depth, and no aliases, which repeat content."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from tokenmill.storage.untrusted.malformed import MalformedDataError

T = TypeVar("T")

# A document is not deeper: the time of the parser grows with the square of the depth.
MAX_DEPTH = 20


def decode_yaml(text: str, kind: type[T]) -> T:
    """Decode a record from YAML. Every scalar is a text. Raises MalformedDataError for anything unexpected."""
    import yaml  # noqa: PLC0415 - only for datasets with a card

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise MalformedDataError("it has aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise MalformedDataError(f"it is more than {MAX_DEPTH} levels deep")
        return msgspec.convert(yaml.load(text, loader), kind)  # noqa: S506 - it makes texts, lists and dicts only
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise MalformedDataError(" ".join(str(error).split())) from error
