"""What the virtual machine's kernel and verbs library tell, against what fabricd's probes find."""

import contextlib
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyverbs.device

from fabricd.model.device import Hca, HcaPort
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.acs import Acs, collect, read_acs
from fabricd.probe.base import ProbeContext
from fabricd.probe.facts import FOLDER, leave_facts
from fabricd.probe.pci import PciProbe
from fabricd.probe.rdma_sysfs import RdmaProbe
from fabricd.probe.runner import take_snapshot
from fabricd.probe.verbs import VerbsProbe

RUN_SECONDS = 60.0
# Source: infiniband/verbs.h: enum ibv_port_state, ibv_mtu, ibv_gid_type_sysfs; link layers IBV_LINK_LAYER_*.
_STATES = {1: "down", 2: "init", 3: "armed", 4: "active"}
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
_LINK_LAYERS = {0: "unspecified", 1: "infiniband", 2: "ethernet"}
_NO_GID = ":".join(["0000"] * 8)


def run(*command: str) -> str:
    """Run a program; fail with what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_SECONDS)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


def ports_of(snapshot: Snapshot) -> dict[str, HcaPort]:
    """Return the first port of each RDMA device."""
    return {hca.name: hca.ports[0] for hca in snapshot.hcas}


def devices_ports_and_gids() -> None:
    """Devices, ports and GIDs from sysfs are those that the verbs library tells."""
    snapshot = take_snapshot(ProbeContext(), probes=[RdmaProbe(), VerbsProbe()])
    assert {report.name: report.outcome for report in snapshot.probes} == {"rdma": Outcome.OK, "verbs": Outcome.OK}, (
        snapshot.probes
    )
    by_name = {hca.name: hca for hca in snapshot.hcas}
    assert sorted(by_name) == ["rxe0", "rxe1"]
    assert sorted(by_name) == sorted(device.name.decode() for device in pyverbs.device.get_device_list())
    told = {device["ifname"]: device["ifindex"] for device in json.loads(run("rdma", "-j", "dev", "show"))}
    assert {name: hca.index for name, hca in by_name.items()} == told, told
    for name, hca in by_name.items():
        with pyverbs.device.Context(name=name) as context:
            same_device(hca, context)
    interfaces = {name: {gid.interface for gid in port.gids} for name, port in ports_of(snapshot).items()}
    assert interfaces == {"rxe0": {"eth0"}, "rxe1": {"v0"}}, interfaces


def same_device(hca: Hca, context: pyverbs.device.Context) -> None:
    """Compare what the probes found with what the library tells of an open device."""
    device = context.query_device()
    assert hca.kind == "soft-roce"
    guid = device.node_guid.to_bytes(8, sys.byteorder).hex()  # the library leaves it in the network's order
    assert hca.node_guid.replace(":", "") == guid, (hca.node_guid, guid)
    assert (hca.max_qp, len(hca.ports)) == (device.max_qp, device.phys_port_cnt)
    assert hca.max_mr_bytes == min(device.max_mr_size, 2**63 - 1)
    for port in hca.ports:
        told = context.query_port(port.port)
        assert port.state == _STATES[told.state]
        assert port.link_layer == _LINK_LAYERS[told.link_layer]
        assert port.active_mtu == _MTU_BYTES[told.active_mtu]
        assert (port.lid, port.sm_lid) == (told.lid, told.sm_lid)
        gids = {index: context.query_gid(port.port, index).gid for index in range(told.gid_tbl_len)}
        assert {gid.index: gid.gid for gid in port.gids} == {at: gid for at, gid in gids.items() if gid != _NO_GID}
        assert "roce-v2" in {gid.type for gid in port.gids}


def counters() -> None:
    """Counters from sysfs are those that the kernel tells by netlink."""
    ports = ports_of(take_snapshot(ProbeContext(), probes=[RdmaProbe()]))
    for device, port in ports.items():
        told = json.loads(run("rdma", "-j", "statistic", "show", "link", f"{device}/{port.port}"))[0]
        numbers = {name: value for name, value in told.items() if name not in ("ifname", "port")}
        assert numbers, told
        assert dict(port.hw_counters) == numbers


def access_control_services() -> None:
    """ACS of a PCIe port is what its registers say, root's to read, and reaches others by what root leaves."""
    bridges = collect(ProbeContext()).acs
    (address,) = [address for address, acs in bridges.items() if acs.outcome is Outcome.OK]
    port = Path("/sys/bus/pci/devices") / address
    assert read_acs(port) == Acs(Outcome.OK, redirects=False)
    assert as_nobody(lambda: read_acs(port) == Acs(Outcome.DENIED))
    set_redirects(port)
    assert read_acs(port) == Acs(Outcome.OK, redirects=True)
    leave_facts(ProbeContext(), FOLDER, ib_fabric=False)
    assert as_nobody(lambda: acs_in_map(port.name) == (Outcome.OK, True))


def kinds_of_interfaces() -> None:
    """Bonds, VLANs and the like, on a kernel that has them all: no test of them is skipped here."""
    tests = ("-k", "kinds", "tests/unit/test_probe_namespaces.py")
    told = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
    assert "skipped" not in told, told


def acs_in_map(address: str) -> tuple[Outcome, bool | None]:
    """Return what the map says of a bridge."""
    devices = PciProbe().run(ProbeContext()).facts["pci"]
    return next((one.acs, one.acs_redirects) for one in devices if one.address == address)


def set_redirects(port: Path) -> None:
    """Have a port send requests and completions between its neighbours up to the root."""
    with (port / "config").open("r+b", buffering=0) as space:
        offset = 0x100
        while (header := struct.unpack_from("<I", os.pread(space.fileno(), 4, offset))[0]) & 0xFFFF != 0x000D:
            offset = header >> 20
        os.pwrite(space.fileno(), struct.pack("<H", 0x0C), offset + 6)


def as_nobody(condition: Callable[[], bool]) -> bool:
    """Tell whether a condition holds in a process without rights."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os._exit(0 if condition() else 1)
        os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
