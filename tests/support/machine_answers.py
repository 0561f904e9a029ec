"""Renders what no file of a machine tells: the answers of netlink and of the verbs library, as a recording has them."""

from pathlib import Path

from fabricd.model.codec import to_json
from fabricd.model.device import Hca, HcaPort
from fabricd.probe.netlink import RECORDED as NETLINK
from fabricd.probe.netlink_dump import AddressFacts, LinkFacts, NetlinkDump, SpeedFacts
from fabricd.probe.rdma_sysfs import RECORDED as RDMA
from fabricd.probe.rdma_sysfs import RdmaAnswer, RdmaNumber
from fabricd.probe.verbs import RECORDED as VERBS
from fabricd.probe.verbs import VerbsAnswer
from tests.support.machine import Machine, PciNode
from tests.support.tree import Tree

_UP, _BROADCAST, _LOOPBACK, _RUNNING, _MULTICAST = 0x1, 0x2, 0x8, 0x40, 0x1000
_PREFIX = 24


def write_answers(machine: Machine, tree: Tree, folder: Path) -> Path:
    """Write the answers of a machine whose tree is rendered; return the folder."""
    folder.mkdir()
    (folder / NETLINK).write_bytes(to_json(_netlink(machine, tree)))
    devices = [node for node in machine.of_kind("nic") if node.words[1:] and node.words[1] != "-"]
    if devices:
        (folder / VERBS).write_bytes(to_json(_verbs(devices)))
    numbers = tuple(
        RdmaNumber(name=node.words[1], index=int(node.attributes["index"]))
        for node in devices
        if "index" in node.attributes
    )
    if numbers:
        (folder / RDMA).write_bytes(to_json(RdmaAnswer(devices=numbers)))
    return folder


def _netlink(machine: Machine, tree: Tree) -> NetlinkDump:
    links = [_loopback()] if machine.facts else []
    addresses = [AddressFacts(index=1, address="127.0.0.1", prefix_length=8, scope="host")] if links else []
    speeds = []
    for node in machine.of_kind("nic"):
        net = node.attributes.get("net")
        if not net:
            continue
        read = {name: str(tree.entries[f"sys/devices/{node.place}/net/{net}/{name}"]).strip() for name in _FILES}
        index, up = int(read["ifindex"]), read["operstate"] == "up"
        links.append(
            LinkFacts(
                index=index,
                name=net,
                hardware_type=int(read["type"]),
                flags=_UP | _BROADCAST | _MULTICAST | (_RUNNING if up else 0),
                mac=read["address"],
                mtu=int(read["mtu"]),
                oper_state=read["operstate"],
                carrier=up,
            )
        )
        megabits = node.model.get("mbps")
        speeds.append(
            SpeedFacts(index=index, megabits_per_second=megabits if up else None, duplex="full" if up else "")
        )
        if "ip" in node.attributes:
            addresses.append(AddressFacts(index=index, address=node.attributes["ip"], prefix_length=_PREFIX))
    return NetlinkDump(links=tuple(links), addresses=tuple(addresses), speeds=tuple(speeds))


_FILES = ("ifindex", "type", "address", "mtu", "operstate")


def _loopback() -> LinkFacts:
    return LinkFacts(
        index=1, name="lo", hardware_type=772, flags=_UP | _LOOPBACK | _RUNNING, mac="00:00:00:00:00:00", mtu=65536,
        oper_state="unknown", carrier=True,
    )  # fmt: skip


def _verbs(devices: list[PciNode]) -> VerbsAnswer:
    return VerbsAnswer(
        names=tuple(node.words[1] for node in devices),
        hcas=tuple(
            Hca(
                name=node.words[1],
                ports=(HcaPort(port=1, active_mtu=4096 if node.model["layer"] == "InfiniBand" else 1024),),
                dmabuf=node.model["driver"] == "mlx5_core",
                max_qp=131072,
                max_mr_bytes=2**63 - 1,
            )
            for node in devices
        ),
    )
