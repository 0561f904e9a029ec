"""What a daemon is asked to plan."""

from dataclasses import dataclass

from fabricd.model.path import Policy

#: What a daemon plans for; for more, `fabricctl plan --from FILE` runs the same code.
MAX_NODES = 256
MAX_RANKS = 16_384
MAX_NAMES = 2 * MAX_RANKS
MAX_NAME_CHARACTERS = 300
_MAX_BYTES = 1 << 50


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The question of ``POST /v1/plans``."""

    #: ``NODE`` for all GPUs of a node, ``NODE/gpu3`` for one, ``gpu3`` for one of the daemon's own node. Nodes take
    #: part in the order of their first name, the GPUs of each by index. Empty: all GPUs of the daemon's node.
    ranks: tuple[str, ...] = ()
    collective: str = "all_reduce"  #: all_reduce, all_gather, reduce_scatter, broadcast, reduce
    bytes: int = 1 << 30  #: of the larger of the whole send and receive buffer
    policy: Policy = Policy.FASTEST  #: by what the network between nodes is chosen that settings name
    view: str = "physical"  #: or "nccl": what NCCL does by itself
    kind: str = "rings"  #: or "trees"
    routes: str = "engine"  #: or "free"
    without: tuple[str, ...] = ()  #: what if these ports and GPUs were gone: ``mlx5_3``, ``NODE/gpu5``
    links_down: tuple[str, ...] = ()  #: what if these NVLinks were down: ``gpu0-gpu1``, ``gpu0-nvswitch:1``
    port_speeds: tuple[tuple[str, float], ...] = ()  #: what if ports had this speed: name, bytes/s

    def faults(self) -> str:
        """Return what is beyond any bound, ``""`` for nothing."""
        names = (*self.ranks, *self.without, *self.links_down, *(name for name, _ in self.port_speeds))
        if len(names) > MAX_NAMES or max(map(len, names), default=0) > MAX_NAME_CHARACTERS:
            return f"more than {MAX_NAMES} names, or one of more than {MAX_NAME_CHARACTERS} characters"
        return "" if 1 <= self.bytes <= _MAX_BYTES else f"{self.bytes} bytes, expected 1 to {_MAX_BYTES}"
