"""Snapshots and NCCL topology files as one typed graph."""
