"""A real SLURM on this machine for one test: a controller and two nodes of one CPU."""

import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import time

DAEMONS = ("munged", "slurmctld", "slurmd")
TOOLS = ("sbatch", "srun", "scontrol", "sinfo", "squeue")
_SECS = 60

_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
MpiDefault=none
JobRequeue=1
KillWait=60
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=1 State=UNKNOWN
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> list[str]:
    """Programs that a cluster needs and that are not installed."""
    return [name for name in (*DAEMONS, *TOOLS) if _find(name) is None]


class Cluster:
    """The cluster while the context is open; `env` is what its clients need."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.env = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "Cluster":
        for name in ("state", "spool"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        conf = _CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=self.folder,
            ports=_free_ports(3),
            user=pathlib.Path("/proc/self").owner(),
        )
        (self.folder / "slurm.conf").write_text(conf)
        try:
            self._start_daemons()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            daemon.wait(_SECS)

    def _start_daemons(self) -> None:
        folder = self.folder
        places = [f"--{k}={folder}/munge.{k[:4]}" for k in ("pid-file", "log-file")]
        self._daemon(
            *("munged", "--foreground", "--force", f"--key-file={folder}/munge.key"),
            *(f"--socket={folder}/munge.socket", f"--seed-file={folder}/munge.seed"),
            *places,
        )
        _wait(lambda: (folder / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        _wait(lambda: self.ask("sinfo", "-h", "-t", "idle", "-o", "%D") == "2", "nodes")

    def _daemon(self, name: str, *words: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as output:
            process = subprocess.Popen(
                [_find(name), *words],
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._daemons.append(process)

    def ask(self, *command: str, cwd: pathlib.Path | None = None) -> str:
        """What a client prints; empty where it fails."""
        done = subprocess.run(
            command, env=self.env, cwd=cwd, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETING, COMPLETED, FAILED, ... of a job."""
        return self._fact(job, "JobState")

    def _fact(self, job: str, name: str) -> str:
        for word in self.ask("scontrol", "show", "job", job).split():
            if word.startswith(f"{name}="):
                return word.partition("=")[2]
        return ""

    def release(self, job: str, *, restarts: int = 1) -> None:
        """Starts a job that was requeued so often; it would wait for two minutes."""

        def is_requeued() -> bool:
            is_pending = self.state(job) == "PENDING"
            return is_pending and self._fact(job, "Restarts") == str(restarts)

        _wait(is_requeued, f"requeued job {job}")
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")

    def wait(self, job: str, *states: str) -> str:
        """Until the job is in one of the states; which."""
        _wait(lambda: self.state(job) in states, f"job {job}: {', '.join(states)}", 180)
        return self.state(job)


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _wait(condition, what: str, secs: float = _SECS) -> None:
    until = time.monotonic() + secs
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} within {secs} s")
        time.sleep(0.1)
