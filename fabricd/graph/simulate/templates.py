"""The kinds of machines that come with this program: each a snapshot as the probes would take it, in ``machines/``."""

from importlib import resources

from fabricd.errors import UnknownNameError
from fabricd.model.codec import from_json
from fabricd.model.snapshot import Snapshot

#: What each template is.
TEMPLATES = {
    "a100": "8 A100 80GB SXM with NVSwitch, 8 HDR InfiniBand rails, 2 storage ports (DGX A100)",
    "h100": "8 H100 80GB SXM with NVSwitch, 8 NDR InfiniBand rails, 2 storage ports (HGX H100)",
    "b200": "8 B200 SXM with NVSwitch, 8 RoCE rails of 400 Gb/s (a virtual machine, as Google's A4)",
    "gb200": "4 GB200 of an NVL72 rack, 4 NDR InfiniBand rails; 18 nodes are one NVLink domain",
    "cpu": "no GPU: 8 NUMA nodes, one HDR InfiniBand port",
    "aws-p5": "8 H100 SXM, 32 EFA adapters of 100 Gb/s (a virtual machine, p5.48xlarge)",
    "pcie": "8 L40S on PCIe, no NVLink, 2 RoCE ports of 100 Gb/s",
}


def load_template(name: str) -> Snapshot:
    """Return a template.

    Args:
        name: as in ``TEMPLATES``, in upper or lower case.

    Raises:
        UnknownNameError: there is none of that name.
    """
    known = name.lower()
    if known not in TEMPLATES:
        raise UnknownNameError("template", name, sorted(TEMPLATES))
    data = resources.files(__package__).joinpath("machines", f"{known}.json").read_bytes()
    return from_json(data, Snapshot, what=f"template {known}")
