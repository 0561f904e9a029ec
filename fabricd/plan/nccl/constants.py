"""Figures that NCCL's tuning rests on. Source: NCCL 2.30, graph/tuning.cc."""

from typing import Final

#: Columns: one node, two nodes, more. Rows: Volta and older, Ampere, Hopper, Blackwell.
Table = tuple[tuple[float, float, float], ...]

GENERATIONS: Final = (80, 90, 100)  #: compute capability times ten at which a new row begins

#: Base latency, then that of a step over NVLink, PCIe and the network, us: LL, LL128, Simple.
LATENCIES: Final = {
    "Tree": ((6.8, 14.0, 8.4), (0.6, 1.25, 4.0), (1.0, 1.9, 4.0), (5.0, 8.5, 14.0)),
    "Ring": ((6.6, 14.0, 8.4), (0.6, 1.9, 3.4), (1.0, 2.5, 5.7), (2.7, 4.0, 14.0)),
    "NVLS": ((0.0, 0.0, 0.0), (25.0, 25.0, 25.0), (0.0, 0.0, 0.0), (18.0, 18.0, 18.0)),
    "NVLSTree": ((0.0, 0.0, 0.0), (25.0, 25.0, 25.0), (0.0, 0.0, 0.0), (20.9, 20.9, 20.9)),
    "PAT": ((8.0, 8.0, 8.0), (4.0, 4.0, 4.0), (4.0, 4.0, 4.0), (14.0, 14.0, 14.0)),
}
POWER_TREE_PCI_SIMPLE: Final = 5.7

#: Most that LL carries in all, GB/s. With several nodes: row 1 on AMD or mixed processors, else row 0.
LL_MAX: Final[Table] = ((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70))
#: Most that a channel carries, GB/s.
RING_LL128: Final[Table] = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 36.7), (40, 40, 40))
TREE_LL128: Final[Table] = ((20, 20, 20), (20, 20, 20), (36.7, 36.7, 29), (55.6, 31.67, 20))
TREE: Final[Table] = ((26.5, 18.5, 10), (24, 23.6, 17.8), (38.7, 41.4, 36), (70, 42.8, 24))
NVLS_TREE: Final[Table] = ((26.5, 18.5, 10), (24, 23.6, 17.8), (0, 57.7, 45.5), (0, 96, 80))
NVLS_EFFICIENCY: Final = (0.0, 0.0, 0.85, 0.74)

#: Correction of a tree's bandwidth for messages of 64 bytes times a power of two: the index.
TREE_CORRECTION: Final = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (
        0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
        0.9, 0.9,
    ),
}  # fmt: skip
