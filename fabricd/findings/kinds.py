"""Which ports of a node can be compared with each other."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from fabricd.graph.networks_rails import beside_gpus
from fabricd.model.device import Hca, HcaPort, InterfaceKind, NetInterface
from fabricd.model.snapshot import Snapshot

_T = TypeVar("_T")
_NETWORK_CLASS = 0x02
BONDS = frozenset({InterfaceKind.BOND, InterfaceKind.TEAM})


class Kinds:
    """What the cards of a node have in common whose functions can be compared."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._devices = {device.address: device for device in snapshot.pci}
        self._near: frozenset[str] = frozenset().union(*beside_gpus(snapshot).values())
        bonds = {one.name for one in snapshot.interfaces if one.kind in BONDS}
        self._bonded = {one.pci_address for one in snapshot.interfaces if one.controller in bonds}

    def of(self, address: str) -> Hashable | None:
        """Return a card's kind; None for what no PCI function is behind, and for a host's virtual functions.

        The second port of a card that has two is often not cabled on any of them, so the number of the function counts.
        A card for storage may be of the model of those beside GPUs, and slower, or without a cable.
        """
        device = self._devices.get(address)
        if device is None or device.physical_function:
            return None
        model = device.vendor_id, device.device_id, device.subsystem_vendor_id, device.subsystem_device_id
        return model, address.rpartition(".")[2], address in self._near, address in self._bonded

    def of_port(self, hca: Hca, port: HcaPort) -> Hashable | None:
        """Return the kind of an adapter's port."""
        kind = self.of(hca.pci_address)
        return None if kind is None else (kind, port.port, port.link_layer)

    def is_network(self, interface: NetInterface) -> bool:
        """Tell whether a network card is behind an interface: others, such as USB's, do not know their duplex."""
        device = self._devices.get(interface.pci_address)
        return device is not None and (device.class_code is None or device.class_code >> 16 == _NETWORK_CLASS)


def alike(items: Iterable[_T], kind: Callable[[_T], Hashable | None]) -> list[list[_T]]:
    """Return those of each kind; what is of none is left out."""
    groups: dict[Hashable, list[_T]] = defaultdict(list)
    for item in items:
        if (key := kind(item)) is not None:
            groups[key].append(item)
    return list(groups.values())
