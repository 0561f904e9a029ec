"""Several hosts on one machine, joined by networks: for demonstrations and tests. Needs root on Linux.

A host has network, IPC, PID, mount and UTS namespaces of its own, so that MPI libraries take it for a separate
machine: with a network namespace alone they find shared memory and never use the network. Its /proc, /sys, /dev/shm,
/run and /etc/hosts (where the machine has one) are its own; all other files, machine-id and boot id are those of this
machine.

A network is a bridge in a namespace that no host sees, the switch. A shaped network is shaped there, on the switch's
side, so that nothing inside a host tells it from any other::

    host h0  [fast]------ bridge br0 ------[fast]  host h1
             [slow]------ bridge br1 ------[slow]
                            ^ 200 Mbit/s, in the switch's namespace

Use::

    networks = [NetworkSpec("fast", "10.1.0.0/24"), NetworkSpec("slow", "10.2.0.0/24", bits_per_second=200_000_000)]
    with make_hosts(2, networks) as hosts:
        hosts[0].run(["ip", "address"])
        hosts[0].link("slow").pull()
"""

import ipaddress
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from demo.namespaces import WHOLE_HOST, Kind, Namespaces
from fabricd.errors import InputError, UnavailableError

MAX_NAME = 15  # linux/if.h: IFNAMSIZ less the closing zero

#: Makes a host of its own out of new namespaces. $1 is its name, $2 its /etc/hosts.
_HOST_SETUP = """
mount --make-rprivate /
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
echo "$1" > /proc/sys/kernel/hostname
printf %s "$2" > /run/hosts
[ ! -e /etc/hosts ] || mount --bind /run/hosts /etc/hosts
ip link set lo up
"""
#: The switch needs a /sys of its network namespace; processes it has none, and it keeps our /proc.
_SWITCH_SETUP = "mount --make-rprivate /\nmount -t sysfs sysfs /sys\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Bytes that an interface has carried since it was made. Source: /sys/class/net/<name>/statistics."""

    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A network to be made."""

    name: str
    subnet: str  #: IPv4, e.g. "10.1.0.0/24"; host i gets the i-th address
    interfaces: tuple[str, ...] = ()  #: the interface's name in each host; empty: the network's name in all
    bits_per_second: int | None = None  #: shaped to this in each direction, by the switch; None: as fast as it goes


class Link:
    """A host's interface on a network, with its port at the switch."""

    def __init__(
        self, network: str, interface: str, address: str, port: str, owner: Namespaces, switch: Namespaces
    ) -> None:
        self.network = network
        self.interface = interface
        self.address = address  #: without the prefix length
        self._port = port
        self._owner = owner
        self._switch = switch

    def counters(self) -> Counters:
        """Read what the interface has carried."""
        statistics = Path("/sys/class/net", self.interface, "statistics")

        def read() -> Counters:
            received, sent = ((statistics / name).read_text() for name in ("rx_bytes", "tx_bytes"))
            return Counters(received_bytes=int(received), sent_bytes=int(sent))

        return self._owner.inside(read)

    def pull(self) -> None:
        """Pull the cable: the interface stays up, and loses its carrier."""
        self._switch.run(["ip", "link", "set", "dev", self._port, "down"])

    def plug(self) -> None:
        """Plug it in again."""
        self._switch.run(["ip", "link", "set", "dev", self._port, "up"])


class Host:
    """One host. Programs started here are in its namespaces."""

    def __init__(self, name: str, namespaces: Namespaces, links: Mapping[str, Link]) -> None:
        self.name = name
        self.namespaces = namespaces
        self.links = dict(links)  #: by name of the network, in the order in which the interfaces were made
        self.env: dict[str, str] = {}  #: added to the environment of every program started here

    def link(self, network: str) -> Link:
        """Return this host's link to a network."""
        return self.links[network]

    def _environment(self, env: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, **self.env, **(env or {})}

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start a program on this host; see ``Namespaces.popen``.

        Args:
            command: program and arguments.
            env: added to this process's environment and the host's.
            stdin: as in ``subprocess.Popen``; nothing to read by default.
            stdout: as in ``subprocess.Popen``.
            stderr: as in ``subprocess.Popen``.
            pass_fds: file descriptors to keep open.
        """
        return self.namespaces.popen(
            command, env=self._environment(env), stdin=stdin, stdout=stdout, stderr=stderr, pass_fds=pass_fds
        )

    def run(
        self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on this host to its end; see ``Namespaces.run``."""
        return self.namespaces.run(command, env=self._environment(env), timeout=timeout)


