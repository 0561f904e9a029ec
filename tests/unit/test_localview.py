"""The local view: from the standard library alone, whatever is missing, and without secrets."""

import os
import resource
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fabricd import localview
from fabricd.localview import LocalView, ViewGid, ViewHca, collect, locks_too_little
from fabricd.model.codec import from_json, to_json
from tests.support.tree import Link, Pipe, Tree

GPU = """\
Model: \t\t NVIDIA H100 80GB HBM3
IRQ:   \t\t 317
GPU UUID: \t {uuid}
Bus Location: \t 0000:{bus}:00.0
Device Minor: \t {minor}
GPU Excluded:\t No
"""
GID = "0000:0000:0000:0000:0000:ffff:0a01:0001"
UUID = "GPU-0a1b2c3d-0000-1111-2222-{:012d}"


def view(root: Path, tree: Tree) -> LocalView:
    tree.write(root)
    return collect(sys_root=root / "sys", proc_root=root / "proc", dev_root=root / "dev")


def test_this_process() -> None:
    found = collect()
    assert (found.hostname, found.pid, found.uid) == (socket.gethostname(), os.getpid(), os.getuid())
    assert found.cpus == tuple(sorted(os.sched_getaffinity(0)))
    assert found.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert found.net_namespace == str(Path("/proc/self/ns/net").stat().st_ino)
    shm = Path("/dev/shm").stat()
    assert found.shm_device == f"{shm.st_dev}:{shm.st_ino}"
    assert (found.shm_bytes or 0) > 0
    assert dict(found.versions)["mpich"]
    assert from_json(to_json(found), LocalView) == found


@pytest.mark.parametrize(
    ("capabilities", "users", "may_exceed"),
    [
        ("000001fffeffffff", "0 0 4294967295", True),
        ("0000000000004000", "0 0 4294967295", True),
        ("00000000a80425fb", "0 0 4294967295", False),  # root in a Docker container
        ("000001ffffffffff", "0 100000 65536", False),  # root of a user namespace
        ("", "", False),
    ],
)
def test_the_limit_of_locked_memory_holds_without_the_capability_to_exceed_it(
    tmp_path: Path, capabilities: str, users: str, may_exceed: bool
) -> None:
    tree = Tree({"proc/self/status": f"Name:\tpython\nCapEff:\t{capabilities}\n", "proc/self/uid_map": f"  {users}\n"})
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (1 << 20, before[1]))
    try:
        found = view(tmp_path, tree)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, before)
    assert found.memlock_bytes == (None if may_exceed else 1 << 20)


def test_a_limit_that_nobody_has_raised_is_too_little_for_rdma() -> None:
    asked = (None, 64 << 10, 8 << 20, 64 << 20, (64 << 20) + 4096)
    assert [locks_too_little(limit) for limit in asked] == [False, True, True, True, False]


def test_interfaces_are_those_that_psutil_sees() -> None:
    """psutil asks getifaddrs; it leaves out interfaces without any address, so it may see fewer."""
    seen = {nic.name: nic for nic in collect().interfaces}
    for name, addresses in psutil.net_if_addrs().items():
        texts = {address.split("/")[0] for address in seen[name].addresses}
        for address in addresses:
            if address.family in (socket.AF_INET, socket.AF_INET6):
                assert address.address.split("%")[0] in texts
            else:
                assert address.address == seen[name].mac
    assert seen["lo"].loopback
    assert "127.0.0.1/8" in seen["lo"].addresses


def test_nothing_but_netlink_is_needed(tmp_path: Path) -> None:
    found = view(tmp_path, Tree())
    assert found.interfaces
    expected = LocalView(
        hostname=found.hostname,
        pid=os.getpid(),
        uid=os.getuid(),
        memlock_bytes=found.memlock_bytes,
        cpus=found.cpus,
        interfaces=found.interfaces,
        imex_channels=(),
        versions=found.versions,
    )
    assert found == expected


