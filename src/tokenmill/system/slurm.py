"""What Slurm allocated to a task, from its environment: processors, memory, and its rank.

Slurm may not confine tasks to their allocation. Without this, a task would use all that it sees, also what belongs to
others.
"""

from __future__ import annotations

import os
import re


def processors() -> int | None:
    """The processors of this task; None if Slurm does not set them."""
    per_task = _number("SLURM_CPUS_PER_TASK")
    if per_task is not None:
        return max(per_task, 1)
    node = _number("SLURM_CPUS_ON_NODE")
    return None if node is None else max(node // _tasks_here(), 1)


def memory_bytes(processors_used: int) -> int | None:
    """The memory of a task with this many processors; None without a limit."""
    per_processor, node = _number("SLURM_MEM_PER_CPU"), _number("SLURM_MEM_PER_NODE")
    if per_processor:
        return (per_processor << 20) * processors_used
    return (node << 20) // _tasks_here() if node else None


def rank() -> tuple[int, int] | None:
    """The rank of this task and the number of tasks, over a job array, a step, or both; None for a single task."""
    array, arrays = _array()
    task, tasks = step_rank()
    if arrays * tasks == 1:
        return None
    return array * tasks + task % tasks, arrays * tasks


def step_rank() -> tuple[int, int]:
    """The rank in a step that `srun` started, and its number of tasks.

    A batch script has the variables of rank 0, too, but it is a single task until it calls `srun`.
    """
    task, tasks = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS") or _number("SLURM_NTASKS")
    is_script = not task and "SLURM_JOB_ID" in os.environ and "SLURM_STEP_NUM_TASKS" not in os.environ
    return (0, 1) if task is None or not tasks or is_script else (task, tasks)


def _array() -> tuple[int, int]:
    """The rank in a job array, whose task ids may have any start and step, and its size; (0, 1) without an array."""
    number, count = _number("SLURM_ARRAY_TASK_ID"), _number("SLURM_ARRAY_TASK_COUNT")
    if number is None or not count:
        return 0, 1
    first, step = _number("SLURM_ARRAY_TASK_MIN") or 0, _number("SLURM_ARRAY_TASK_STEP") or 1
    return (number - first) // max(step, 1) % count, count


def _tasks_here() -> int:
    """The number of tasks of the step on this node."""
    first = re.match("[0-9]+", os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""))  # such as 4(x2) for two equal nodes
    return max(int(first[0]), 1) if first else 1


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else None
