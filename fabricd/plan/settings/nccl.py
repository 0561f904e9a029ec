"""What NCCL is told of a job's network and machines, and nothing that it gets right by itself.

Source: NCCL 2.30, transport/net_ib.cc, graph/paths.cc, and its manual's page on environment variables.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations

from fabricd.errors import FabricError
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.template import placement
from fabricd.model.device import Gpu, Hca, PciDevice
from fabricd.model.path import Transport
from fabricd.model.plan import Setting
from fabricd.model.snapshot import Snapshot
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.gdr import check_gdr
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.rules import compute_paths
from fabricd.plan.settings.gid import nccl_gid_settings
from fabricd.plan.settings.job import Job
from fabricd.plan.settings.scope import by_node
from fabricd.plan.settings.sockets import socket_settings

#: Networks of NCCL by the name that each gives itself.
NCCL_NET = {
    Transport.INFINIBAND: "IB",
    Transport.ROCE: "IB",
    Transport.EFA: "AWS Libfabric",
    Transport.SLINGSHOT: "AWS Libfabric",
    Transport.ETHERNET: "Socket",
}
_ZEN = 0x17  #: AMD's family of processors from which on devices of two root ports reach each other at full speed


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteChoices:
    """What only a site knows; each is set where it is given, and never guessed."""

    traffic_class: int | None = None
    service_level: int | None = None
    pkey_index: int | None = None
    graph_file: str = ""  #: on request: it binds every communicator of the process
    topo_files: Mapping[str, str] | None = None  #: by node, where its corrected topology was written


def nccl_settings(job: Job, site: SiteChoices) -> Iterator[Setting]:
    """Yield the settings of NCCL for a job."""
    if job.data:
        yield from _net(job)
        yield from socket_settings(job)
        yield from _hcas(job)
        yield from nccl_gid_settings(job)
        yield from _cross_nic(job)
        yield from _gpudirect_tcp(job)
        yield from _gdr_level(job)
    yield from _p2p_level(job)
    yield from _topo_file(job, site)
    yield from _of_site(job, site)


def _net(job: Job) -> Iterator[Setting]:
    """Name the network, so that a job that cannot use it fails instead of going slowly over another."""
    value = NCCL_NET.get(job.transport)
    first = job.data[0]
    if job.transport is Transport.ETHERNET:
        active = [f"{hca.name} of {node}" for node, one in job.nodes.items() for _, hca in _ib_ports(one)]
        # RoCE on all nodes, in subnets that nothing known joins: rules that are not read may.
        everywhere = {port.node for one in job.networks if one.transport is Transport.ROCE for port in one.ports}
        if active and everywhere != set(job.nodes):
            why = f"{first.name} is what joins all nodes, and NCCL would take {active[0]} where it can"
            yield Setting(name="NCCL_NET", value="Socket", because=why)
    elif value:
        why = (
            f"{first.name} ({first.transport}) joins the nodes: without it the job is to fail, not to fall back to TCP"
        )
        yield Setting(name="NCCL_NET", value=value, because=why)


def _ib_ports(snapshot: Snapshot) -> Iterator[tuple[str, Hca]]:
    """Yield the ports that NCCL's own RDMA network takes without being told, all that are active: name and device."""
    for name, hca, port in snapshot.hca_ports():
        if port.state == "active" and port.link_layer in ("infiniband", "ethernet"):
            yield name, hca


def _hcas(job: Job) -> Iterator[Setting]:
    """Name the ports for data where an active one is not among them."""
    if job.transport not in (Transport.INFINIBAND, Transport.ROCE):
        return
    values: dict[str, str] = {}
    extra: list[tuple[str, str]] = []
    for node, snapshot in job.nodes.items():
        wanted = dict.fromkeys(port.interface for port in job.ports(node))
        active = [name for name, _ in _ib_ports(snapshot)]
        extra += [(name, node) for name in active if name not in wanted]
        values[node] = "=" + ",".join(wanted)
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        name, node = extra[0]
        because = f"NCCL would also take {name} of {node}{more}: {_why_not(job, name, node)}"
        yield from by_node("NCCL_IB_HCA", values, because)


