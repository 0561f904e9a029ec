"""What is wrong by a job's log: which network it took and how, held against the map where there is one; its messages.

Rules over facts have codes that begin with ``log-``; a message has its own. docs/messages.md lists both.
"""

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fabricd.findings.environment import environment_findings
from fabricd.findings.joblog.read import HostLog, JobLog, Seen
from fabricd.findings.joblog.watchdog import watchdog_findings
from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_rails import RDMA_KINDS, beside_gpus
from fabricd.model.device import InterfaceKind
from fabricd.model.finding import Finding, Severity
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_names

#: The rules over facts, in few words.
CODES = {
    "log-tcp": "hosts are joined by TCP; an error where the map has RDMA on all of them",
    "log-networks-differ": "hosts took different networks",
    "log-interface": "ranks meet on an interface that leads to no other host, or on one address twice",
    "log-indirect": "RDMA carries data through the hosts' memory, on all hosts or on some",
    "log-adapters-differ": "hosts use other numbers of adapters",
    "log-adapters-mixed": "InfiniBand and RoCE ports are used together",
    "log-adapters-unused": "ports beside GPUs are active by the map, and NCCL does not use them",
    "log-rank-behind": "ranks have not begun a collective that others wait in, by what PyTorch's watchdogs say",
    "log-calls-differ": "ranks wait in different collectives, by the same",
    "log-all-wait": "no rank is missing in a collective that does not end, by the same",
    "log-shared-memory": "GPUs of one host talk through its memory; an error where the map has NVLink between all",
}
#: NCCL's name for TCP.
TCP = "Socket"
#: Of the environment's findings, those that do not depend on what interfaces a process sees.
_OF_SETTINGS = frozenset({"setting-hinders", "setting-fixed-gid"})
#: Names of bridges that lead to no other host, where no map tells what is in them; those of Docker end in hexadecimal.
_LEAD_NOWHERE = re.compile(r"docker|virbr|lxcbr|lxdbr|cni|podman|br-[0-9a-f]{12}$")
_DEFAULT_NET = 'eval "$(fabricctl env)" on every node'
_MAX_TEXT = 200
#: That are told by name.
_PORTS = 12


def log_findings(log: JobLog, nodes: Mapping[str, Snapshot] | None = None) -> tuple[Finding, ...]:
    """Return what is wrong by a log, the worst first.

    Args:
        log: what it tells.
        nodes: the map, by name of node; hosts of the log that it lacks are judged by the log alone. None: no map.
    """
    known = _of_hosts(log, nodes or {})
    found = [*_networks(log, known), *_interfaces(log, known), *_indirect(log), *_adapters(log, known)]
    for name, host in log.hosts.items():
        found += (replace(one, node=name) for one in (*_memory(host, known.get(name)), *_settings(host)))
    found += watchdog_findings(log.watchdogs, log.ranks, log.rank_hosts)
    for seen in log.messages.values():
        found += _message(seen)
    return tuple(sorted(found, key=lambda one: one.severity.rank))


def _of_hosts(log: JobLog, nodes: Mapping[str, Snapshot]) -> dict[str, Snapshot]:
    short = {name.partition(".")[0]: snapshot for name, snapshot in nodes.items()}
    found = {name: nodes.get(name) or short.get(name.partition(".")[0]) for name in log.hosts}
    return {name: snapshot for name, snapshot in found.items() if snapshot is not None}


def _active(snapshot: Snapshot) -> list[str]:
    """Return the ports that could carry RDMA."""
    return [
        name for name, hca, port in snapshot.hca_ports() if hca.kind in RDMA_KINDS | {"efa"} and port.state == "active"
    ]


def _networks(log: JobLog, known: Mapping[str, Snapshot]) -> Iterator[Finding]:
    taken = {name: host.networks[-1] for name, host in log.hosts.items() if host.networks}
    by_tcp = [name for name in taken if taken[name] == TCP]
    if len(taken) < 2 or not by_tcp:
        return
    if len(by_tcp) < len(taken):
        others = ", ".join(sorted({network for network in taken.values() if network != TCP}))
        for name in by_tcp:
            yield Finding(
                code="log-networks-differ",
                severity=Severity.ERROR,
                node=name,
                what="NCCL took TCP here and RDMA on other hosts: they cannot talk to each other",
                evidence=(f"Using network {TCP}; elsewhere {others[:_MAX_TEXT]}", *_why_tcp(log, name, known)),
                fix="fabricctl doctor in the job's own container on this host (adapters-denied, setting-names-nothing)",
            )
        return
    with_rdma = [name for name in by_tcp if name in known and _active(known[name])]
    if known and not with_rdma and len(known) == len(taken):
        return  # TCP is all there is
    for name in by_tcp:
        yield Finding(
            code="log-tcp",
            severity=Severity.ERROR if len(with_rdma) == len(taken) else Severity.WARNING,
            node=name,
            what="NCCL joins the hosts by TCP",
            evidence=(f"Using network {TCP}", *_why_tcp(log, name, known)),
            fix="fabricctl doctor in the job's own container; NCCL_NET=IB, as fabricctl env sets it, has a job fail "
            "rather than fall back",
        )


