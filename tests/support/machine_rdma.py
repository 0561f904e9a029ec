"""Renders a machine's network interfaces and RDMA devices, as /sys/class/net and /sys/class/infiniband have them.

Source of the forms: kernel Documentation/ABI/stable/sysfs-class-infiniband.
"""

import ipaddress

from tests.support.machine import Machine, PciNode
from tests.support.tree import Tree

_STATES = {"active": ("4: ACTIVE", "5: LinkUp"), "down": ("1: DOWN", "3: Disabled"), "init": ("2: INIT", "5: LinkUp"),
           "polling": ("1: DOWN", "2: Polling")}  # fmt: skip
_COUNTERS = ("port_rcv_data", "port_xmit_data", "port_rcv_packets", "port_xmit_packets", "symbol_error", "link_downed")
_HW_COUNTERS = ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err")


def add_adapters(tree: Tree, machine: Machine) -> None:
    """Add all adapters, their virtual functions, and the loopback interface."""
    if not machine.facts:
        return
    tree.net("lo", index=1, mac="00:00:00:00:00:00", type="772\n", flags="0x9\n", mtu="65536\n", operstate="unknown\n")
    index = 2
    for number, node in enumerate(machine.of_kind("nic")):
        name = node.words[1] if len(node.words) > 1 else "-"
        net = node.attributes.get("net", "")
        mac = f"b8:3f:d2:{machine.serial:02x}:{number:02x}:01"
        if net:
            _add_interface(tree, node, net, index, mac)
            index += 1
        if name != "-":
            _add_rdma(tree, node, name, (machine.serial, number), net, mac)
        for virtual in range(int(node.attributes.get("vfs", "0"))):
            _add_virtual_function(tree, node, virtual)


def _add_interface(tree: Tree, node: PciNode, net: str, index: int, mac: str) -> None:
    up = node.attributes.get("state", "active") == "active"
    files = {
        "operstate": "up" if up else "down", "carrier": str(int(up)), "duplex": "full" if up else "unknown",
        "speed": str(node.model.get("mbps", -1) if up else -1), "mtu": node.attributes.get("mtu", "1500"),
    }  # fmt: skip
    if node.model.get("layer") == "InfiniBand":
        files |= {"type": "32", "mtu": "2044", "address": f"00:00:10:49:fe:80:00:00:00:00:00:00:00:00:{mac}"}
    device = f"sys/devices/{node.place}"
    tree.net(net, index=index, device=device, mac=mac, **{name: f"{text}\n" for name, text in files.items()})


def _add_rdma(tree: Tree, node: PciNode, name: str, serial: tuple[int, int], net: str, mac: str) -> None:
    model, device, number = node.model, f"sys/devices/{node.place}", serial[1]
    folder = f"{device}/infiniband/{name}"
    guid = f"b83fd20300{serial[0]:02x}{(number + 1) << 4:04x}"
    grouped = ":".join(guid[at : at + 4] for at in range(0, 16, 4))
    tree.link(f"sys/class/infiniband/{name}", folder)
    tree.link(f"{folder}/device", device)
    tree.update(
        folder,
        {
            "node_guid": f"{grouped}\n", "sys_image_guid": f"{grouped}\n", "fw_ver": f"{model['firmware']}\n",
            "hca_type": f"{model['hca_type']}\n", "node_desc": f"{name}\n",
            "node_type": "7: unspecified\n" if model["layer"] == "Unspecified" else "1: CA\n",
        },
    )  # fmt: skip
    if "board" in model:
        tree[f"{folder}/board_id"] = f"{model['board']}\n"
    state, physical = _STATES[node.attributes.get("state", "active")]
    port = f"{folder}/ports/1"
    infiniband = model["layer"] == "InfiniBand"
    lid = number + 17 if infiniband and state.startswith("4") else 0
    tree.update(
        port,
        {
            "state": f"{state}\n", "phys_state": f"{physical}\n",
            "link_layer": f"{model['layer']}\n",
            "rate": f"{node.attributes.get('rate', model['rate']).replace('_', ' ')}\n",
            "lid": f"{lid:#x}\n", "sm_lid": f"{1 if lid else 0:#x}\n", "lid_mask_count": "0\n", "pkeys/0": "0xffff\n",
            "cap_mask": "0x2651e84a\n",
        },
    )  # fmt: skip
    for place, counters in (("counters", _COUNTERS), ("hw_counters", _HW_COUNTERS)):
        for position, counter in enumerate(counters):
            tree[f"{port}/{place}/{counter}"] = f"{(number + 1) * (position % 4) * 1000}\n"
    _add_gids(tree, port, guid, net, mac, node.attributes.get("ip", ""), infiniband=infiniband)


def _add_gids(tree: Tree, port: str, guid: str, net: str, mac: str, ip: str, *, infiniband: bool) -> None:
    """Add the GID table: InfiniBand has one of its GUID; RoCE has each address in version 1 and version 2."""
    if infiniband or not net:
        entries = [(int("fe80000000000000" + guid, 16), "IB/RoCE v1", "")]
    else:
        octets = [int(part, 16) for part in mac.split(":")]
        octets[0] ^= 2
        local = bytes.fromhex("fe80000000000000") + bytes([*octets[:3], 0xFF, 0xFE, *octets[3:]])
        addresses = [int.from_bytes(local)]
        if ip:
            addresses.append(0xFFFF << 32 | int(ipaddress.IPv4Address(ip)))
        entries = [(address, kind, net) for address in addresses for kind in ("IB/RoCE v1", "RoCE v2")]
    for index, (gid, kind, interface) in enumerate(entries):
        text = f"{gid:032x}"
        tree[f"{port}/gids/{index}"] = ":".join(text[at : at + 4] for at in range(0, 32, 4)) + "\n"
        tree[f"{port}/gid_attrs/types/{index}"] = f"{kind}\n"
        if interface:
            tree[f"{port}/gid_attrs/ndevs/{index}"] = f"{interface}\n"
    tree[f"{port}/gids/{len(entries)}"] = ":".join(["0000"] * 8) + "\n"


def _add_virtual_function(tree: Tree, physical: PciNode, number: int) -> None:
    """Add a virtual function: its routing id is the physical one's plus 16 plus its number (eight functions a slot)."""
    domain, bus, rest = physical.address.split(":")
    routing = (int(bus, 16) << 8 | int(rest[:2], 16) << 3 | int(rest[3])) + 16 + number
    address = f"{domain}:{routing >> 8:02x}:{routing >> 3 & 31:02x}.{routing & 7}"
    place = physical.place.rpartition("/")[0] + f"/{address}"
    folder = tree.pci(
        place, class_code=0x020000, vendor=physical.model["vendor"], device=physical.model["device"] + 1,
        numa_node=f"{physical.numa}\n",
    )  # fmt: skip
    tree.link(f"{folder}/physfn", f"sys/devices/{physical.place}")
    tree.link(f"sys/devices/{physical.place}/virtfn{number}", folder)
