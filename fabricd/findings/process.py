"""What stands in the way of one process, in a container mostly: devices it may not open, limits, memory to share."""

from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from fabricd.localview import LocalView, locks_too_little
from fabricd.model.finding import Finding, Severity
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_ranges, format_size

#: Docker's default; NCCL takes some MB for each pair of ranks.
_SHM_BYTES = 64 << 20
_SHM = "/dev/shm"  # noqa: S108 - named, not used


def process_findings(view: LocalView, host: Snapshot | None) -> Iterator[Finding]:
    """Yield what is wrong for a process.

    Args:
        view: what it sees.
        host: what its host's daemon sees; None: nobody knows.
    """
    denied = [hca.name for hca in view.hcas if not hca.usable]
    if denied:
        some = len(denied) < len(view.hcas)
        yield Finding(
            code="adapters-denied",
            severity=Severity.NOTE if some else Severity.ERROR,
            subject=", ".join(denied[:8]),
            what="this process may not open some of the adapters that it sees"
            if some
            else "this process may open no adapter that it sees: NCCL and UCX fall back to TCP, and do not say so",
            evidence=("no device node below /dev/infiniband that it may read and write",),
            fix="pass /dev/infiniband into the container (docker: --device=/dev/infiniband; Kubernetes: the RDMA "
            "device plugin)",
        )
    if host is not None:
        yield from _hidden(view, host)
        yield from _far(view, host)
    if view.memlock_bytes is not None and view.hcas and locks_too_little(view.memlock_bytes):
        yield Finding(
            code="memlock-low",
            severity=Severity.ERROR,
            what="this process may lock too little memory to register buffers for RDMA",
            evidence=(f"RLIMIT_MEMLOCK is {format_size(view.memlock_bytes)}",),
            fix="ulimit -l unlimited; LimitMEMLOCK=infinity in the unit of slurmd or containerd; docker: "
            "--ulimit memlock=-1",
        )
    if view.shm_bytes is not None and view.shm_bytes <= _SHM_BYTES:
        yield Finding(
            code="shm-small",
            severity=Severity.WARNING,
            subject=_SHM,
            what="ranks of this host can share little memory: NCCL fails with 'unhandled system error'",
            evidence=(f"{_SHM} holds {format_size(view.shm_bytes)}",),
            fix="docker: --shm-size=1g or --ipc=host; Kubernetes: an emptyDir of medium Memory there",
        )


def _far(view: LocalView, host: Snapshot) -> Iterator[Finding]:
    """A launcher that counts CPUs from one end and GPUs from the other binds ranks away from their GPUs.

    Of a process that sees several GPUs nobody knows which it will take, so all must be far.
    """
    cpus_of = {numa.index: numa.cpus for numa in host.numa}
    visible = [gpu for gpu in host.gpus if gpu.uuid in view.gpu_uuids]
    near = {
        gpu.index: frozenset(gpu.cpu_affinity or cpus_of.get(-1 if gpu.numa_node is None else gpu.numa_node, ()))
        for gpu in visible
    }
    if not visible or not view.cpus or not all(near.values()) or any(cpus & set(view.cpus) for cpus in near.values()):
        return
    yield Finding(
        code="cpus-far",
        severity=Severity.WARNING,
        subject=", ".join(f"gpu{index}" for index in list(near)[:8]),
        what="this process may run on no CPU that is near its GPU: what they exchange goes by another NUMA node",
        evidence=(
            f"CPUs {format_ranges(view.cpus)[:60]}; "
            + ", ".join(f"gpu{index} is near {format_ranges(cpus)[:60]}" for index, cpus in list(near.items())[:4]),
        ),
        fix="srun --gpu-bind=closest, or --cpu-bind=map_ldom in the order of the GPUs; fabricctl topo has their CPUs",
    )


def name_findings(name: str, addresses: Sequence[str]) -> Iterator[Finding]:
    """Yield what is wrong with the name of the host, at whose address Gloo listens by itself.

    Args:
        name: of the host, as this process sees it.
        addresses: that it stands for, in the order in which libraries get them; empty: none.

    Source: PyTorch's GlooDeviceFactory and ProcessGroupGloo: the first address that the process can bind to, else the
    loopback; Debian and Ubuntu put "127.0.1.1 NAME" into /etc/hosts.
    """
    if addresses and not ip_address(addresses[0].partition("%")[0]).is_loopback:
        return
    yield Finding(
        code="name-loopback",
        severity=Severity.WARNING,
        subject=name,
        what="the name of this host stands for its loopback: Gloo (PyTorch, JAX) listens there, where no other host "
        "reaches it"
        if addresses
        else "the name of this host stands for no address: Gloo (PyTorch, JAX) listens at the loopback",
        evidence=(f"{name}: {', '.join(addresses[:4]) or 'not found'}", "GLOO_SOCKET_IFNAME is not set"),
        fix='eval "$(fabricctl env)" sets GLOO_SOCKET_IFNAME; or the address of a network that joins the hosts beside '
        "the name in /etc/hosts",
    )


def _hidden(view: LocalView, host: Snapshot) -> Iterator[Finding]:
    seen = {hca.name for hca in view.hcas} | {hca.node_guid for hca in view.hcas}
    hidden = [hca.name for hca in host.hcas if hca.name not in seen and (hca.node_guid or hca.name) not in seen]
    if hidden:
        yield Finding(
            code="adapters-hidden",
            severity=Severity.NOTE if view.hcas else Severity.WARNING,
            subject=", ".join(hidden[:8]),
            what="this process does not see all adapters of its host",
            evidence=(f"{len(view.hcas)} of {len(host.hcas)} are visible here",),
            fix="pass them into the container, or nothing is wrong: the job was given the others",
        )
    gpus = [gpu.uuid for gpu in host.gpus if gpu.uuid]
    visible = [uuid for uuid in gpus if uuid in view.gpu_uuids]
    if gpus and len(visible) < len(gpus):
        yield Finding(
            code="gpus-hidden",
            severity=Severity.NOTE,
            what="this process does not see all GPUs of its host",
            evidence=(f"{len(visible)} of {len(gpus)} can be opened here",),
            fix="nothing is wrong where the job was given so many",
        )
