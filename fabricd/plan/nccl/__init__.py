"""What NCCL would plan: rings, trees and NVLS by its own search, and its choice of algorithm and protocol by size.

An emulation of NCCL 2.30's graph/search.cc, graph/connect.cc and graph/tuning.cc on the graph of
``fabricd.paths.nccl``. Bandwidths are in GB/s (10^9 bytes/s), times in microseconds, as in NCCL.
"""
