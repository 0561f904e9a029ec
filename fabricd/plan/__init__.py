"""How a group of ranks should talk. Pure."""
