"""A Slurm of one node for tests: munge, slurmctld and slurmd in a folder of their own, on ports that are free.

Debian's packages are fetched and unpacked there; nothing is installed, and no file outside the folder is touched. Needs
root, because slurmd starts steps as other users, and apt. Ended with the block, however it ends.
"""

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_READY_SECONDS = 60.0
_CPUS = 16  #: that the node has by its configuration: ranks may share cores here


@dataclass(slots=True)
class Slurm:
    """A running cluster.

    Attributes:
        root: where the packages lie.
        folder: configuration, logs and state.
        node: the node's name, this host's.
    """

    root: Path
    folder: Path
    node: str

    @property
    def environ(self) -> dict[str, str]:
        """What its programs need."""
        libraries = self.root / _LIBRARIES
        return {
            **os.environ,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "LD_LIBRARY_PATH": f"{libraries}:{libraries}/slurm-wlm",
        }

    def command(self, name: str, *arguments: str) -> list[str]:
        """Return the command line of one of its programs, ``"srun"`` or ``"scontrol"``."""
        return [str(self.root / "usr/bin" / name), *arguments]

    def srun(
        self, arguments: Sequence[str], *, environ: Mapping[str, str] | None = None, seconds: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a job to its end; fails when it lasts longer.

        Args:
            arguments: of srun: options, program and its arguments.
            environ: what the job gets beside this process's variables.
            seconds: how long it may last.
        """
        return self.run("srun", "--overcommit", *arguments, environ=environ, seconds=seconds)

    def run(
        self, name: str, *arguments: str, environ: Mapping[str, str] | None = None, seconds: float = 120.0
    ) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end, in the same way."""
        return subprocess.run(
            self.command(name, *arguments),
            env={**self.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def ask(self, name: str, *arguments: str) -> str:
        """Return what one of its programs says, or "" when it fails."""
        done = self.run(name, *arguments, seconds=30.0)
        return done.stdout if done.returncode == 0 else ""

    def logs(self) -> str:
        """Return the end of what the daemons logged."""
        files = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in files)


def expect(condition: object, what: str, told: object) -> None:
    """Stop with what was told unless the condition holds."""
    if not condition:
        raise SystemExit(f"not so: {what}\n{told}")


def unpack(root: Path) -> None:
    """Fetch packages of Slurm and munge, with what they need that this system lacks, and unpack them in a folder."""
    archives = root / "archives"
    (archives / "partial").mkdir(parents=True)
    get = ["apt-get", "install", "--yes", "--quiet", "--download-only", "--no-install-recommends", "--reinstall"]
    done = subprocess.run(
        [*get, "-o", f"Dir::Cache::archives={archives}", "-o", "APT::Sandbox::User=root", *_PACKAGES],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    packages = sorted(archives.glob("*.deb"))
    if done.returncode or not packages:
        raise SystemExit(f"Slurm cannot be fetched (apt-get update first?):\n{done.stdout}{done.stderr}")
    for package in packages:
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)


@contextmanager
def slurm_cluster(root: Path, folder: Path, more: str = "") -> Iterator[Slurm]:
    """Run a cluster for the time of the block.

    Args:
        root: where :func:`unpack` has put the packages.
        folder: empty; gets configuration, logs and state.
        more: lines for slurm.conf, for example ``TaskProlog=...``.
    """
    slurm = Slurm(root, folder, socket.gethostname().partition(".")[0])
    _configure(slurm, more)
    with ExitStack() as stack:
        for command in (
            _munged(slurm),
            [str(root / "usr/sbin/slurmctld-wlm"), "-D", "-c"],
            [str(root / "usr/sbin/slurmd-wlm"), "-D", "-c", "-d", str(root / "usr/sbin/slurmstepd-wlm")],
        ):
            stack.enter_context(_daemon(slurm, command))
        _await_node(slurm)
        yield slurm


def _munged(slurm: Slurm) -> list[str]:
    key = slurm.folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"socket": "munge.socket", "pid-file": "munged.pid", "seed-file": "munged.seed"}
    options = [f"--{name}={slurm.folder / path}" for name, path in files.items()]
    return [str(slurm.root / "usr/sbin/munged"), "--foreground", "--force", f"--key-file={key}", *options]


def _configure(slurm: Slurm, more: str) -> None:
    folder = slurm.folder
    folder.chmod(0o755)  # munge refuses a socket that others cannot reach
    for name in ("state", "spool"):
        (folder / name).mkdir()
    control, node = _free_ports(2)
    (folder / "slurm.conf").write_text(
        f"""ClusterName=fabricd
SlurmctldHost={slurm.node}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
PluginDir={slurm.root}/{_LIBRARIES}/slurm-wlm
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={slurm.node} NodeAddr=127.0.0.1 CPUs={_CPUS} State=UNKNOWN
PartitionName=all Nodes={slurm.node} Default=YES State=UP
{more}
"""
    )
    # Nothing here uses cgroups. Slurm 22 loads a plugin nevertheless, and that for v2 wants systemd.
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@contextmanager
def _daemon(slurm: Slurm, command: Sequence[str]) -> Iterator[None]:
    """Run a daemon, and end it with all that it has started."""
    with (slurm.folder / f"{Path(command[0]).name}.out.log").open("w") as output:
        process = subprocess.Popen(
            command,
            env=slurm.environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_node(slurm: Slurm) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while "idle" not in slurm.ask("sinfo", "--noheader", "--format=%T"):
        if time.monotonic() > deadline:
            raise SystemExit(f"Slurm's node does not come up:\n{slurm.logs()}")
        time.sleep(0.2)