def test_not_even_netlink(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no sockets of this family")

    monkeypatch.setattr(localview.socket, "socket", refuse)
    assert view(tmp_path, Tree()).interfaces == ()


def test_hcas_are_usable_if_their_device_node_is(tmp_path: Path) -> None:
    tree = Tree({"dev/infiniband/uverbs0": "", "dev/infiniband/uverbs2": Link("missing")})
    for number, name in enumerate(["mlx5_0", "mlx5_1", "mlx5_2"]):
        tree[f"sys/class/infiniband/{name}/node_guid"] = f"b8ce:f603:0000:000{number}\n"
        tree[f"sys/class/infiniband/{name}/ports/1/state"] = "4: ACTIVE\n"
        tree[f"sys/class/infiniband_verbs/uverbs{number}/ibdev"] = f"{name}\n"
    tree["sys/class/infiniband/mlx5_0/ports/2/state"] = "1: DOWN\n"
    tree.update(
        "sys/class/infiniband/mlx5_0/ports/2",
        {
            "gids/0": "0000:0000:0000:0000:0000:0000:0000:0000\n",
            "gids/3": f"{GID}\n",
            "gid_attrs/types/3": "RoCE v2\n",
            "gid_attrs/ndevs/3": "eth0\n",
        },
    )
    tree["sys/class/infiniband/mlx5_0/ports/notes"] = ""
    tree["sys/class/infiniband_verbs/abi_version"] = "6\n"
    assert view(tmp_path, tree).hcas == (
        ViewHca(
            name="mlx5_0",
            node_guid="b8ce:f603:0000:0000",
            usable=True,
            ports=(1, 2),
            gids=(ViewGid(port=2, index=3, gid=GID, type="roce-v2", interface="eth0"),),
        ),
        ViewHca(name="mlx5_1", node_guid="b8ce:f603:0000:0001", ports=(1,)),
        ViewHca(name="mlx5_2", node_guid="b8ce:f603:0000:0002", ports=(1,)),
    )


def test_gpus_are_those_whose_device_node_is_there(tmp_path: Path) -> None:
    """A container may see the files of GPUs that it was not given."""
    tree = Tree({"dev/nvidia0": "", "dev/nvidia2": ""})
    for number, bus in enumerate(["1b", "43", "52"]):
        tree[f"proc/driver/nvidia/gpus/0000:{bus}:00.0/information"] = GPU.format(
            uuid=UUID.format(number), bus=bus, minor=number
        )
    tree["proc/driver/nvidia/gpus/0000:61:00.0/information"] = GPU.format(uuid="GPU-????????-????", bus="61", minor=0)
    tree["proc/driver/nvidia/gpus/0000:62:00.0"] = None
    assert view(tmp_path, tree).gpu_uuids == (UUID.format(0), UUID.format(2))


def test_imex_channels_are_those_that_may_be_opened(tmp_path: Path) -> None:
    tree = Tree({f"dev/nvidia-caps-imex-channels/{name}": "" for name in ("channel10", "channel2", "other", "channel")})
    assert view(tmp_path, tree).imex_channels == (2, 10)
    assert view(tmp_path / "none", Tree()).imex_channels == ()


def test_broken_files_cost_their_field(tmp_path: Path) -> None:
    tree = Tree(
        {
            "proc/sys/kernel/random/boot_id": b"\xff\xfe\n",
            "proc/driver/nvidia/gpus": "no folder",
            "sys/class/infiniband": Link("infiniband"),
            "dev/shm": Link("shm"),
            "sys/class/infiniband_verbs/uverbs0/ibdev": "x" * 100_000,
        }
    )
    found = view(tmp_path, tree)
    assert (found.boot_id, found.gpu_uuids, found.hcas, found.shm_device) == ("\\xff\\xfe", (), (), "")
    assert to_json(found)


def test_a_pipe_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    assert view(tmp_path, Tree({"proc/sys/kernel/random/boot_id": Pipe()})).boot_id == ""


def test_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment, only the one variable that says which GPUs were given."""
    for name in ("FABRICD_GROUP_SECRET", "FABRICD_TOKEN_FILE", "AWS_SECRET_ACCESS_KEY", "NVIDIA_API_KEY"):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "0,1\udcff")
    found = collect()
    assert found.nvidia_visible_devices == "0,1\\xff"
    assert b"hunter2" not in to_json(found)


def test_an_absurd_environment_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", "x" * 100_000)
    assert len(collect().nvidia_visible_devices) <= 4096


def test_the_json_is_small_and_complete(tmp_path: Path) -> None:
    """The view travels with each rank's registration."""
    found = view(tmp_path, Tree())
    assert len(to_json(replace(found, interfaces=()))) < 2000


def test_importing_it_loads_the_standard_library_only() -> None:
    script = (
        "import sys; before = set(sys.modules); import fabricd.localview as view; view.collect(); "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60)
    assert set(run.stdout.split()) - {"fabricd"} <= sys.stdlib_module_names
    assert "fabricd" in run.stdout.split()


def test_versions_are_those_of_the_first_folder_on_the_path_and_damage_is_no_obstacle(tmp_path, monkeypatch):
    for name in ("a/mpich-5.0.2.dist-info", "a/cupy_cuda12x-14.2.0.dist-info", "a/-info", "a/x.dist-info",
                 "b/mpich-4.0.dist-info", "b/mpi4py-3.1.4.egg-info", "b/torch-2.13.0+cpu-py3.11.egg-info"):  # fmt: skip
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.path", [str(tmp_path / name) for name in ("none", "file", "a", "b")])
    assert dict(collect().versions) == {"mpich": "5.0.2", "mpi4py": "3.1.4", "cupy": "14.2.0", "torch": "2.13.0+cpu"}
