"""The daemon's command line: tables that obey no name, JSON, replays, and kind failures."""

import io
import json
import os
import re
import subprocess
import sys

import pytest
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from demo.daemons import program
from fabricd import __version__
from fabricd.cli.main import app, run
from fabricd.cli.table import print_snapshot, safe
from fabricd.install import install_line
from fabricd.model.codec import from_json
from fabricd.model.device import Gpu, Hca, HcaPort, InterfaceKind, IpAddress, NetInterface, NvLink, PciDevice, PcieLink
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.observation import Outcome, ProbeReport
from fabricd.model.snapshot import Snapshot

LEAF = IbSwitch(
    guid="0000:0000:0000:00a1",
    name="leaf-7",
    port_count=65,
    hca_links=17,
    switch_links=16,
    links=(IbLink(port=22, peer="bb", peer_port=1, local_port="mlx5_0:1", width=4, speed="NDR"),),
)
HOSTILE = "[red]x[/red]\x1b[31m\n\r\t\u202eevil"


def fabricd(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    """Run the command line within this process; return exit status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["fabricd", *arguments])
    status = run()
    said = capsys.readouterr()
    return status, said.out, said.err


def printed(snapshot: Snapshot, **options) -> str:
    out = io.StringIO()
    print_snapshot(snapshot, Console(file=out, **options))
    return out.getvalue()


def full() -> Snapshot:
    return Snapshot(
        node=NodeIdentity(node_id="n1", name="host", os="Debian", kernel="6.1", cpu=Cpu(name="CPU", sockets=2)),
        this_host=False,
        pci=(
            PciDevice(address="0000:00:01.0", class_code=0x060400),
            PciDevice(
                address="0000:17:00.0",
                class_code=0x030200,
                vendor_id=0x10DE,
                device_id=0x2330,
                link=PcieLink(speed_gts=16.0, width=8, max_speed_gts=32.0, max_width=16),
            ),
        ),
        gpus=(Gpu(index=0, name="H100", links=(NvLink(index=0, active=True), NvLink(index=1, active=False))),),
        hcas=(Hca(name="mlx5_0", kind="infiniband", ports=(HcaPort(port=1, rate_bytes_per_second=50_000_000_000),)),),
        interfaces=(
            NetInterface(
                name="eth0", index=2, kind=InterfaceKind.PHYSICAL, driver="mlx5_core", admin_up=True, carrier=False
            ),
            NetInterface(
                name="off0",
                index=3,
                kind=InterfaceKind.VETH,
                addresses=(IpAddress(address="10.0.0.1", prefix_length=24, family=4),),
            ),
        ),
        ib_fabrics=(IbFabric(guid="aa", switch_count=1, hca_count=1, link_count=1, switches=(LEAF,)),),
        probes=(ProbeReport(name="nvml", outcome=Outcome.DENIED, reason="no permission", notes=("gpu1: lost",)),),
    )


def test_the_tables_tell_what_a_reader_looks_for():
    text = printed(full())
    for part in (
        "host  node_id n1",
        "not this host",
        "2 sockets, ? CPUs",
        "0000:17:00.0",
        "10de:2330",
        "16 GT/s x8",
        "32 GT/s x16 (slower and narrower now)",
        "1 of 2",
        "mlx5_0:1",
        "50 GB/s",
        "physical (mlx5_core)",
        "no carrier",
        "off",
        "10.0.0.1/24",
        "leaf-7  aa      0000:0000:0000:00a1  ?    65     17       16           mlx5_0:1 at 22 (4xNDR)",
        "denied",
        "no permission; gpu1: lost",
    ):
        assert part in text, text
    assert "0000:00:01.0" not in text  # a bridge is no device that carries data


def test_names_are_shown_and_not_obeyed():
    nic = NetInterface(name=HOSTILE, index=1, kind=InterfaceKind.OTHER, driver=HOSTILE)
    report = ProbeReport(name=HOSTILE, outcome=Outcome.FAILED, reason=HOSTILE * 50, notes=(HOSTILE,))
    snapshot = Snapshot(
        node=NodeIdentity(node_id=HOSTILE, name=HOSTILE, os=HOSTILE, product=HOSTILE),
        interfaces=(nic,),
        probes=(report,),
        gpus=(Gpu(index=0, name=HOSTILE, outcome=Outcome.FAILED, reason=HOSTILE),),
        hcas=(Hca(name=HOSTILE, kind=HOSTILE),),
    )
    for options in ({}, {"force_terminal": True, "color_system": None, "width": 300}):
        text = printed(snapshot, **options)
        assert "[red]x[/red]" in text
        assert not any(char in text for char in "\x1b\r\t\u202e"), repr(text)


def test_a_cell_has_an_end():
    assert len(safe("x" * 10_000)) == 120


def test_nothing_but_an_identity_can_be_printed():
    assert "nobody" in printed(Snapshot(node=NodeIdentity(node_id="x", name="nobody")))


def test_probe_prints_this_machine_as_a_snapshot(capsys, monkeypatch):
    status, out, _ = fabricd(capsys, monkeypatch, "probe", "--json")
    snapshot = from_json(out, Snapshot)
    assert (status, snapshot.this_host) == (0, True)
    assert snapshot.content_hash


def test_a_replay_is_never_this_host(capsys, monkeypatch, tmp_path):
    file = tmp_path / "snapshot.json"
    file.write_text(fabricd(capsys, monkeypatch, "probe", "--json")[1])
    status, out, _ = fabricd(capsys, monkeypatch, "probe", "--json", "--replay", str(file))
    assert (status, json.loads(out)["this_host"]) == (0, False)


def test_another_root_is_never_this_host(capsys, monkeypatch, tmp_path):
    status, out, _ = fabricd(capsys, monkeypatch, "probe", "--json", "--root", str(tmp_path))
    assert status == 0
    told = json.loads(out)
    assert told["this_host"] is False
    assert told["interfaces"] == []
    assert {report["outcome"] for report in told["probes"]} <= {"ok", "absent", "not_run", "failed", "denied"}


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("probe", "--replay", "/nonexistent"), "cannot read"),
        (("probe", "--root", "/nonexistent"), "no directory"),
        (("probe", "--root", "/", "--replay", "/etc/hostname"), "exclude each other"),
        (("check-config", "/nonexistent"), "No such file"),
        (("serve", "--port", "x"), "--port"),
        (("serve", "--port", "70000"), "port: 70000"),
        (("fly",), "fly"),
        (("probe", "--jsno"), "--jsno"),
    ],
)
def test_bad_usage_is_told_with_status_2(capsys, monkeypatch, arguments, part):
    status, _, err = fabricd(capsys, monkeypatch, *arguments)
    assert status == 2
    assert part in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"node": 5}', b"\xff", b"[" * 100_000, b'{"format":"fabricd-capture"}']
)
def test_what_is_no_capture(capsys, monkeypatch, tmp_path, content):
    file = tmp_path / "file"
    file.write_bytes(content)
    status, _, err = fabricd(capsys, monkeypatch, "probe", "--replay", str(file))
    assert status == 2
    assert str(file) in err


def test_check_config_lists_every_fault(capsys, monkeypatch, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text("port = -1\nhots = 1\n")
    status, _, err = fabricd(capsys, monkeypatch, "check-config", str(file))
    assert status == 2
    assert "2 fault(s)" in err
    file.write_text("port = 1\n")
    assert fabricd(capsys, monkeypatch, "check-config", str(file))[0] == 0


def test_errors_show_names_and_do_not_obey_them(capsys, monkeypatch, tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('"\\u001b[31mkey" = 1\n')
    _, _, err = fabricd(capsys, monkeypatch, "check-config", str(file))
    assert "\\x1b[31mkey is no setting" in err
    assert "\x1b" not in err


def test_facts_are_left_and_what_fails_is_told(capsys, monkeypatch, tmp_path):
    folder, file = tmp_path / "facts", tmp_path / "c.toml"
    file.write_text("")
    status, out, _ = fabricd(capsys, monkeypatch, "facts", str(folder), "--config", str(file))
    assert (status, out.splitlines()[0]) == (0, f"{folder}/pci.json: ok")
    assert (folder / "pci.json").exists()
    file.write_text('ib_fabric = "on"\n')
    status, out, _ = fabricd(capsys, monkeypatch, "facts", str(folder), "--config", str(file))
    assert "ibnet.txt: not_run" not in out  # with a port the walk is tried
    status, _, err = fabricd(capsys, monkeypatch, "facts", str(file / "below"), "--config", str(file))
    assert status == 2
    assert f"cannot write {file}/below" in err


def test_the_version(capsys, monkeypatch):
    assert fabricd(capsys, monkeypatch, "--version")[:2] == (0, f"fabricd {__version__}\n")


def test_a_missing_extra_is_told_with_the_line_that_installs_it():
    code = "import sys; sys.modules['typer'] = None; import fabricd.cli; fabricd.cli.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f"fabricd: typer is not installed; the daemon needs it: {install_line('daemon')}\n"


def test_looking_at_the_machine_does_not_load_the_web_framework():
    code = "import sys, fabricd.cli.main; sys.exit(str({'fastapi', 'uvicorn', 'httpx', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["probe", "--json"], ["probe"], ["check-config"]])
def test_a_full_disk_is_told_in_a_line(arguments, unbuffered):
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [program("fabricd"), *arguments],
            stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["serve", "probe", "facts", "capture", "check-config"])
def test_help_has_examples_that_are_taken_sources_and_statuses(command):
    group = get_command(app)
    found = group.get_command(group.make_context("fabricd", [], resilient_parsing=True), command)
    told = CliRunner().invoke(app, [command, "--help"]).output
    examples = re.findall(rf"^    (?:sudo )?fabricd {command}(.*?)(?: > .*)?$", told, re.MULTILINE)
    assert len(examples) == 2
    for example in examples:
        found.make_context(command, example.split())
    assert "  Reads " in told
    assert "  Exit status: 0" in told
