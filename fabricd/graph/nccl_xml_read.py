"""From elements of NCCL's XML to a topology. Messages name the line.

The attributes and their defaults are those of NCCL 2.30 (graph/xml.cc, graph/topo.cc): ``net`` 1 and all other switches
0 unless given. Attributes of AMD's RCCL are read where they mean the same; elements of neither are skipped and noted.
"""

import re
from collections import Counter

from fabricd.errors import ParseError
from fabricd.graph.nccl_xml import Document, Element, parse
from fabricd.graph.nccl_xml_types import (
    NcclC2c,
    NcclCpu,
    NcclGpu,
    NcclNet,
    NcclNic,
    NcclNvLink,
    NcclPci,
    NcclTopology,
)
from fabricd.graph.nccl_xml_values import INT_MAX, AttributeReader

ARCHITECTURES = ("x86_64", "arm64", "ppc64")
#: CPU vendors that NCCL tells apart; of others it assumes the fastest interconnect.
CPU_VENDORS = ("GenuineIntel", "AuthenticAMD", "CentaurHauls", "  Shanghai  ")
#: 1 is NCCL's, 2 is RCCL's.
VERSIONS = (1, 2)

#: Where a link leads to; "fffffff:ffff:ff" where the driver hides it.
_TARGET = re.compile(r"[0-9a-f]{1,8}(:[0-9a-f]{1,4}){1,2}(\.[0-9a-f])?", re.ASCII)
_MAX_WIDTH = 255  # what the kernel prints where it does not know
_MAX_LINKS = 4096


def read(text: str | bytes, *, source: str = "NCCL topology") -> NcclTopology:
    """Read a topology file.

    Raises:
        ParseError: not XML, not a topology, or a value that cannot be; says the line, what, and what could be.
    """
    return read_document(parse(text, source=source), source=source)


