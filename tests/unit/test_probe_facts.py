"""Facts that root leaves for the unprivileged daemon."""

import json
import os
from pathlib import Path

import pytest

from fabricd.errors import InputError
from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.facts import leave_facts, write_whole
from fabricd.probe.lldp import LldpProbe
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Pipe, Tree

HEARD = {"lldp": [{"interface": [{"name": "eth0", "port": [{"id": [{"type": "ifname", "value": "Ethernet7/1"}]}]}]}]}


def machine(root: Path, **more: object) -> ProbeContext:
    tree = Tree({"proc/sys/kernel/random/boot_id": "boot-1\n", **more})
    return ProbeContext(roots=Roots.under(tree.write(root)))


@pytest.fixture
def lldpcli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in for lldpd's client; returns the script."""
    tool = tmp_path / "bin/lldpcli"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n[ \"$*\" = '-f json0 show neighbors details' ] && echo '{json.dumps(HEARD)}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return tool


def outcomes(ctx: ProbeContext, folder: Path, *, ib_fabric: bool = False) -> dict[str, tuple[Outcome, str]]:
    return {one.file.name: (one.outcome, one.reason) for one in leave_facts(ctx, folder, ib_fabric=ib_fabric)}


def test_of_a_machine_with_nothing_special(tmp_path: Path) -> None:
    ctx, folder = machine(tmp_path / "root"), tmp_path / "facts"
    assert outcomes(ctx, folder) == {
        "pci.json": (Outcome.OK, ""),
        "lldp.json": (Outcome.ABSENT, "lldpd does not run"),
        "ibnet.txt": (Outcome.NOT_RUN, 'ib_fabric is "off"'),
    }
    assert outcomes(ctx, folder, ib_fabric=True)["ibnet.txt"][0] is Outcome.ABSENT
    assert [path.name for path in folder.iterdir()] == ["pci.json"]
    assert json.loads((folder / "pci.json").read_bytes()) == {"boot_id": "boot-1", "acs": {}}
    assert (folder.stat().st_mode & 0o777, (folder / "pci.json").stat().st_mode & 0o777) == (0o755, 0o644)


def test_roots_umask_hides_nothing_from_the_daemon(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        outcomes(machine(tmp_path / "root"), tmp_path / "facts")
    finally:
        os.umask(before)
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "facts", tmp_path / "facts/pci.json")]
    assert modes == [0o755, 0o644]


def test_what_lldpd_hears_reaches_the_probe(tmp_path: Path, lldpcli: Path) -> None:
    ctx = machine(tmp_path / "root", **{"run/lldpd.socket": Pipe()})
    folder = ctx.roots.run / "fabricd-facts"
    assert outcomes(ctx, folder)["lldp.json"] == (Outcome.OK, "")
    (neighbor,) = LldpProbe().run(ctx).facts["lldp"]
    assert (neighbor.interface, neighbor.port_id) == ("eth0", "Ethernet7/1")


def test_a_failure_keeps_what_was_left_and_an_absence_does_not(tmp_path: Path, lldpcli: Path) -> None:
    ctx = machine(tmp_path / "root", **{"run/lldpd.socket": Pipe()})
    folder = tmp_path / "facts"
    outcomes(ctx, folder)
    before = (folder / "lldp.json").read_bytes()
    (folder / "ibnet.txt").write_text("of the time when it was on")
    lldpcli.write_text("#!/bin/sh\necho half of it\nexit 3\n")
    assert outcomes(ctx, folder)["lldp.json"] == (
        Outcome.FAILED, "the lldpcli process ended with status 3 without an answer"
    )  # fmt: skip
    assert (folder / "lldp.json").read_bytes() == before
    assert not (folder / "ibnet.txt").exists()
    (tmp_path / "root/run/lldpd.socket").unlink()
    assert outcomes(ctx, folder)["lldp.json"][0] is Outcome.ABSENT
    assert not (folder / "lldp.json").exists()


def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fabricd.probe.facts._TOOL_FOLDERS", "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    port = "sys/class/infiniband/mlx5_0/ports/1"
    files = {"run/lldpd.socket": Pipe(), f"{port}/state": "4: ACTIVE\n", f"{port}/link_layer": "InfiniBand\n"}
    found = outcomes(machine(tmp_path / "root", **files), tmp_path / "facts", ib_fabric=True)
    assert found["lldp.json"] == (Outcome.FAILED, "lldpcli is not installed (package lldpd)")
    assert found["ibnet.txt"] == (Outcome.FAILED, "ibnetdiscover is not installed (package infiniband-diags)")


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "facts"
    victim.write_text("precious")
    folder.mkdir()
    (folder / "pci.json").symlink_to(victim)
    outcomes(machine(tmp_path / "root"), folder)
    assert victim.read_text() == "precious"
    assert not (folder / "pci.json").is_symlink()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "a", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_without_rights(tmp_path: Path) -> None:
    ctx = machine(tmp_path / "root")
    with open_folder() as folder, pytest.raises(InputError, match=r"cannot write .*Permission denied.*needs root"):
        as_nobody(lambda: leave_facts(ctx, folder / "facts", ib_fabric=False))
