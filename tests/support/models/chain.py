"""The chain of changes of a store: claim first, never reuse a name, clean up at once.

A part of unit 2 is `parts/2`, and `parts/2-HASH` after a change. A claim `changes/N` is created if absent: the
only commit. It names the claim before it, its documents, and the part of each changed unit. `changes/N.done` is created
when the store has these parts and no others. A weakness changes one rule, so that tests can show that the
rule is needed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.models.bucket import (
    Bucket,
    RefusedError,
    Steps,
    create,
    digest,
    discard,
    encode,
    get,
    names,
    replace,
)

UNITS, DOCUMENTS = 4, 3
ATTEMPTS = 50
READ_ATTEMPTS = 6

WEAKNESSES = {
    "reused names": "a changed part keeps the name of the part before",
    "replaced claims": "a claim replaces one of the same number",
    "done first": "the change is done before its files are there",
    "deleted first": "parts are deleted before those that replace them are there",
    "head first": "the head is read before the files are listed",
    "no parents": "the claims before a claim are not compared with it",
}


@dataclass(frozen=True)
class Head:
    """The state of a store: the last claim, whether it is done, and the name and hash of the part of each unit."""

    claims: list[dict[str, Any]]
    hash: str
    is_done: bool
    files: dict[int, tuple[str, str]]

    @property
    def number(self) -> int:
        """The number of changes."""
        return len(self.claims)

    @property
    def erased(self) -> set[str]:
        """All documents that were erased."""
        return {document for claim in self.claims for document in claim["documents"]}


def documents_of(unit: int) -> list[str]:
    """The documents of a unit."""
    return [f"{unit}.{number}" for number in range(DOCUMENTS)]


def part(unit: int, erased: set[str]) -> bytes:
    """A part: the documents that are left. It follows from any earlier part of the unit in the same way."""
    return encode({"unit": unit, "documents": [name for name in documents_of(unit) if name not in erased]})


def without(data: bytes, erased: set[str]) -> bytes:
    """A part, made from an earlier one."""
    earlier = json.loads(data)
    return encode({**earlier, "documents": [name for name in earlier["documents"] if name not in erased]})


def new_store() -> Bucket:
    """A store that was never changed."""
    bucket = Bucket({f"parts/{unit}": part(unit, set()) for unit in range(UNITS)})
    bucket["manifest"] = encode([[name, digest(bucket[name])] for name in bucket.names("parts/")])
    return bucket


class Chain:
    """The calls of the protocol, with a weakness or none."""

    def __init__(self, weakness: str = "") -> None:
        self.weakness = weakness

    def head(self) -> Steps[Head]:
        """Read the state of a store. Raises RefusedError if a record is missing."""
        listed = yield from names("changes/")
        numbers = sorted(int(name[8:]) for name in listed if not name.endswith(".done"))
        done = {int(name[8:-5]) for name in listed if name.endswith(".done")}
        if numbers != list(range(1, len(numbers) + 1)) or max(done, default=0) > len(numbers):
            raise RefusedError("a record of changes/ is lost")
        base = (yield from get("manifest")) or b""
        if not base:
            raise RefusedError("the manifest is lost")
        claims, parent = list[dict[str, Any]](), digest(base)
        for number in numbers:
            data = (yield from get(f"changes/{number}")) or b""
            if not data:
                raise RefusedError("a record of changes/ is lost")
            claims.append(json.loads(data))
            if claims[-1]["parent"] != parent and self.weakness != "no parents":
                raise RefusedError("a claim does not follow from the one before")
            parent = digest(data)
        changed = claims[-1]["files"] if claims else {}
        files = {unit: tuple(changed.get(str(unit), file)) for unit, file in enumerate(json.loads(base))}
        return Head(claims, parent, not numbers or numbers[-1] in done, files)

    def read(self) -> Steps[list[str]]:
        """All documents, as a reader gets them."""
        for _ in range(READ_ATTEMPTS):
            head = yield from self.head()
            if not head.is_done:
                raise RefusedError("a change is not finished")
            documents = list[str]()
            for name, content in head.files.values():
                data = yield from get(name)
                if data is None or digest(data) != content:
                    break
                documents += json.loads(data)["documents"]
            else:
                return documents
            again = yield from self.head()
            if again.hash == head.hash and again.is_done:
                raise RefusedError("a part is missing or damaged")
        raise RefusedError("the store changes too often")

    def reconcile(self) -> Steps[bool]:
        """Make the files those of the head, and mark it done. Returns False if another process went on meanwhile."""
        head, listed = yield from self._files_and_head()
        missing = False
        if self.weakness == "done first":
            yield from self._finish(head)
        for unit in range(UNITS):
            missing |= not (yield from self._reconcile_unit(unit, head, listed))
        if missing:
            yield from self._refuse_damage(head, listed)
            return False
        yield from self._finish(head)
        return True

    def _reconcile_unit(self, unit: int, head: Head, listed: list[str]) -> Steps[bool]:
        """Make the part of a unit if it is missing, then delete the others. Returns False if it cannot be made."""
        name, content = head.files[unit]
        earlier = [other for other in listed if other != name and _unit(other) == unit]
        is_there = name in listed
        if is_there and self.weakness == "reused names":
            is_there = digest((yield from get(name)) or b"") == content
        if not is_there:
            made = yield from self._made(unit, head, [*earlier, name])
            if made is None:
                return False
            if self.weakness == "deleted first":
                yield from _discard(earlier)
            yield from (replace if self.weakness == "reused names" else create)(name, made)
        yield from _discard(earlier)
        return True

    def erase(self, request: str, documents: set[str]) -> Steps[None]:
        """Erase documents. Returns when the store is without them."""
        for _ in range(ATTEMPTS):
            head = yield from self.head()
            if not head.is_done:
                yield from self.reconcile()
            elif any(claim["request"] == request for claim in head.claims):
                if (yield from self.reconcile()):
                    return
            elif not (yield from self._claim(head, request, documents)):
                yield from self.reconcile()
        raise RefusedError("the store changes too often")

    def _files_and_head(self) -> Steps[tuple[Head, list[str]]]:
        """The files before the head: what is not of this head then is superseded by it."""
        if self.weakness == "head first":
            head = yield from self.head()
            return head, (yield from names("parts/"))
        listed = yield from names("parts/")
        return (yield from self.head()), listed

    def _claim(self, head: Head, request: str, documents: set[str]) -> Steps[bool]:
        """Find the documents and create the claim. Returns False if a part is not as the head says."""
        files = {str(unit): file for unit, file in head.files.items() if "-" in file[0]}
        for unit in sorted({int(document.split(".")[0]) for document in documents}):
            data = yield from get(head.files[unit][0])
            if data is None or digest(data) != head.files[unit][1]:
                return False
            content = digest(without(data, documents))
            files[str(unit)] = (self._name(unit, content), content)
        claim = {"request": request, "parent": head.hash, "documents": sorted(documents), "files": files}
        write = replace if self.weakness == "replaced claims" else create
        yield from write(f"changes/{head.number + 1}", encode(claim))
        return True

    def _made(self, unit: int, head: Head, ancestors: list[str]) -> Steps[bytes | None]:
        """The part of a unit, made from any earlier one. None if there is none."""
        for ancestor in ancestors:
            data = yield from get(ancestor)
            if data is not None and digest(made := without(data, head.erased)) == head.files[unit][1]:
                return made
        return None

    def _finish(self, head: Head) -> Steps[None]:
        if head.number and not head.is_done:
            yield from create(f"changes/{head.number}.done", b"")

    def _refuse_damage(self, head: Head, listed: list[str]) -> Steps[None]:
        """Raise if files are missing, and not because another process went on."""
        for _ in range(2):
            again = yield from self.head()
            there = yield from names("parts/")
            if again.hash != head.hash or again.is_done != head.is_done or set(there) - set(listed):
                return
            if all(name in there for name, _ in head.files.values()):
                return
        raise RefusedError("a part is missing or damaged")

    def _name(self, unit: int, content: str) -> str:
        return f"parts/{unit}-changed" if self.weakness == "reused names" else f"parts/{unit}-{content}"


def _unit(name: str) -> int:
    return int(name.removeprefix("parts/").split("-")[0])


def _discard(parts: list[str]) -> Steps[None]:
    for name in parts:
        yield from discard(name)


def held(bucket: Bucket) -> Iterator[str]:
    """The documents that are in any file of a store."""
    for name in bucket.names("parts/"):
        yield from json.loads(bucket[name])["documents"]
