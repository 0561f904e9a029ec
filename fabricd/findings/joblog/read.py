"""What NCCL's lines in a job's log tell: its hosts, networks, adapters and connections, and which messages stand in it.

Lines look so, whatever a launcher puts before them::

    gpu7:4711:4730 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA
    gpu7:4711:4730 [0] transport/net_ib.cc:839 NCCL WARN NET/IB : Got completion with error 12, opcode 0, len 0, ...

Source: NCCL 2.7 to 2.32, debug.cc, init.cc, bootstrap.cc and transport/.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from fabricd.findings.joblog.message import KnownMessages, Message
from fabricd.findings.joblog.nccl import NCCL_MESSAGES
from fabricd.findings.joblog.others import MPI_MESSAGES, TORCH_MESSAGES, UCX_MESSAGES
from fabricd.findings.joblog.watchdog import Watchdogs

#: Letters of a line that are looked at.
MAX_LINE = 4096
#: Of names that a log brings up, of one kind.
_MAX_NAMES = 20_000
_MAX_SETTINGS = 200
_MAX_RANKS = 100_000
_MARK = " NCCL "
#: Of what stands before the mark, so much is looked at: more than who says it can take.
_MAX_WHO = 512
_WHO = re.compile(r"([\w.-]{1,253}):\d{1,10}:\d{1,10} \[-?\d{1,5}\](?: \S{1,200})?$")
_LEVELS = ("INFO ", "WARN ")
_VERSION = re.compile(r"\bNCCL version (\d[\w.+-]{0,40})")
_NETWORK = re.compile(r"(?:Using network|Assigned NET plugin) (\w[\w .-]{0,39}?)(?: to comm\b|[^\w .-]|$)")
_INTERFACE = re.compile(r"Bootstrap ?: Using (?:\[0\])?([\w.@-]{1,32}):([0-9a-fA-F.:%\w]{1,64})<")
_ADAPTER = re.compile(r"\[\d{1,4}\]([\w-]{1,64}:\d{1,3})/(\w{1,12})")
_RANKS = re.compile(r"comm 0x\w{1,16} rank (\d{1,7}) n[rR]anks (\d{1,7}) ")
_CONNECTION = re.compile(
    r"(?:Channel|Ring) \d{1,4}(?:/\d{1,4})? : \d{1,7}(?:\[\w{1,8}\])? -> \d{1,7}(?:\[\w{1,8}\])? "
    r"(?:\[(send|receive)\] )?via (P2P|SHM|direct shared memory|NET/([^/]{1,40})/)"
)
_SETTING = re.compile(
    r"((?:NCCL|GLOO|UCX)_[A-Z0-9_]{1,60}) set by environment to ([^\s\x22\x5c]{1,200}?)\.?(?:[\s\x22\x5c]|$)"
)
_DIRECT, _NOT_DIRECT = "/GDRDMA", "GPU Direct RDMA Disabled for "

_KNOWN = KnownMessages((*NCCL_MESSAGES, *UCX_MESSAGES, *MPI_MESSAGES, *TORCH_MESSAGES))


@dataclass(slots=True, kw_only=True)
class HostLog:
    """What a log tells of one host."""

    networks: list[str] = field(default_factory=list)  #: that NCCL chose, each once: "IB", "Socket", "AWS Libfabric"
    interface: str = ""  #: on which ranks met
    address: str = ""  #: of that interface
    adapters: tuple[tuple[str, str], ...] = ()  #: port and link layer: ("mlx5_0:1", "IB")
    settings: dict[str, str] = field(default_factory=dict)  #: that NCCL says it took from the environment
    through_memory: int = 0  #: connections to ranks of this host by shared memory
    by_peer_access: int = 0  #: the same by GPUs' own access, NVLink or PCIe
    by_socket: int = 0  #: connections to other hosts by TCP; each end counts as one
    direct: int = 0  #: by RDMA, from and to memory of GPUs
    indirect: int = 0  #: by RDMA, through the host's memory
    not_direct_because: str = ""  #: NCCL's first reason for that


@dataclass(slots=True, kw_only=True)
class Seen:
    """A message that stands in a log."""

    message: Message
    where: str  #: it stands first: "line 812", "rank3.log line 812"
    text: str  #: that line
    count: int = 0
    hosts: dict[str, None] = field(default_factory=dict)  #: where NCCL's lines say it


@dataclass(slots=True, kw_only=True)
class JobLog:
    """What a log tells."""

    lines: int = 0
    nccl_lines: int = 0
    version: str = ""  #: of NCCL; the first one
    ranks: int = 0  #: of the largest communicator; 0 unknown
    hosts: dict[str, HostLog] = field(default_factory=dict)
    rank_hosts: dict[int, str] = field(default_factory=dict)  #: of that communicator
    watchdogs: Watchdogs = field(default_factory=Watchdogs)  #: PyTorch's
    messages: dict[str, Seen] = field(default_factory=dict)  #: by code


def read_log(lines: Iterable[str], *, log: JobLog | None = None, source: str = "") -> JobLog:
    """Return what a job's log tells.

    Args:
        lines: of all ranks, in any order; only the first 4,096 letters of each are looked at.
        log: what files before this one told; it is added to.
        source: what to call this file where a job has several.
    """
    log = log or JobLog()
    place = f"{source} line" if source else "line"
    for number, line in enumerate(lines, 1):
        _take(log, line[:MAX_LINE].rstrip(), place, number)
    return log


def _take(log: JobLog, line: str, place: str, number: int) -> None:
    log.lines += 1
    if not log.version and (found := _VERSION.search(line)):
        log.version = found[1]
    log.watchdogs.take(line)
    before, mark, text = line.partition(_MARK)
    host = ""
    if mark and text.startswith(_LEVELS) and (who := _WHO.search(before[-_MAX_WHO:])):
        log.nccl_lines += 1
        host = who[1]
        if (known := _host(log, host)) is not None and (_ranks(log, host, text) or _fact(known, text[5:])):
            return
    if message := _KNOWN.find(line):
        seen = log.messages.get(message.code)
        if seen is None:
            seen = log.messages[message.code] = Seen(message=message, where=f"{place} {number}", text=line)
        seen.count += 1
        if host and len(seen.hosts) < _MAX_NAMES:
            seen.hosts[host] = None


def _host(log: JobLog, name: str) -> HostLog | None:
    if name not in log.hosts:
        if len(log.hosts) >= _MAX_NAMES:
            return None
        log.hosts[name] = HostLog()
    return log.hosts[name]


def _ranks(log: JobLog, host: str, text: str) -> bool:
    """Take who is which rank of the largest communicator; tell whether a line of NCCL's says that."""
    found = _RANKS.search(text)
    if found is None:
        return False
    rank, ranks = int(found[1]), int(found[2])
    if ranks > log.ranks:
        log.ranks = ranks
        log.rank_hosts.clear()
    if ranks == log.ranks and len(log.rank_hosts) < _MAX_RANKS:
        log.rank_hosts[rank] = host
    return True


