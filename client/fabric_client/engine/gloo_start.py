"""Starting the Gloo engine from a plan; an :class:`fabric_client.engine.registry.EngineKind`."""

import importlib.util
import os
import time
from typing import TYPE_CHECKING, Any

from fabric_client.blocking import BlockingCall
from fabric_client.endpoints import own_address
from fabric_client.engine.registry import Meeting
from fabric_client.engine.settings import choose_settings
from fabricd.errors import EngineError, UnavailableError
from fabricd.install import install_line

if TYPE_CHECKING:
    from fabric_client.engine.gloo import GlooEngine
    from fabric_client.engine.gloo_works import Member

plan = "gloo"
_STORE = "gloo/store"
_INTERFACE = "GLOO_SOCKET_IFNAME"


def check() -> None:
    """See the protocol."""
    if importlib.util.find_spec("torch") is None:
        raise UnavailableError("the Gloo engine needs PyTorch", hint=install_line("torch"))
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise UnavailableError("this PyTorch was built without Gloo", hint="install another build")


def start(meeting: Meeting) -> "GlooEngine":
    """See the protocol."""
    import torch
    from torch.distributed import ProcessGroupGloo

    from fabric_client.engine.gloo import GlooEngine
    from fabric_client.engine.gloo_works import make_member, map_error
    from fabric_client.torch_store import connect_store

    _, notes = choose_settings(meeting.part.settings, meeting.view, os.environ)
    address = own_address(meeting.plan, meeting.part, group=meeting.group, what="Gloo")
    named = os.environ.get(_INTERFACE)  # the user's choice stands

    def exchange(told: str | None) -> str:
        answer = meeting.exchange({} if told is None else {_STORE: told}).get(_STORE)
        if answer is None:
            raise EngineError(f"no rank of group {meeting.group!r} says where the store is")
        return answer

    def connect() -> "Member":
        left = max(1.0, meeting.deadline - time.monotonic())
        store, _, _ = connect_store(address, meeting.rank, meeting.size, exchange, timeout=left)
        device: Any = (
            ProcessGroupGloo.create_device(interface=named)
            if named
            else ProcessGroupGloo.create_device(hostname=address)
        )
        return make_member(store, "fabricd", meeting.rank, meeting.size, device, serves=meeting.rank == 0)

    call: BlockingCall[Member] = BlockingCall(connect, "start of Gloo")
    try:
        member = call.wait(lambda: meeting.failure("the start of Gloo"), deadline=meeting.deadline)
    except RuntimeError as error:
        raise map_error(error) from error
    where = f"on interface {named}" if named else f"on {address}"
    return GlooEngine(member, lines=(f"Gloo of PyTorch {torch.__version__}, {where}", *notes))
