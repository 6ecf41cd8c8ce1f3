"""Check that the text of the project is plain English: `python scripts/check_prose.py`.

Prints every line of the package, the docs and the main pages that has a phrase of the list below, and exits with 1 if
there is one. The list holds pronouns that hide the subject, passive reports, and British spellings of names.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("src", "docs", "README.md", "CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", ".github")
SUFFIXES = {".py", ".md", ".toml", ".yml"}
PHRASES = re.compile(
    r"\b((?i:whoever|whomever|somebody|nobody|tells? of|told of|is told|are told|of its own accord|lay down|laid down"
    r"|by whom|catalogue|licence|normalis\w+|summaris\w+)|(is|are) none)\b"
)


def main() -> int:
    """Print what is found."""
    problems = [problem for path in pages() for problem in check(path)]
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


def pages() -> list[Path]:
    """The files that are checked."""
    files = [file for place in PLACES for file in sorted((ROOT / place).rglob("*")) if file.suffix in SUFFIXES]
    return files + [ROOT / place for place in PLACES if (ROOT / place).is_file()]


def check(path: Path) -> list[str]:
    """The lines of a file with a phrase of the list."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {match.group(0)!r}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in PHRASES.finditer(line)
    ]


if __name__ == "__main__":
    sys.exit(main())
