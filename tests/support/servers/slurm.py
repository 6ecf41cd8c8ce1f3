"""Slurm in the tests: munged, slurmctld and slurmd (Debian's packages) in a directory of their own, on loopback.

One machine plays one node that has as many CPUs as the caller says. The daemons run as whoever starts them, with a key
and a socket of their own, so that a munge or a Slurm that the machine may have is not touched.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.servers.processes import ServerProcess, free_ports

PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "squeue": "slurm-client",
    "scancel": "slurm-client",
}
"""What has to be there, and the Debian package that has it. `slurm-wlm` depends on all but the first."""

DAEMON_PATH = "/usr/local/sbin:/usr/sbin:/sbin"
"""Where the daemons are, which is often not on the path of a user."""

COMMAND_SECONDS = 30.0
STOP_SECONDS = 20.0

REQUEUE_SECONDS = 5
"""How long a requeued job waits: the life of a credential, which is 120 seconds where nobody has changed it."""

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munged/socket,cred_expire={requeue_seconds}
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld/pid
SlurmdPidFile={directory}/slurmd/pid
SlurmdSpoolDir={directory}/slurmd/spool
StateSaveLocation={directory}/slurmctld/state
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
AccountingStorageType=accounting_storage/none
KillWait=5
MinJobAge=3600
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_megabytes} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
"""`config_overrides`: more CPUs than there are may be declared, so that as many tasks run at a time on a small machine.
`MinJobAge`: jobs that have ended stay known for as long as a test may want to requeue them or ask how they ended."""


def missing_packages() -> list[str]:
    """The Debian packages that would have to be installed."""
    return sorted({package for program, package in PROGRAMS.items() if _find(program) is None})


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path=DAEMON_PATH)


@dataclass(frozen=True)
class JobRecord:
    """What Slurm says of one job, or of one task of an array."""

    fields: Mapping[str, str]

    @property
    def state(self) -> str:
        """PENDING, RUNNING, COMPLETED, FAILED, ..."""
        return self.fields["JobState"]

    @property
    def task(self) -> int | None:
        """Its number in the array; None for a job that is none, or for tasks that have not been told apart yet."""
        number = self.fields.get("ArrayTaskId", "")
        return int(number) if number.isdigit() else None

    @property
    def exit_code(self) -> int:
        """What its script returned, or minus the signal that ended it."""
        code, number = map(int, self.fields["ExitCode"].split(":"))
        return -number if number else code

    @property
    def restarts(self) -> int:
        """How often it was requeued."""
        return int(self.fields.get("Restarts", "0"))

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it by itself."""
        return self.state not in {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED"}


@dataclass
class Slurm:
    """A cluster of one node in a directory."""

    directory: Path
    cpus: int
    memory_megabytes: int
    ports: list[int]
    daemons: list[ServerProcess] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need. Of a job that this may itself be a part of, nothing is left."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        return {**kept, "SLURM_CONF": str(self.directory / "slurm.conf")}

    def start(self) -> None:
        """Start the three daemons, each when the one before it answers, and wait until the node takes jobs."""
        for name in ("munged", "slurmctld/state", "slurmd/spool"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        self._configure()
        munge = self.directory / "munged"
        options = ["--key-file=key", "--socket=socket", "--pid-file=pid", "--log-file=munged.log", "--seed-file=seed"]
        named = [option.replace("=", f"={munge}/", 1) for option in options]
        self._daemon("munged", "--foreground", "--force", *named).wait_until((munge / "socket").exists)
        self._daemon("slurmctld", "-D", "-c").wait_until(lambda: self.say("scontrol", "ping").returncode == 0)
        self._daemon("slurmd", "-D", "-c").wait_until(self.idle)

    def stop(self) -> None:
        """Cancel what runs, then stop the daemons, the last first; nothing of the cluster is left."""
        with suppress(subprocess.TimeoutExpired):
            self.say("scancel", "--quiet", f"--user={getpass.getuser()}")
            _wait(lambda: not self.say("squeue", "--noheader").stdout.strip())
        while self.daemons:
            self.daemons.pop().stop()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def say(self, program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands, however it ends."""
        return subprocess.run(
            [_find(program) or program, *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )

    def submit(self, *arguments: str, **environment: str) -> int:
        """Submit a job with `sbatch`; its number."""
        done = self.say("sbatch", "--parsable", *arguments, **environment)
        if done.returncode != 0:
            raise RuntimeError(f"sbatch refused {' '.join(arguments)}: {done.stderr}")
        return int(done.stdout.strip().partition(";")[0])

    def jobs(self, job: int) -> list[JobRecord]:
        """What Slurm says of a job: one record, or one for each task of an array that it has told apart."""
        lines = self.say("scontrol", "--oneliner", "show", "job", str(job)).stdout.splitlines()
        return [JobRecord(dict(word.split("=", 1) for word in line.split() if "=" in word)) for line in lines]

    def idle(self) -> bool:
        """Whether the node has registered and takes jobs."""
        return self.say("sinfo", "--noheader", "--format=%T").stdout.strip() in {"idle", "mixed"}

    def processes(self, **wanted: str) -> list[int]:
        """The processes of jobs of this cluster whose environment has these variables, whoever their parents are."""
        needed = {f"{name}={value}" for name, value in {**wanted, "SLURM_CONF": self.environment["SLURM_CONF"]}.items()}
        found = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                variables = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
                if needed <= set(variables) and any(each.startswith("SLURM_JOB_ID=") for each in variables):
                    found.append(int(folder.name))
        return sorted(found)

    def _daemon(self, program: str, *arguments: str) -> ServerProcess:
        """Start one of the daemons. In the foreground, so that it is this process that is stopped."""
        command = [_find(program) or program, *arguments]
        self.daemons.append(ServerProcess.start(command, self.directory / program, self.environment))
        return self.daemons[-1]

    def _configure(self) -> None:
        key = self.directory / "munged" / "key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        controller_port, node_port = self.ports
        text = CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0],
            user=getpass.getuser(),
            directory=self.directory,
            controller_port=controller_port,
            node_port=node_port,
            cpus=self.cpus,
            memory_megabytes=self.memory_megabytes,
            requeue_seconds=REQUEUE_SECONDS,
        )
        (self.directory / "slurm.conf").write_text(text)


def _wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + STOP_SECONDS
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def start_slurm(directory: Path, cpus: int, memory_megabytes: int = 8192) -> Slurm:
    """Start a new cluster in a directory, on free ports."""
    cluster = Slurm(directory.resolve(), cpus, memory_megabytes, free_ports(2))
    try:
        cluster.start()
    except BaseException:
        cluster.stop()
        raise
    return cluster
