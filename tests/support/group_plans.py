"""Ranks of groups, what their hosts know and have measured, and what is read of a plan for them."""

from fabricd.localview import LocalView, ViewInterface
from fabricd.model.device import NetInterface
from fabricd.model.measurement import Measurement
from fabricd.model.plan import GroupPlan
from tests.support.nodes import nic

LO = ViewInterface(name="lo", mac="00:00:00:00:00:00", up=True, loopback=True, addresses=("127.0.0.1/8",))


def mac(host: str, name: str) -> str:
    """Of a host's interface."""
    return f"02:{ord(host):02x}:00:00:00:{sum(name.encode()) % 256:02x}"


def view(host: str = "a", rank: int = 0, **fields) -> LocalView:
    """A rank on host a, b, ...; interfaces as name="address/length"."""
    known = set(LocalView.__dataclass_fields__)
    interfaces = tuple(
        ViewInterface(name=name, mac=mac(host, name), up=True, addresses=tuple(address.split()))
        for name, address in fields.items()
        if name not in known
    )
    facts = {
        "hostname": host,
        "pid": 100 + rank,
        "boot_id": f"boot-{host}",
        "net_namespace": "1",
        "ipc_namespace": "2",
        "pid_namespace": "3",
        "shm_device": "0:4",
        "node_id": f"id-{host}",
        "interfaces": (LO, *interfaces),
    }
    return LocalView(**{**facts, **{name: value for name, value in fields.items() if name in known}})


def card(host: str, name: str, address: str = "", **fields: object) -> NetInterface:
    """A host's interface, as its daemon knows it; see ``view``."""
    return nic(name, address, **{"mac": mac(host, name), **fields})


def measured(src: str, dst: str, gigabytes: float = 1.0, **fields: object) -> Measurement:
    """What daemons of hosts a and b found between two addresses; GB/s."""
    facts = {
        "src_node": "id-a",
        "dst_node": "id-b",
        "src_interface": "?",
        "dst_interface": "?",
        "src_address": src,
        "dst_address": dst,
        "network": "?",
        "reachable": True,
        "latency_seconds": 20e-6,
        "bandwidth_bytes_per_second": gigabytes * 1e9,
        "age_seconds": 3.0,
    }
    return Measurement(**{**facts, **fields})


def settings(plan: GroupPlan, rank: int = 0) -> dict[str, str]:
    """What a rank sets, by name."""
    return {one.name: one.value for one in plan.ranks[rank].settings}


def chosen(plan: GroupPlan) -> str:
    """The network that joins the hosts."""
    return next(one.network for one in plan.networks if one.chosen)


def reason(plan: GroupPlan, network: str) -> str:
    """Why a network was taken or not."""
    return next(one.reason for one in plan.networks if one.network == network)


TWO = {0: view("a", fast="10.1.0.1/24", slow="10.2.0.1/24"), 1: view("b", 1, fast="10.1.0.2/24", slow="10.2.0.2/24")}
