"""ACS of bridges: read from configuration space, or from what a privileged reader has left."""

import struct
from pathlib import Path

import pytest

from fabricd.model.codec import to_json
from fabricd.model.device import PciDevice
from fabricd.model.observation import Outcome
from fabricd.probe.acs import LEFT_FACTS, Acs, LeftFacts, read_acs
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.facts import leave_facts
from fabricd.probe.pci import PciProbe
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Denied, Link, Pipe, Tree

AER, ACS, REDIRECTING, FORWARDING = 0x0001, 0x000D, 0x1D, 0x11
BRIDGE, SWITCH_PORT, NIC = "0000:16:01.0", "0000:17:00.0", "0000:18:00.0"


def space(*capabilities: tuple[int, int, int], size: int = 4096, control: int = 0) -> bytes:
    """Return a configuration space with extended capabilities (offset, id, next)."""
    made = bytearray(4096)
    for offset, identifier, following in capabilities:
        struct.pack_into("<I", made, offset, identifier | 1 << 16 | following << 20)
        struct.pack_into("<HH", made, offset + 4, 0x5F, control)
    return bytes(made[:size])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (space((0x100, AER, 0x148), (0x148, ACS, 0), control=REDIRECTING), Acs(Outcome.OK, redirects=True)),
        (space((0x100, ACS, 0), control=FORWARDING), Acs(Outcome.OK, redirects=False)),
        (space((0x100, AER, 0)), Acs(Outcome.UNSUPPORTED)),
        (space(), Acs(Outcome.UNSUPPORTED)),
        (space(size=256), Acs(Outcome.UNSUPPORTED)),  # conventional PCI
        (space(size=64), Acs(Outcome.DENIED)),  # what the kernel shows to those without privilege
        (b"", Acs(Outcome.DENIED)),
        (b"\xff" * 4096, Acs(Outcome.UNSUPPORTED)),  # a device that has fallen off the bus
        (space((0x100, AER, 0x100)), Acs(Outcome.UNSUPPORTED)),  # a chain in a circle
        (space((0x100, AER, 0x148), (0x148, AER, 0x100)), Acs(Outcome.UNSUPPORTED)),
        (space((0x100, AER, 0x040)), Acs(Outcome.UNSUPPORTED)),
        (space((0x100, AER, 0xFFC), (0xFF8, ACS, 0)), Acs(Outcome.UNSUPPORTED)),
        (space((0x100, ACS, 0), size=0x106), Acs(Outcome.UNSUPPORTED)),  # cut off
        (Pipe(), Acs(Outcome.FAILED)),
        (None, Acs(Outcome.FAILED)),
    ],
)
def test_registers(tmp_path: Path, config: bytes, expected: Acs) -> None:
    assert read_acs(Tree({"config": config}).write(tmp_path)) == expected


def test_absent_and_denied(tmp_path: Path) -> None:
    assert read_acs(tmp_path) == Acs(Outcome.NOT_RUN)
    with open_folder() as folder:
        Tree({"config": Denied()}).write(folder)
        assert as_nobody(lambda: read_acs(folder)) == Acs(Outcome.DENIED)


def machine(first: bytes, second: bytes) -> Tree:
    """A network card below a switch: two bridges above it."""
    tree = Tree({"proc/sys/kernel/random/boot_id": "boot-1\n"})
    tree.pci(f"pci0000:16/{BRIDGE}", config=first)
    tree.pci(f"pci0000:16/{BRIDGE}/{SWITCH_PORT}", config=second)
    tree.pci(f"pci0000:16/{BRIDGE}/{SWITCH_PORT}/{NIC}", class_code=0x020000, config=space(size=64))
    return tree


def devices(root: Path) -> tuple[dict[str, PciDevice], tuple[str, ...]]:
    result = PciProbe().run(ProbeContext(roots=Roots.under(root), this_host=False))
    return {device.address: device for device in result.facts["pci"]}, result.notes


