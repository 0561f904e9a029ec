"""What a host knows of its job before its ranks start. Light, so that a job on one host starts quickly."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric_client.cli.launcher import JobPlace, free_port
from fabric_client.engine.settings import choose_settings
from fabricd.errors import FabricError
from fabricd.localview import LocalView
from fabricd.model.plan import Setting
from fabricd.plan.group_loopback import loopback_of, loopback_settings

if TYPE_CHECKING:
    from fabric_client.joining import Joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What a host knows of its job when all hosts have met."""

    settings: tuple[Setting, ...]  #: those of the plan that the user has not set otherwise
    place: JobPlace  #: of this host's ranks
    joined: "Joined | None" = None  #: None where the job is on one host and asked nobody

    def on_failure(self, tell: Callable[[FabricError], None]) -> None:
        """Have ``tell`` called, from another thread, when a host is lost or one of them aborts the job."""
        if self.joined is not None:
            watch = self.joined.membership.watch
            watch.on_failure = tell
            found = watch.failure("the job")  # it may have come before
            if found is not None and not found.details.get("left"):
                tell(found)

    def leave(self, failed: str = "") -> None:
        """Go in peace, or end the job of all hosts with the reason why."""
        if self.joined is None:
            return
        if failed:
            self.joined.membership.abort(failed)
        else:
            self.joined.membership.leave()


def alone(ranks: int, view: LocalView, environ: Mapping[str, str]) -> Meeting:
    """Return what the ranks of a job on this host are told. Nobody is asked.

    Args:
        ranks: how many.
        view: what this process sees.
        environ: what the user has set.
    """
    settings = loopback_settings(loopback_of(view, view.hostname))
    return Meeting(
        settings=chosen_of(settings, view, environ),
        place=JobPlace(world_size=ranks, master_port=free_port()),
    )


def chosen_of(settings: tuple[Setting, ...], view: LocalView, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    """Return those settings that the user has not set otherwise.

    Raises:
        EngineError: one that cannot work here.
    """
    chosen, _ = choose_settings(settings, view, environ)
    return tuple(one for one in settings if one.name in chosen)
