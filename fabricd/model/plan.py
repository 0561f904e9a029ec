"""A plan: how the ranks of a group should talk. Data, printable and replayable; engines only translate it."""

from dataclasses import dataclass

from fabricd.model.observation import Evidence
from fabricd.model.transport import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A variable that an engine obeys."""

    name: str
    value: str
    scope: str = "job"  #: "job", "node" or "rank"
    rank: int | None = None
    node: str = ""  #: whose ranks it is for, of scope "node"
    because: str = ""  #: the rule and the fact it came from


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkChoice:
    """A network that could join the members, with what is known of it."""

    network: str  #: e.g. "10.1.0.0/24"
    transport: Transport
    bandwidth_bytes_per_second: float | None = None
    latency_seconds: float | None = None
    evidence: Evidence = Evidence.ASSUMED
    age_seconds: float | None = None
    chosen: bool = False
    virtual: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSlice:
    """What one rank does."""

    rank: int
    node: str
    host_index: int  #: ranks of one host share memory
    devices: tuple[str, ...] = ()  #: in the names of the rank's own namespace
    address: str = ""  #: of the first device, where it has an IP address
    settings: tuple[Setting, ...] = ()
    world: str = ""  #: the MPI that runs in this rank's process already, and its rank there: "NAME:3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Island:
    """Ranks whose hosts are joined by something faster than what joins all hosts of their group."""

    network: str  #: that joins them; of a host that is alone, its name
    transport: Transport  #: SHM for a host that is alone
    ranks: tuple[int, ...]
    leader: int  #: the rank that would talk to the other islands


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """The plan of a group."""

    engine: str  #: "mpi", "gloo", "nccl"
    size: int
    ranks: tuple[RankSlice, ...]
    networks: tuple[NetworkChoice, ...] = ()
    #: Where something faster joins some hosts than what joins all; none where that is not so.
    islands: tuple[Island, ...] = ()
    #: A better order of ranks where there is one: by new rank, the rank that it is here. () leaves them.
    order: tuple[int, ...] = ()
    #: PMI_process_mapping, e.g. "(vector,(0,2,1))": which ranks truly share memory.
    process_mapping: str = ""
    because: tuple[str, ...] = ()
    #: A rank asked for it: all compare their calls before each collective.
    check_calls: bool = False
    #: Where the map's history ended when this was planned (``/v1/events?since=``); "" where nobody follows it.
    map_cursor: str = ""
