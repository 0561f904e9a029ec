"""The JSON that nccl-tests write with ``--output_file``, as far as it is used. Its list of variables is not read.

Source: NVIDIA/nccl-tests 2.18, src/util.cu.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonBody:
    """A measurement; bandwidths in GB/s, times in us."""

    alg_bw: float
    bus_bw: float
    time: float | None = None
    cpu_time: float | None = None  #: with ``--report_cputime``
    nwrong: float | None = None  #: None if results were not checked


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRow:
    """A message."""

    size: int
    out_of_place: JsonBody | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDevice:
    """A rank."""

    rank: int
    hostname: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonConfig:
    """How the program ran."""

    devices: tuple[JsonDevice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReport:
    """The file."""

    results: tuple[JsonRow, ...]
    args: tuple[str, ...] = ()
    config: JsonConfig = field(default_factory=JsonConfig)
