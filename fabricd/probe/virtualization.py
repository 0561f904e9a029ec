"""Whether this is a virtual machine, and whether this process sits in a container. From files alone."""

from pathlib import Path

from fabricd.probe.base import ProbeContext
from fabricd.probe.cpuinfo import cpu_flags
from fabricd.probe.files import FieldReader
from fabricd.smallfile import read_bytes

# What hypervisors and clouds write into DMI, by the beginning of the text; names as systemd-detect-virt(1) has them.
# Clouds that offer bare metal too write the same there: on x86 the CPU's hypervisor flag decides first.
_DMI = (
    ("KVM", "kvm"), ("OpenStack", "kvm"), ("KubeVirt", "kvm"), ("Amazon EC2", "amazon"), ("QEMU", "qemu"),
    ("VMware", "vmware"), ("VMW", "vmware"), ("innotek GmbH", "oracle"), ("VirtualBox", "oracle"), ("Xen", "xen"),
    ("Bochs", "bochs"), ("Parallels", "parallels"), ("BHYVE", "bhyve"), ("Hyper-V", "microsoft"),
    ("Virtual Machine", "microsoft"), ("Google Compute Engine", "google"), ("Apple Virtualization", "apple"),
)  # fmt: skip
_DMI_FILES = ("product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version")
_CLOCKS = (("kvm-clock", "kvm"), ("hyperv_clocksource", "microsoft"), ("xen", "xen"))
_CGROUPS = (("kubepods", "kubernetes"), ("libpod", "podman"), ("docker", "docker"), ("lxc", "lxc"))
# Links of the machine's first namespaces. Source: kernel include/uapi/linux/nsfs.h, PID_NS_INIT_INO and
# MNT_NS_INIT_INO (before Linux 6.18 the mount namespace's number was not fixed).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
_FIRST_MOUNT_NAMESPACE = "mnt:[4026531832]"


def hypervisor(ctx: ProbeContext, read: FieldReader) -> str:
    """Return "none" for bare metal, the hypervisor's or cloud's name, "vm-other", or "" when nothing tells."""
    xen = read.text(ctx.roots.sys / "hypervisor/type")
    if xen:
        # The control domain drives the real hardware.
        return "none" if "control_d" in (read.text(ctx.roots.proc / "xen/capabilities") or "") else xen
    flags = cpu_flags(ctx, read)
    if flags is not None:
        return (_named(ctx, read) or "vm-other") if "hypervisor" in flags else "none"
    return _without_flags(ctx, read)


def container_engine(ctx: ProbeContext, read: FieldReader) -> str:
    """Return the engine of the container that this process sees the machine from; "" when it seems to be none."""
    top, run = ctx.roots.top, ctx.roots.run
    if ctx.this_host and _in_first_namespaces(ctx):
        return ""  # whatever marks an image has left behind
    told = read.text(run / "systemd/container")
    if told:
        return told[:40]
    cgroup = _quiet(ctx.roots.proc / "1/cgroup") + _quiet(ctx.roots.proc / "self/cgroup")
    named = next((name for mark, name in _CGROUPS if mark in cgroup), "")
    if read.exists(run / "secrets/kubernetes.io") or named == "kubernetes":
        return "kubernetes"
    marks = (("docker", top / ".dockerenv"), ("podman", run / ".containerenv"), ("apptainer", top / ".singularity.d"))
    return next((name for name, mark in marks if read.exists(mark)), named)


def _named(ctx: ProbeContext, read: FieldReader) -> str:
    texts = [read.text(ctx.roots.sys / "class/dmi/id" / name) or "" for name in _DMI_FILES]
    named = next((name for text in texts for beginning, name in _DMI if text.startswith(beginning)), "")
    clocks = read.text(ctx.roots.sys / "devices/system/clocksource/clocksource0/available_clocksource") or ""
    by_clock = next((name for clock, name in _CLOCKS if clock in clocks), "")
    return by_clock or named if named in ("", "qemu") else named


def _without_flags(ctx: ProbeContext, read: FieldReader) -> str:
    """Arm and POWER have no hypervisor flag: device tree, firmware platform, then DMI."""
    compatible = read.text(ctx.roots.sys / "firmware/devicetree/base/hypervisor/compatible") or ""
    for mark, name in (("kvm", "kvm"), ("xen", "xen"), ("vmware", "vmware")):
        if mark in compatible:
            return name
    cpuinfo = (read.text(ctx.roots.proc / "cpuinfo", 16 * 1024 * 1024) or "")[-2048:]
    if "pSeries" in cpuinfo:
        return "kvm" if "qemu" in cpuinfo else "powervm"
    if "PowerNV" in cpuinfo:
        return "none"
    product = read.text(ctx.roots.sys / "class/dmi/id/product_name") or ""
    if product:
        return "none" if ".metal" in product else (_named(ctx, read) or "none")
    return ""


def _in_first_namespaces(ctx: ProbeContext) -> bool:
    """Tell whether this process shares PID and mount namespaces with the machine's init; False where denied."""
    proc = ctx.roots.proc
    try:
        mounts = str((proc / "self/ns/mnt").readlink())
        if str((proc / "self/ns/pid").readlink()) != _FIRST_PID_NAMESPACE:
            return False
        return mounts == _FIRST_MOUNT_NAMESPACE or mounts == str((proc / "1/ns/mnt").readlink())
    except OSError:
        return False


def _quiet(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8", "replace")
    except OSError:
        return ""
