"""What NCCL would decide: its graph of a machine, and its paths, rule by rule.

An emulation of NCCL 2.30's graph code (graph/topo.cc, graph/paths.cc), from a topology file alone. It assumes what
the file cannot tell: that peer-to-peer works wherever NCCL's levels allow it, and that hosts described in one file
are in one NVLink domain.
"""
