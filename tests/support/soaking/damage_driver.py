"""One long-lived process that prepares directory after directory with the same workers.

Reads a JSON object a line (the arguments of `tokenmill.prepare`), answers with one: what went wrong, or null.
"""

from __future__ import annotations

import inspect
import json
import sys
import traceback
from typing import Any

import tokenmill
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import worker_modules


def answer(executor: LocalExecutor, words: dict[str, Any]) -> dict[str, Any]:
    """Prepare, and tell how that went."""
    try:
        tokenmill.prepare(**words, executor=executor)
    except tokenmill.TokenmillError as error:
        return {"error": str(error), "bug": False}
    except Exception:  # noqa: BLE001 - the border: it is told
        return {"error": traceback.format_exc(), "bug": True}
    return {"error": None, "bug": False}


def main() -> None:
    """Answer until there are no more questions."""
    known = inspect.signature(tokenmill.prepare).parameters
    with LocalExecutor(worker_modules("auto")) as executor:
        for line in sys.stdin:
            words = {name: value for name, value in json.loads(line).items() if name in known}
            sys.stdout.write(json.dumps(answer(executor, words)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
