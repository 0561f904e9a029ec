"""Figures of the fitted model, with where they come from. ``python -m bench.predict --fit`` writes them anew."""

import bisect
import functools
import importlib.resources
from dataclasses import dataclass

from fabricd.model.codec import from_json
from fabricd.model.path import Transport

_FILE = "parameters.json"
#: Below, between and from these sizes on errors differ, bytes.
BANDS = (1 << 20, 64 << 20, 256 << 20)
#: Groups of machines whose errors differ.
DOMAIN, NEAR, FAR, CALIBRATED = "domain", "near", "far", "calibrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is fitted; times in us.

    Attributes:
        skew_domain: start-up and skew between ranks of one NVLink domain or machine.
        skew_network: the same between real machines.
        skew_virtual: the same between virtual machines.
        hop_infiniband: a step over InfiniBand or RoCE, beyond NCCL's own figure.
        hop_efa: over EFA.
        hop_gpudirect_tcp: over a cloud's TCP into GPU memory.
        hop_slingshot: over Slingshot.
        hop_ethernet: over sockets.
        nvls_gpu: of each GPU that an NVSwitch reduces for at once.
        nvls_tree: what NCCL's latency of a step of NVLS between machines is multiplied with.
        ring_surcharge: share of what NCCL adds to the latency of busy rings.
        reach_host: share of the bandwidth that adapters reach GPU memory with through a host bridge.
        reach_sockets: the same from another socket.
        socket_stream: what a channel moves over a socket, GB/s.
    """

    skew_domain: float
    skew_network: float
    skew_virtual: float
    hop_infiniband: float
    hop_efa: float
    hop_gpudirect_tcp: float
    hop_slingshot: float
    hop_ethernet: float
    nvls_gpu: float
    nvls_tree: float
    ring_surcharge: float
    reach_host: float
    reach_sockets: float
    socket_stream: float

    def hop(self, transport: Transport) -> float:
        """Return what a step over a network costs, us."""
        return {
            Transport.EFA: self.hop_efa,
            Transport.GPUDIRECT_TCP: self.hop_gpudirect_tcp,
            Transport.SLINGSHOT: self.hop_slingshot,
            Transport.ETHERNET: self.hop_ethernet,
        }.get(transport, self.hop_infiniband)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Where the ratio of predicted to measured bus bandwidth lay for 80 % of the points of machines left out."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The fitted model.

    Attributes:
        basis: what it was fitted to, in a sentence.
        figures: the fit to all machines.
        spread: by group (see ``Conditions.group``), then by size as in ``BANDS``.
    """

    basis: str
    figures: Figures
    spread: dict[str, tuple[Spread, ...]]

    def spread_of(self, group: str, size: int) -> Spread:
        """Return the spread of predictions for messages of a size."""
        return self.spread[group][bisect.bisect_right(BANDS, size)]


@functools.cache
def parameters() -> Parameters:
    """Return the figures that come with this package."""
    text = importlib.resources.files(__package__).joinpath(_FILE).read_bytes()
    return from_json(text, Parameters, what=_FILE)
