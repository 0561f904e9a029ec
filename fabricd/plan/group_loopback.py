"""What Gloo is told where all ranks are in one network namespace.

It stands alone, because a launcher of ranks on one host asks for no more of a plan and shall start quickly.
"""

from fabricd.model.device import InterfaceKind
from fabricd.model.network import NetworkPort
from fabricd.model.plan import Setting
from fabricd.plan.group_hosts import Hosts, first_address

#: The interface that Gloo takes. Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"


def loopback_of(hosts: Hosts) -> NetworkPort | None:
    """Return the loopback of the only network namespace that all ranks are in; None where it cannot be used."""
    place = hosts.places[0]
    for one in place.facts.interfaces:
        address = first_address(one, 4)
        if one.kind is InterfaceKind.LOOPBACK and one.admin_up and address:
            return NetworkPort(node=place.name, interface=one.name, address=address)
    return None


def loopback_settings(port: NetworkPort | None) -> tuple[Setting, ...]:
    """Return what Gloo is told where all ranks are in one network namespace."""
    because = "all ranks are in one network namespace, whose loopback no cable and no name service can take away"
    return (Setting(name=GLOO_IFNAME, value=port.interface, because=because),) if port else ()
