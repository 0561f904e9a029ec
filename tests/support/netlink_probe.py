"""Runs the probe ``netlink`` on recorded answers."""

from pathlib import Path

from fabricd.model.codec import to_json
from fabricd.model.device import NetInterface
from fabricd.probe.base import ProbeContext, ProbeResult, Roots
from fabricd.probe.netlink import NetlinkProbe
from fabricd.probe.netlink_dump import (
    LinkFacts,
    NetlinkDump,
)
from tests.support.tree import Link, Tree

UP = 0x1003
NIC = 0x020000


def probe(root: Path, tree: Tree, dump: NetlinkDump | None = None) -> ProbeResult:
    """What the probe finds in a tree of files, with what netlink answered; None: it was not asked."""
    if dump is not None:
        tree["answers/netlink.json"] = to_json(dump)
    tree.write(root)
    return NetlinkProbe().run(ProbeContext(roots=Roots.under(root), this_host=False, answers=root / "answers"))


def interfaces(root: Path, tree: Tree, dump: NetlinkDump | None = None) -> dict[str, NetInterface]:
    """The interfaces that it finds, by name."""
    return {nic.name: nic for nic in probe(root, tree, dump).facts["interfaces"]}


def links(*facts: LinkFacts) -> NetlinkDump:
    return NetlinkDump(links=facts)


def mlx5(tree: Tree, **files: object) -> str:
    """Adds a Mellanox adapter on NUMA node 1; its folder."""
    return tree.pci(
        "pci0000:16/0000:17:00.0",
        class_code=NIC,
        vendor=0x15B3,
        numa_node="1\n",
        driver=Link("../../../bus/pci/drivers/mlx5_core"),
        **files,  # type: ignore[arg-type]
    )
