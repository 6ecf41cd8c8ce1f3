"""Which units have a part, asked by two threads at once."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys, threading, time
import numpy as np
from tokenmill.pipeline.driving.schedule import CommittedUnits
from tokenmill.pipeline.unit.plan import UnitTask

sys.setswitchinterval(1e-5)
units = 20_000
committed = CommittedUnits.__new__(CommittedUnits)
committed._is_committed = np.zeros(units, np.bool_)
committed._planned_bytes = np.ones(units, np.int64)
committed._planned_bytes_done = 0
tasks = [UnitTask(unit, (), 1) for unit in range(units)]
ended = threading.Event()

def ask():
    while not ended.is_set():
        done, planned_bytes = committed.progress()
        assert done == planned_bytes

thread = threading.Thread(target=ask)
thread.start()
end = time.monotonic() + 1.0
while time.monotonic() < end:
    committed._is_committed[:] = False
    for task in tasks[:: 7]:
        committed.commit(task)
ended.set()
thread.join()
"""


def test_a_heartbeat_may_ask_while_units_are_committed() -> None:
    """NumPy releases the interpreter while it indexes: units that are committed meanwhile must not corrupt memory."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
