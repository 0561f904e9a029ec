"""The same ranks on the plan that is best now, as far as a running process can take it."""

from dataclasses import replace
from typing import cast

from fabric_client.joining import Joined
from fabric_client.runner import Runner
from fabricd.errors import CommunicatorError
from fabricd.units import format_ranges

_TOLD_MAX = 300  #: characters of what one rank tells the others


def join_again(runner: Runner, joined: Joined, group: str, timeout: float) -> tuple[Runner, Joined]:
    """Return what a communicator of the same ranks on a new plan is made of; see ``Communicator.rebuild``."""
    rank, size = runner.engine.rank, runner.engine.size
    again = joined.again(replace(joined.identity, group=group), timeout=timeout)
    try:
        # What one rank cannot change keeps all from changing. They agree by the daemon: the old path may be dead.
        mine = {f"changes.{rank}": _unchangeable(joined, again)[:_TOLD_MAX]}
        told = again.rendezvous.fence(0, mine, timeout=timeout)
        changed = {one: text for one in range(size) if (text := told.get(f"changes.{one}"))}
        if changed:
            raise CommunicatorError(
                f"rebuild: the new plan changes what the {joined.answer.plan.engine} engine takes only when a process "
                f"starts: {next(iter(changed.values()))} (on ranks {format_ranges(sorted(changed))}); this "
                "communicator goes on as it was",
                hint="restart the ranks: those that start now get the new plan",
            )
        new = runner.derive("rebuild", 0, rank, timeout, group=group, membership=again.membership)
    except BaseException:
        again.membership.leave()
        raise
    return cast("Runner", new), again  # one color: nobody is left out


def _unchangeable(before: Joined, after: Joined) -> str:
    """Return which settings of this rank differ, e.g. ``UCX_NET_DEVICES=eth1 instead of eth0``; "" for none."""
    old = {setting.name: setting.value for setting in before.part.settings}
    new = {setting.name: setting.value for setting in after.part.settings}
    return ", ".join(
        f"{name}={new.get(name, '(unset)')} instead of {old.get(name, '(unset)')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )
