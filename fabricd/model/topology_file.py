"""A file on a node that says how its devices hang together, for the kernel of a virtual machine may not know."""

from dataclasses import dataclass

#: The dump of a node with 8 GPUs and 32 adapters has 20,000.
MAX_CHARACTERS = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyFile:
    """A topology in NCCL's XML, as whoever made the machine's image or its hypervisor left it there."""

    path: str
    text: str  #: the whole file, at most ``MAX_CHARACTERS``
    #: Someone named it for this machine, so it holds even where the tree that the kernel shows seems whole.
    given: bool = False