def _why_not(job: Job, name: str, node: str) -> str:
    """Return why a port does not carry the job's data."""
    left_out = dict(job.left_out)
    for network in job.networks:
        if network.name in left_out and any((port.node, port.interface) == (node, name) for port in network.ports):
            return f"it is on {network.name}: {left_out[network.name]}"
    return f"it is not on {', '.join(network.name for network in job.data[:3])}"


def _cross_nic(job: Job) -> Iterator[Setting]:
    """Keep each rail to itself where rails are networks of their own: what crosses them does not arrive."""
    if len(job.data) > 1 and job.transport in (Transport.INFINIBAND, Transport.ROCE, Transport.GPUDIRECT_TCP):
        names = ", ".join(network.name for network in job.data[:3])
        apart = job.transport is Transport.INFINIBAND
        why = "a port reaches its own rail only" if apart else "that one leads to another is not known"
        because = f"{len(job.data)} rails are networks of their own ({names}, ...): {why}"
        yield Setting(name="NCCL_CROSS_NIC", value="0", because=because)


def _gpudirect_tcp(job: Job) -> Iterator[Setting]:
    """Name the cards of Google's plugins: GPUDirect-TCPXO has one beside each GPU, -TCPX one beside each pair."""
    if job.transport is not Transport.GPUDIRECT_TCP or job.control is None:
        return
    data = {node: list(dict.fromkeys(port.interface for port in job.ports(node))) for node in job.nodes}
    control = {node: port.interface for node in job.nodes if (port := job.control_port(node)) is not None}
    one_each = all(len(data[node]) >= len(snapshot.gpus) for node, snapshot in job.nodes.items())
    plugin = "NCCL_FASTRAK" if one_each else "NCCL_GPUDIRECTTCPX"
    what = "IFNAME" if one_each else "SOCKET_IFNAME"
    because = f"{len(job.data)} networks of gVNICs beside GPUs; needs Google's plugin and its receiving daemon"
    yield from by_node(f"{plugin}_{what}", {node: ",".join(names) for node, names in data.items()}, because)
    yield from by_node(f"{plugin}_CTRL_DEV", control, f"{job.control.name} joins the nodes beside the data")


def _gdr_level(job: Job) -> Iterator[Setting]:
    """Allow GPUDirect at the distance where all pairs of GPU and nearest port are, if NCCL's own limit is below it."""
    if job.transport not in (Transport.INFINIBAND, Transport.ROCE, Transport.SLINGSHOT):
        return
    told = ""
    known: dict[object, str] = {}
    for node, snapshot in job.nodes.items():
        kind = _kind(snapshot)
        if kind not in known:
            known[kind] = _off_by_distance(snapshot) if _passes_root(snapshot) else ""
        if not known[kind]:
            return
        told = told or f"on {node} {known[kind]}"
    yield Setting(name="NCCL_NET_GDR_LEVEL", value="PHB", because=f"{told}; both can, and its processor passes it on")


def _passes_root(snapshot: Snapshot) -> bool:
    cpu = snapshot.node.cpu
    return cpu.vendor == "AuthenticAMD" and (cpu.family or 0) >= _ZEN


def _kind(snapshot: Snapshot) -> object:
    """Return what is the same of equal machines: hundreds of them need not be computed one by one."""
    devices = tuple((device.address, device.parent, device.numa_node, device.link) for device in snapshot.pci)
    cards = tuple((hca.pci_address, hca.dmabuf, hca.peer_memory, len(hca.ports)) for hca in snapshot.hcas)
    gpus = tuple((gpu.pci_address, gpu.compute_capability, len(gpu.links)) for gpu in snapshot.gpus)
    return devices, cards, gpus, snapshot.node.cpu, snapshot.topology_file


