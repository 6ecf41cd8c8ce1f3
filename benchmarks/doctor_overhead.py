"""What it costs to let the doctor watch: `python benchmarks/doctor_overhead.py [--rounds 10]`.

Each workload is run without and with `tokenmill doctor --`, in turn. The best wall time of each counts, and the
doctor's own CPU time against the command's. The doctor's own start, a tenth of a second, is
left out.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import time

POOL = """
import multiprocessing
def work(n):
    return sum(i * i for i in range(n))
if __name__ == "__main__":
    with multiprocessing.Pool({workers}) as pool:
        print(sum(pool.imap_unordered(work, [200_000] * {tasks})))
"""

SHORT = """
import subprocess
for _ in range({tasks}):
    subprocess.run(["true"], check=True)
"""

CHATTY = """
import sys
line = "x" * 99 + "\\n"
for _ in range({tasks}):
    sys.stderr.write(line * 100)
"""

WORKLOADS = {
    "2 workers that compute": POOL.format(workers=2, tasks=400),
    "64 workers that compute": POOL.format(workers=64, tasks=400),
    "2,000 processes of a few ms": SHORT.format(tasks=2000),
    "300 MB to stderr": CHATTY.format(tasks=30_000),
}


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    print(f"{'workload':<30} {'alone':>8} {'watched':>8} {'wall':>8} {'doctor CPU':>11} {'of command':>11}")
    for name, code in WORKLOADS.items():
        plain, watched = [], []
        for _ in range(rounds):
            plain.append(alone(code))
            watched.append(with_doctor(code))
        best = min(watched, key=lambda seen: seen["seconds"])
        slower = best["seconds"] / min(plain) - 1
        used = [seen["doctor_cpu_seconds"] / seen["cpu_seconds"] for seen in watched]
        print(
            f"{name:<30} {min(plain):7.2f}s {best['seconds']:7.2f}s {slower:+8.2%}"
            f" {best['doctor_cpu_seconds']:10.3f}s {min(used):11.2%}"
        )


def alone(code: str) -> float:
    """Seconds of the command by itself."""
    begun = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        drain(process)
    return time.perf_counter() - begun


def with_doctor(code: str) -> dict[str, float]:
    """What the doctor says of the command's time and its own."""
    command = [sys.executable, "-m", "tokenmill", "doctor", "--json", "--", sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        drain(process)
        assert process.stdout
        return json.loads(process.stdout.read())


def drain(process: subprocess.Popen[bytes]) -> None:
    """Read a command's stderr as a terminal would, whoever writes it."""
    assert isinstance(process.stderr, io.BufferedReader)
    while process.stderr.read1(1 << 16):
        pass


if __name__ == "__main__":
    main()
