"""What a launcher knows before its job's group does: that a rank has ended which the others wait for."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from urllib.parse import quote

from fabric_client.connection import Connection
from fabric_client.locate import find_daemon, find_group_secret, find_tls, find_token
from fabricd.errors import FabricError, GroupGoneError, UnreachableError

_SECONDS = 3.0


def tell_end(environ: Mapping[str, str], rank: int, how: str) -> bool:
    """Have the ranks that wait for a rank to come hear at once that it will not. Blocking, some seconds at most.

    Where all have come the daemon tells of it by itself.

    Args:
        environ: of the job's ranks.
        rank: that has ended.
        how: in words.

    Returns:
        False when nobody waits yet: ask again.
    """
    from fabricd.model.wire import GroupPhase, GroupStatus  # a launcher whose ranks end well asks nothing

    try:
        with _asking(environ) as (connection, path):
            if connection.get(path, GroupStatus, seconds=_SECONDS).phase is GroupPhase.FORMING:
                reason = f"rank {rank} ended with {how} before all ranks had come"
                connection.request("DELETE", path, params={"reason": reason}, seconds=_SECONDS)
    except (GroupGoneError, UnreachableError):
        return False
    except FabricError:  # whatever else it is, it stays so, and the ranks meet it, too
        return True
    return True


def clear_up(environ: Mapping[str, str]) -> None:
    """Remove what ranks leave that are killed while MPI starts, when all of this host have ended. Blocks as above."""
    from fabric_client.engine.mpi_segments import unlink_left_segments
    from fabricd.model.wire import GroupStatus

    with suppress(FabricError), _asking(environ) as (connection, path):
        kvsname = connection.get(path, GroupStatus, seconds=_SECONDS).kvsname
        if kvsname:  # daemons of before do not tell it
            unlink_left_segments(kvsname)


@contextmanager
def _asking(environ: Mapping[str, str]) -> Iterator[tuple[Connection, str]]:
    """Yield a connection to the daemon of a job's group, and the group's path there."""
    from fabricd.model.wire import SECRET_HEADER

    address = find_daemon(environ=environ)
    secret = find_group_secret(environ=environ)
    tls = find_tls(environ) if address.url.startswith("https://") else None
    headers = {SECRET_HEADER: secret} if secret else {}
    connection = Connection(address, token=find_token(environ), headers=headers, tls=tls)
    try:
        yield connection, f"/v1/groups/{quote(environ.get('FABRICD_GROUP', ''), safe='')}"
    finally:
        connection.close()
