"""NVLink domains that span hosts: which GPUs are in one, and what keeps the others out.

GPUs reach each other where their fabric has one cluster UUID that is not zero and one clique, and where each has ended
its registration well. To map each other's memory, processes also need an IMEX channel: a device node that the host, or
the container that a rank runs in, was given. Source: NVIDIA's NVML API reference (nvmlGpuFabricInfoV_t) and IMEX guide.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fabricd.model.device import Gpu
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Outcome
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_CHANNELS = "/dev/nvidia-caps-imex-channels"


@dataclass(frozen=True, slots=True)
class DomainPort:
    """A GPU that is in an NVLink domain."""

    cluster: str
    clique: int
    port: NetworkPort


def domain_ports(node_id: str, snapshot: Snapshot) -> Iterator[DomainPort]:
    """Yield a node's GPUs whose registration in an NVLink domain is complete."""
    for gpu in snapshot.gpus:
        if (domain := domain_of(gpu)) is None or out_of_domain(gpu):
            continue
        links = [link.speed_bytes_per_second for link in gpu.links if link.active]
        speeds = [speed for speed in links if speed]
        port = NetworkPort(
            node=node_id,
            interface=f"gpu{gpu.index}",
            speed_bytes_per_second=sum(speeds) if speeds and len(speeds) == len(links) else None,
            numa_node=gpu.numa_node,
        )
        yield DomainPort(*domain, port)


def nvlink_networks(ports: Iterable[DomainPort]) -> list[Network]:
    """Return NVLink domains: GPUs of one fabric cluster and clique."""
    domains: dict[tuple[str, int], list[NetworkPort]] = {}
    for one in ports:
        domains.setdefault((one.cluster, one.clique), []).append(one.port)
    return [
        Network(
            name=f"nvlink:{cluster}.{clique}",
            transport=Transport.NVLINK,
            ports=tuple(ports),
            reason=f"GPUs of one NVLink fabric, clique {clique}, all registered",
        )
        for (cluster, clique), ports in domains.items()
    ]


def domain_of(gpu: Gpu) -> tuple[str, int] | None:
    """Return the cluster UUID and clique that a GPU belongs to, ``None`` for no domain of several hosts."""
    fabric = gpu.fabric
    if fabric is None or not fabric.cluster_uuid or fabric.clique_id is None:
        return None
    return fabric.cluster_uuid, fabric.clique_id


def out_of_domain(gpu: Gpu) -> str:
    """Return the fact that keeps a GPU out of any NVLink domain of several hosts, ``""`` where none does."""
    fabric = gpu.fabric
    if gpu.outcome is not Outcome.OK:
        return f"the GPU is {gpu.outcome}" + (f" ({gpu.reason})" if gpu.reason else "")
    if fabric is None:
        return "its driver tells of no NVLink fabric"
    if fabric.state != "completed":
        return f"its registration in the NVLink fabric is {fabric.state or 'unknown'}, not completed"
    if fabric.status != "success":
        return f"its registration in the NVLink fabric ended with status {fabric.status or 'unknown'}"
    if not fabric.cluster_uuid:
        return "its NVLink fabric ends at its own host (the cluster UUID is zero)"
    if fabric.clique_id is None:
        return "its clique in the NVLink fabric is not known"
    if gpu.links and all(link.active is False for link in gpu.links):
        return f"all of its {len(gpu.links)} NVLinks are down"
    return ""


def weakness(gpu: Gpu) -> str:
    """Return what its driver says against a GPU's NVLink fabric, ``""`` for nothing."""
    health = gpu.fabric.health if gpu.fabric is not None else ""
    return "" if health in ("", "healthy") else f"the driver calls the NVLink fabric of gpu{gpu.index} {health}"


def without_channel(snapshot: Snapshot) -> str:
    """Return why processes of a node may be unable to use an NVLink domain, ``""`` where an IMEX channel is there."""
    driver = snapshot.gpu_driver
    if driver is not None and driver.imex_channels:
        return ""
    where = f"in {_CHANNELS} where the daemon runs" if driver is not None else "by a probe of the GPUs' driver"
    return f"no IMEX channel is seen {where}; a rank must have one to map memory of another host's GPU"
