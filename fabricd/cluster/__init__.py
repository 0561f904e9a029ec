"""Membership, networks and groups."""
