"""Communicators on the best path, for programs."""