def _why_tcp(log: JobLog, name: str, known: Mapping[str, Snapshot]) -> Iterator[str]:
    if (seen := log.messages.get("nccl-no-adapter")) and name in seen.hosts:
        yield "NCCL: NET/IB : No device found"
    for setting in ("NCCL_NET", "NCCL_IB_DISABLE", "NCCL_IB_HCA"):
        if value := log.hosts[name].settings.get(setting):
            yield f"{setting}={value[:80]}"
    if name not in known:
        yield "whether the host has RDMA is not known: no map of it"
    elif ports := _active(known[name]):
        yield f"by the map {len(ports)} ports are active there: {format_names(ports)}"
    else:
        yield "by the map no port for RDMA is active there"


def _interfaces(log: JobLog, known: Mapping[str, Snapshot]) -> Iterator[Finding]:
    if len(log.hosts) < 2:
        return
    addresses: dict[str, list[str]] = {}
    for name, host in log.hosts.items():
        if host.address:
            addresses.setdefault(host.address, []).append(name)
    for name, host in log.hosts.items():
        twice = [other for other in addresses.get(host.address, ())[:5] if other != name]
        why = f"{', '.join(twice[:4])} has the same address" if twice else _nowhere(host, known.get(name))
        if why:
            yield Finding(
                code="log-interface",
                severity=Severity.ERROR,
                node=name,
                subject=host.interface,
                what=f"ranks meet on {host.interface}, which leads to no other host",
                evidence=(f"Bootstrap : Using {host.interface}:{host.address}", why),
                fix=f"{_DEFAULT_NET} sets NCCL_SOCKET_IFNAME to an interface that joins them",
            )


def _nowhere(host: HostLog, snapshot: Snapshot | None) -> str:
    """Return why an interface leads to no other host; "" where nothing says so."""
    try:
        address = ipaddress.ip_address(host.address.partition("%")[0])
    except ValueError:
        return ""
    if address.is_loopback or (address.version == 4 and address.is_link_local):
        return "the loopback" if address.is_loopback else "an address that a host gives itself when nobody gives it one"
    by_name = {one.name: one for one in snapshot.interfaces} if snapshot else {}
    if (known := by_name.get(host.interface)) is not None:
        why = unusable(known, by_name) if known.kind is InterfaceKind.BRIDGE else ""
        return f"by the map {why}" if why else ""
    return "its name is that of a bridge for containers" if _LEAD_NOWHERE.match(host.interface) else ""


def _is_rdma(network: str) -> bool:
    """Tell whether connections over a network are marked GDRDMA where adapters reach GPUs' memory."""
    return network.startswith("IB") or "Libfabric" in network or "RDMA" in network


def _indirect(log: JobLog) -> Iterator[Finding]:
    counts = {name: host for name, host in log.hosts.items() if host.direct + host.indirect}
    with_some = [name for name, host in counts.items() if host.indirect and all(map(_is_rdma, host.networks))]
    some_direct = any(host.direct for host in counts.values())
    for name in with_some:
        host = counts[name]
        evidence = [f"{host.indirect} of {host.direct + host.indirect} connections without /GDRDMA"]
        if host.not_direct_because:
            evidence.append(host.not_direct_because[:_MAX_TEXT])
        if level := host.settings.get("NCCL_NET_GDR_LEVEL"):
            evidence.append(f"NCCL_NET_GDR_LEVEL={level[:20]}")
        yield Finding(
            code="log-indirect",
            severity=Severity.WARNING,
            node=name,
            what="adapters send GPUs' data through the host's memory, and elsewhere in this job directly"
            if some_direct
            else "adapters send GPUs' data through the host's memory",
            evidence=tuple(evidence),
            fix="fabricctl doctor (gpudirect-off, gpudirect-differs, acs-redirects); fabricctl topo: PXB or nearer is "
            "what NCCL takes",
        )


