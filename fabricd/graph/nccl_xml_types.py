"""What a topology file in NCCL's XML says, as values. No rule of NCCL's is applied here.

Attribute values keep the file's units, which the fields name; ``None`` means that the file does not say.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNvLink:
    """Links of one GPU to one target: ``nvlink``, or AMD's ``xgmi``."""

    target: str  #: busid of a GPU, NVSwitch or CPU bridge; "fffffff:ffff:ff" where the driver hides it
    count: int = 1
    target_class: str = ""  #: PCI class of the target as text, "0x068000" is an NVSwitch


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclC2c:
    """Chip-to-chip links of a GPU to its CPU."""

    count: int
    megabytes_per_second: int  #: of one link, each direction


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclGpu:
    """A rank's share of a GPU. Several ranks may have one each under the same PCI device."""

    dev: int | None = None  #: NVML index
    sm: int | None = None  #: compute capability times ten: 90; in AMD's files the number of compute units
    rank: int | None = None  #: without one, NCCL leaves it out of its graph
    gdr: bool | None = None
    mlopart: int | None = None  #: which partition of the device
    nvlinks: tuple[NcclNvLink, ...] = ()
    c2c: NcclC2c | None = None
    xgmi: tuple[NcclNvLink, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNet:
    """A port of a network card, as NCCL's network plugin reports it."""

    name: str = ""
    dev: int | None = None  #: the plugin's index; without one, NCCL leaves it out of its graph
    megabits_per_second: int = 0  #: 0 and below: not known
    port: int = 0
    latency: float = 0.0  #: microseconds
    guid: int = 0
    gdr: bool = False
    coll: bool = False
    net: bool = True  #: offers point-to-point transfers; 0 only for special plugins
    gin: bool = False
    rma: bool = False
    rail: int | None = None
    plane: int | None = None
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclNic:
    """A network card: its ports."""

    nets: tuple[NcclNet, ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPci:
    """A PCI device or switch."""

    busid: str  #: as written, "0000:17:00.0"
    device_class: str | None = None  #: as written, "0x060400"
    link_speed: str | None = None  #: of the link upwards, as written: "16.0 GT/s PCIe", "", "Unknown"
    link_width: int | None = None  #: lanes; 0 where the system does not know
    vendor: int = 0
    device: int = 0
    subsystem_vendor: int = 0
    subsystem_device: int = 0
    gpus: tuple[NcclGpu, ...] = ()
    nics: tuple[NcclNic, ...] = ()
    children: tuple["NcclPci", ...] = ()
    pcilinks: tuple[str, ...] = ()  #: busids of switches joined to this one beside the tree
    line: int = 0

    def walk(self) -> Iterator["NcclPci"]:
        """Yield this device and all below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCpu:
    """A NUMA node."""

    numaid: int
    affinity: str = ""  #: CPU mask as the kernel prints it: "00000000,00ffffff"
    arch: str = ""  #: "x86_64", "arm64", "ppc64"
    vendor: str = ""  #: "GenuineIntel", "AuthenticAMD", ...
    familyid: int | None = None
    modelid: int | None = None
    host_hash: int = 0  #: tells hosts apart in a file of several
    children: tuple[NcclPci | NcclNic, ...] = ()
    line: int = 0

    def devices(self) -> Iterator[NcclPci]:
        """Yield all PCI devices below, in the order of the file."""
        for child in self.children:
            if isinstance(child, NcclPci):
                yield from child.walk()

    def nics(self) -> Iterator[tuple[NcclNic, NcclPci | None]]:
        """Yield all network cards with the PCI device each sits on, in the order of the file."""
        for child in self.children:
            if isinstance(child, NcclNic):
                yield child, None
            else:
                for device in child.walk():
                    for nic in device.nics:
                        yield nic, device


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTopology:
    """A topology file."""

    version: int
    cpus: tuple[NcclCpu, ...]
    #: What was skipped, defaulted, or reads oddly, one sentence each.
    notes: tuple[str, ...] = ()

    def host_hashes(self) -> tuple[int, ...]:
        """Return the distinct host hashes, in order of appearance: one host each."""
        return tuple(dict.fromkeys(cpu.host_hash for cpu in self.cpus))

    def repeated_devs(self) -> frozenset[int]:
        """Return the indices of ports that more than one host has: such a port's index does not tell which is meant."""
        hosts: dict[int, set[int]] = {}
        for cpu in self.cpus:
            for nic, _ in cpu.nics():
                for net in nic.nets:
                    if net.dev is not None:
                        hosts.setdefault(net.dev, set()).add(cpu.host_hash)
        return frozenset(dev for dev, found in hosts.items() if len(found) > 1)

    def trimmed(self) -> "NcclTopology":
        """Return it without branches that hold neither a GPU with a rank nor a port with an index.

        NCCL never sees those: it keeps what its ranks and network plugin found (NCCL 2.30, ncclTopoTrimXml). A
        NUMA node with neither vanishes too, with its links to the others.
        """
        cpus = []
        for cpu in self.cpus:
            children = tuple(child for child in map(_trim, cpu.children) if child is not None)
            if children:
                cpus.append(replace(cpu, children=children))
        return replace(self, cpus=tuple(cpus))


def _trim(child: NcclPci | NcclNic) -> NcclPci | NcclNic | None:
    return _trim_nic(child) if isinstance(child, NcclNic) else _trim_pci(child)


def _trim_nic(nic: NcclNic) -> NcclNic | None:
    nets = tuple(net for net in nic.nets if net.dev is not None)
    if len(nets) == len(nic.nets):
        return nic if nets else None
    return replace(nic, nets=nets) if nets else None


def _trim_pci(device: NcclPci) -> NcclPci | None:
    children = tuple(child for child in map(_trim_pci, device.children) if child is not None)
    nics = tuple(nic for nic in map(_trim_nic, device.nics) if nic is not None)
    if not children and not nics and all(gpu.rank is None for gpu in device.gpus):
        return None
    same = _are_the_same(children, device.children) and _are_the_same(nics, device.nics)
    return device if same else replace(device, children=children, nics=nics)


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))
