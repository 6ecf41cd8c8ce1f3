"""What Slurm has given a task, from its environment: processors, memory, and its number among others.

Where Slurm does not confine its tasks, a task that took what it sees would take what belongs to others.
"""

from __future__ import annotations

import os
import re


def processors() -> int | None:
    """How many processors this task has; None if Slurm does not tell."""
    each = _number("SLURM_CPUS_PER_TASK")
    if each is not None:
        return max(each, 1)
    node = _number("SLURM_CPUS_ON_NODE")
    return None if node is None else max(node // _tasks_here(), 1)


def memory_bytes(processors_used: int) -> int | None:
    """How much memory a task with so many processors has; None if Slurm does not tell, or sets no limit."""
    each, node = _number("SLURM_MEM_PER_CPU"), _number("SLURM_MEM_PER_NODE")
    if each:
        return (each << 20) * processors_used
    return (node << 20) // _tasks_here() if node else None


def rank() -> tuple[int, int] | None:
    """Which of how many tasks this is: of an array, of a step, or of both. None if it is alone."""
    array, arrays = _array()
    task, tasks = _step()
    if arrays * tasks == 1:
        return None
    return array * tasks + task % tasks, arrays * tasks


def _step() -> tuple[int, int]:
    """The place in a step that `srun` has started.

    A batch script has the variables, too, as if it were the first of its tasks; it is alone until it calls `srun`.
    """
    task, tasks = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS") or _number("SLURM_NTASKS")
    is_script = not task and "SLURM_JOB_ID" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ
    return (0, 1) if task is None or not tasks or is_script else (task, tasks)


def _array() -> tuple[int, int]:
    """The place in a job array, which may start anywhere and leave out numbers; one of one if there is none."""
    number, count = _number("SLURM_ARRAY_TASK_ID"), _number("SLURM_ARRAY_TASK_COUNT")
    if number is None or not count:
        return 0, 1
    first, step = _number("SLURM_ARRAY_TASK_MIN") or 0, _number("SLURM_ARRAY_TASK_STEP") or 1
    return (number - first) // max(step, 1) % count, count


def _tasks_here() -> int:
    """How many tasks of the step share this node."""
    first = re.match("[0-9]+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # 4(x2), if nodes are alike
    return max(int(first[0]), 1) if first else 1


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None
