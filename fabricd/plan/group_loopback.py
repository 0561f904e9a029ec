"""What Gloo is told where all ranks are in one network namespace.

It stands alone, because a launcher of ranks on one host asks for no more of a plan and shall start quickly.
"""

from fabricd.localview import LocalView
from fabricd.model.network import NetworkPort
from fabricd.model.plan import Setting

#: The interface that Gloo takes. Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp.
GLOO_IFNAME = "GLOO_SOCKET_IFNAME"


def loopback_of(view: LocalView, node: str) -> NetworkPort | None:
    """Return the loopback of the only network namespace that all ranks are in; None where it cannot be used.

    Args:
        view: what a rank sees there.
        node: the node's name.
    """
    for one in view.interfaces:
        address = next((text.partition("/")[0] for text in one.addresses if ":" not in text), "")
        if one.loopback and one.up and address:
            return NetworkPort(node=node, interface=one.name, address=address)
    return None


def loopback_settings(port: NetworkPort | None) -> tuple[Setting, ...]:
    """Return what Gloo is told where all ranks are in one network namespace."""
    because = "all ranks are in one network namespace, whose loopback no cable and no name service can take away"
    return (Setting(name=GLOO_IFNAME, value=port.interface, because=because),) if port else ()
