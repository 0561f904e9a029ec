"""What UCX, Gloo and libfabric are told of a job's network, and nothing that they get right by themselves.

Sources: UCX 1.20, ucp/core/ucp_context.c; Gloo's device list as PyTorch reads it; libfabric 1.22, fi_efa(7), fi_cxi(7).
"""

from collections.abc import Iterator, Mapping
from typing import Final

from fabricd.model.path import Transport
from fabricd.model.plan import Setting
from fabricd.plan.settings.gid import ucx_gid_settings
from fabricd.plan.settings.job import Job
from fabricd.plan.settings.scope import by_node

PROVIDER: Final[Mapping[Transport, str]] = {Transport.EFA: "efa", Transport.SLINGSHOT: "cxi"}
#: What several Slingshot sites found that collectives of GPUs need, lest registering memory hangs.
_CXI: Final[Mapping[str, str]] = {"FI_CXI_DISABLE_HOST_REGISTER": "1", "FI_MR_CACHE_MONITOR": "userfaultfd"}
#: Whether UCX asks the routes before it takes a RoCE port. It takes all tables for one, whatever rules say: a longer
#: prefix in the main table, by another interface, hides the way of a port's own (seen with UCX 1.20,
#: ``ucs_netlink_is_best_route``). Earlier ones count no default route.
REACHABILITY: Final = "UCX_IB_ROCE_REACHABILITY_MODE"
ROUTED_BECAUSE: Final = (
    "routers join the RoCE ports, as routes say; UCX by itself knows no routing table of a port's own"
)


def ucx_settings(job: Job) -> Iterator[Setting]:
    """Yield the settings of UCX: its devices, in the names of each node."""
    if job.transport not in (Transport.INFINIBAND, Transport.ROCE, Transport.ETHERNET, Transport.SLINGSHOT):
        return
    values = {node: ",".join(dict.fromkeys(port.interface for port in job.ports(node))) for node in job.nodes}
    names = ", ".join(network.name for network in job.data[:3])
    because = f"{names} ({job.transport}) joins the nodes; UCX would use every device that is up, or fall back to one"
    yield from by_node("UCX_NET_DEVICES", values, because)
    if job.routed:
        yield Setting(name=REACHABILITY, value="all", because=ROUTED_BECAUSE)
    yield from ucx_gid_settings(job)


def gloo_settings(job: Job) -> Iterator[Setting]:
    """Yield ``GLOO_SOCKET_IFNAME``: by itself Gloo takes what the host's own name stands for, often a loopback."""
    ports = {node: job.control_port(node) for node in job.nodes}
    values = {node: port.interface for node, port in ports.items() if port is not None and "," not in port.interface}
    if job.control is not None and len(values) == len(ports) > 1:
        because = f"{job.control.name} joins the nodes; Gloo would take the interface of the host's own name"
        yield from by_node("GLOO_SOCKET_IFNAME", values, because)


def libfabric_settings(job: Job) -> Iterator[Setting]:
    """Yield the settings of libfabric, for NCCL's plugin and MPI on EFA and Slingshot."""
    provider = PROVIDER.get(job.transport)
    if provider is None:
        return
    because = f"{job.data[0].name} ({job.transport}) joins the nodes: without it the job is to fail, not to use TCP"
    yield Setting(name="FI_PROVIDER", value=provider, because=because)
    for name, value in _CXI.items() if job.transport is Transport.SLINGSHOT else ():
        because = "collectives of GPUs over Slingshot: registering host memory with the driver can hang"
        yield Setting(name=name, value=value, because=because)
