"""The setting ``[[network]]``: what a site says of its networks, as rules over a node's ports."""

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from fabricd.errors import InputError
from fabricd.model.network import MAX_RULES, ROLES, NetworkRule
from fabricd.nearest import nearest
from fabricd.settings import Kind, choice, integer

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_PATTERN = re.compile(r"[A-Za-z0-9._:@*?\[\]!-]{1,64}")
_PREFIX = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}")
#: A P_Key with the membership bit, InfiniBand architecture, 10.9.
_MAX_PKEY, _MAX_VLAN = 0xFFFF, 4094


def network_rules() -> Kind:
    """Return the kind of lists of rules; in the environment as JSON."""

    def check(value: Any) -> tuple[NetworkRule, ...]:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise InputError("expected tables [[network]] with name or role, and what of a port must match")
        if len(value) > MAX_RULES:
            raise InputError(f"{len(value)} tables, expected at most {MAX_RULES}")
        return tuple(_rule(number, one) for number, one in enumerate(value, start=1))

    return Kind(check, json.loads)


def _rule(number: int, table: Any) -> NetworkRule:
    where = f"the {number}. table"
    if not isinstance(table, Mapping):
        raise InputError(f"{where} is no table")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _CHECKS:
            meant = nearest(key, _CHECKS) or f"; keys: {', '.join(_CHECKS)}"
            raise InputError(f"{where}: {key!s:.60} is no key{meant}")
        try:
            found[key] = _CHECKS[key](value)
        except InputError as error:
            raise InputError(f"{where}: {key}: {error.message}") from error
    if not found.keys() & {"name", "role"}:
        raise InputError(f"{where} gives neither name nor role")
    if not found.keys() - {"name", "role"}:
        raise InputError(f"{where} would match every port: give interface, subnet, vlan, pkey or prefix")
    return NetworkRule(**found)


def _text(pattern: re.Pattern[str], what: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise InputError(f"{value!r:.80} is not {what}")
        return value

    return check


def _subnet(value: Any) -> str:
    try:
        return str(ipaddress.ip_network(value if isinstance(value, str) else ""))
    except ValueError as error:
        raise InputError(f"{value!r:.80} is no subnet such as 10.1.0.0/16: {error}") from None


def _prefix(value: Any) -> str:
    lower = value.lower() if isinstance(value, str) else value
    return _text(_PREFIX, "a subnet prefix such as fec0:0000:0000:0001")(lower)


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "name": _text(_NAME, "at most 64 letters, digits and ._- between letters or digits"),
    "role": choice(*ROLES).check,
    "interface": _text(_PATTERN, "the name of an interface or HCA port, or a pattern such as ens* or mlx5_[0-3]:1"),
    "subnet": _subnet,
    "vlan": integer(1, _MAX_VLAN).check,
    "pkey": integer(1, _MAX_PKEY).check,
    "prefix": _prefix,
}
