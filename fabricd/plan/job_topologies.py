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
    told its ports (``NCCL_IB_HCA``). Where the network is not told, all ports stay.

    Args:
        nodes: those of the job, by name.
    """
    whole = {name: corrected_topology(snapshot) for name, snapshot in nodes.items()}
    if len(nodes) < 2:
        return whole
    try:
        job = job_of(nodes)
    except NoNetworkError:
        return whole
    if job.transport not in RDMA:
        return whole
    return {name: _with_ports(topology, _ports(job, name)) for name, topology in whole.items()}


def nvlink_domains(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return the NVLink domain of each node whose GPUs are all in one that may span hosts, by name."""
    found = {}
    for name, snapshot in nodes.items():
        fabrics = {(gpu.fabric.cluster_uuid, gpu.fabric.clique_id) for gpu in snapshot.gpus if gpu.fabric}
        ready = all(gpu.fabric and gpu.fabric.cluster_uuid and gpu.fabric.state == "completed" for gpu in snapshot.gpus)
        if ready and len(fabrics) == 1:
            found[name] = "{}.{}".format(*fabrics.pop())
    return found


def _ports(job: Job, node: str) -> set[_Port]:
    return {(hca.name, port.port) for hca, port, _ in job.rdma_ports(node)}


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
