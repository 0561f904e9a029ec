"""Access Control Services of PCI bridges: whether transfers between two devices below a switch go up to the root.

The registers lie in the extended configuration space, which the kernel shows only to a privileged reader. An
unprivileged daemon therefore also takes what such a reader has left for it (``fabricd.probe.facts``).

Source: PCI Express Base Specification, Access Control Services Extended Capability; kernel drivers/pci/pci-sysfs.c.
"""

import errno
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.model.observation import Outcome
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeContext
from fabricd.probe.files import FieldReader
from fabricd.smallfile import read_bytes

#: Below ``Roots.run``.
LEFT_FACTS = "fabricd-facts/pci.json"
#: Where a replay keeps what is known of each bridge, in the folder of recorded answers.
RECORDED = "acs.json"
_MAX_FACTS_BYTES = 4 * 2**20
_EXTENDED_SPACE = 0x100  # where it begins; an unprivileged reader gets no further than 64 bytes
_WHOLE_SPACE = 4096
_ACS_CAPABILITY = 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 0x04, 0x08
_BRIDGE_CLASS = 0x0604


@dataclass(frozen=True, slots=True)
class Acs:
    """What is known of one bridge's port.

    Attributes:
        outcome: unsupported for a bridge without the capability.
        redirects: transfers between its neighbours go up to the root; only with outcome ok.
    """

    outcome: Outcome
    redirects: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFacts:
    """What a privileged reader leaves for the daemon, valid for one boot."""

    boot_id: str
    acs: dict[str, Acs] = field(default_factory=dict)  #: by PCI address


def read_acs(device: Path) -> Acs:
    """Read a bridge's own registers, from its folder in sysfs."""
    try:
        space = read_bytes(device / "config", _WHOLE_SPACE)
    except FileNotFoundError:
        return Acs(Outcome.NOT_RUN)
    except OSError as error:
        return Acs(Outcome.DENIED if error.errno in (errno.EACCES, errno.EPERM) else Outcome.FAILED)
    if len(space) <= _EXTENDED_SPACE:
        # Conventional PCI has 256 bytes and no more; less than that is what the unprivileged get.
        return Acs(Outcome.UNSUPPORTED if len(space) == _EXTENDED_SPACE else Outcome.DENIED)
    for offset, capability in _extended_capabilities(space):
        if capability == _ACS_CAPABILITY and offset + 8 <= len(space):
            control = struct.unpack_from("<H", space, offset + 6)[0]
            return Acs(Outcome.OK, bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT)))
    return Acs(Outcome.UNSUPPORTED)


def _extended_capabilities(space: bytes) -> Iterator[tuple[int, int]]:
    offset, seen = _EXTENDED_SPACE, set[int]()
    while _EXTENDED_SPACE <= offset <= len(space) - 4 and offset not in seen:
        seen.add(offset)
        header = struct.unpack_from("<I", space, offset)[0]
        if header in (0, 0xFFFFFFFF):  # none, or a device that does not answer
            return
        yield offset, header & 0xFFFF
        offset = header >> 20 & 0xFFC


@dataclass(frozen=True, slots=True, kw_only=True)
class AcsAnswer:
    """What the registers say, or what a privileged reader has left of them."""

    acs: dict[str, Acs] = field(default_factory=dict)  #: by PCI address
    notes: tuple[str, ...] = ()


def ask_acs(ctx: ProbeContext, bridges: Iterable[str]) -> AcsAnswer:
    """Return what is known of these bridges. A recording keeps that, not the registers, which hold serial numbers."""

    def read_all() -> AcsAnswer:
        read = FieldReader()
        left = left_facts(ctx, read)
        found = {}
        for address in bridges:
            own = read_acs(ctx.roots.sys / "bus/pci/devices" / address)
            found[address] = own if own.outcome is Outcome.OK else left.get(address, own)
        return AcsAnswer(acs=found, notes=tuple(read.notes))

    return ask(ctx, RECORDED, AcsAnswer, read_all, from_files=True)


def left_facts(ctx: ProbeContext, read: FieldReader) -> dict[str, Acs]:
    """Return what a privileged reader has left since this boot; empty when nothing."""
    path = ctx.roots.run / LEFT_FACTS
    try:
        data = read_bytes(path, _MAX_FACTS_BYTES)
        facts = from_json(data, LeftFacts, what=str(path))
    except FileNotFoundError:
        return {}
    except (OSError, ParseError) as error:
        read.note(path, str(error))
        return {}
    boot_id = read.text(ctx.roots.proc / "sys/kernel/random/boot_id")
    if facts.boot_id != boot_id:
        read.note(path, "was left before this boot, and is not used")
        return {}
    return facts.acs


def collect(ctx: ProbeContext) -> LeftFacts:
    """Read the registers of all bridges."""
    read = FieldReader()
    base = ctx.roots.sys / "bus/pci/devices"
    bridges = [
        address
        for address in read.entries(base)
        if (read.integer(base / address / "class", base=0, high=0xFFFFFF) or 0) >> 8 == _BRIDGE_CLASS
    ]
    return LeftFacts(
        boot_id=read.text(ctx.roots.proc / "sys/kernel/random/boot_id") or "",
        acs={address: read_acs(base / address) for address in bridges},
    )
