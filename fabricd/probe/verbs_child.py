"""The process in which the verbs library runs: asks every RDMA device once, and ends.

pyverbs holds Python's lock during each call, so a device that hangs would stop every thread of the daemon with it.
The process imports nothing but the standard library and pyverbs.
"""

import errno
from typing import Any

from fabricd.probe.child import answer_with

_MAX_DEVICES = 256
_UNLIMITED = 2**63 - 1  # cards without a limit say 2^64 - 1, which few readers of JSON can hold
#: Source: infiniband/verbs.h, enum ibv_mtu.
_MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
# What the kernel says to a dma-buf that is none: a driver that could take one looks at it first.
# Source: kernel drivers/infiniband/core/uverbs_std_types_mr.c, UVERBS_METHOD_REG_DMABUF_MR.
_NO_DMABUF = -1
_LOOKED_AT_IT = (errno.EBADF, errno.EINVAL)
_CANNOT = (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.ENOSYS)


def read_devices() -> dict[str, Any]:
    """Return the answer, in the shape of ``fabricd.probe.verbs.VerbsAnswer``."""
    try:
        import pyverbs.device
        import pyverbs.mr
        import pyverbs.pd
        import pyverbs.pyverbs_error
    except ImportError as error:
        return {"binding_missing": str(error)}
    try:
        names = sorted(device.name.decode() for device in pyverbs.device.get_device_list())
    except pyverbs.pyverbs_error.PyverbsError as error:
        return {"reason": str(error)}
    answer: dict[str, Any] = {"names": names, "hcas": [], "notes": [], "denied": 0}
    for name in names[:_MAX_DEVICES]:
        try:
            answer["hcas"].append(_ask(pyverbs, name, answer["notes"]))
        except pyverbs.pyverbs_error.PyverbsError as error:
            answer["notes"].append(f"{name}: {error}")
            answer["denied"] += getattr(error, "error_code", 0) in (errno.EACCES, errno.EPERM)
    return answer


def _ask(pyverbs: Any, name: str, notes: list[str]) -> dict[str, Any]:
    with pyverbs.device.Context(name=name) as context:
        device = context.query_device()
        ports = [
            {"port": number, "active_mtu": _MTU_BYTES.get(context.query_port(number).active_mtu)}
            for number in range(1, device.phys_port_cnt + 1)
        ]
        return {
            "name": name,
            "ports": ports,
            "dmabuf": _takes_dmabuf(pyverbs, context, name, notes),
            "max_qp": device.max_qp,
            "max_mr_bytes": min(device.max_mr_size, _UNLIMITED),
        }


def _takes_dmabuf(pyverbs: Any, context: Any, name: str, notes: list[str]) -> bool | None:
    """Offer the device a dma-buf that is none, and see whether it looks at it."""
    try:
        with pyverbs.pd.PD(context) as domain:
            pyverbs.mr.DmaBufMR(domain, 4096, 0, dmabuf=_NO_DMABUF).close()
    except pyverbs.pyverbs_error.PyverbsRDMAError as error:
        if error.error_code in _LOOKED_AT_IT:
            return True
        if error.error_code in _CANNOT:
            return False
        notes.append(f"{name} dma-buf: {error}")
    return None


if __name__ == "__main__":
    answer_with(read_devices)
