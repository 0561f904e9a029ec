"""Did the bytes go where the plan says? What the counters of all hosts tell, judged. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fabric_client.counters import Carried

#: Less than this share of what was moved is other traffic of the machine.
_NOISE_SHARE = 0.1
#: Of a sum over hosts, each must send and receive at least this share, whatever the algorithm: half of it crosses a cut
#: between two hosts at the least.
_LEAST_SHARE = 0.5


class Verdict(StrEnum):
    """What the counters say of the plan."""

    CONFIRMED = "CONFIRMED"
    FELL_BACK_TO_SOCKET = "FELL_BACK_TO_SOCKET"  #: planned were RDMA or shared memory, and it was the network stack
    WRONG_INTERFACE = "WRONG_INTERFACE"  #: devices that the plan does not name carried it
    CROSS_RAIL = "CROSS_RAIL"  #: what one rail sent, another received
    GDR_NOT_USED = "GDR_NOT_USED"  #: the engine says that data of GPUs took the way through the host's memory
    NOT_SEEN = "NOT_SEEN"  #: no counter that this process can read moved: neither confirmed nor refuted
    NO_PLAN = "NO_PLAN"  #: nothing was planned: a launcher's MPI is used as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTraffic:
    """What one host's devices carried meanwhile."""

    node: str
    ranks: int  #: on this host
    planned: tuple[str, ...]
    carried: Mapping[str, Carried]
    same_bytes: Mapping[str, tuple[str, ...]]  #: interfaces stacked on a planned one, which count the same bytes
    rails: Mapping[str, str]  #: planned device to rail, by subnet, or by name where that is not known

    def on_planned(self, name: str) -> bool:
        """Tell whether a device is planned, or counts the bytes of a planned one again."""
        return name in self.planned or any(name in others for others in self.same_bytes.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What ``verify()`` found. The same on every rank."""

    verdict: Verdict
    bytes: int  #: of the array that was reduced
    because: tuple[str, ...]  #: the figures that the verdict rests on, one line a host
    hosts: tuple[HostTraffic, ...]
    #: Whether GPUs' memory went to the network cards directly, on all ranks. None: no rank's engine tells.
    direct_memory: bool | None = None

    @property
    def confirmed(self) -> bool:
        """Whether the plan is what happened."""
        return self.verdict is Verdict.CONFIRMED

    def __str__(self) -> str:
        hosts = "one host" if len(self.hosts) == 1 else f"{len(self.hosts)} hosts"
        return "\n".join([f"{self.verdict} (all_reduce of {_mib(self.bytes)} over {hosts})", *self.because])


def judge(
    hosts: Sequence[HostTraffic], nbytes: int, *, planned: bool, by_memory: bool = True, direct: bool | None = None
) -> Verification:
    """Return what the traffic says of the plan.

    Args:
        hosts: all hosts of the group.
        nbytes: of the array that all ranks reduced between the two looks at the counters.
        planned: whether there is a plan.
        by_memory: whether ranks of one host are to talk through memory; Gloo's do not.
        direct: whether GPUs' memory went to the network cards directly, as the engine says; None: nothing to say.
    """
    crosses = len(hosts) > 1
    faults = [
        fault for host in hosts if (fault := _fault(host, nbytes, crosses=crosses, by_memory=by_memory)) is not None
    ]
    if not planned:
        verdict = Verdict.NO_PLAN
    elif faults:
        verdict = min(faults, key=list(Verdict).index)
    elif crosses and _crossed(hosts):
        verdict = Verdict.CROSS_RAIL
    elif crosses and direct is False and any(":" in name for host in hosts for name in host.planned):
        verdict = Verdict.GDR_NOT_USED  # an interface carries IP, for which there is no direct way
    else:
        verdict = Verdict.CONFIRMED
    lines = [_line(host, nbytes, crosses=crosses, planned=planned, by_memory=by_memory) for host in hosts]
    if direct is not None:
        lines.append(f"GPUs' memory: {'read and written by the cards' if direct else 'copied through the hosts'}")
    return Verification(verdict=verdict, bytes=nbytes, because=tuple(lines), hosts=tuple(hosts), direct_memory=direct)


def _fault(host: HostTraffic, nbytes: int, *, crosses: bool, by_memory: bool) -> Verdict | None:
    """Return what is wrong on one host, or None."""
    loud = _loud(host, nbytes)
    if by_memory and host.ranks > 1 and any(host.carried[name].loopback for name in loud):
        return Verdict.FELL_BACK_TO_SOCKET  # ranks of one host share memory, by plan
    if not crosses:
        silent = not by_memory and host.ranks > 1 and not any(host.carried[name].loopback for name in loud)
        return Verdict.NOT_SEEN if silent else None
    ports = {name for name in host.planned if ":" in name}
    enough = _sum(host.carried, host.planned) >= _LEAST_SHARE * nbytes
    others = {name for name in loud if not host.on_planned(name) and not host.carried[name].loopback}
    sockets = {name for name in others if ":" not in name}
    if ports and sockets and not enough:
        return Verdict.FELL_BACK_TO_SOCKET
    if others and not (ports and enough and others <= sockets):  # an RDMA device's own interface may count with it
        return Verdict.WRONG_INTERFACE
    return None if enough else Verdict.NOT_SEEN


def _loud(host: HostTraffic, nbytes: int) -> list[str]:
    """Return the devices that carried more than other traffic of the machine may be."""
    return [
        name
        for name, one in host.carried.items()
        if max(one.sent, one.received) > nbytes * (_LEAST_SHARE if one.loopback else _NOISE_SHARE)
    ]


def _sum(carried: Mapping[str, Carried], names: Collection[str]) -> int:
    """Return what was sent or received, the less of both, by these devices."""
    found = [carried[name] for name in names if name in carried]
    return min(sum(one.sent for one in found), sum(one.received for one in found))


def _crossed(hosts: Sequence[HostTraffic]) -> bool:
    """Tell whether some rail received what it did not send; what leaves a rail for another is missing there."""
    sent: dict[str, int] = {}
    received: dict[str, int] = {}
    for host in hosts:
        for device in host.planned:
            carried = host.carried.get(device)
            if carried is not None:
                rail = host.rails.get(device, device)
                sent[rail] = sent.get(rail, 0) + carried.sent
                received[rail] = received.get(rail, 0) + carried.received
    total = sum(sent.values())
    return len(sent) > 1 and any(abs(sent[rail] - received[rail]) > _NOISE_SHARE * total for rail in sent)


def _line(host: HostTraffic, nbytes: int, *, crosses: bool, planned: bool, by_memory: bool) -> str:
    """Return e.g. ``h0: eth1 (planned) sent 32.1 MiB, received 32.1 MiB; eth0 nothing``."""
    told = []
    for name in sorted({*_loud(host, nbytes), *(host.planned if crosses else ())}):
        mark = " (planned)" if crosses and host.on_planned(name) else ""
        one = host.carried.get(name)
        if one is None:
            told.append(f"{name}{mark} does not tell what it carries")
        else:
            about = "about " if one.estimated else ""
            told.append(f"{name}{mark} sent {about}{_mib(one.sent)} and received {about}{_mib(one.received)}")
    about_memory = f"{'shared memory' if by_memory else 'loopback'} is planned; " if planned and not crosses else ""
    return f"{host.node}: {about_memory}{'; '.join(told) or 'no interface carried more than other traffic'}"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
