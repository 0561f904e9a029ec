"""The settings of a plan, checked before MPI starts: MPICH and UCX abort, or fall back in silence, on wrong ones."""

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from fabricd.errors import EngineError
from fabricd.localview import LocalView
from fabricd.model.plan import Setting

#: All that a plan may set. Never a path, a plugin or a preloaded library: the plan comes over a network.
ALLOWED = frozenset(
    {
        "GLOO_SOCKET_IFNAME",
        "MPIR_CVAR_CH4_NETMOD",
        "NCCL_CROSS_NIC",
        "NCCL_IB_ADDR_FAMILY",
        "NCCL_IB_ADDR_RANGE",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_IB_PKEY",
        "NCCL_IB_ROCE_VERSION_NUM",
        "NCCL_IB_SL",
        "NCCL_IB_TC",
        "NCCL_NET",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_P2P_LEVEL",
        "NCCL_SOCKET_FAMILY",
        "NCCL_SOCKET_IFNAME",
        "UCX_IB_GID_INDEX",
        "UCX_IB_PKEY",
        "UCX_IB_ROCE_REACHABILITY_MODE",
        "UCX_IB_SL",
        "UCX_IB_TRAFFIC_CLASS",
        "UCX_MAX_EAGER_RAILS",
        "UCX_MAX_RNDV_RAILS",
        "UCX_NET_DEVICES",
        "UCX_RNDV_SCHEME",
        "UCX_RNDV_THRESH",
        "UCX_TCP_AF_PRIO",
        "UCX_TCP_RX_SEG_SIZE",
        "UCX_TLS",
    }
)
_VALUE = re.compile(r"[A-Za-z0-9_.:,^/*= -]{1,1024}")  # NCCL's network for EFA is called "AWS Libfabric"

#: Variables of a process manager. A stale one makes MPICH talk to a descriptor that is something else by now.
_MANAGER_PREFIXES = ("PMI_", "PMIX_", "HYDI_")
_MANAGER_NAMES = frozenset({"MPIR_CVAR_PMI_VERSION", "MPI_LOCALNRANKS", "MPI_LOCALRANKID"})

#: UCX's names of transports that need an RDMA device. Source: UCX 1.20, ucp_context.c and the uct/ib components.
_RDMA_TRANSPORTS = frozenset({"ib", "rc", "rc_v", "rc_x", "rc_mlx5", "rc_verbs", "ud", "ud_v", "ud_x", "ud_mlx5"}) | {
    "ud_verbs", "dc", "dc_x", "dc_mlx5", "srd", "gga", "gga_mlx5"
}  # fmt: skip
_HOST_TRANSPORTS = frozenset({"all", "self", "sm", "shm", "mm", "posix", "sysv", "xpmem", "cma", "knem", "tcp"})
_GPU_TRANSPORTS = frozenset({"cuda", "cuda_copy", "cuda_ipc", "gdr_copy", "rocm", "rocm_copy", "rocm_ipc", "ze"})


