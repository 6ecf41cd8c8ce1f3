"""The fields of a card that only a person knows, such as the license."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass

from tokenmill.errors import UsageError
from tokenmill.humanize import escape_control_characters

# A license as the Hub names it, such as apache-2.0 or cc-by-4.0.
LICENSE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]*")
_WEB_ADDRESS = re.compile(r"https?://[^\s<>\"]+")


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
