"""Joins what several probes tell of the same devices."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from fabricd.model.device import Hca, HcaPort

T = TypeVar("T", Hca, HcaPort)


def add_facts(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts with those of a later probe.

    RDMA devices that both know are joined by name, positions stand beside each other; other facts are replaced.
    """
    joined = {**known, **more}
    if "positions" in known and "positions" in more:
        joined["positions"] = (*known["positions"], *more["positions"])
    if "hcas" in known and "hcas" in more:
        joined["hcas"] = join_hcas(known["hcas"], more["hcas"])
    return joined


def join_hcas(known: tuple[Hca, ...], more: tuple[Hca, ...]) -> tuple[Hca, ...]:
    """Return the known devices, each with what only the other source tells, and then those that only it has."""
    other = {hca.name: hca for hca in more}
    names = {hca.name for hca in known}
    joined = []
    for hca in known:
        extra = other.get(hca.name)
        if extra is not None:
            ports = {port.port: port for port in extra.ports}
            filled = tuple(_filled(port, ports[port.port]) if port.port in ports else port for port in hca.ports)
            hca = replace(_filled(hca, extra), ports=filled or extra.ports)
        joined.append(hca)
    return (*joined, *(hca for hca in more if hca.name not in names))


def _filled(known: T, more: T) -> T:
    """Return an object in which what is not known (None) comes from the other."""
    empty = [field.name for field in fields(known) if getattr(known, field.name) is None]
    return replace(known, **{name: getattr(more, name) for name in empty})