def read_document(document: Document, *, source: str = "NCCL topology") -> NcclTopology:
    """Read a parsed topology file; as ``read``."""
    return _Reader(source).topology(document)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source
        self._values = AttributeReader(source)
        self._skipped: Counter[tuple[str, str]] = Counter()
        self._notes: list[str] = []
        self._devices: dict[tuple[int, str], int] = {}  # host and busid -> line
        self._gpus: set[tuple[int, str]] = set()
        self._numaids: set[tuple[int, int]] = set()
        self._ranks: dict[int, int] = {}
        self._net_devs: dict[tuple[int, int], int] = {}
        self._host = 0

    def topology(self, document: Document) -> NcclTopology:
        root = document.root
        if root.tag == "graphs":
            raise ParseError(
                f"{self._source}: <graphs> holds a search result (NCCL_GRAPH_FILE), not a topology",
                hint="give the file of NCCL_TOPO_FILE or NCCL_TOPO_DUMP_FILE, whose outermost element is <system>",
            )
        if root.tag != "system":
            self._values.fault(
                root, f"the outermost element is <{root.tag[:40]}>", "NCCL's topology files begin with <system>"
            )
        version = self._values.integer(root, "version")
        if version not in VERSIONS:
            self._values.fault(root, f"version {version} is not known", "1 is NCCL's form, 2 is RCCL's")
        cpus = tuple(self._cpu(child) for child in root.children if self._known(root, child, "cpu"))
        notes = [*document.notes, *self._notes]
        notes.extend(
            f"<{tag}> in <{parent}> is not known and was skipped ({count}x)"
            for (parent, tag), count in self._skipped.items()
        )
        return NcclTopology(version=version, cpus=cpus, notes=tuple(notes))

    def _cpu(self, element: Element) -> NcclCpu:
        numaid = self._values.integer(element, "numaid", low=-1)
        if numaid is None:
            self._values.fault(element, "numaid is missing")
        self._host = self._values.hexadecimal(element, "host_hash")
        if (self._host, numaid) in self._numaids:
            self._note(element, f"numaid {numaid} stands twice: NCCL finds only the first")
        self._numaids.add((self._host, numaid))
        get = element.attributes.get
        cpu = NcclCpu(
            numaid=numaid,
            affinity=get("affinity", ""),
            arch=get("arch", ""),
            vendor=get("vendor", ""),
            familyid=self._values.integer(element, "familyid", low=-1),
            modelid=self._values.integer(element, "modelid", low=-1),
            host_hash=self._host,
            children=tuple(
                self._pci(child) if child.tag == "pci" else self._nic(child)
                for child in element.children
                if self._known(element, child, "pci", "nic")
            ),
            line=element.line,
        )
        if cpu.arch and cpu.arch not in ARCHITECTURES:
            self._note(element, f"arch {cpu.arch[:40]!r} is none that NCCL knows ({', '.join(ARCHITECTURES)})")
        elif cpu.arch == "x86_64" and cpu.vendor and cpu.vendor not in CPU_VENDORS:
            self._note(element, f"vendor {cpu.vendor[:40]!r} is none that NCCL knows ({', '.join(CPU_VENDORS)})")
        return cpu

    def _pci(self, element: Element) -> NcclPci:
        busid = self._values.busid(element, "busid")
        gpus = tuple(self._gpu(child) for child in element.named("gpu"))
        self._unique_device(element, busid, is_gpu=bool(gpus))
        children, nics, links = [], [], []
        for child in element.children:
            if not self._known(element, child, "pci", "gpu", "nic", "pcilink"):
                continue
            if child.tag == "pci":
                children.append(self._pci(child))
            elif child.tag == "nic":
                nics.append(self._nic(child))
            elif child.tag == "pcilink":
                links.append(self._values.busid(child, "target"))
        return NcclPci(
            busid=busid,
            device_class=element.attributes.get("class"),
            link_speed=element.attributes.get("link_speed"),
            link_width=self._values.integer(element, "link_width", high=_MAX_WIDTH),
            vendor=self._values.id16(element, "vendor"),
            device=self._values.id16(element, "device"),
            subsystem_vendor=self._values.id16(element, "subsystem_vendor"),
            subsystem_device=self._values.id16(element, "subsystem_device"),
            gpus=gpus,
            nics=tuple(nics),
            children=tuple(children),
            pcilinks=tuple(links),
            line=element.line,
        )

    def _gpu(self, element: Element) -> NcclGpu:
        rank = self._values.integer(element, "rank")
        if rank is not None and rank in self._ranks:
            self._values.fault(
                element, f"rank {rank} is also that of line {self._ranks[rank]}", "each rank stands once"
            )
        if rank is not None:
            self._ranks[rank] = element.line
        links: dict[str, list[NcclNvLink]] = {"nvlink": [], "xgmi": []}
        c2c = None
        for child in element.children:
            if not self._known(element, child, "nvlink", "xgmi", "c2c"):
                continue
            if child.tag == "c2c":
                c2c = c2c or self._c2c(child)
            else:
                links[child.tag].append(self._nvlink(child))
        return NcclGpu(
            dev=self._values.integer(element, "dev"),
            sm=self._values.integer(element, "sm"),
            rank=rank,
            gdr=self._values.switch(element, "gdr"),
            mlopart=self._values.optional(element, "mlopart", high=3),
            nvlinks=tuple(links["nvlink"]),
            c2c=c2c,
            xgmi=tuple(links["xgmi"]),
            line=element.line,
        )

    def _nvlink(self, element: Element) -> NcclNvLink:
        target = element.attributes.get("target", "").lower()
        if not _TARGET.fullmatch(target):
            what = f"target {target[:40]!r} is no PCI address" if target else "target is missing"
            self._values.fault(element, what, 'it looks like "0000:17:00.0"')
        count = self._values.integer(element, "count", high=_MAX_LINKS)
        if count is None:
            self._values.fault(element, "count is missing")
        return NcclNvLink(target=target, count=count, target_class=element.attributes.get("tclass", ""))

    def _c2c(self, element: Element) -> NcclC2c:
        count, bandwidth = self._values.integer(element, "count", high=_MAX_LINKS), self._values.integer(element, "bw")
        if count is None or bandwidth is None:
            self._values.fault(element, "count or bw is missing")
        return NcclC2c(count=count, megabytes_per_second=bandwidth)

    def _nic(self, element: Element) -> NcclNic:
        nets = tuple(self._net(child) for child in element.children if self._known(element, child, "net"))
        return NcclNic(nets=nets, line=element.line)

    def _net(self, element: Element) -> NcclNet:
        dev = self._values.integer(element, "dev")
        if dev is not None and (line := self._net_devs.get((self._host, dev))) is not None:
            self._note(element, f"dev {dev} is also that of line {line}: NCCL finds only the first of them")
        elif dev is not None:
            self._net_devs[self._host, dev] = element.line
        return NcclNet(
            name=element.attributes.get("name", ""),
            dev=dev,
            megabits_per_second=self._values.integer(element, "speed", low=-INT_MAX) or 0,
            port=self._values.integer(element, "port", low=-1) or 0,
            latency=self._values.microseconds(element, "latency"),
            guid=self._values.hexadecimal(element, "guid"),
            gdr=self._values.switch(element, "gdr") or False,
            coll=self._values.switch(element, "coll") or False,
            net=self._values.switch(element, "net") is not False,
            gin=self._values.switch(element, "gin") or False,
            rma=self._values.switch(element, "rma") or False,
            rail=self._values.optional(element, "rail"),
            plane=self._values.optional(element, "plane"),
            line=element.line,
        )

    def _unique_device(self, element: Element, busid: str, *, is_gpu: bool) -> None:
        key = (self._host, busid.lower())
        line = self._devices.get(key)
        if line is None:
            self._devices[key] = element.line
        elif is_gpu or key in self._gpus:
            self._values.fault(
                element, f"{busid} is already the device of line {line}", "a GPU's busid stands once per host"
            )
        else:
            self._note(element, f"{busid} is also in line {line}: what refers to it finds only the first")
        if is_gpu:
            self._gpus.add(key)

    def _known(self, parent: Element, child: Element, *tags: str) -> bool:
        if child.tag in tags:
            return True
        self._skipped[parent.tag[:40], child.tag[:40]] += 1
        return False

    def _note(self, element: Element, what: str) -> None:
        if len(self._notes) < 20:
            self._notes.append(f"line {element.line}: <{element.tag}>: {what}")
