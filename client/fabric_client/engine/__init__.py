"""Engines translate a plan; they do not discover."""
