"""Networks as a site names them: rules of each node's configuration over what facts make of its ports."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from ipaddress import ip_address, ip_network

from fabricd.model.device import HcaPort
from fabricd.model.network import MAX_RULES, Network, NetworkPort, NetworkRule
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_MEMBERSHIP_BIT = 0x8000
#: Before a site's name, so that two transports over one wire keep two names, as with names that facts give.
_PREFIX = {Transport.INFINIBAND: "ib:", Transport.ROCE: "roce:", Transport.EFA: "efa:", Transport.NVLINK: "nvlink:"}


@dataclass(frozen=True, slots=True)
class _Named:
    port: NetworkPort
    rule: NetworkRule


def as_the_site_says(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> list[Network]:
    """Return networks with the names and roles that the nodes' rules give their ports.

    Ports that a rule names leave the network that facts put them on, for the one of that name and transport.

    Args:
        networks: by facts.
        nodes: snapshots by node_id; ``site_networks`` holds the rules, the first that matches a port counts.
    """
    if not any(snapshot.site_networks for snapshot in nodes.values()):
        return list(networks)
    kept: list[Network] = []
    named: dict[tuple[str, Transport], list[tuple[Network, _Named]]] = {}
    for network in networks:
        rules = [_rule(network, port, nodes[port.node]) for port in network.ports]
        for port, rule in zip(network.ports, rules, strict=True):
            if rule is not None and rule.name:
                named.setdefault((rule.name, network.transport), []).append((network, _Named(port, rule)))
        left = [(port, rule) for port, rule in zip(network.ports, rules, strict=True) if not (rule and rule.name)]
        if left:
            kept.append(_with_role(network, left))
    return kept + [_joined(name, transport, members) for (name, transport), members in named.items()]


def _with_role(network: Network, left: Sequence[tuple[NetworkPort, NetworkRule | None]]) -> Network:
    ports = tuple(port for port, _ in left)
    rest = network if ports == network.ports else replace(network, ports=ports)
    roles = _roles(rule for _, rule in left if rule is not None)
    # Only where a rule speaks for every port: one node's word is not the network's.
    if not roles or any(rule is None or not rule.role for _, rule in left):
        return rest
    return replace(rest, role=roles[0], configured=True, reason="; ".join((network.reason, _told(roles))))


def _joined(name: str, transport: Transport, members: Sequence[tuple[Network, _Named]]) -> Network:
    origins = {network.name: network for network, _ in members}
    (first, *others) = origins.values()
    roles = _roles(one.rule for _, one in members)
    alike = all(other.role == first.role for other in others)
    reason = f"named so in the configuration of {'its node' if len(members) == 1 else 'its nodes'}"
    if others:
        reason += f", which joins {', '.join(list(origins)[:4])}{', ...' if len(origins) > 4 else ''}"
    return Network(
        name=_PREFIX.get(transport, "") + name,
        transport=transport,
        ports=tuple(one.port for _, one in members),
        verified=Evidence.ASSUMED if others else first.verified,
        role=roles[0] if roles else first.role if alike else "data",
        configured=bool(roles),
        reason="; ".join(filter(None, (reason, _told(roles) if roles else ""))),
    )


def _roles(rules: Iterable[NetworkRule]) -> list[str]:
    return list(dict.fromkeys(rule.role for rule in rules if rule.role))


def _told(roles: Sequence[str]) -> str:
    if len(roles) == 1:
        return f"its role is configured: {roles[0]}"
    return f"nodes are configured to different roles for it: {', '.join(roles)}; the first counts"


def _rule(network: Network, port: NetworkPort, snapshot: Snapshot) -> NetworkRule | None:
    rules = snapshot.site_networks[:MAX_RULES]
    return next((rule for rule in rules if _matches(rule, network, port, snapshot)), None)


def _matches(rule: NetworkRule, network: Network, port: NetworkPort, snapshot: Snapshot) -> bool:
    if rule.interface and not fnmatchcase(port.interface, rule.interface):
        return False
    if rule.subnet and not _lies_in(port.address, rule.subnet):
        return False
    if rule.vlan is not None and rule.vlan != _vlan(port, snapshot):
        return False
    if rule.pkey is None and not rule.prefix:
        return True
    hca_port = _hca_port(port, snapshot)
    if hca_port is None or network.transport is not Transport.INFINIBAND:
        return False
    keys = {key & ~_MEMBERSHIP_BIT for key in hca_port.pkeys}
    if rule.pkey is not None and rule.pkey & ~_MEMBERSHIP_BIT not in keys:
        return False
    return not rule.prefix or any(gid.gid.lower().startswith(rule.prefix.lower()) for gid in hca_port.gids)


def _lies_in(address: str, subnet: str) -> bool:
    try:
        return ip_address(address) in ip_network(subnet, strict=False)
    except ValueError:
        return False


def _vlan(port: NetworkPort, snapshot: Snapshot) -> int | None:
    own = (interface.vlan_id for interface in snapshot.interfaces if interface.name == port.interface)
    told = (one.vlan_id for one in snapshot.lldp if one.interface == port.interface)
    return next((vlan for vlan in (*own, *told) if vlan is not None), None)


def _hca_port(port: NetworkPort, snapshot: Snapshot) -> HcaPort | None:
    return next((one for name, _, one in snapshot.hca_ports() if name == port.interface), None)
