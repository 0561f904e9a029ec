"""Clusters that nobody has to own: nodes made from one machine's facts, wired as a fabric of leaves, spines and rails.

What comes out are snapshots as the daemons of such a cluster would publish them, for the same code to work on.
"""
