"""What NCCL sees of the nodes of a job: their topologies, with the ports that carry the job's data and no others."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import count

from fabricd.errors import NoNetworkError
from fabricd.graph.nccl_xml_corrected import corrected_topology
from fabricd.graph.nccl_xml_types import NcclNic, NcclPci, NcclTopology
from fabricd.model.snapshot import Snapshot
from fabricd.plan.settings.job import RDMA, Job, job_of

#: A port: the adapter's name, and the port's number.
_Port = tuple[str, int]


def topologies_of(nodes: Mapping[str, Snapshot]) -> dict[str, NcclTopology]:
    """Return the topology of each node, by name, with its links as they are now.

    On several nodes, ports for storage or management are left out, and the others counted anew: so NCCL does that was
    told its ports (``NCCL_IB_HCA``). Where sockets alone join the nodes, adapters that reach some of them are no ports
    of the job. Where no network joins them, all ports stay: GPUs of one NVLink domain need none.

    Args:
        nodes: those of the job, by name.
    """
    if len(nodes) > 1:
        try:
            job = job_of(nodes)
        except NoNetworkError:
            pass
        else:
            return {name: _with_ports(corrected_topology(_seen(job, name)), _ports(job, name)) for name in nodes}
    return {name: corrected_topology(snapshot) for name, snapshot in nodes.items()}


def check_joined(nodes: Mapping[str, Snapshot], machines: int) -> None:
    """Check that a network joins what does not share an NVLink domain.

    Args:
        nodes: those of the job, by name.
        machines: how many there are of them, a domain being one.

    Raises:
        NoNetworkError: none does; says why not.
    """
    if machines > 1 and len(nodes) > 1:
        job_of(nodes)


def nvlink_domains(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return the NVLink domain of each node whose GPUs are all in one that may span hosts, by name."""
    found = {}
    for name, snapshot in nodes.items():
        fabrics = {(gpu.fabric.cluster_uuid, gpu.fabric.clique_id) for gpu in snapshot.gpus if gpu.fabric}
        ready = all(gpu.fabric and gpu.fabric.cluster_uuid and gpu.fabric.state == "completed" for gpu in snapshot.gpus)
        if ready and len(fabrics) == 1:
            found[name] = "{}.{}".format(*fabrics.pop())
    return found


def _seen(job: Job, node: str) -> Snapshot:
    """Return a node as NCCL sees it that was told its network (``NCCL_NET``): with sockets, adapters do not count."""
    snapshot = job.nodes[node]
    if job.transport in RDMA:
        return snapshot
    names = {port.interface for port in job.ports(node)}
    return replace(snapshot, hcas=(), interfaces=tuple(one for one in snapshot.interfaces if one.name in names))


def _ports(job: Job, node: str) -> set[_Port]:
    """Return a node's ports for data; those of sockets have the number 0."""
    of_adapters = {(hca.name, port.port) for hca, port, _ in job.rdma_ports(node)}
    return of_adapters or {(port.interface, 0) for port in job.ports(node)}


def _with_ports(topology: NcclTopology, ports: Collection[_Port]) -> NcclTopology:
    nets = [net for cpu in topology.cpus for nic, _ in cpu.nics() for net in nic.nets]
    if all((net.name, net.port) in ports for net in nets) or not any((net.name, net.port) in ports for net in nets):
        return topology
    numbers = count()

    def card(nic: NcclNic) -> NcclNic:
        kept = [net for net in nic.nets if net.dev is not None and (net.name, net.port) in ports]
        return replace(nic, nets=tuple(replace(net, dev=next(numbers)) for net in kept))

    def device(pci: NcclPci) -> NcclPci:
        return replace(pci, nics=tuple(map(card, pci.nics)), children=tuple(map(device, pci.children)))

    cpus = tuple(
        replace(cpu, children=tuple(card(one) if isinstance(one, NcclNic) else device(one) for one in cpu.children))
        for cpu in topology.cpus
    )
    return replace(topology, cpus=cpus).trimmed()
