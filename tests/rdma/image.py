"""Builds what the virtual machine boots: Debian's own kernel, and an initial filesystem with the modules it needs.

The machine's root is this machine's, read-only, so that nothing has to be installed in it.
"""

import gzip
import lzma
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

#: Programs that building and running need, and the Debian package that brings each.
PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "cpio": "cpio",
    "depmod": "kmod",
    "rdma": "iproute2",
    "ibv_rc_pingpong": "ibverbs-utils",
}
#: What root's filesystem is mounted with; network devices, and RDMA over them; then more kinds of network devices.
_MODULES = (
    "virtio_pci", "9pnet_virtio", "9p", "overlay",
    "virtio_net", "veth", "rdma_rxe", "ib_uverbs", "rdma_ucm",
    "bonding", "8021q", "bridge", "dummy", "ifb", "ipvlan", "macvlan", "macvtap", "tun", "vxlan",
)  # fmt: skip
_MAYBE_MODULES = ("crc32_generic",)  # later kernels have it built in
_INIT = Path(__file__).with_name("init.sh")
_DOWNLOAD_SECONDS = 300.0


class CannotRunError(Exception):
    """This machine lacks something; the message names it."""


@dataclass(frozen=True, slots=True)
class Image:
    """What QEMU boots."""

    kernel: Path
    initrd: Path


def need_programs(programs: Mapping[str, str] = PROGRAMS) -> None:
    """Install the Debian packages that are missing, as root.

    Args:
        programs: and the package that brings each.

    Raises:
        CannotRunError: they cannot be installed; the message has the line to run.
    """
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = sorted({package for program, package in programs.items() if shutil.which(program) is None})
    if not missing:
        return
    install = ["apt-get", "install", "-qq", "--no-install-recommends", *missing]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {' '.join(missing)}", flush=True)
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (install, ["apt-get", "update", "-qq"], install):  # the lists may be missing or old
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if command is install and done.returncode == 0:
                return
    raise CannotRunError(f"missing programs; as root: {' '.join(install)}")


def build(folder: Path) -> Image:
    """Return the image in ``folder``, made anew when Debian has a newer kernel, or how it is made has changed.

    Raises:
        CannotRunError: no kernel package can be had.
    """
    package = _kernel_package()
    made_of = f"{package}\n{Path(__file__).read_text()}\n{_INIT.read_text()}"
    image, stamp = Image(folder / "vmlinuz", folder / "initrd.gz"), folder / "made-of"
    if stamp.exists() and stamp.read_text() == made_of:
        return image
    print(f"rdma: building {folder} from {package}", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        work = Path(name)
        _run("apt-get", "download", "-qq", package, cwd=work)
        _run("dpkg-deb", "-x", str(next(work.glob("*.deb"))), str(work / "tree"))
        version = next((work / "tree/boot").glob("vmlinuz-*")).name.partition("-")[2]
        shutil.copyfile(work / f"tree/boot/vmlinuz-{version}", image.kernel)
        _make_initrd(work / "tree", version, work / "ird", image.initrd)
    stamp.write_text(made_of)
    return image


def _kernel_package() -> str:
    """Return the package that ``linux-image-amd64`` stands for; its own name would fetch nothing but that word."""
    told = subprocess.run(
        ["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True, check=False
    ).stdout
    names = [line.split()[-1] for line in told.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise CannotRunError("no package linux-image-amd64: needs Debian on x86-64, and apt-get update")
    return names[0]


def _make_initrd(tree: Path, version: str, ird: Path, target: Path) -> None:
    base = tree if (tree / "lib/modules").exists() else tree / "usr"
    _run("depmod", "-b", str(base), version)
    for name in ("bin", "dev", "proc", "sys", "modules"):
        (ird / name).mkdir(parents=True)
    shutil.copyfile(shutil.which("busybox") or "", ird / "bin/busybox")
    shutil.copyfile(_INIT, ird / "init")
    order = []
    for path in _with_dependencies(base, version):
        data = path.read_bytes()
        name = path.name
        if name.endswith(".xz"):
            data, name = lzma.decompress(data), name.removesuffix(".xz")
        (ird / "modules" / name).write_bytes(data)
        order.append(name)
    (ird / "modules/order").write_text("".join(f"{name}\n" for name in order))
    for program in (ird / "bin/busybox", ird / "init"):
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    names = "\n".join(str(path.relative_to(ird)) for path in sorted(ird.rglob("*")))
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "--quiet"], cwd=ird, input=names.encode(), capture_output=True, check=True
    )
    target.write_bytes(gzip.compress(archive.stdout, 1))


def _with_dependencies(base: Path, version: str) -> Iterable[Path]:
    """Return the files of the modules in the order in which they must be loaded."""
    paths: dict[Path, None] = {}
    for module in (*_MODULES, *_MAYBE_MODULES):
        command = ["modprobe", "-d", str(base), "-S", version, "--show-depends", module]
        done = subprocess.run(command, capture_output=True, text=True, check=module in _MODULES)
        lines = [line.split() for line in done.stdout.splitlines()]
        paths.update((Path(words[1]), None) for words in lines if words[0] == "insmod")
    return paths


def _run(*command: str, cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=_DOWNLOAD_SECONDS)
    if done.returncode:
        raise CannotRunError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
