"""What changes a node's map, and what does not."""

from dataclasses import replace

import pytest

from fabricd.model.codec import content_hash
from fabricd.model.device import Gpu, PciDevice, PcieLink
from fabricd.model.identity import NodeIdentity
from fabricd.model.snapshot import Snapshot

PORT, GPU, NIC_PORT, NIC = "0000:16:01.0", "0000:17:00.0", "0000:16:02.0", "0000:18:00.0"
WORKING = PcieLink(speed_gts=32.0, width=16, max_speed_gts=32.0, max_width=16)
MACHINE = Snapshot(
    node=NodeIdentity(node_id="n", name="n"),
    pci=(
        PciDevice(address=PORT, class_code=0x060400, link=WORKING),
        PciDevice(address=NIC_PORT, class_code=0x060400, link=WORKING),
        PciDevice(address=GPU, parent=PORT, class_code=0x030200, link=WORKING),
        PciDevice(address=NIC, parent=NIC_PORT, class_code=0x020700, link=WORKING),
    ),
    gpus=(Gpu(index=0, pci_address=GPU, pcie=WORKING),),
)


def with_links(*addresses: str, gpus: bool = False, **change: object) -> Snapshot:
    """Return the machine with the links of some devices changed, and those of its GPUs as NVML tells them."""
    link = replace(WORKING, **change)
    pci = tuple(replace(device, link=link) if device.address in addresses else device for device in MACHINE.pci)
    return replace(
        MACHINE, pci=pci, gpus=tuple(replace(gpu, pcie=link) for gpu in MACHINE.gpus) if gpus else MACHINE.gpus
    )


def test_a_gpu_that_idles_changes_nothing() -> None:
    idle = with_links(PORT, GPU, gpus=True, speed_gts=2.5)
    assert idle != MACHINE
    assert content_hash(idle) == content_hash(MACHINE)


@pytest.mark.parametrize(
    ("addresses", "change"),
    [
        ((NIC,), {"speed_gts": 16.0}),
        ((NIC_PORT,), {"speed_gts": 16.0}),
        ((GPU,), {"width": 8}),
        ((PORT,), {"width": 8}),
        ((GPU,), {"max_speed_gts": 16.0}),
    ],
)
def test_a_link_that_is_slower_at_work_is_another_map(addresses: tuple[str, ...], change: dict[str, object]) -> None:
    assert content_hash(with_links(*addresses, **change)) != content_hash(MACHINE)


def test_a_gpu_that_lost_lanes_is_another_map() -> None:
    assert content_hash(with_links(gpus=True, width=8)) != content_hash(MACHINE)