def choose_settings(
    settings: Iterable[Setting], view: LocalView, environ: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the variables to set, and notes for ``explain()``.

    A variable that the user has set stays as it is, and a note says so.

    Args:
        settings: this rank's slice of the plan.
        view: what this process sees: devices are checked against it.
        environ: the user's environment.

    Raises:
        EngineError: a name that no plan may set, or a device or transport that is not here.
    """
    chosen: dict[str, str] = {}
    notes: list[str] = []
    settings = tuple(settings)
    for setting in settings:
        if setting.name not in ALLOWED or not _VALUE.fullmatch(setting.value):
            raise EngineError(
                f"the plan sets {setting.name[:60]!r} to {setting.value[:60]!r}, which this client does not apply",
                hint="client and daemon may be of different versions; this client applies "
                + ", ".join(sorted(ALLOWED)),
            )
        user = environ.get(setting.name)
        if user is not None and user != setting.value:
            notes.append(f"{setting.name}={user} from the environment, instead of the plan's {setting.value}")
            continue
        chosen[setting.name] = setting.value
        because = f" ({setting.because})" if setting.because else ""
        notes.append(f"{setting.name}={setting.value}{because}")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        check_interface(chosen.get(name, "").removeprefix("="), view)
    if any(setting.name.startswith("UCX_") for setting in settings):  # else the user's are for something else
        effective = {**environ, **chosen}
        check_devices(effective.get("UCX_NET_DEVICES", ""), view)
        check_transports(effective.get("UCX_TLS", ""), view)
    return chosen, tuple(notes)


def check_interface(name: str, view: LocalView) -> None:
    """Refuse a network interface that this process does not have; "" is none.

    Raises:
        EngineError: names those there are.
    """
    here = sorted(interface.name for interface in view.interfaces)
    if name and name not in here:
        raise EngineError(
            f"the plan uses interface {name[:60]}, which this process does not have", hint="here: " + ", ".join(here)
        )


def check_devices(value: str, view: LocalView) -> None:
    """Refuse network devices that this process does not have; UCX would warn and use something else.

    Args:
        value: ``UCX_NET_DEVICES``: ``"eth0,mlx5_0:1"``, ``"all"``, or ``"^eth0"`` for all but these.
        view: what this process sees.

    Raises:
        EngineError: names the missing devices and those there are.
    """
    interfaces = {interface.name for interface in view.interfaces} or {name for _, name in socket.if_nameindex()}
    ports = {f"{hca.name}:{port}" for hca in view.hcas for port in hca.ports}
    names = [name for name in value.removeprefix("^").split(",") if name not in ("", "all")]
    missing = [name for name in names if name not in interfaces | ports]
    if missing:
        raise EngineError(
            f"UCX_NET_DEVICES={value} names {', '.join(missing)}, which this process does not have",
            hint="devices here: " + ", ".join(sorted(interfaces | ports)),
        )
    closed = [hca.name for hca in view.hcas if not hca.usable and any(n.split(":")[0] == hca.name for n in names)]
    if closed and not value.startswith("^"):
        raise EngineError(
            f"UCX_NET_DEVICES={value}: this process may not open {', '.join(closed)}",
            hint="in a container, pass /dev/infiniband and raise the memlock limit",
        )


def check_transports(value: str, view: LocalView) -> None:
    """Refuse transports that UCX does not know, and RDMA ones where there is no device.

    Raises:
        EngineError: names the transports; MPI_Init would end the whole process instead.
    """
    names = [name.lstrip("\\") for name in value.removeprefix("^").split(",") if name]
    unknown = [name for name in names if name not in _RDMA_TRANSPORTS | _HOST_TRANSPORTS | _GPU_TRANSPORTS]
    if unknown:
        known = sorted(_RDMA_TRANSPORTS | _HOST_TRANSPORTS | _GPU_TRANSPORTS)
        raise EngineError(
            f"UCX_TLS={value}: no transport called {', '.join(unknown)}", hint="known: " + ", ".join(known)
        )
    absent = [name for name in names if name in _RDMA_TRANSPORTS]
    if absent and not value.startswith("^") and not any(hca.usable for hca in view.hcas):
        raise EngineError(
            f"UCX_TLS={value} needs an RDMA device, and this process can open none",
            hint="in a container, pass /dev/infiniband and raise the memlock limit",
        )


def may_use_rdma(variables: Mapping[str, str], view: LocalView) -> bool:
    """Tell whether UCX, with these variables in its environment, may take RDMA."""
    value = variables.get("UCX_TLS", "all")
    named = value.startswith("^") or not {"all", *_RDMA_TRANSPORTS}.isdisjoint(value.replace("\\", "").split(","))
    return named and any(hca.usable for hca in view.hcas)


def may_use_tcp(variables: Mapping[str, str]) -> bool:
    """Tell whether UCX, with these variables in its environment, may take TCP."""
    value = variables.get("UCX_TLS", "all")
    names = value.removeprefix("^").replace("\\", "").split(",")
    return "tcp" not in names if value.startswith("^") else not {"all", "tcp"}.isdisjoint(names)


def is_of_process_manager(name: str) -> bool:
    """Tell whether an environment variable is one by which an MPI launcher and its ranks find each other."""
    return name.startswith(_MANAGER_PREFIXES) or name in _MANAGER_NAMES


def scrub_process_manager() -> tuple[str, ...]:
    """Remove the variables of an outer process manager from the environment; return their names."""
    stale = tuple(name for name in os.environ if is_of_process_manager(name))
    for name in stale:
        del os.environ[name]
    return stale


@contextmanager
def variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and put back afterwards what was there, so that no child inherits them."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
