"""Active probes between nodes."""
