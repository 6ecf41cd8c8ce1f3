"""What a card says about stores: facts with names that are meaningful on another machine, and what a person adds."""

from __future__ import annotations

import datetime as dt
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tokenmill.analysis.statistics import Statistics
from tokenmill.errors import SourceError, UsageError
from tokenmill.humanize import escape_control_characters
from tokenmill.sources.discovery import IDENTITY_BYTES
from tokenmill.storage import resolved, scheme
from tokenmill.storage.addresses import HUB
from tokenmill.storage.hub.address import parse
from tokenmill.store import layout
from tokenmill.store.collection import Collection
from tokenmill.store.member import Member
from tokenmill.store.part import DENIED, DUPLICATE, ERASED, LENGTH, MISSING, NULL

# Sources that are listed one by one. The table of sources in the store has all of them.
MAX_LISTED_SOURCES = 10_000

IDENTITY = f"BLAKE3 of size and first {IDENTITY_BYTES} bytes, 64 bits"
ETAG = "etag"
GIT_BLOB = "SHA-1 of the git blob"

_SHA256 = re.compile("[0-9a-f]{64}")
_SHA1 = re.compile("[0-9a-f]{40}")
# A license as the Hub names it, such as apache-2.0 or cc-by-4.0.
LICENSE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_WEB_ADDRESS = re.compile(r"https?://[^\s<>\"]+")


@dataclass(frozen=True)
class PublicSource:
    """A source by its public name, and its hashes by kind. `sha256` is of the whole file, or empty if not known."""

    number: int
    name: str
    size: int
    sha256: str
    hashes: dict[str, str]


@dataclass(frozen=True)
class PublicFile:
    """A file of a store with its SHA-256. `name` is relative to the card."""

    name: str
    kind: str
    size: int
    sha256: str


def public_name(address: str) -> str:
    """An address, or the file name of a local path: its directories are of one machine."""
    return address if scheme(address) else _last_name(address)


def _last_name(address: str) -> str:
    return address.rpartition("/")[2]


@dataclass(frozen=True)
class PublicFacts:
    """The stores, what was counted in them, and the directory of the card, which decides how their files are named."""

    stores: Collection
    statistics: Statistics
    root: str

    @property
    def prefixes(self) -> list[str]:
        """The directory of each store as the card names it: nothing for the store that the card is in."""
        if len(self.stores.members) == 1 and resolved(self.stores.members[0].directory) == resolved(self.root):
            return [""]
        names = [_last_name(directory) for directory in self.stores.directories]
        repeated = Counter(names)
        return [f"{name}-{number}/" if repeated[name] > 1 else f"{name}/" for number, name in enumerate(names, start=1)]

    @property
    def default_name(self) -> str:
        """The name of the last store's directory."""
        return _last_name(self.stores.directories[-1])

    @property
    def tokenizer(self) -> str:
        """The tokenizer: a model of the Hub with its commit, or the name of a vocabulary or file."""
        spec = self.stores.job.tokenizer
        if not spec.source:
            return public_name(spec.name)
        commit = f"@{spec.commit}" if spec.commit else ""
        return f"{spec.source.partition('@')[0]}{commit}"

    @property
    def summary(self) -> str:
        """The description of a dataset if the user gives none."""
        counts = f"{self.statistics.tokens:,} tokens of {self.statistics.documents:,} documents"
        return f"A tokenized text corpus: {counts}, tokenized with {self.tokenizer}."

    @property
    def skipped(self) -> dict[str, int]:
        """The number of rows of the sources that are not in the dataset, by reason."""
        names = {
            NULL: "null: without text",
            MISSING: "missing: without the column of the text",
            DENIED: "denied: named by a list of rows that must stay out",
            DUPLICATE: "duplicate: the text of an earlier row",
            ERASED: "erased: erased in the store that was read",
            LENGTH: "length: with too few or too many tokens",
        }
        skipped = {names.get(reason, reason): rows for reason, rows in self.statistics.skipped.reasons.items()}
        changes = [change for member in self.stores.members for change in member.head.history]
        erased = sum(change.documents for change in changes)
        return {**skipped, **({"erased on request": erased} if erased else {})}

    @property
    def deny_lists(self) -> list[str]:
        """The BLAKE3 of each list of denied rows that a store was made with."""
        lists = [member.run.job.deny for member in self.stores.members]
        return list(dict.fromkeys(blake3 for blake3 in lists if blake3))

    def sources(self) -> Iterator[PublicSource]:
        """Yield the first sources, with the hashes that the stores have recorded."""
        table = self.stores.sources.slice(0, MAX_LISTED_SOURCES)
        columns = [table[name].to_pylist() for name in ("path", "size", "fingerprint", "identity")]
        for number, (path, size, fingerprint, identity) in enumerate(zip(*columns, strict=True)):
            sha256, hashes = _hashes(path, fingerprint)
            hashes[IDENTITY] = f"{identity:016x}"
            yield PublicSource(number, public_name(path), size, sha256, hashes)

    @functools.cached_property
    def hub_datasets(self) -> dict[str, str]:
        """The datasets of the Hub that sources are from, by address with commit: their names."""
        datasets = {}
        for path in self.stores.sources["path"].to_pylist():
            if scheme(path) == HUB:
                try:
                    address = parse(path)
                except SourceError:  # a store may come from elsewhere, and its table is not trusted
                    continue
                datasets[f"hf://datasets/{address.repository}@{address.revision}"] = address.repository
        return datasets

    @functools.cached_property
    def files(self) -> list[tuple[str, Member, list[PublicFile]]]:
        """Each store with its prefix and the files, besides the parts, that reading the store needs."""
        stores = []
        for prefix, member in zip(self.prefixes, self.stores.members, strict=True):
            folder, run = member.folder, member.run
            names = [
                layout.RUN,
                layout.MANIFEST,
                layout.table_name(folder, layout.SOURCES, run.sources_blake3),
                layout.table_name(folder, layout.PLAN, run.plan_blake3),
                f"{layout.TOKENIZER}/{run.job.tokenizer.file}",
            ]
            hashes = [hashlib.sha256(folder.buffer(name)).hexdigest() for name in names]
            files = [
                PublicFile(f"{prefix}{name}", name.rpartition(".")[2], folder.size(name), sha256)
                for name, sha256 in zip(names, hashes, strict=True)
            ]
            stores.append((prefix, member, files))
        return stores


