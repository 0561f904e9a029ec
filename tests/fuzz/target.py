"""What a fuzz target is, and where its inputs come from."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

ROOT = Path(__file__).parents[2]
#: What earlier campaigns found, by target: each made the code crash, hang or answer wrongly once.
FINDINGS = Path(__file__).parent / "seeds"

#: Modules of ``tests.fuzz.targets``; those that issue promises rest on first.
NAMES = (
    "nccl_xml", "pmi", "capture", "local_view", "snapshot", "config", "cluster_file", "messages", "etcd", "placement",
    "netlink", "ibnet", "tables", "plan", "answers", "joblog",
)  # fmt: skip


class Check(Protocol):
    """Gives an input to the code; raises what is no documented answer, or AssertionError for a law that is broken."""

    def __call__(self, data: bytes) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One parser, with what surrounds it."""

    check: Check
    seeds: Callable[[], Sequence[bytes]]  #: valid inputs, to begin with
    #: Words of the format, from which inputs are put together.
    words: Sequence[str] = ()
    #: Inputs are JSON: their values are changed, beside their bytes.
    json: bool = False
    max_bytes: int = 1 << 16


def load(name: str) -> Target:
    """Return a target by its name."""
    return cast(Target, importlib.import_module(f"tests.fuzz.targets.{name}").TARGET)


def findings(name: str) -> Iterator[Path]:
    """Yield the files of what was found earlier, in order of their names."""
    folder = FINDINGS / name
    yield from sorted(path for path in folder.glob("*") if path.is_file())