def _off_by_distance(snapshot: Snapshot) -> str:
    """Return NCCL's verdict where each GPU's nearest port is at the host bridge, and only for that not direct."""
    table = _table(snapshot)
    if table is None:
        return ""
    told = ""
    for gpu in table.system.gpus:
        nets = [net for net in table.system.nets if net.gdr]
        if not nets:
            return ""
        nearest = min(nets, key=lambda net: table.get(gpu, net).kind)
        verdict = check_gdr(table, gpu, nearest, read=False)
        if verdict.enabled or not gpu.gdr or table.get(gpu, nearest).kind != PathKind.PHB:
            return ""
        told = told or verdict.reason
    return told


def _table(snapshot: Snapshot) -> PathTable | None:
    try:
        return compute_paths(build_system(topology_of(snapshot)), NcclEnvironment())
    except FabricError:
        return None  # NCCL itself fails on this machine; what it would do is not known


def _p2p_level(job: Job) -> Iterator[Setting]:
    """Keep traffic between GPUs off PCIe where bridges send it up to the root although no hypervisor needs that."""
    for node, snapshot in job.nodes.items():
        bridge = _redirecting_bridge(snapshot)
        if bridge and snapshot.node.virtualization in ("", "none"):
            because = (
                f"on {node} the bridge {bridge} redirects traffic between GPUs to the root (ACS): slow, or it hangs"
            )
            yield Setting(name="NCCL_P2P_LEVEL", value="NVL", because=because)
            return


def _redirecting_bridge(snapshot: Snapshot) -> str:
    """Return a port that redirects between two GPUs below one switch that have no NVLink; "" for none."""
    devices = {device.address: device for device in snapshot.pci}
    above = {gpu.index: _bridges(devices, gpu.pci_address) for gpu in snapshot.gpus}
    for a, b in permutations(snapshot.gpus, 2):
        common = next((bridge for bridge in above[a.index] if bridge in above[b.index]), None)
        if common is None or _have_nvlink(a, b):
            continue
        for bridge in above[a.index][: above[a.index].index(common)]:
            if devices[bridge].acs_redirects:
                return bridge
    return ""


def _bridges(devices: Mapping[str, PciDevice], address: str) -> list[str]:
    """Return the bridges above a device, nearest first."""
    found: list[str] = []
    address = devices[address].parent if address in devices else ""
    while address in devices and address not in found:
        found.append(address)
        address = devices[address].parent
    return found


def _have_nvlink(a: Gpu, b: Gpu) -> bool:
    used = [link for link in a.links if link.active]
    switched = all(any(link.active and link.remote_type == "switch" for link in gpu.links) for gpu in (a, b))
    return switched or any(link.remote_pci_address == b.pci_address for link in used)


def _topo_file(job: Job, site: SiteChoices) -> Iterator[Setting]:
    """Name a topology file on each node where NCCL would not see how its devices hang together."""
    written = site.topo_files or {}
    paths, reasons = {}, {}
    for node, snapshot in job.nodes.items():
        placed = placement(snapshot)
        file = snapshot.topology_file if placed.template is not None else None
        if written.get(node, "").startswith("/"):
            paths[node], reasons[node] = written[node], "as asked for: it corrects what NCCL would find"
        elif file is not None and file.path.startswith("/"):
            paths[node], reasons[node] = file.path, placed.notes[-1] if placed.notes else "it describes this machine"
    if len(paths) == len(job.nodes) and len(set(paths.values())) == 1:
        yield from by_node("NCCL_TOPO_FILE", paths, next(iter(reasons.values())))
        return
    for node, path in paths.items():
        yield Setting(name="NCCL_TOPO_FILE", value=path, scope="node", node=node, because=reasons[node])


def _of_site(job: Job, site: SiteChoices) -> Iterator[Setting]:
    given = {
        "NCCL_IB_TC": site.traffic_class,
        "NCCL_IB_SL": site.service_level,
        "NCCL_IB_PKEY": site.pkey_index,
    }
    if job.transport in (Transport.INFINIBAND, Transport.ROCE):
        for name, value in given.items():
            if value is not None:
                yield Setting(name=name, value=str(value), because="the site says so")
    if site.graph_file:
        yield Setting(name="NCCL_GRAPH_FILE", value=site.graph_file, because="asked for: rings and ports as planned")
