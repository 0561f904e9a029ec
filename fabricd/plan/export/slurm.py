"""Slurm's ``topology.conf`` from where nodes stand: switches with their nodes, and the switches above them.

Nodes whose leaf is not known are left out: below a switch of nobody's they would be handed out together with any.
Source: topology.conf(5) of Slurm 24.05.
"""

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

from fabricd.errors import InputError
from fabricd.model.placement import Place
from fabricd.units import format_names

_NUMBERED = re.compile(r"(.*?)(\d{1,12})", re.ASCII)
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:-]")


def slurm_topology(names: Mapping[str, str], places: Mapping[str, Place]) -> str:
    """Return the file.

    Args:
        names: of the nodes, by node_id.
        places: where they stand, by node_id.

    Raises:
        InputError: no node's leaf is known, a switch that is at two levels, or a node's name that would say more.
    """
    members: dict[str, list[str]] = {}
    above: dict[str, str] = {}
    without = []
    for node_id, name in names.items():
        if not name or _NOT_IN_NAMES.search(name):
            raise InputError(f"the node's name {name[:80]!r} cannot stand in topology.conf")
        place = places.get(node_id)
        switches = [switch for switch in place.switches if switch] if place else []
        if not switches:
            without.append(name)
            continue
        members.setdefault(switches[0], []).append(name)
        for lower, upper in pairwise(switches):
            if above.setdefault(lower, upper) != upper:
                raise InputError(f"switch {lower!r} is below {above[lower]!r} and below {upper!r}")
    if not members:
        raise InputError(
            "it is not known of any node which switch it goes into",
            hint="lldp, a walk over InfiniBand (fabricd facts) or --placement FILE tells",
        )
    shown = {switch: _switch_name(switch) for switch in dict.fromkeys([*members, *above, *above.values()])}
    if len(set(shown.values())) < len(shown):
        raise InputError(
            "two switches have one name in Slurm's letters", hint="give switches names of letters and digits"
        )
    return "".join(_lines(members, above, shown, without))


def _lines(
    members: Mapping[str, list[str]], above: Mapping[str, str], shown: Mapping[str, str], without: list[str]
) -> Iterable[str]:
    if without:
        yield f"# not known which switch they go into: {format_names(without)}\n"
    for leaf in sorted(members):
        yield f"SwitchName={shown[leaf]} Nodes={hostlist(members[leaf])}\n"
    below: dict[str, list[str]] = {}
    for lower, upper in above.items():
        below.setdefault(upper, []).append(shown[lower])
    for switch in sorted(below, key=lambda name: (_height(name, below, shown), name)):
        yield f"SwitchName={shown[switch]} Switches={hostlist(below[switch])}\n"


def _height(switch: str, below: Mapping[str, list[str]], shown: Mapping[str, str]) -> int:
    """Return how many levels are below a switch, so that each comes after those below it."""
    by_shown = {name: switch for switch, name in shown.items()}
    height, level = 0, [switch]
    while level and height <= len(shown):
        level = [by_shown[name] for one in level for name in below.get(one, ())]
        height += 1
    return height


def _switch_name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)


def hostlist(names: Iterable[str]) -> str:
    """Return names as Slurm's hostlist, ``"gpu[001-004,009],login"``; ``placement.hostlist.expand`` undoes it."""
    groups: dict[tuple[str, int], list[str]] = {}
    plain: list[str] = []
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            # Numbers of one width only: 9 and 010 are no range, and zeros in front count.
            groups.setdefault((match[1], len(match[2])), []).append(match[2])
    told = [_bracketed(prefix, width, numbers) for (prefix, width), numbers in sorted(groups.items())]
    return ",".join([*told, *sorted(plain)])


def _bracketed(prefix: str, width: int, texts: list[str]) -> str:
    runs: list[list[int]] = []
    for number in sorted(map(int, texts)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(texts) == 1:
        return prefix + texts[0]
    told = (f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs)
    return f"{prefix}[{','.join(told)}]"
