"""What a job of some nodes is told, by the names of the settings."""

from dataclasses import replace

from fabricd.plan.settings import settings_for
from tests.support.nodes import hgx, nic


def told(*snapshots, **options):
    """Return the values by name; of settings that differ by node, a mapping by node."""
    found = {}
    for one in settings_for({snapshot.node.name: snapshot for snapshot in snapshots}, **options):
        if one.scope == "node":
            found.setdefault(one.name, {})[one.node] = one.value
        else:
            found[one.name] = one.value
        assert one.because
    return found


def nccl(*snapshots, **options):
    return told(*snapshots, engines=["nccl"], **options)


def with_nics(snapshot, *nics):
    return replace(snapshot, interfaces=tuple(replace(one, index=index) for index, one in enumerate(nics, 1)))


def ib_pair():
    a, b = hgx("a"), hgx("b", lid=101)
    return with_nics(a, nic("eth0", "10.0.0.1/24")), with_nics(b, nic("eth0", "10.0.0.2/24"))
