"""Which ports each rank of a group uses on the network that joins the hosts, and what UCX is told of them."""

from collections.abc import Mapping

from fabricd.localview import LocalView
from fabricd.model.network import NetworkPort
from fabricd.model.plan import Setting
from fabricd.plan.group_candidate import Candidate
from fabricd.plan.group_hosts import Hosts
from fabricd.plan.settings.others import REACHABILITY, ROUTED_BECAUSE

#: Ports that one rank uses at most: UCX splits a message among so many, and one process copies no faster.
_MAX_RAILS = 4
#: What UCX takes by itself (UCX_MAX_RNDV_RAILS).
_DEFAULT_RAILS = 2
#: What UCX reads from a connection at once; by itself it takes 64 KiB (UCX 1.20, UCX_TCP_RX_SEG_SIZE), and each read
#: is a system call. Between two hosts on one machine, 64 KiB to 16 MiB moved 1.1 to 1.8 times as fast with it.
_READ_BYTES = 256 << 10
#: Every connection may hold so much, so beyond so many ranks it stays as it is.
_READ_MOST_RANKS = 128


def ports_of(rank: int, candidate: Candidate, hosts: Hosts, views: Mapping[int, LocalView]) -> tuple[NetworkPort, ...]:
    """Return the ports that a rank uses, the best first.

    By TCP it is the one that was measured. By RDMA they are those nearest to its processors, shared out so that ranks
    of one host use all of them; several for each rank where there are more ports than ranks, on every host.
    """
    place = hosts.place_of[rank]
    ports = candidate.ports[place]
    if not candidate.rdma:
        return ports[:1]
    cpus = set(views[rank].cpus)
    near = {node.index for node in hosts.places[place].facts.numa if cpus and cpus <= set(node.cpus)}
    pool = [port for port in ports if port.numa_node in near] or list(ports)
    ranks = hosts.places[place].ranks
    first = ranks.index(rank) % len(pool)
    order = [*pool[first:], *pool[:first], *(port for port in ports if port not in pool)]
    return tuple(order[: rails(candidate, hosts)])


def rails(candidate: Candidate, hosts: Hosts) -> int:
    """Return how many ports each rank uses: as many as all ranks of every host can have for themselves.

    One, unless it is known that a host's ports are on one fabric: rails of their own cannot reach each other.
    """
    if not candidate.rdma or not candidate.one_fabric:
        return 1
    shares = [len(ports) // len(place.ranks) for ports, place in zip(candidate.ports, hosts.places, strict=True)]
    return max(1, min(_MAX_RAILS, *shares))


def network_settings(candidate: Candidate, ports: tuple[NetworkPort, ...], hosts: Hosts) -> tuple[Setting, ...]:
    """Return what UCX is told of a rank's ports."""
    memory = "self,sm" if hosts.several_share else "self"
    # UCX takes "rc" and "ud" as whichever of its verbs and mlx5 transports the device can do.
    transports = "rc,ud" if candidate.rdma else "tcp"
    why = f"{candidate.name} joins the hosts" + ("; ranks of one host share memory" if hosts.several_share else "")
    first = ports[0]
    names = ",".join(port.interface for port in ports)
    on = f"{names} of {first.node} {'is' if len(ports) == 1 else 'are'} on {candidate.name}"
    settings = [
        Setting(name="UCX_TLS", value=f"{memory},{transports}", because=why),
        Setting(
            name="UCX_NET_DEVICES",
            value=names,
            scope="rank",
            because=on + (f" as {first.address}" if first.address and len(ports) == 1 else ""),
        ),
    ]
    if candidate.routed:
        settings.append(Setting(name=REACHABILITY, value="all", because=ROUTED_BECAUSE))
    if len(ports) > _DEFAULT_RAILS:
        because = f"every host has {len(ports)} ports for each of its ranks, and UCX would use {_DEFAULT_RAILS}"
        settings.append(Setting(name="UCX_MAX_RNDV_RAILS", value=str(len(ports)), because=because))
    if not candidate.rdma and len(hosts.place_of) <= _READ_MOST_RANKS:
        because = "fewer reads than by UCX's own 64K"
        settings.append(Setting(name="UCX_TCP_RX_SEG_SIZE", value=f"{_READ_BYTES >> 10}k", because=because))
    if candidate.ipv6:
        settings.append(Setting(name="UCX_TCP_AF_PRIO", value="inet6", because=f"{candidate.name} is an IPv6 network"))
    return tuple(settings)
