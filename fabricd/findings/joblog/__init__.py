"""What a job's log says of its networks: lines of NCCL, and what other libraries print when something is wrong."""