def test_in_the_map(tmp_path: Path) -> None:
    found, notes = devices(machine(space((0x100, ACS, 0), control=REDIRECTING), space(size=64)).write(tmp_path))
    assert (found[BRIDGE].acs, found[BRIDGE].acs_redirects) == (Outcome.OK, True)
    assert (found[SWITCH_PORT].acs, found[SWITCH_PORT].acs_redirects) == (Outcome.DENIED, None)
    assert (found[NIC].acs, found[NIC].acs_redirects) == (Outcome.NOT_RUN, None)
    assert notes == ()


class TestLeftFacts:
    """An unprivileged daemon takes what a privileged reader has left since this boot."""

    def test_privileged_reader_and_unprivileged_daemon(self, tmp_path: Path) -> None:
        full, none = space((0x100, ACS, 0), control=REDIRECTING), space((0x100, AER, 0))
        privileged = ProbeContext(roots=Roots.under(machine(full, none).write(tmp_path / "privileged")))
        left = tmp_path / "daemon/run" / LEFT_FACTS
        leave_facts(privileged, left.parent, ib_fabric=False)
        found, notes = devices(machine(space(size=64), space(size=64)).write(tmp_path / "daemon"))
        assert (found[BRIDGE].acs, found[BRIDGE].acs_redirects) == (Outcome.OK, True)
        assert (found[SWITCH_PORT].acs, found[SWITCH_PORT].acs_redirects) == (Outcome.UNSUPPORTED, None)
        assert notes == ()

    @pytest.mark.parametrize(
        ("left", "noted"),
        [
            (to_json(LeftFacts(boot_id="boot-0", acs={BRIDGE: Acs(Outcome.OK, redirects=True)})), "before this boot"),
            (b"{", "not a valid"),
            (b'{"boot_id": "boot-1", "acs": {"x": {"outcome": 1}}}', "not a valid"),
            (Pipe(), "not a regular file"),
            (Link("pci.json"), "symbolic links"),
        ],
    )
    def test_what_is_stale_or_broken_is_not_used(self, tmp_path: Path, left: bytes, noted: str) -> None:
        tree = machine(space(size=64), space(size=64))
        tree[f"run/{LEFT_FACTS}"] = left
        found, notes = devices(tree.write(tmp_path))
        assert found[BRIDGE].acs is Outcome.DENIED
        assert noted in notes[0]

    def test_own_reading_wins(self, tmp_path: Path) -> None:
        tree = machine(space((0x100, ACS, 0), control=FORWARDING), space(size=64))
        facts = LeftFacts(boot_id="boot-1", acs={BRIDGE: Acs(Outcome.OK, redirects=True)})
        tree[f"run/{LEFT_FACTS}"] = to_json(facts)
        found, _ = devices(tree.write(tmp_path))
        assert found[BRIDGE].acs_redirects is False


@pytest.mark.parametrize(
    ("class_code", "files", "mode", "limit"),
    [
        (0x030200, {}, "", None),
        (0x030200, {"resource1_resize": "00000000000001c0\n"}, "", 256 * 2**20),
        (0x030200, {"resource0_resize": "1\n", "resource2_resize": f"{2**17:016x}\n"}, "", 128 * 2**30),
        (0x030200, {"resource1_resize": "many\n"}, "", None),
        (0x030200, {"resource1_resize": "f" * 40}, "", None),
        (0x020000, {"resource1_resize": "1c0\n", "iommu_group/type": "identity\n"}, "identity", None),
    ],
)
def test_resizable_bar_and_iommu(
    tmp_path: Path, class_code: int, files: dict[str, str], mode: str, limit: int | None
) -> None:
    tree = Tree()
    tree.pci("pci0000:00/0000:00:01.0", class_code=class_code, vendor=0x10DE, **files)
    device = devices(tree.write(tmp_path))[0]["0000:00:01.0"]
    assert (device.iommu_mode, device.largest_bar_limit_bytes) == (mode, limit)
