"""Code in Markdown works when pasted: blocks of a page run in order, in one empty directory. Links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.warm_command import warm_command

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]*)(#[^)]*)?\)")


def name(page: Path) -> str:
    """A page as a test is called."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that are meant to be run: bash and python."""
    return BLOCK.findall(page.read_text())


def links(page: Path) -> list[tuple[Path, str]]:
    """The files that a page links to, and the anchors in them; not what is code, nor what is elsewhere."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    return [((page.parent / path).resolve() if path else page, anchor[1:]) for path, anchor in LINK.findall(text)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^##* (.+)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    """The directory of a `tokenmill` that starts at once."""
    with warm_command() as directory:
        yield directory


@pytest.mark.data
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name)
def test_code_in_pages_runs(tmp_path: Path, test_data: Path, commands: Path, page: Path) -> None:
    """Every bash and python block of the page ends well."""
    path = f"{commands}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    for language, code in blocks(page):
        command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"{code}\n{done.stderr}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link points at a file of the repository, and at a heading that it has."""
    for target, anchor in links(page):
        assert target.exists(), target
        assert not anchor or anchor in anchors(target), f"{target}#{anchor}"


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=name)
def test_links_of_the_site_stay_in_the_site(page: Path) -> None:
    """The site is built from docs alone, so a page there links to nothing else of the repository."""
    for target, _ in links(page):
        assert target.is_relative_to(DOCS), target
