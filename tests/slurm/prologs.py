"""The prologs that ship for Slurm, run by a real slurmd: what reaches tasks, and what if the daemon does not answer."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demo.daemons import program
from tests.slurm.cluster import Slurm, expect, slurm_cluster
from tests.support.daemon import RunningDaemon, daemon

_DEPLOY = Path(__file__).parents[2] / "deploy/slurm"
_TASKS = 2
#: Prints a line that is short enough to come out in one piece beside the other task's.
_SHOW = """
import json, os
told = {name: value for name, value in os.environ.items() if name.startswith(("NCCL_", "GLOO_", "UCX_", "FI_"))}
print(json.dumps({"rank": os.environ["SLURM_PROCID"], **told}))
"""
_DRAIN_SECONDS = 30.0
#: Nobody listens at port 1.
_AWAY = "http://127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Site:
    """A Slurm whose slurm.conf names the prologs, as a site's does.

    Attributes:
        slurm: the cluster.
        conf: what the prologs read; written anew by each check.
        cluster: a file with two machines whose job needs settings.
        running: this node's daemon.
    """

    slurm: Slurm
    conf: Path
    cluster: Path
    running: RunningDaemon

    def configure(self, **values: str) -> None:
        """Write what the prologs read."""
        values = {"FABRICCTL": program("fabricctl"), "FABRICD_SOCKET": self.running.socket, **values}
        self.conf.write_text("".join(f"{name}='{value}'\n" for name, value in values.items()))
        self.conf.chmod(0o644)

    def tasks(self, **environ: str) -> tuple[list[Mapping[str, str]], int, str]:
        """Run a job of two tasks; return each one's settings, the status, and what else it said."""
        command = ["-n", str(_TASKS), sys.executable, "-c", _SHOW]
        done = self.slurm.srun(command, environ={"FABRICD_URL": self.running.url, **environ})
        lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        found = [json.loads(line) for line in lines if line.startswith("{")]
        waited = re.compile(r"\{|srun: job \d+ (queued|has been allocated)")  # until the one before has left
        said = "\n".join(line for line in lines if not waited.match(line))
        return sorted(found, key=lambda one: int(one["rank"])), done.returncode, said


@contextmanager
def site(root: Path, folder: Path) -> Iterator[Site]:
    """Run such a Slurm, and a daemon on its node, for the time of the block.

    Args:
        root: where Slurm's packages are unpacked.
        folder: empty, takes all else.
    """
    conf, cluster, slurm_folder, files = (folder / name for name in ("conf", "cluster.json", "cluster", "daemon"))
    for path in (slurm_folder, files):
        path.mkdir()
    simulate = [program("fabricctl"), "simulate", "--template", "h100", "--nodes", "2", "--out", str(cluster)]
    subprocess.run(simulate, check=True, capture_output=True, timeout=60)
    lines = []
    for keyword, name in (("TaskProlog", "fabricd-task-prolog.sh"), ("Prolog", "fabricd-prolog.sh")):
        # Slurm gives a Prolog no variables: the path of the configuration has to be in the script.
        script = folder / name
        script.write_text(f"#!/bin/sh\nFABRICD_SLURM_CONF={conf} exec {_DEPLOY / name}\n")
        script.chmod(0o755)
        lines.append(f"{keyword}={script}")
    with slurm_cluster(root, slurm_folder, "\n".join(lines)) as slurm, daemon(files, "--name", slurm.node) as running:
        yield Site(slurm, conf, cluster, running)


