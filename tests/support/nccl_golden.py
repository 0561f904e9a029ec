"""Machines with the answers of NCCL's own graph code: our own ones, and those of the corpus."""

import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fabricd.graph.nccl_xml_read import read
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.paths.nccl.kinds import PathKind
from fabricd.plan.nccl.graphs import Channel, Pattern, SearchGraph

OWN = Path(__file__).parent.parent / "nccl" / "machines"


@dataclass(frozen=True)
class Golden:
    """NCCL's answers for some number of machines of one file."""

    path: Path

    def __str__(self) -> str:
        return self.path.name.removesuffix(".json")

    @property
    def nodes(self) -> int:
        return int(re.search(r"\.(\d+)node\.json$", self.path.name)[1])

    @property
    def text(self) -> str:
        return self.path.with_name(re.sub(r"\.\d+node\.json$", ".xml", self.path.name)).read_text()

    @cached_property
    def answers(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())

    def topology(self) -> NcclTopology:
        return read(self.text, source=str(self))

    def graph(self, name: str) -> SearchGraph:
        """Return a search result; ports are told by their index alone."""
        found = self.answers["graphs"][name]
        return SearchGraph(
            pattern=Pattern[found["pattern"]],
            channels=tuple(
                Channel(ranks=tuple(one["intra"]), nets=tuple(one["net"]) if "net" in one else None)
                for one in found["channels"]
            ),
            bandwidth_intra=found["bwIntra"],
            bandwidth_inter=found["bwInter"],
            type_intra=PathKind[found["typeIntra"]],
            type_inter=PathKind[found["typeInter"]],
            cross_nic=found["crossNic"],
            same_channels=bool(found["sameChannels"]),
            latency_inter=found["latencyInter"],
            hops=found["nHops"],
        )


def own(nodes: str = "1") -> list[Golden]:
    """Return our machines; ``nodes`` may be ``"*"``."""
    return [Golden(path) for path in sorted(OWN.glob(f"*.{nodes}node.json"))]


def corpus(nodes: str = "1") -> list[Golden]:
    """Return those of the corpus; none if there is none."""
    folder = Path(os.environ.get("FABRICD_CORPUS", "/nonexistent")) / "topologies"
    return [Golden(path) for part in ("made", "public") for path in sorted(folder.glob(f"{part}/*.{nodes}node.json"))]
