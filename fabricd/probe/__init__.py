"""Probes: each reads one source of facts (kernel files, netlink, a driver's library) and fills fields of the model.

To add one: write a module with a class that has ``name``, ``deadline_seconds`` and ``run``, and list it in
``fabricd.probe.registry``. A probe reads only; it starts no program and changes nothing.
"""