def settings_reach_every_task(where: Site) -> None:
    """Every task has the settings of the plan, as they stand; what its user set stays."""
    asks = where.conf.with_name("asks")
    asks.write_text(f'#!/bin/sh\nexec {program("fabricctl")} "$@" --from {where.cluster} --node h100-0001\n')
    asks.chmod(0o755)
    where.configure(FABRICCTL=str(asks), ENGINES="nccl,gloo")
    wanted = _settings(where.cluster)
    expect(any(value.startswith("=") for value in wanted.values()), "a value that a shell would mind", wanted)
    found, status, said = where.tasks(GLOO_SOCKET_IFNAME="mine")
    expect(status == 0 and len(found) == _TASKS and not said, "the job runs and says nothing", said)
    for one in found:
        told = {name: one.get(name) for name in wanted}
        expect(told == wanted | {"GLOO_SOCKET_IFNAME": "mine"}, "the settings, and the user's own", told)
        expect("UCX_NET_DEVICES" not in one, "nothing of an engine that was not asked for", one)
    found, status, said = where.tasks(FABRICD_SLURM="off")
    expect(status == 0 and not any(name in one for one in found for name in wanted), "a user may leave it out", found)


def _settings(cluster: Path) -> dict[str, str]:
    command = [program("fabricctl"), "env", "--from", str(cluster), "--node", "h100-0001", "--format", "json"]
    done = subprocess.run([*command, "--engine", "nccl,gloo"], check=True, capture_output=True, text=True, timeout=60)
    return {one["name"]: one["value"] for one in json.loads(done.stdout)["settings"]}


def nothing_to_set(where: Site) -> None:
    """A job on one node, with this node's daemon: nothing to set, nothing said."""
    where.configure()
    found, status, said = where.tasks()
    expect(status == 0 and len(found) == _TASKS and not said, "the job runs and says nothing", said)


def daemon_away(where: Site) -> None:
    """The daemon does not answer, or not in time: the job goes on, and says it once."""
    where.configure()
    found, status, said = where.tasks(FABRICD_URL=_AWAY)
    expect(status == 0 and len(found) == _TASKS, "the job runs", said)
    expect(said.count("fabricd: no settings (") == 1 and "own choice" in said, "it is said once", said)
    asks = where.conf.with_name("hangs")
    asks.write_text("#!/bin/sh\nexec sleep 60\n")
    asks.chmod(0o755)
    where.configure(FABRICCTL=str(asks), TIMEOUT_SECONDS="1")
    found, status, said = where.tasks()
    expect(status == 0 and said.count("fabricd: no settings within 1 s") == 1, "it does not wait longer", said)


def node_stays_or_is_drained(where: Site) -> None:
    """A node whose daemon is not ready: jobs run there all the same, or with ON_UNREADY=drain it is drained."""
    away = str(where.conf.with_name("no.sock"))
    where.configure(FABRICD_SOCKET=away)
    found, status, said = where.tasks()
    expect(status == 0 and len(found) == _TASKS, "with a warning only, the job runs", said)
    where.configure(FABRICD_SOCKET=away, ON_UNREADY="drain")
    out = where.conf.with_name("job.out")
    job = where.slurm.ask("sbatch", "--parsable", f"--output={out}", "--wrap", "echo it ran").strip()
    deadline = time.monotonic() + _DRAIN_SECONDS
    while "drain" not in (state := where.slurm.ask("sinfo", "--noheader", "--format=%T %E")):
        expect(time.monotonic() < deadline, "the node is drained", state + where.slurm.logs())
        time.sleep(0.2)
    expect("Prolog error" in where.slurm.ask("sinfo", "--noheader", "--format=%E"), "and says why", state)
    told = out.read_text() if out.exists() else ""  # Slurm itself writes of the prolog there
    expect("it ran" not in told, "the job has not run", told)
    where.slurm.ask("scancel", job)
    where.configure()
    where.slurm.ask("scontrol", "update", f"NodeName={where.slurm.node}", "State=RESUME")
    found, status, said = where.tasks()
    expect(status == 0 and len(found) == _TASKS, "resumed, with a daemon that is ready, it runs jobs", said)


CHECKS: tuple[Callable[[Site], None], ...] = (
    settings_reach_every_task,
    nothing_to_set,
    daemon_away,
    node_stays_or_is_drained,
)


def run_checks(root: Path, folder: Path) -> None:
    """Run all checks in a Slurm of their own."""
    with site(root, folder) as where:
        for check in CHECKS:
            begun = time.monotonic()
            check(where)
            print(f"{check.__doc__ or ''}".strip() + f" ({time.monotonic() - begun:.1f} s)", flush=True)
