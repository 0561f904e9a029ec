"""What NCCL's errors mean. The only place where they are translated."""

from dataclasses import dataclass
from typing import Any

from fabricd.errors import EngineError


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of one result code."""

    name: str
    text: str
    hint: str
    peer: bool  #: whether a lost rank could be behind it


_LOG = "NCCL_DEBUG=WARN makes NCCL say more"
#: All of ncclResult_t but success. Source: NCCL 2.30, nccl.h, and its manual's pages on types and troubleshooting.
MEANINGS = {
    1: Meaning("ncclUnhandledCudaError", "a call to CUDA failed", f"is the GPU healthy? {_LOG}", peer=False),
    2: Meaning("ncclSystemError", "a call to the system failed, often one of a network", _LOG, peer=True),
    3: Meaning("ncclInternalError", "NCCL came to a state that it should not come to", _LOG, peer=True),
    4: Meaning("ncclInvalidArgument", "an argument is not valid", _LOG, peer=False),
    5: Meaning(
        "ncclInvalidUsage",
        "NCCL was used in a wrong way",
        f"do all ranks call the same operations in the same order, with the same sizes? {_LOG}",
        peer=False,
    ),
    6: Meaning("ncclRemoteError", "another rank ended, or the network to it failed", _LOG, peer=True),
    7: Meaning(
        "ncclInProgress",
        "NCCL goes on in the background, and this client waits for its calls",
        "unset NCCL_COMM_BLOCKING",
        peer=False,
    ),
    8: Meaning("ncclTimeout", "NCCL waited too long", _LOG, peer=True),
}


def map_error(error: Exception, what: str) -> EngineError:
    """Return what an exception of CuPy's binding means.

    ``details["peer_may_be_lost"]`` tells whether a lost rank could be behind it.

    Args:
        error: NcclError; or the KeyError that it becomes for a code which the binding has no name for.
        what: was being done.
    """
    status: Any = getattr(error, "status", None)
    if status is None and isinstance(error, KeyError) and error.args:
        status = error.args[0]
    meaning = MEANINGS.get(status) if isinstance(status, int) else None
    if meaning is None:
        text = " ".join(str(error).split()) or type(error).__name__
        return EngineError(f"{what}: NCCL: {text}", hint=_LOG, details={"peer_may_be_lost": True})
    return EngineError(
        f"{what}: NCCL reports {meaning.name}: {meaning.text}",
        hint=meaning.hint,
        details={"nccl_result": status, "peer_may_be_lost": meaning.peer},
    )