def _check_specs(count: int, networks: Sequence[NetworkSpec]) -> None:
    """Refuse what could not be made, before anything is."""
    faults = []
    for spec in networks:
        names = spec.interfaces or (spec.name,)
        faults += [f"{name!r}: an interface's name has 1 to {MAX_NAME} characters" for name in names if not _fits(name)]
        if spec.interfaces and len(spec.interfaces) != count:
            faults.append(f"network {spec.name!r} names {len(spec.interfaces)} interfaces for {count} hosts")
        if ipaddress.IPv4Network(spec.subnet).num_addresses < count + 2:
            faults.append(f"network {spec.name!r}: {spec.subnet} has no room for {count} hosts")
    if len({spec.name for spec in networks}) != len(networks):
        faults.append("two networks have one name")
    if faults:
        raise InputError("; ".join(faults))


def _fits(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and not set(name) & set("/: \t\n")


def _addresses(count: int, networks: Sequence[NetworkSpec]) -> dict[str, list[str]]:
    """Return each network's addresses, one for each host."""
    return {
        spec.name: [str(ipaddress.IPv4Network(spec.subnet)[index + 1]) for index in range(count)] for spec in networks
    }


def _hosts_file(names: Sequence[str], addresses: Mapping[str, Sequence[str]]) -> str:
    """Return an /etc/hosts in which every host has its address on the first network."""
    lines = ["127.0.0.1 localhost"]
    for first in list(addresses.values())[:1]:
        lines += [f"{address} {name}" for name, address in zip(names, first, strict=True)]
    return "\n".join(lines) + "\n"


def _ip(where: Namespaces, lines: Sequence[str]) -> None:
    try:
        where.run(["ip", "-batch", "-"], stdin_text="\n".join(lines) + "\n")
    except subprocess.CalledProcessError as error:
        raise UnavailableError(f"ip: {error.stderr.strip()}", hint="the kernel needs veth and bridge") from error


def _join(
    spec: NetworkSpec, number: int, addresses: Sequence[str], spaces: Sequence[Namespaces], switch: Namespaces
) -> list[Link]:
    """Make one network, and a link of each host to it."""
    bridge = f"br{number}"
    _ip(switch, [f"link add {bridge} type bridge", f"link set dev {bridge} up"])
    names = spec.interfaces or (spec.name,) * len(spaces)
    prefix = ipaddress.IPv4Network(spec.subnet).prefixlen
    links = []
    for index, (name, address, space) in enumerate(zip(names, addresses, spaces, strict=True)):
        port = f"n{number}h{index}"
        _ip(
            switch,
            [
                f"link add {port} type veth peer name {name} netns /proc/{space.pid}/ns/net",
                f"link set dev {port} master {bridge}",
                f"link set dev {port} up",
            ],
        )
        if spec.bits_per_second is not None:
            rate = f"{spec.bits_per_second}bit"
            shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
            switch.run(["tc", "qdisc", "add", "dev", port, *shape])
        _ip(space, [f"addr add {address}/{prefix} dev {name}", f"link set dev {name} up"])
        links.append(Link(spec.name, name, address, port, space, switch))
    return links


@contextmanager
def make_hosts(count: int, networks: Sequence[NetworkSpec], *, prefix: str = "h") -> Iterator[list[Host]]:
    """Make hosts ``h0``, ``h1``, ... joined by networks; everything is gone afterwards, also after a crash.

    Args:
        count: how many hosts.
        networks: made in this order, which is the order of the interfaces in each host.
        prefix: of the hosts' names.

    Raises:
        InputError: names, subnets or counts that do not fit.
        UnavailableError: this process may not, or this kernel or machine lacks a part; says which.
    """
    _check_specs(count, networks)
    names = [f"{prefix}{index}" for index in range(count)]
    addresses = _addresses(count, networks)
    hosts_file = _hosts_file(names, addresses)
    with ExitStack() as stack:
        spaces = []
        for name in names:
            spaces.append(Namespaces(WHOLE_HOST, _HOST_SETUP, [name, hosts_file]))
            stack.callback(spaces[-1].close)
        switch = Namespaces(Kind.NET | Kind.MOUNT, _SWITCH_SETUP)
        stack.callback(switch.close)
        hosts = [Host(name, space, {}) for name, space in zip(names, spaces, strict=True)]
        for number, spec in enumerate(networks):
            for host, link in zip(hosts, _join(spec, number, addresses[spec.name], spaces, switch), strict=True):
                host.links[spec.name] = link
        yield hosts
