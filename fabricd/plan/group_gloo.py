"""What Gloo, the engine of PyTorch and JAX for memory of hosts, can use: IP addresses and nothing else.

Source: Gloo, transport/tcp/device.cc: of an interface it takes the first address that the kernel lists, and those of
IPv4 come first; between ranks of one host, too, it talks by TCP.
"""

from fabricd.model.network import NetworkPort
from fabricd.model.plan import Setting
from fabricd.plan.group_candidate import Candidate, unbound
from fabricd.plan.group_hosts import Hosts, first_address
from fabricd.plan.group_loopback import GLOO_IFNAME


def gloo_fault(candidate: Candidate, hosts: Hosts) -> str:
    """Return why Gloo could not use a network, ``""`` if it could."""
    if candidate.rdma:
        return "Gloo talks by TCP alone"
    if candidate.ipv6:
        for place, ports in zip(hosts.places, candidate.ports, strict=True):
            own = next(one for one in place.facts.interfaces if one.name == ports[0].interface)
            if other := first_address(own, 4):
                return f"at {place.name}, Gloo would use its IPv4 address, {other}"
    return unbound(candidate, "Gloo")


def gloo_settings(candidate: Candidate, port: NetworkPort) -> tuple[Setting, ...]:
    """Return what Gloo is told of a rank's port."""
    because = (
        f"{port.interface} of {port.node} is on {candidate.name} as {port.address}; "
        "Gloo would take the interface of the host's own name"
    )
    return (Setting(name=GLOO_IFNAME, value=port.interface, scope="rank", because=because),)
