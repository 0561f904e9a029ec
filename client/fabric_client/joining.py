"""Joining a group: what every engine and framework begins with."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from fabric_client.connection import Connection
from fabric_client.environment import Identity
from fabric_client.locate import find_daemon, find_group_secret, find_tls, find_token
from fabric_client.membership import Membership
from fabric_client.rendezvous import Member, Rendezvous, new_claim
from fabric_client.watch import GroupWatch
from fabricd.errors import EngineError, FabricError, UnavailableError
from fabricd.localview import LocalView, collect
from fabricd.locations import find_socket
from fabricd.model.identity import NodeIdentity
from fabricd.model.plan import RankSlice
from fabricd.model.wire import JoinAnswer

_LOCAL_QUESTION_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class _Here:
    """Of a node's snapshot, who it is: reading all of it takes a rank longer than to join."""

    node: NodeIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank in a complete group."""

    identity: Identity
    view: LocalView  #: what this process sees
    answer: JoinAnswer
    rendezvous: Rendezvous
    membership: Membership  #: the other ranks are watched
    #: ``again(identity, timeout=...)`` joins another group in the same way: same daemon, secret and engine.
    again: "Callable[..., Joined]"

    @property
    def part(self) -> RankSlice:
        """This rank's part of the plan.

        Raises:
            EngineError: it has none.
        """
        answer = self.answer
        mine = next((part for part in answer.plan.ranks if part.rank == answer.rank), None)
        if mine is None:
            raise EngineError(f"the plan of group {answer.group!r} has no part for rank {answer.rank}")
        return mine


def join_group(
    identity: Identity,
    engine: str,
    *,
    url: str | None,
    secret: str | None,
    timeout: float,
    environ: Mapping[str, str] | None = None,
    world: str = "",
    check_calls: bool = False,
) -> Joined:
    """Register with the group's daemon, wait for the other ranks and the plan, and watch the others from then on.

    Args:
        identity: who this process is.
        engine: what is to move the data; the same on all ranks.
        url: the group's daemon; None looks into the environment.
        secret: the group's; None looks into the environment.
        timeout: seconds for all ranks to come.
        environ: the environment, by default this process's.
        world: the MPI that runs here already, see ``LocalView.world``.
        check_calls: see ``LocalView.check_calls``.

    Raises:
        UnreachableError: no daemon answers.
        AccessError: token or secret missing or wrong.
        GroupError: ranks are missing, or of another size, or aborted; no network joins them.
        UnavailableError: the daemon does not know ``check_calls``.
    """
    environ = os.environ if environ is None else environ
    address = find_daemon(url, environ=environ, all_local=identity.all_local)
    secret = find_group_secret(secret, environ=environ)
    member = Member(identity.group, identity.rank, identity.size, identity.incarnation, new_claim())
    tls = find_tls(environ) if address.url.startswith("https://") else None
    connection = Connection(address, token=find_token(environ), headers=member.headers(secret), tls=tls)
    rendezvous = Rendezvous(connection, member)
    view = replace(local_view(environ), world=world, check_calls=check_calls)
    try:
        answer, stream = rendezvous.join(view, timeout=timeout, engine=engine)
        if check_calls and not answer.plan.check_calls:
            if stream is not None:
                stream.close()
            raise UnavailableError(
                "check_calls: the group's daemon is of an earlier version, which does not pass it on"
            )
    except BaseException:
        rendezvous.leave()
        connection.close()
        raise
    watch = GroupWatch(rendezvous, stream)
    membership = Membership(rendezvous, watch, answer.plan)
    watch.start(timeout=_LOCAL_QUESTION_SECONDS)
    again = partial(
        join_group, engine=answer.plan.engine, url=url, secret=secret, environ=environ, check_calls=check_calls
    )
    return Joined(
        identity=identity, view=view, answer=answer, rendezvous=rendezvous, membership=membership, again=again
    )


def local_view(environ: Mapping[str, str]) -> LocalView:
    """Return what this process sees, with the name that this host's own daemon has on the map."""
    view = collect()
    path = find_socket(environ)
    if path is None:
        return view
    connection = Connection(find_daemon(f"unix:{path}"))
    try:
        here = connection.get("/v1/node", _Here)
    except FabricError:
        return view  # the daemon that owns the group can still join view and map by addresses
    finally:
        connection.close()
    return replace(view, node_id=here.node.node_id)