def _hashes(path: str, fingerprint: str) -> tuple[str, dict[str, str]]:
    """The SHA-256 of a source, or another hash by its kind. A local file has only a time, which is not published."""
    if not scheme(path):
        return "", {}
    if scheme(path) != HUB:
        return "", {ETAG: fingerprint}
    if _SHA256.fullmatch(fingerprint):
        return fingerprint, {}
    return "", {GIT_BLOB: fingerprint} if _SHA1.fullmatch(fingerprint) else {}


@dataclass(frozen=True)
class CardFields:
    """What a person adds to a card. A field that is not given is None.

    `license` is an id such as `odc-by`, or the address of a text. `published` is a date such as `2026-11-17`.
    """

    name: str | None = None
    license: str | None = None
    description: str | None = None
    creator: str | None = None
    url: str | None = None
    published: str | None = None

    def check(self) -> None:
        """Raise UsageError for a value that would not be valid in a card."""
        for option, value in vars(self).items():
            if value is not None and not value.strip():
                raise UsageError(f"--{option} is empty", "Leave it out, and fill it in later.")
        if self.license is not None and not (LICENSE_ID.fullmatch(self.license) or is_web_address(self.license)):
            raise UsageError(
                f"--license is an id or an address, and not {escape_control_characters(self.license)!r}",
                "Give an id of the Hub, such as odc-by or apache-2.0, or https://... of the text.",
            )
        if self.url is not None and not is_web_address(self.url):
            raise UsageError(f"--url is not an address of the web: {escape_control_characters(self.url)}")
        if self.published is not None:
            try:
                dt.date.fromisoformat(self.published)
            except ValueError:
                shown = escape_control_characters(self.published)
                raise UsageError(f"--published is a date such as 2026-11-17, and not {shown!r}") from None

    @property
    def missing(self) -> list[str]:
        """The fields that a person still has to fill in. A name and a description can be derived from the store."""
        return [name for name in ("license", "creator", "url", "published") if getattr(self, name) is None]


def is_web_address(text: str) -> bool:
    """Whether a text is an address that a browser opens."""
    return _WEB_ADDRESS.fullmatch(text) is not None
