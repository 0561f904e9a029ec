"""Writes file trees that stand in for a machine's /sys, /proc and /etc.

::

    machine = Tree()
    nic = machine.pci("pci0000:00/0000:00:01.0/0000:01:00.0", class_code=0x020000, vendor=0x15B3)
    machine.net("eth0", index=2, device=nic, mac="00:11:22:33:44:55")
    machine["proc/sys/kernel/hostname"] = "box\\n"
    roots = Roots.under(machine.write(tmp_path))
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PCI_BRIDGE = 0x060400


@dataclass(frozen=True)
class Link:
    """A symbolic link, to be written as it is."""

    target: str


@dataclass(frozen=True)
class Pipe:
    """A named pipe: opening it for reading would block."""


@dataclass(frozen=True)
class Denied:
    """A file without any permission. Root reads it all the same; see ``support.rights``."""

    content: str = ""


Entry = str | bytes | Link | Pipe | Denied | None  # None is a directory


@dataclass
class Tree:
    """Paths, relative to the root, and what is there."""

    entries: dict[str, Entry] = field(default_factory=dict)

    def __setitem__(self, path: str, entry: Entry) -> None:
        self.entries[path] = entry

    def update(self, prefix: str, entries: Mapping[str, Entry]) -> None:
        """Add entries below ``prefix``."""
        self.entries.update({f"{prefix}/{path}": entry for path, entry in entries.items()})

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link to another path of the tree, relative as sysfs has them."""
        self[path] = Link(os.path.relpath(target, Path(path).parent))

    def pci(
        self, place: str, *, class_code: int = PCI_BRIDGE, vendor: int = 0x8086, device: int = 1, **files: Entry
    ) -> str:
        """Add a PCI function and return its folder. ``place`` is its chain from the host bridge."""
        folder = f"sys/devices/{place}"
        address = place.rpartition("/")[2]
        self.update(
            folder, {"class": f"{class_code:#08x}\n", "vendor": f"{vendor:#06x}\n", "device": f"{device:#06x}\n"}
        )
        self.link(f"{folder}/subsystem", "sys/bus/pci")
        self.link(f"sys/bus/pci/devices/{address}", folder)
        self.update(folder, files)
        return folder

    def net(self, name: str, *, index: int, device: str = "", mac: str = "02:00:00:00:00:01", **files: Entry) -> str:
        """Add a network interface, on the device whose folder is ``device``, or virtual; return its folder."""
        folder = f"{device or 'sys/devices/virtual'}/net/{name}"
        self.update(folder, {"ifindex": f"{index}\n", "address": f"{mac}\n", "type": "1\n", "flags": "0x1003\n"})
        self.update(folder, {"mtu": "1500\n", "operstate": "up\n", "iflink": f"{index}\n", **files})
        if device:
            self.link(f"{folder}/device", device)
        self.link(f"sys/class/net/{name}", folder)
        return folder

    def write(self, root: Path) -> Path:
        """Write everything below ``root`` and return it."""
        root.mkdir(parents=True, exist_ok=True)
        for name, entry in self.entries.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if entry is None:
                path.mkdir(exist_ok=True)
            elif isinstance(entry, Link):
                path.symlink_to(entry.target)
            elif isinstance(entry, Pipe):
                os.mkfifo(path)
            elif isinstance(entry, Denied):
                path.write_text(entry.content)
                path.chmod(0)
            else:
                path.write_bytes(entry if isinstance(entry, bytes) else entry.encode())
        return root
