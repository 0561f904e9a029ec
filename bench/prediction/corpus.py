"""Measured results of real clusters, with what NCCL would do there: what the model of time is fitted to and judged by.

The folder ``measurements`` of the corpus holds ``configs.tsv`` (a row a configuration), ``results.tsv`` (nccl-tests'
figures by size) and ``xml`` (one node of each as NCCL sees it). It is used in place and never copied.
"""

import csv
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from fabricd.graph.nccl_xml_read import read
from fabricd.paths.nccl.environment import parse_environment
from fabricd.plan.nccl.emulate import NcclPlan, plan
from fabricd.plan.nccl.job import COLLECTIVES, Collective
from fabricd.plan.predict import Conditions, conditions_of, merge_ports


@dataclass(frozen=True, slots=True)
class Measured:
    """A row of nccl-tests."""

    bytes: int
    time: float  #: us
    busbw: float  #: GB/s


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One configuration.

    Attributes:
        name: its id.
        machine: configurations of one machine are left out together.
        ok: nothing is known to be wrong with the machine.
        collective: which.
        plan: what NCCL would do, ports of a card merged.
        shown: what the topology file shows.
        told: the same, corrected by what the source says of the machine.
        rows: by size.
    """

    name: str
    machine: str
    ok: bool
    collective: Collective
    plan: NcclPlan
    shown: Conditions
    told: Conditions
    rows: tuple[Measured, ...]


def machine_of(name: str) -> str:
    """Return the machine of a configuration, ``aws-p5`` of ``aws-p5-eks-2x8-ar``."""
    return re.split(r"-(?:eks-)?\d+(?:x\d+|rack)", name)[0]


def cases(corpus: Path) -> list[Case]:
    """Return all configurations that have a topology, results by size, and a collective that NCCL models."""
    folder = corpus / "measurements"
    rows = defaultdict(list)
    for one in _table(folder / "results.tsv"):
        rows[one["id"]].append(Measured(int(one["bytes"]), float(one["time_us"]), float(one["busbw_GBps"])))
    plans: dict[tuple[str, int, str], tuple[NcclPlan, Conditions]] = {}
    found = []
    for config in _table(folder / "configs.tsv"):
        name, collective = config["id"], COLLECTIVES.get(config["collective"])
        if not rows[name] or not config["topology_xml"] or collective is None:
            continue
        text = (folder / config["topology_xml"]).read_text()
        key = (text, int(config["ranks"]), config["model_env"])
        nccl, shown = plans.get(key) or plans.setdefault(key, _planned(*key))
        found.append(
            Case(
                name=name,
                machine=machine_of(name),
                ok=config["quality"] == "ok",
                collective=collective,
                plan=nccl,
                shown=shown,
                told=replace(shown, virtual=shown.virtual or re.search(r"\bVM\b", config["notes"]) is not None),
                rows=tuple(sorted(rows[name], key=lambda row: row.bytes)),
            )
        )
    return found


def _planned(text: str, ranks: int, variables: str) -> tuple[NcclPlan, Conditions]:
    topology = merge_ports(read(text, source="measurements"))
    local = sum(gpu.rank is not None for cpu in topology.cpus for device in cpu.devices() for gpu in device.gpus)
    environment = parse_environment(dict(word.split("=", 1) for word in variables.split()))
    return plan(topology, nodes=ranks // local, environment=environment), conditions_of(topology)


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
