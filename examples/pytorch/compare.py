"""Compare two logs of train.py: `python compare.py ONE OTHER`. The exit code is 1 if they have different batches.

A step that was done again after a kill must have had the same batch again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

# Sums over ranks have another order for another number of ranks, so losses differ in their last digits.
LOSS_TOLERANCE = 1e-3


def read(path: str) -> dict[int, dict[str, float | str]]:
    """The last entry of each step. Raises SystemExit if a step had two different batches."""
    entries: dict[int, dict[str, float | str]] = {}
    for line in Path(path).read_text().splitlines():
        entry = json.loads(line)
        if entries.get(entry["step"], entry)["batch"] != entry["batch"]:
            sys.exit(f"{path}: step {entry['step']} had two different batches")
        entries[entry["step"]] = entry
    return entries


one, other = map(read, sys.argv[1:3])
if one.keys() != other.keys():
    sys.exit(f"different steps: {len(one)} and {len(other)}")
different = [step for step in one if one[step]["batch"] != other[step]["batch"]]
if different:
    sys.exit(f"different batches, first in step {different[0]}")
distance = max(abs(float(one[step]["loss"]) - float(other[step]["loss"])) for step in one)
print(f"{len(one)} steps: all batches equal, losses within {distance:.1e}")
sys.exit(distance > LOSS_TOLERANCE)
