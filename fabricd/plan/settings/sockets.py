"""Which interfaces NCCL's sockets take by themselves, and what to set where those are not the right ones.

Source: NCCL 2.30, misc/socket.cc: the first that is found carries the start of a job; all of them carry its data where
there is no better network.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from ipaddress import ip_address

from fabricd.model.device import NetInterface
from fabricd.model.path import Transport
from fabricd.model.plan import Setting
from fabricd.model.snapshot import Snapshot
from fabricd.plan.settings.job import Job, interface_named
from fabricd.plan.settings.scope import by_node

#: NCCL keeps at most so many.
_MAX_INTERFACES = 16
_LAST_RESORTS = ("docker", "lo", "virbr")


def default_interfaces(snapshot: Snapshot) -> list[str]:
    """Return the interfaces that NCCL takes without being told, the first one first.

    Those named ib*; without any, all but docker*, lo* and virbr*; without any, those. The kernel lists them by index.
    """
    usable = [one for one in sorted(snapshot.interfaces, key=lambda one: one.index) if _running(one)]
    names = [one.name for one in usable if _has_address(one)]
    found = [name for name in names if name.startswith("ib")]
    found = found or [name for name in names if not name.startswith(_LAST_RESORTS)]
    for prefix in _LAST_RESORTS:
        found = found or [name for name in names if name.startswith(prefix)]
    return found[:_MAX_INTERFACES]


def _running(one: NetInterface) -> bool:
    return one.admin_up and one.carrier is not False and one.oper_state not in ("down", "lowerlayerdown", "notpresent")


def _has_address(one: NetInterface) -> bool:
    """Whether NCCL finds an address: any at all but the IPv6 loopback, also a link-local one."""
    return any(not (address.family == 6 and ip_address(address.address).is_loopback) for address in one.addresses)


def socket_settings(job: Job) -> Iterator[Setting]:
    """Yield what NCCL's sockets need: ``NCCL_SOCKET_IFNAME``, ``NCCL_SOCKET_FAMILY``."""
    carries = job.transport is Transport.ETHERNET
    if job.control is None or not (carries or _wrong_start(job)):
        return
    wanted, why = {}, {}
    for node, snapshot in job.nodes.items():
        port = job.control_port(node)
        if port is None or not _nameable(port.interface):
            return
        wanted[node] = port.interface
        here = {one.interface for one in job.control.ports if one.node == node}
        why[node] = _fault(snapshot, here, carries=carries)
    faults = [f"on {node} NCCL would take {fault}" for node, fault in why.items() if fault]
    if faults:
        because = f"{faults[0]}, and {job.control.name} joins the nodes" + _more(faults)
        yield from by_node("NCCL_SOCKET_IFNAME", {node: f"={name}" for node, name in wanted.items()}, because)
    yield from _family(job, wanted)


def _wrong_start(job: Job) -> bool:
    """Whether the first interfaces that NCCL takes are not all on one network.

    Where the start of a job is all that they carry, any network that joins the nodes does, also one for management.
    """
    first = {(node, next(iter(default_interfaces(snapshot)), "")) for node, snapshot in job.nodes.items()}
    return not any(first <= {(port.node, port.interface) for port in network.ports} for network in job.networks)


def _fault(snapshot: Snapshot, here: AbstractSet[str], *, carries: bool) -> str:
    """Return what NCCL would take instead, ``""`` where that does.

    For the start of a job any interface on the network does. Where sockets carry the data, no other may be among them.
    """
    taken = default_interfaces(snapshot)
    if not taken or taken[0] not in here:
        return taken[0] if taken else "none"
    others = [name for name in taken if name not in here]
    return f"{', '.join(others[:4])} too" if others and carries else ""


def _family(job: Job, wanted: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the family where an interface's first address is not of the network's: NCCL takes the first."""
    for node, name in wanted.items():
        interface = interface_named(job.nodes[node], name)
        port = job.control_port(node)
        if interface is None or port is None or not interface.addresses or not port.address:
            continue
        family = ip_address(port.address).version
        first = sorted(interface.addresses, key=lambda address: address.family)[0]
        if first.family != family:
            why = f"{name} of {node} joins the others by {port.address}, and NCCL would take its {first.address}"
            yield Setting(name="NCCL_SOCKET_FAMILY", value=f"AF_INET{'6' if family == 6 else ''}", because=why)
            return


def _nameable(name: str) -> bool:
    """Whether a name can stand in NCCL's lists, where these characters mean something."""
    return not set(name) & set(",^=:") and name.isprintable()


def _more(faults: list[str]) -> str:
    return f" ({len(faults) - 1} further nodes likewise)" if len(faults) > 1 else ""
