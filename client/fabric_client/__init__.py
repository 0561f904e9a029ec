"""Communicators on the best path, for programs.

::

    from fabric_client import create_communicator

    with create_communicator() as comm:  # rank, size and daemon from the usual environment
        total = comm.all_reduce(gradient)
        print(comm.explain())

Importing this package is cheap: NumPy and MPI are loaded by the first call of ``create_communicator``.
"""

from typing import TYPE_CHECKING, Any

from fabric_client.ops import ReduceOp
from fabricd.errors import (
    AccessError,
    CommunicatorError,
    EngineError,
    FabricError,
    GroupAbortedError,
    GroupConflictError,
    GroupError,
    GroupGoneError,
    GroupTimeoutError,
    InputError,
    NoNetworkError,
    OperationTimeoutError,
    RankLostError,
    UnavailableError,
    UnreachableError,
)

if TYPE_CHECKING:
    from fabric_client.communicator import Communicator
    from fabric_client.create import create_communicator
    from fabric_client.stats import OperationStats
    from fabric_client.verification import Verdict, Verification
    from fabric_client.work import Work

__all__ = [
    "AccessError",
    "Communicator",
    "CommunicatorError",
    "EngineError",
    "FabricError",
    "GroupAbortedError",
    "GroupConflictError",
    "GroupError",
    "GroupGoneError",
    "GroupTimeoutError",
    "InputError",
    "NoNetworkError",
    "OperationStats",
    "OperationTimeoutError",
    "RankLostError",
    "ReduceOp",
    "UnavailableError",
    "UnreachableError",
    "Verdict",
    "Verification",
    "Work",
    "create_communicator",
]

_LAZY = {
    "Communicator": "fabric_client.communicator",
    "OperationStats": "fabric_client.stats",
    "Verdict": "fabric_client.verification",
    "Verification": "fabric_client.verification",
    "Work": "fabric_client.work",
    "create_communicator": "fabric_client.create",
}


def __getattr__(name: str) -> Any:
    """Load what needs HTTP and arrays when it is first asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