def _adapters(log: JobLog, known: Mapping[str, Snapshot]) -> Iterator[Finding]:
    counts = {name: len(host.adapters) for name, host in log.hosts.items() if host.adapters}
    most = max(counts.values(), default=0)
    for name, count in counts.items():
        host = log.hosts[name]
        ports = format_names((port for port, _ in host.adapters), _PORTS)
        if count < most:
            yield Finding(
                code="log-adapters-differ",
                severity=Severity.WARNING,
                node=name,
                what="NCCL uses fewer adapters here than on other hosts",
                evidence=(f"{count} here: {ports}", f"{most} on others"),
                fix="fabricctl doctor (adapters-differ, port-down, adapters-hidden); compare NCCL_IB_HCA of the hosts",
            )
        layers = {layer for _, layer in host.adapters}
        if {"IB", "RoCE"} <= layers:
            yield Finding(
                code="log-adapters-mixed",
                severity=Severity.WARNING,
                node=name,
                what="NCCL uses InfiniBand and RoCE ports together, which do not reach each other",
                evidence=(format_names(("/".join(one) for one in host.adapters), _PORTS),),
                fix=f"{_DEFAULT_NET} sets NCCL_IB_HCA to the ports of the network that joins them",
            )
        if name in known and (left := _left_out(host, known[name])):
            yield Finding(
                code="log-adapters-unused",
                severity=Severity.WARNING,
                node=name,
                what="NCCL leaves out active ports that stand beside GPUs",
                evidence=(f"it uses {ports}", f"by the map active as well: {format_names(left, _PORTS)}"),
                fix=f"{_DEFAULT_NET} says which ports join the nodes; is NCCL_IB_HCA left over?",
            )


def _left_out(host: HostLog, snapshot: Snapshot) -> list[str]:
    near = frozenset().union(*beside_gpus(snapshot).values()) if snapshot.gpus else frozenset()
    used = {port for port, _ in host.adapters}
    if not used & {name for name, _, _ in snapshot.hca_ports()}:
        return []  # the names are a container's
    beside = {name for name, hca, _ in snapshot.hca_ports() if hca.pci_address in near}
    return [name for name in _active(snapshot) if name in beside - used]


def _memory(host: HostLog, snapshot: Snapshot | None) -> Iterator[Finding]:
    if not host.through_memory:
        return
    joined = snapshot is not None and _joined_by_nvlink(snapshot)
    evidence = [f"{host.through_memory} connections via SHM, {host.by_peer_access} via P2P"]
    if joined:
        evidence.append("by the map NVLink joins each GPU with each")
    switches = {name: host.settings[name] for name in ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL") if name in host.settings}
    evidence += (f"{name}={value[:20]}" for name, value in switches.items())
    yield Finding(
        code="log-shared-memory",
        severity=Severity.ERROR if joined else Severity.NOTE,
        what="GPUs of this host talk through its memory",
        evidence=tuple(evidence),
        fix="fabricctl doctor (nvlink-p2p, p2p-disabled, acs-redirects); fabricctl paths gpu0 gpu1 --explain",
    )


def _joined_by_nvlink(snapshot: Snapshot) -> bool:
    """Tell whether each GPU has an active link to each other one, or to an NVSwitch."""
    addresses = {gpu.pci_address for gpu in snapshot.gpus}
    for gpu in snapshot.gpus:
        links = [link for link in gpu.links if link.active]
        others = {link.remote_pci_address for link in links} | {gpu.pci_address}
        if not (any(link.remote_type == "switch" for link in links) or others >= addresses):
            return False
    return len(addresses) > 1


def _settings(host: HostLog) -> Iterator[Finding]:
    adapters = [port.partition(":")[0] for port, _ in host.adapters] or ["?"]
    found = environment_findings(host.settings, interfaces=(), adapters=adapters, source="the job's environment")
    yield from (one for one in found if one.code in _OF_SETTINGS)


def _message(seen: Seen) -> Iterator[Finding]:
    message = seen.message
    times = "once" if seen.count == 1 else f"{seen.count} times"
    for name in seen.hosts or [""]:
        yield Finding(
            code=message.code,
            severity=message.severity,
            node=name,
            what=message.meaning,
            evidence=(f"{seen.where}, {times}: {seen.text.strip()[:_MAX_TEXT]}",),
            fix=message.fix,
        )
