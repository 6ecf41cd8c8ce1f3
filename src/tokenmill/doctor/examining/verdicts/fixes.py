"""The fixes, as code, for each sort of object that cannot be sent."""

from __future__ import annotations

import ast
import re

from tokenmill.doctor.causes import CAUSES
from tokenmill.doctor.examining.answers import Obstacle
from tokenmill.doctor.examining.names import calls

VOCABULARY_URL = re.compile(r"/([\w.-]+)\.tiktoken\b")

FIXES = {
    "lock": (
        "Make the lock at the top of the module, so that each process has its own and none is sent:",
        "    lock = threading.Lock()",
        "A lock does not reach across processes anyway; for that, pass a multiprocessing.Lock to the initializer.",
    ),
    "handler": (
        "Do not keep the handler: get the logger by its name in the worker, and give it its handlers there:",
        "    log = logging.getLogger(__name__)",
    ),
    "file": (
        "Keep the path, and open the file where it is used:",
        "    with open(path) as file:",
        "        ...",
    ),
    "socket": ("Keep the address, and connect in the worker, on first use.",),
    "connection": ("Keep what it takes to connect, and connect in the worker, on first use.",),
    "thread": ("Start the thread in the worker, on first use.",),
    "module": ("Import the module inside the function, and do not keep it in a variable that is sent.",),
    "generator": ("Send a list, or make the generator in the worker: a running one cannot be copied.",),
    "queue": ("Pass the queue to the pool's initializer, not with the tasks.",),
}


def obstacle_fix(obstacle: Obstacle) -> tuple[str, ...] | None:
    """Returns the fix for an obstacle, or None for the default fix of the cause."""
    if obstacle.sort == "tokenizer":
        other = "" if obstacle.vocabulary else "  # or the name or file of your vocabulary"
        call = f'    tokenize = tokenmill.tokenize_fn("{obstacle.vocabulary or "gpt2"}"){other}'
        return ("Let each process build its own, on first use:", call)
    if obstacle.sort == "native":
        return (
            "Let each process build its own, on first use, and call that in the function:",
            "    @functools.cache",
            f"    def {_plain_name(obstacle.spoken)}():",
            f"        return ...  # what makes the {obstacle.type}",
        )
    if obstacle.sort == "function":
        name = _plain_name(obstacle.spoken)
        return ("Define it with `def` at the top of the module:", f"    def {name}(...):", "        ...")
    return FIXES.get(obstacle.sort)


def vocabulary_fix(message: str, tree: ast.Module) -> tuple[str, ...]:
    """Returns how to download the vocabulary, whose name is taken from the URL in an error or from the script."""
    address = VOCABULARY_URL.search(message)
    name = address[1] if address else _encoding(tree)
    fix = CAUSES["vocabulary-offline"].fix
    return tuple(line.replace("get_encoding('gpt2')", f"get_encoding({name!r})") for line in fix) if name else fix


def _encoding(tree: ast.Module) -> str | None:
    """Returns the encoding that the script passes to get_encoding, or None if calls differ."""
    names = {
        call.args[0].value
        for call in calls(tree)
        if ast.unparse(call.func).endswith("get_encoding") and call.args and isinstance(call.args[0], ast.Constant)
    }
    return str(names.pop()) if len(names) == 1 else None


def _plain_name(spoken: str) -> str:
    last = spoken.rpartition(".")[2]
    return last.strip("_") if last.isidentifier() and last.strip("_") else "encoder"
