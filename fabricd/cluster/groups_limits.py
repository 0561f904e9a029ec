"""What a group request may be, and how much of everything is kept."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fabricd.cluster.groups_live import Group
from fabricd.errors import BusyError, InputError
from fabricd.localview import LocalView
from fabricd.model.wire import FenceRequest, JoinRequest
from fabricd.plan.group import AUTO, ENGINES

_HOST_SHOWN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much a daemon takes on. Beyond it, requests are refused and nothing that is there suffers."""

    groups: int = 1024  #: living ones
    groups_of_caller: int = 256  #: living ones of one user or address, and as many that are over
    world_size: int = 65536
    group_bytes: int = 1 << 28  #: views and keys of one group
    total_bytes: int = 1 << 29
    timeout_seconds: float = 24 * 3600.0
    keys: int = 1024  #: of one rank in one fence round
    key_length: int = 256
    value_length: int = 16384
    interfaces: int = 8192  #: and other devices of a kind in a view
    text_length: int = 4096

    def check_room(self, groups: Sequence[Group], caller: str) -> None:
        """Refuse one more group when there are enough.

        Raises:
            BusyError: says of which there are enough.
        """
        living = [group for group in groups if not group.state.over]
        own = sum(group.owner == caller for group in living)
        if own >= self.groups_of_caller:
            raise BusyError(f"{caller} has {own} living groups already", hint="let some of them end")
        if len(living) >= self.groups:
            raise BusyError(f"{len(living)} groups live here already", hint="let some of them end")

    def check_bytes(self, groups: Sequence[Group], cost: int) -> None:
        """Refuse more bytes when all groups together hold enough.

        Raises:
            BusyError: there is no room.
        """
        if sum(group.state.bytes for group in groups) + cost > self.total_bytes:
            raise BusyError(f"all groups together hold {self.total_bytes} bytes", hint="ask again later")


def check_join(rank: int, request: JoinRequest, limits: Limits) -> LocalView:
    """Return the rank's view, fit to be shown.

    Raises:
        InputError: what cannot be, and what could.
    """
    size, seconds = request.world_size, request.timeout_seconds
    if not 1 <= size <= limits.world_size:
        raise InputError(f"world_size {size} cannot be", hint=f"1 to {limits.world_size}")
    if not 0 <= rank < size:
        raise InputError(f"rank {rank} is not in a group of {size}", hint=f"0 to {size - 1}")
    if not 0 <= request.incarnation < 1 << 53:
        raise InputError(f"incarnation {request.incarnation} cannot be", hint="0, 1, 2, ...")
    if request.engine not in (*ENGINES, AUTO):
        raise InputError(f"no engine called {request.engine[:40]!r}", hint=f"one of {', '.join(ENGINES)}")
    if not (math.isfinite(seconds) and 0 < seconds <= limits.timeout_seconds):
        raise InputError(f"timeout_seconds {seconds} cannot be", hint=f"above 0, at most {limits.timeout_seconds:g}")
    view = request.view
    _check_view(view, limits)
    return replace(view, hostname=view.hostname[:_HOST_SHOWN])


def _check_view(view: LocalView, limits: Limits) -> None:
    """Refuse a view of a size that no machine has, names that stand twice, and text that could fool a terminal."""
    counted = (view.interfaces, view.hcas, view.gpu_uuids, view.versions, view.imex_channels or ())
    if max(map(len, counted)) > limits.interfaces:
        raise InputError(f"the view has more than {limits.interfaces} devices of a kind")
    for names in ([one.name for one in view.interfaces], [one.name for one in view.hcas]):
        twice = next((name for name, count in Counter(names).items() if count > 1), None)
        if twice is not None:
            raise InputError(f"the view has two devices called {twice[:40]!r}", hint="in a namespace names are unique")
    texts = [view.hostname, view.boot_id, view.node_id, view.shm_device, view.nvidia_visible_devices, view.world]
    texts += [view.net_namespace, view.ipc_namespace, view.pid_namespace, *view.gpu_uuids]
    texts += [text for pair in view.versions for text in pair]
    for hca in view.hcas:
        texts += [hca.name, hca.node_guid]
    for interface in view.interfaces:
        texts += [interface.name, interface.mac, *interface.addresses]
    if any(len(text) > limits.text_length or not text.isprintable() for text in texts):
        raise InputError(f"the view holds text that is not printable, or longer than {limits.text_length}")


def check_keys(number: int, request: FenceRequest, limits: Limits) -> None:
    """Refuse keys that no process manager would take.

    Raises:
        InputError: says what may be.
    """
    if not 0 <= number < 1 << 31:
        raise InputError(f"fence {number} cannot be", hint="0, 1, 2, ...")
    if len(request.keys) > limits.keys:
        raise InputError(f"{len(request.keys)} keys in one fence", hint=f"at most {limits.keys}")
    for key, value in request.keys.items():
        if not 0 < len(key) <= limits.key_length or len(value) > limits.value_length:
            raise InputError(
                f"key {key[:40]!r} with a value of {len(value)} characters",
                hint=f"keys of 1 to {limits.key_length}, values of up to {limits.value_length} characters",
            )
