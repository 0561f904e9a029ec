"""Nominal figures, used where neither device nor kernel tells. Every figure taken from here is *assumed*.

Bandwidths are bytes/s in each direction, latencies are seconds for one hop of one small message.
"""

from fabricd.model.device import NvLink
from fabricd.model.identity import Cpu
from fabricd.model.path import Transport

#: One NVLink by its version. Source: NVIDIA's architecture papers of P100, V100, A100, H100, B200.
_NVLINK_BY_VERSION = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
_NVLINK_OTHER = 25e9
#: The same by compute capability times ten, the newest first; GA10x has half-wide links.
_NVLINK_BY_SM = ((100, 50e9), (87, 25e9), (86, 14.0625e9), (70, 25e9), (60, 20e9))

#: Intel server generations by the model number of family 6, newest first. Source: NCCL 2.30, graph/topo.h.
_INTEL_INTERCONNECT = ((0xCF, 40e9), (0x8F, 22e9), (0x55, 10e9), (0x00, 6e9))

_FASTER_THAN_ANYTHING = 1e18

PCIE_LATENCY = 150e-9
NVLINK_LATENCY = 350e-9
C2C_LATENCY = 200e-9
MEMORY_LATENCY = 90e-9
INTERCONNECT_LATENCY = 140e-9
PORT_LATENCY = 300e-9
#: A GPU that passes data on receives it into its memory first, so a relay costs more than any hop.
GPU_RELAY_LATENCY = 2e-6
#: So does a copy between a GPU and host memory, which somebody must start and wait for.
HOST_COPY_LATENCY = 5e-6
#: One more switch of an InfiniBand or Ethernet fabric on the way.
SWITCH_LATENCY = 300e-9

#: What the kernels of two hosts move by TCP in some streams, whatever the port could: processors copy every byte.
TCP_BANDWIDTH = 12.5e9
#: One way between two hosts in one building, adapter to adapter.
NETWORK_LATENCY = {
    Transport.NVLINK: 0.7e-6,
    Transport.INFINIBAND: 1e-6,
    Transport.ROCE: 1.5e-6,
    Transport.SLINGSHOT: 2e-6,
    Transport.EFA: 8e-6,
    Transport.GPUDIRECT_TCP: 12e-6,
    Transport.ETHERNET: 15e-6,
    Transport.INTERNET: 10e-3,
}


def known(bytes_per_second: float | None) -> float | None:
    """Return a bandwidth that a device reports, ``None`` where what it reports cannot be one."""
    if bytes_per_second is None or not 0 < bytes_per_second < _FASTER_THAN_ANYTHING:
        return None
    return float(bytes_per_second)


def interconnect_bandwidth(cpu: Cpu) -> float | None:
    """Return what one direction between two NUMA nodes of this processor carries, ``None`` for unknown processors.

    Source: the table of NCCL 2.30 (graph/topo.h).
    """
    if cpu.architecture.startswith("ppc64"):
        return 32e9
    if cpu.architecture in ("aarch64", "arm64"):
        return 6e9
    if cpu.vendor == "AuthenticAMD":
        return 16e9
    if cpu.vendor == "GenuineIntel":
        model = cpu.model if cpu.family == 6 and cpu.model is not None else 0
        return next(bandwidth for least, bandwidth in _INTEL_INTERCONNECT if model >= least)
    if cpu.vendor in ("CentaurHauls", "  Shanghai  "):
        return 9e9 if (cpu.family, cpu.model) == (7, 0x5B) else 6e9
    return None


def nvlink_bandwidth(link: NvLink) -> float:
    """Return what one direction of one NVLink carries, by its version."""
    return _NVLINK_BY_VERSION.get(link.version or 0, _NVLINK_OTHER)


def nvlink_bandwidth_by_sm(sm: int) -> float:
    """Return what one direction of one NVLink carries, by the GPU's compute capability times ten."""
    return next((bandwidth for least, bandwidth in _NVLINK_BY_SM if sm >= least), _NVLINK_OTHER)
