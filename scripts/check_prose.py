"""Check that the text of the project is plain English: `python scripts/check_prose.py [--all]`.

Prints every line that has a phrase of the list below, and exits with 1 if there is one. The list holds the words
that hide who acts or what is meant. The check reads the pages that are written by hand and the
examples; `--all` also reads the package and the pages that are generated from it. Code blocks of a page are skipped,
because their text comes from the package or from a file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = (
    "docs",
    "examples",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CODE_OF_CONDUCT.md",
    ".github",
)
GENERATED = {ROOT / "docs" / name for name in ("api.md", "commands.md", "screens.md")}
SUFFIXES = {".py", ".md", ".toml", ".yml"}
FENCE = re.compile(r"\s*```")
PHRASES = re.compile(
    r"\b((?i:whoever|somebody|nobody|tells? of|told of|is told|are told|as it was told|but for what|unless said)"
    r"|(is|are) none)\b"
)


def main() -> int:
    """Print the lines that have a phrase of the list."""
    problems = [problem for path in pages(everything="--all" in sys.argv[1:]) for problem in check(path)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def pages(*, everything: bool) -> list[Path]:
    """The files to check: the pages written by hand, or also the package and its generated pages."""
    places = [ROOT / place for place in (*PLACES, "src")] if everything else [ROOT / place for place in PLACES]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return [file for file in files if file.suffix in SUFFIXES and (everything or file not in GENERATED)]


def check(path: Path) -> list[str]:
    """The lines of a file with a phrase of the list, outside the code blocks of a page."""
    problems, in_code = [], False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if path.suffix == ".md" and FENCE.match(line):
            in_code = not in_code
        elif not in_code:
            problems += [f"{path.relative_to(ROOT)}:{number}: {match[0]!r}" for match in PHRASES.finditer(line)]
    return problems


if __name__ == "__main__":
    sys.exit(main())
