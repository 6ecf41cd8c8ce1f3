"""Write docs/recipe.schema.json from the classes of a recipe: `python scripts/write_recipe_schema.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is not what it would be.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenmill.training.recipe import json_schema

PAGE = Path(__file__).parent.parent / "docs" / "recipe.schema.json"


def main() -> int:
    """Write the file, or compare it."""
    text = json.dumps(json_schema(), indent=2) + "\n"
    if "--check" in sys.argv[1:]:
        is_current = PAGE.read_text() == text
        print("up to date" if is_current else f"{PAGE} is out of date: run scripts/write_recipe_schema.py")
        return 0 if is_current else 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