def _fact(host: HostLog, text: str) -> bool:
    """Take what a line of NCCL's says of its networks; tell whether it is nothing but that."""
    if text.startswith(("Channel ", "Ring ")):
        _connection(host, text)
        return True
    if found := _NETWORK.search(text):
        if found[1] not in host.networks and len(host.networks) < _MAX_SETTINGS:
            host.networks.append(found[1])
    elif found := _INTERFACE.search(text):
        host.interface, host.address = host.interface or found[1], host.address or found[2]
    elif found := _SETTING.search(text):
        if len(host.settings) < _MAX_SETTINGS:
            host.settings.setdefault(found[1], found[2])
    elif text.startswith("NET/IB : Using"):
        host.adapters = host.adapters or tuple(_ADAPTER.findall(text))
        return True
    elif _NOT_DIRECT in text:
        host.not_direct_because = host.not_direct_because or text
    else:
        return False
    return True


def _connection(host: HostLog, text: str) -> None:
    found = _CONNECTION.match(text)
    if found is None:  # the channels' rings and trees begin with the same word
        return
    if found[3] == "Socket":
        host.by_socket += 1
    elif found[3]:
        host.direct += _DIRECT in text
        host.indirect += _DIRECT not in text
    elif found[2] == "P2P":
        host.by_peer_access += 1
    else:
        host.through_memory += 1
