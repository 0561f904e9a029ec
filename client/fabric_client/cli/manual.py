"""What ``--help`` of each command says below its options: examples, what it reads, and its exit statuses."""

from collections.abc import Mapping
from dataclasses import dataclass

_FROM = "the daemon of this host, or what --from names"
#: Of the errors that every command may have.
_ERRORS = "1 otherwise, 2 for wrong input, 3 when nothing answers"


@dataclass(frozen=True, slots=True)
class Page:
    """What belongs to one command; the summary stands in the list of commands, on one line of 80 columns."""

    summary: str
    examples: tuple[str, ...]
    reads: str = _FROM
    status: str = _ERRORS


PAGES: Mapping[str, Page] = {
    "topo": Page(
        "Show a node: matrix of its GPUs and NICs, or its tree",
        ("fabricctl topo --tree", "fabricctl topo --node gpu-0017 --json"),
    ),
    "paths": Page(
        "Show the best paths, and why not another",
        ("fabricctl paths gpu0 node2/gpu0 --explain", "fabricctl paths mlx5_0:1 node2/mlx5_0:1 -b 64K --json"),
    ),
    "nodes": Page(
        "List the nodes that a daemon knows or a file holds",
        ("fabricctl nodes", "fabricctl nodes --from http://node0:7470 --places"),
    ),
    "networks": Page(
        "List the networks that join nodes' ports, and roles",
        ("fabricctl networks --all", "fabricctl networks --from c.jsonl.gz --json"),
    ),
    "doctor": Page(
        "Tell what is wrong with a job's nodes, and what to do",
        ("fabricctl doctor --at-least warning", "fabricctl doctor --nodes 'gpu[001-016]' --ignore one-subnet --json"),
        reads=f"{_FROM}; SLURM_JOB_NODELIST; what this process sees; its NCCL_*, GLOO_* and UCX_* settings, nccl.conf",
        status="1 where an error or a warning is left, or otherwise; 2 for wrong input, 3 when nothing answers",
    ),
    "read-log": Page(
        "Tell what a job's log says: networks, and what messages mean",
        ("fabricctl read-log slurm-4711.out", "fabricctl read-log rank*.log --from c.jsonl.gz --json"),
        reads="the logs; the daemon of this host where there is one, or what --from names",
        status="1 where an error or a warning is found, or otherwise; 2 for wrong input, 3 when --from names a daemon "
        "that does not answer",
    ),
    "measure": Page(
        "Measure networks between nodes; tell slow ports and ways",
        ("fabricctl measure --nodes 'gpu[001-016]'", "fabricctl measure --network 10.1.0.0/24 --rounds 7 --json"),
        reads="the daemon of this host, or the one that --from names, which asks the others; SLURM_JOB_NODELIST",
        status="1 where something is found, nothing could be measured, or otherwise; 2 for wrong input, 3 when nothing "
        "answers",
    ),
    "watch": Page(
        "Tell what changes in the cluster's map, as it happens",
        ("fabricctl watch --past", "fabricctl watch --node gpu-0017 --json"),
        reads="a daemon: by default the one of this host",
        status="1 otherwise, 2 for wrong input, 3 when nothing answers; 130 when it is interrupted",
    ),
    "order": Page(
        "Order ranks so that few crossings of switches are left",
        (
            'fabricctl order --nodes "$SLURM_JOB_NODELIST" --placement topology.conf',
            "fabricctl order --hosts 'gpu[001-064]' --per-node 8 --bandwidth pairs.csv --json",
        ),
        reads=f"{_FROM}; with --hosts no map at all; SLURM_JOB_NODELIST",
    ),
    "env": Page(
        "Print the settings of NCCL, UCX and Gloo for this job",
        ('eval "$(fabricctl env)"', "fabricctl env --format nccl.conf --engine nccl > /etc/nccl.conf"),
        reads=f"{_FROM}; SLURM_JOB_NODELIST; the interfaces and GPUs that this process sees",
    ),
    "export": Page(
        "Write the map in a form of NCCL, Slurm, MPI or Graphviz",
        ("fabricctl export -f nccl-topo --node gpu-0017 -o topo.xml", "fabricctl export -f slurm-topology"),
        reads=f"{_FROM}; SLURM_JOB_NODELIST",
    ),
    "plan": Page(
        "Plan a collective: rings, bottlenecks, predicted time",
        ("fabricctl plan -b 256M --ranks 0-15", "fabricctl plan --from c.jsonl.gz --nodes 4 --without mlx5_3"),
        reads=f"{_FROM}; SLURM_JOB_NODELIST",
    ),
    "plan-diff": Page(
        "Compare two plans",
        ("fabricctl plan-diff before.json after.json", "fabricctl plan --json | fabricctl plan-diff before.json -"),
        reads="two plans",
        status="1 where they differ, or otherwise; 2 for wrong input",
    ),
    "calibrate": Page(
        "Scale predictions to a result of nccl-tests",
        (
            "fabricctl calibrate result.txt -o ours.json",
            "fabricctl calibrate --from box.json --nodes 2 result.json --json",
        ),
        reads=f"{_FROM}; results of nccl-tests",
    ),
    "meet": Page(
        "Meet the job's other hosts and print what they need",
        (
            'eval "$(fabricctl meet --nnodes 2 --node-rank 0 --group train)"',
            "fabricctl meet --nnodes 2 --node-rank 1 --group train --format json",
        ),
        reads="FABRICD_URL: the daemon that all hosts meet at; FABRICD_GROUP_SECRET_FILE",
    ),
    "run": Page(
        "Run a command as N ranks, here or on several hosts",
        (
            "fabricctl run -n 4 -- python train.py",
            "fabricctl run -n 8 --nnodes 2 --node-rank 0 --group train -- python train.py",
        ),
        reads="FABRICD_URL, else the daemon of this host, else one of its own; FABRICD_GROUP_SECRET_FILE",
        status="that of the first rank that failed, 128 and the signal's number for one that a signal ended; 2 for "
        "wrong input, 3 when nothing answers",
    ),
    "bench": Page(
        "Measure a collective and check every result",
        (
            "fabricctl bench -n 2 --collective all_gather -e 1G",
            "RANK=0 WORLD_SIZE=2 fabricctl bench --engine gloo --json",
        ),
        reads="as run; without -n the rank's place, as torchrun, srun or a shell set it",
        status="1 when a result was wrong, or otherwise; 2 for wrong input, 3 when nothing answers",
    ),
    "capture-cluster": Page(
        "Write all that a daemon knows into a file, anonymously",
        (
            "fabricctl capture-cluster c.jsonl.gz",
            "fabricctl capture-cluster --from http://node0:7470 --key key c.jsonl.gz",
        ),
        reads="a daemon: by default the one of this host",
    ),
    "simulate": Page(
        "Write a cluster of equal machines into a file",
        ("fabricctl simulate", "fabricctl simulate -t h100 -n 1000 -o c.jsonl.gz"),
        reads="nothing but --template",
        status="1 otherwise, 2 for wrong input",
    ),
}

WHOLE = f"""\
Where there is no --from, the daemon is the one of FABRICD_URL (http://HOST:7470, https://HOST:7470, unix:/path), else
of FABRICD_SOCKET, else of this user or this system here. FABRICD_TOKEN_FILE holds the token, FABRICD_CA_FILE the CA of
an https daemon, FABRICD_CERTIFICATE_FILE and FABRICD_KEY_FILE what it is shown.

Exit status: 0 for an answer, {_ERRORS}. Sizes are bytes; K, M and G are powers of 1024.

fabricctl COMMAND --help has examples.
"""


def epilog(command: str) -> str:
    """Return what stands below the options of a command."""
    page = PAGES[command]
    examples = "\n".join(f"  {example}" for example in page.examples)
    return f"\b\nExamples:\n{examples}\n\nReads {page.reads}.\n\nExit status: 0 when done, {page.status}."
