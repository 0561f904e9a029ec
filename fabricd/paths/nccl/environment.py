"""NCCL's environment variables that bear on paths, search and tuning, as values.

NCCL itself takes a misspelt value for 0 or its default and goes on. Here a name or value that means nothing is an
error that lists what would. Source: NCCL 2.30, graph/paths.cc, graph/search.cc, graph/tuning.cc.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fabricd.errors import InputError, UnknownNameError
from fabricd.paths.nccl.kinds import PathKind

#: Levels by NCCL's old numbers, 0 to 5.
_OLD_LEVELS = (PathKind.LOC, PathKind.PIX, PathKind.PXB, PathKind.PHB, PathKind.SYS, PathKind.SYS)
_LEVELS = tuple(kind.name for kind in PathKind if kind <= PathKind.SYS)

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetPolicy:
    """``NCCL_NETDEVS_POLICY``: how many ports a GPU uses; ``limit`` is None for all of its own."""

    auto: bool = True
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclEnvironment:
    """Settings in NCCL's names without ``NCCL_``, in lower case. ``None`` leaves the choice to NCCL."""

    p2p_level: PathKind | None = None
    p2p_disable: bool = False
    nvb_disable: bool = False
    net_disable_intra: bool = False
    net_gdr_level: PathKind | None = None
    net_gdr_read: bool | None = None
    net_gdr_c2c: bool = True
    net_gdr_mlopart: bool = False
    pxn_disable: bool = False
    pxn_c2c: bool = True
    netdevs_policy: NetPolicy = NetPolicy()
    cross_nic: int = 2
    mnnvl_scatter_nets_enable: bool = True
    min_nchannels: int | None = None
    max_nchannels: int | None = None
    min_ctas: int | None = None
    max_ctas: int | None = None
    algo: frozenset[str] | None = None
    proto: frozenset[str] | None = None
    ll128_c2c: bool = True
    net_overhead: int | None = None  #: nanoseconds


def parse_environment(variables: Mapping[str, str]) -> NcclEnvironment:
    """Return the settings that some variables make.

    Args:
        variables: by full name, ``{"NCCL_P2P_LEVEL": "SYS"}``.

    Raises:
        UnknownNameError: a variable that has no bearing here; lists those that have.
        InputError: a value that NCCL would not understand; lists those it would.
    """
    settings: dict[str, Any] = {}
    for name, text in variables.items():
        if name not in _READERS:
            raise UnknownNameError("NCCL variable that bears on paths or plans", name[:80], sorted(_READERS))
        read, valid = _READERS[name]
        value = read(text.strip()[:200])
        if value is _INVALID:
            raise InputError(f"{name}={text[:40]!r} means nothing to NCCL", hint=f"valid: {valid}")
        settings[name.removeprefix("NCCL_").lower()] = value
    return NcclEnvironment(**settings)


_INVALID = object()


def _level(text: str) -> object:
    if text.upper() in _LEVELS:
        return PathKind[text.upper()]
    return _OLD_LEVELS[min(int(text), 5)] if text.isascii() and text.isdigit() else _INVALID


def _switch(text: str) -> object:
    return text == "1" if text in ("0", "1") else _INVALID


def _tristate(text: str) -> object:
    return None if text in ("-1", "-2") else _switch(text)


def _count(text: str) -> object:
    return int(text) if re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) else _INVALID


def _cross_nic(text: str) -> object:
    return int(text) if text in ("0", "1", "2") else _INVALID


def _policy(text: str) -> object:
    match = re.fullmatch(r"(AUTO)|(ALL)|MAX:([1-9][0-9]{0,3})", text, re.IGNORECASE | re.ASCII)
    if match is None:
        return _INVALID
    return NetPolicy(auto=bool(match[1]), limit=int(match[3]) if match[3] else None)


def _names(known: tuple[str, ...]) -> Callable[[str], object]:
    by_name = {name.lower(): name for name in known}

    def read(text: str) -> object:
        exclude = text.startswith("^")
        named = [by_name.get(word.strip().lower()) for word in text.removeprefix("^").split(",")]
        chosen = {name for name in named if name is not None}
        if len(chosen) < len(named):
            return _INVALID
        return frozenset(known) - chosen if exclude else frozenset(chosen)

    return read


_LEVEL_CHOICES = f"{', '.join(_LEVELS)}, or 0 to 5"
_SWITCH = (_switch, "0, 1")
_COUNT = (_count, "a number")
_READERS: dict[str, tuple[Callable[[str], object], str]] = {
    "NCCL_P2P_LEVEL": (_level, _LEVEL_CHOICES),
    "NCCL_P2P_DISABLE": _SWITCH,
    "NCCL_NVB_DISABLE": _SWITCH,
    "NCCL_NET_DISABLE_INTRA": _SWITCH,
    "NCCL_NET_GDR_LEVEL": (_level, _LEVEL_CHOICES),
    "NCCL_NET_GDR_READ": (_tristate, "0, 1, or -2 for NCCL's own choice"),
    "NCCL_NET_GDR_C2C": _SWITCH,
    "NCCL_NET_GDR_MLOPART": _SWITCH,
    "NCCL_PXN_DISABLE": _SWITCH,
    "NCCL_PXN_C2C": _SWITCH,
    "NCCL_NETDEVS_POLICY": (_policy, "AUTO, ALL, MAX:<number>"),
    "NCCL_CROSS_NIC": (_cross_nic, "0, 1, 2"),
    "NCCL_MNNVL_SCATTER_NETS_ENABLE": _SWITCH,
    "NCCL_MIN_NCHANNELS": _COUNT,
    "NCCL_MAX_NCHANNELS": _COUNT,
    "NCCL_MIN_CTAS": _COUNT,
    "NCCL_MAX_CTAS": _COUNT,
    "NCCL_ALGO": (_names(ALGORITHMS), f"a list of {', '.join(ALGORITHMS)}; ^ before it excludes"),
    "NCCL_PROTO": (_names(PROTOCOLS), f"a list of {', '.join(PROTOCOLS)}; ^ before it excludes"),
    "NCCL_LL128_C2C": _SWITCH,
    "NCCL_NET_OVERHEAD": _COUNT,
}
