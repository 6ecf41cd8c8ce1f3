"""What to change, as code, for each sort of thing that cannot be sent."""

from __future__ import annotations

from tokenmill.doctor.examining.answers import Obstacle

FIXES = {
    "lock": (
        "Make the lock at the top of the module, so that each process has its own and none is sent:",
        "    lock = threading.Lock()",
        "A lock does not reach across processes anyway; for that, pass a multiprocessing.Lock to the initializer.",
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
    """The change that does away with an obstacle; None for the cause's own."""
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


def _plain_name(spoken: str) -> str:
    last = spoken.rpartition(".")[2]
    return last.strip("_") if last.isidentifier() and last.strip("_") else "encoder"
