"""What readers find in the stores of a trial, what `verify` says, and the repair that a message names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np

import tokenmill
from tests.support.inline_executor import InlineExecutor
from tests.support.restores.world import END, LATE_EXPORT, REQUESTS, ROWS, World, url
from tokenmill.errors import TokenmillError
from tokenmill.store.layout import EXPORT

COMMAND = re.compile(r"tokenmill erase ([^\s;`]+)((?: --[a-z]+ [^\s;`]+)*)")
OPTION = re.compile(r"--(request|export) ([^\s;`]+)")
AGAIN = re.compile(r"tokenmill (export|prepare)(?:` with repair=(True))?")
REMOVED = re.compile("(Remove|Delete) the file")
EXPORT_AGAIN = re.compile(r"If no copy has it: Remove the directory (\S+) and export again")
REPAIRS = 2
"""So often the commands are repeated, before a store counts as not repaired."""


@dataclass(frozen=True)
class Finding:
    """One thing that must not be: its kind, and what was seen."""

    kind: str
    text: str


@dataclass
class Judge:
    """Reads the stores of a world.

    `begun` are requests that may be in them, `ended` those that succeeded, `mixed` those of a copy that diverged, of
    which some files were restored.
    """

    world: World
    begun: list[str] = field(default_factory=list)
    ended: set[str] = field(default_factory=set)
    mixed: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    def report(self, kind: str, text: str) -> None:
        """Take note of something that must not be."""
        finding = Finding(kind, text)
        if finding not in self.findings:
            self.findings.append(finding)

    def tried(
        self, kind: str, function: Callable[..., object], *args: object, **options: object
    ) -> TokenmillError | None:
        """The error of a call. Any other exception is a finding."""
        try:
            function(*args, **options)
        except TokenmillError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a defect of the package
            self.report("crash", f"{kind}: {error!r}")
        return None

    def read(self) -> None:
        """Read all documents of the stores. Refusals are right; erased documents and changed ones are findings."""
        for store in ROWS:
            self.tried(f"open {store}", self.read_store, store, self.ended)

    def read_store(self, store: str, ended: set[str]) -> None:
        """Read a store, and compare its documents with those that were prepared."""
        opened = tokenmill.open(self.world.place.address(store))
        documents = [tokens.copy() for tokens in opened]
        urls = [row["url"] for row in opened.columns("url").to_pylist()]
        erased, may_be_erased, mixed = (_rows(store, names) for names in (ended, self.begun, self.mixed))
        for row, (tokens, kept) in enumerate(zip(documents, urls, strict=True)):
            original = self.world.documents[store][row]
            is_whole = np.array_equal(tokens, original) and kept == url(store, row)
            is_gone = len(tokens) == len(original) and bool((tokens == END).all()) and kept is None
            if row in erased and not is_gone:
                self.report("leak", f"a reader of {store} got the erased document {row}")
            elif not is_whole and not (is_gone and row in may_be_erased) and row not in mixed:
                self.report("wrong", f"a reader of {store} got other tokens for document {row}")

    def load(self, ended: set[str]) -> None:
        """Read all batches of the store `one`."""
        loader = tokenmill.loader(self.world.place.address("one"), sequence_tokens=16, batch_sequences=4, grain=16)
        for batch in loader:
            data = np.asarray(batch["input_ids"]).astype("<u4").tobytes()
            rows = self.world.leftovers({"batch": data}, {name for name in ended if REQUESTS[name].store == "one"})
            if rows:
                self.report("leak", f"a loader got the erased documents {rows['batch']}")

    def complaints(self, *, is_replaced: bool = False) -> list[TokenmillError]:
        """What readers and `verify` say. If they accept the stores, no file may have text of an erased document.

        If a store was replaced as a whole, it is enough that `verify` of an export refuses it.
        """
        found = list[TokenmillError | None]()
        for store in ROWS:
            found.append(self.tried(f"open {store}", self.read_store, store, set()))
            found.append(self.tried(f"verify {store}", self._verify, store))
        is_accepted = not any(found)
        for name in self._exports():
            if "/" not in name:
                found.append(self.tried(f"verify {name}", self._verify, name))
        if is_accepted and not (is_replaced and any(found)) and (left := self.leftovers()):
            self.report("witness" if is_replaced else "hole", f"verify passes, and erased text is in {left}")
        return [error for error in found if error is not None]

    def leftovers(self) -> dict[str, list[int]]:
        """The files that have text of documents whose erasure succeeded."""
        return self.world.leftovers(self.world.place.read(), self.ended)

    def _exports(self) -> list[str]:
        """The exports that there are. One that was killed before it had a record or a shard is none."""
        files = [
            name.removeprefix(f"{LATE_EXPORT}/") for name in self.world.place.read() if name.startswith(LATE_EXPORT)
        ]
        late = [LATE_EXPORT] if any(name == EXPORT or not name.startswith(".") for name in files) else []
        return [*self.world.layout, *late]

    def _verify(self, name: str) -> None:
        tokenmill.verify(self.world.place.address(name), workers=1, executor=InlineExecutor())

    def repair(
        self, messages: list[TokenmillError], *, is_replaced: bool = False, is_restored: bool = False
    ) -> list[str]:
        """Run what the messages name, then the same calls again. Returns what is refused afterwards.

        If the records were restored already, exports that know others are made again. A store that was replaced as a
        whole does not know of exports that were made since then.
        """
        for _ in range(REPAIRS):
            if is_restored:
                self._export_again(messages)
            self._follow(messages)
            messages = [error for name in self.begun if (error := self._erase(name)) is not None]
            self.ended.update(self.begun if not messages else ())
            messages += self.complaints(is_replaced=is_replaced)
            if not messages:
                return []
        return [" | ".join(str(error).splitlines()) for error in messages]

    def _erase(self, name: str) -> TokenmillError | None:
        return self.tried(f"erase {name}", self.world.erase, name)

    def _follow(self, errors: Iterable[TokenmillError]) -> None:
        """Do what the messages name, once and in their order: files that are to be removed, and commands."""
        done = set[str]()
        for error in errors:
            if REMOVED.search(str(error)):
                self._remove_named(str(error))
            for command in [*COMMAND.finditer(str(error)), *AGAIN.finditer(str(error))]:
                if command[0] not in done:
                    done.add(command[0])
                    self.tried(command[0], self._run, command)

    def _export_again(self, errors: Iterable[TokenmillError]) -> None:
        """Remove the exports that messages name as the last resort, and make them again."""
        directories = {match[1] for error in errors for match in EXPORT_AGAIN.finditer(str(error))}
        for name in {file.rpartition("/.tokenmill/")[0] for file in self.world.place.read()}:
            if name and self.world.place.address(name) in directories:
                self.world.place.remove([file for file in self.world.place.read() if file.startswith(f"{name}/")])
                self.tried(f"export {name}", self.world.export, name)

    def _remove_named(self, message: str) -> None:
        """Remove the files of exports that a message names."""
        words = {word.strip(".,:;`'") for word in message.split()}
        names = [name for name in self.world.place.read() if self.world.is_export(name)]
        self.world.place.remove([name for name in names if self.world.place.address(name) in words])

    def _run(self, command: re.Match[str]) -> None:
        if command[1] == "export":
            for directory in self._exports():
                self.tried(f"export {directory}", self.world.export, directory)
        elif command[1] == "prepare":
            for store in ROWS:
                self.tried(f"prepare {store}", self.world.prepare, store, repair=bool(command[2]))
        else:
            options = OPTION.findall(command[2])
            exports = [value for name, value in options if name == "export"]
            request = dict(options).get("request")
            tokenmill.erase(command[1], request=request, export=exports, workers=1, executor=InlineExecutor())

    def check_repaired(self) -> None:
        """After a repair, readers get no erased document, and no file has text of one."""
        self.read()
        self.tried("loader", self.load, self.ended)
        if left := self.leftovers():
            self.report("left", f"after the repair, erased text is in {left}")


def _rows(store: str, requests: Iterable[str]) -> set[int]:
    return {row for name in requests if REQUESTS[name].store == store for row in REQUESTS[name].rows}
