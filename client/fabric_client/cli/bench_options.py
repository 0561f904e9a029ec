"""What the benchmark is asked to do. Loads nothing heavy: the command line reads it before anything runs."""

from collections.abc import Iterator
from dataclasses import dataclass

from fabric_client.ops import ReduceOp
from fabricd.errors import InputError
from fabricd.units import parse_size

COLLECTIVE_NAMES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "sendrecv")
ROOTED = ("broadcast", "reduce")  #: those with a root
#: nccl-tests' names of types, and NumPy's.
TYPES = {
    "int8": "i1",
    "uint8": "u1",
    "int32": "i4",
    "uint32": "u4",
    "int64": "i8",
    "uint64": "u8",
    "half": "f2",
    "float": "f4",
    "double": "f8",
}
#: nccl-tests' names of operators.
OPERATORS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "avg": ReduceOp.AVERAGE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure; names and meanings are nccl-tests'."""

    engine: str = "mpi"
    collective: str = "all_reduce"
    begin: str = "1K"  #: smallest size
    end: str = "64M"  #: largest size
    factor: int = 4  #: from size to size
    type: str = "float"
    op: str = "sum"
    root: int = 0
    iterations: int = 20
    warmup: int = 5
    json: bool = False

    def check(self, ranks: int | None = None) -> None:
        """Refuse what cannot be measured.

        Args:
            ranks: how many there will be, where that is known.

        Raises:
            InputError: says what and lists the valid choices.
        """
        if self.engine in ("nccl", "auto"):
            raise InputError(
                f"engine {self.engine}: the benchmark's arrays are in memory of the hosts", hint="valid: mpi, gloo"
            )
        for what, value, valid in (
            ("collective", self.collective, COLLECTIVE_NAMES),
            ("type", self.type, TYPES),
            ("operator", self.op, OPERATORS),
        ):
            if value not in valid:
                raise InputError(f"no {what} called {value!r}", hint="valid: " + ", ".join(valid))
        if self.factor < 2 or self.iterations < 1 or self.warmup < 0 or self.root < 0:
            raise InputError("factor must be 2 or more, iterations 1 or more, warmup and root 0 or more")
        if ranks is not None and self.root >= ranks and self.collective in ROOTED:
            raise InputError(f"root {self.root} is not one of {ranks} ranks", hint=f"valid: 0 to {ranks - 1}")
        if self.collective == "sendrecv" and ranks == 1:
            raise InputError("sendrecv needs two ranks at least", hint="-n 2")
        if not 0 < parse_size(self.begin) <= parse_size(self.end):
            raise InputError(f"no size is from {self.begin} (-b) to {self.end} (-e)")
        if self.op == "avg" and not TYPES[self.type].startswith("f"):
            raise InputError(f"avg of {self.type} has no meaning", hint="valid: half, float, double")

    def sizes(self) -> Iterator[int]:
        """Yield the sizes in bytes."""
        size, last = parse_size(self.begin), parse_size(self.end)
        while size <= last:
            yield size
            size *= self.factor
