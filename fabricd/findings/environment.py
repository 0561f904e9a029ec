"""Settings of NCCL, Gloo and UCX that are left over from another machine, or that no job would want.

Source: NVIDIA's NCCL documentation of environment variables (2.30), PyTorch's of Gloo, UCX's configuration.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from fabricd.model.finding import Finding, Severity
from fabricd.nearest import nearest

_NCCL_NAMES, _GLOO_NAMES, _NCCL_HCAS, _UCX_NAMES = (
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_HCA",
    "UCX_NET_DEVICES",
)
#: Switches, and what a job does without.
_HINDERS = {
    "NCCL_IB_DISABLE": "InfiniBand and RoCE",
    "NCCL_P2P_DISABLE": "direct access between GPUs, NVLink too",
    "NCCL_SHM_DISABLE": "shared memory between the ranks of a host",
}
_SHOWN = 12


def environment_findings(
    settings: Mapping[str, str],
    *,
    interfaces: Collection[str],
    adapters: Collection[str],
    by_plugin: Collection[str] = (),
    source: str,
) -> Iterator[Finding]:
    """Yield what is wrong with settings.

    Args:
        settings: by name; others than those of NCCL, Gloo and UCX do not count.
        interfaces: network interfaces that this process sees, and that are up.
        adapters: names of RDMA devices that it sees.
        by_plugin: those of them that NCCL reaches by a plugin, which does not read NCCL_IB_*: EFA.
        source: where the settings stand: "the environment", "/etc/nccl.conf".
    """
    value = settings.get(_NCCL_NAMES, "")
    yield from _interfaces(_NCCL_NAMES, value, interfaces, source)
    yield from _gloo(settings.get(_GLOO_NAMES, ""), interfaces, source)
    verbs = set(adapters) - set(by_plugin)
    if verbs or not by_plugin:
        yield from _hcas(settings.get(_NCCL_HCAS, ""), verbs, source)
    yield from _ucx(settings.get(_UCX_NAMES, ""), {*interfaces, *adapters}, source)
    for name, lost in _HINDERS.items():
        if settings.get(name, "0").strip() not in ("", "0") and (verbs or name != "NCCL_IB_DISABLE"):
            yield _hinders(name, settings[name], lost, source)
    if settings.get("NCCL_NVLS_ENABLE", "").strip() == "0":
        yield _hinders("NCCL_NVLS_ENABLE", "0", "reductions in NVSwitches", source)
    if adapters and settings.get("NCCL_NET", "").strip().lower() == "socket":
        yield _hinders("NCCL_NET", settings["NCCL_NET"], "the adapters' RDMA", source)
    index = settings.get("NCCL_IB_GID_INDEX", "").strip()
    if verbs and index.lstrip("-").isdecimal() and int(index) >= 0:
        yield Finding(
            code="setting-fixed-gid",
            severity=Severity.NOTE,
            subject="NCCL_IB_GID_INDEX",
            what=f"NCCL_IB_GID_INDEX={index}: places in GID tables differ between hosts and change",
            evidence=(f"it stands in {source}",),
            fix="unset it: NCCL finds the entry itself since 2.21; NCCL_IB_ROCE_VERSION_NUM says which kind",
        )


def _hinders(name: str, value: str, lost: str, source: str) -> Finding:
    return Finding(
        code="setting-hinders",
        severity=Severity.WARNING,
        subject=name,
        what=f"{name}={value[:40]}: jobs do without {lost}",
        evidence=(f"it stands in {source}",),
        fix=f"unset {name}, unless it is there to look for a fault",
    )


def _wrong(code: str, name: str, value: str, why: str, source: str, fix: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.ERROR,
        subject=name,
        what=f"{name}={value[:80]}: {why}",
        evidence=(f"it stands in {source}",),
        fix=fix,
    )


def _there_are(names: Collection[str], wanted: str = "") -> str:
    close = nearest(wanted, names) if wanted else ""
    shown = ", ".join(sorted(names)[:_SHOWN]) or "none"
    return f"there are {shown}{close}; fabricctl env says what this job's network needs"


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _NcclList:
    """What NCCL makes of a list of names: prefixes; "^" before the list excludes, "=" makes them whole names."""

    excludes: bool
    whole: bool
    names: tuple[str, ...]

    @classmethod
    def of(cls, value: str) -> "_NcclList":
        """Return what a value says."""
        listed = value.lstrip("^")
        names = tuple(part for part in listed.lstrip("=").split(",") if part)
        return cls(value.startswith("^"), listed.startswith("="), names)

    def fitting(self, known: Iterable[str], names: Iterable[str]) -> set[str]:
        """Return which are meant by names of the list."""
        wanted = tuple(names)
        return {one for one in known if (one in wanted if self.whole else one.startswith(wanted))}


def _interfaces(name: str, value: str, known: Collection[str], source: str) -> Iterator[Finding]:
    """As ``_NcclList`` reads it."""
    if not value:
        return
    asked = _NcclList.of(value)
    for part in asked.names:
        if _is_address(part):
            why = "an address, and names of interfaces are expected"
            yield _wrong("setting-syntax", name, value, why, source, _there_are(known))
            return
    fitting = asked.fitting(known, asked.names)
    left = set(known) - fitting if asked.excludes else fitting
    if not left - {"lo"}:
        why = (
            "it leaves no interface but the loopback"
            if asked.excludes or left
            else "no interface that is up here is called so"
        )
        yield _wrong("setting-names-nothing", name, value, why, source, _there_are(known, *asked.names[:1]))


def _gloo(value: str, known: Collection[str], source: str) -> Iterator[Finding]:
    """Gloo takes whole names alone."""
    for part in filter(None, value.split(",")):
        if part[0] in "^=" or _is_address(part):
            why = "Gloo takes whole names of interfaces, without ^ and =, and no addresses"
            yield _wrong("setting-syntax", _GLOO_NAMES, value, why, source, _there_are(known))
            return
        if part not in known:
            why = f"no interface that is up here is called {part[:40]}"
            yield _wrong("setting-names-nothing", _GLOO_NAMES, value, why, source, _there_are(known, part))
            return


def _hcas(value: str, known: Collection[str], source: str) -> Iterator[Finding]:
    """As NCCL_SOCKET_IFNAME, of adapters; a port may follow each."""
    if not value:
        return
    asked = _NcclList.of(value)
    names = [part.partition(":")[0] for part in asked.names]
    fitting = asked.fitting(known, names)
    if not (set(known) - fitting if asked.excludes else fitting):
        if asked.excludes and not known:
            return
        why = "it leaves no adapter" if asked.excludes else "no adapter here is called so"
        yield _wrong("setting-names-nothing", _NCCL_HCAS, value, why, source, _there_are(known, *names[:1]))
    elif (
        not asked.excludes
        and not asked.whole
        and any(sum(one.startswith(part) for one in known) > 1 and part in known for part in names)
    ):
        more = sorted(one for one in fitting if one not in names)
        yield Finding(
            code="setting-prefix",
            severity=Severity.WARNING,
            subject=_NCCL_HCAS,
            what=f"{_NCCL_HCAS}={value[:80]}: names are prefixes, and fit {', '.join(more[:_SHOWN])} too",
            evidence=(f"it stands in {source}",),
            fix=f"{_NCCL_HCAS}=={value[:80]} means whole names",
        )


def _ucx(value: str, known: Collection[str], source: str) -> Iterator[Finding]:
    """Whole names, an adapter's with its port; ``all``, and ``^`` before the list excludes."""
    if not value or value.startswith("^"):
        return
    missing = [part for part in filter(None, value.split(",")) if part != "all" and part.partition(":")[0] not in known]
    if missing:
        why = f"nothing here is called {', '.join(missing)[:80]}"
        yield _wrong("setting-names-nothing", _UCX_NAMES, value, why, source, _there_are(known, missing[0]))
