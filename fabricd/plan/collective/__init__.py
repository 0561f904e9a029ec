"""Rings and trees over all ranks, packed into the links' capacity, and what no schedule can exceed.

Bandwidths are in GB/s (10^9 bytes/s, each direction) inside this package, as in ``fabricd.paths.nccl``; the results in
``fabricd.model.collective`` are in bytes/s. Most modules here import numpy and scipy: whoever plans imports them then.
"""
