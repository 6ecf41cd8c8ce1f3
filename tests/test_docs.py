"""Code in Markdown works when pasted: blocks of a page run in order, in one empty directory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page that are meant to be run: bash and python."""
    return BLOCK.findall(page.read_text())


@pytest.mark.data
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_in_pages_runs(tmp_path: Path, test_data: Path, page: Path) -> None:
    """Every bash and python block of the page ends well."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
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


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """A relative link points at a file of the repository."""
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target
