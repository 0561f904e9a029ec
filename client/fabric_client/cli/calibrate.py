"""``fabricctl calibrate``: results of nccl-tests on these machines, for predictions that fit them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.show import console, print_json, table, text
from fabric_client.cli.source import FromOption, JsonOption, Source, load, read_input
from fabric_client.cli.topology_option import TopologyOption, with_topology
from fabricd.errors import InputError
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.codec import to_json
from fabricd.plan.nccl.emulate import NcclPlan, plan
from fabricd.plan.nccl.job import COLLECTIVES, Collective
from fabricd.plan.predict import Calibration, Conditions, conditions_of, merge_ports, predict, virtual_of
from fabricd.plan.predict.calibrate import calibrated
from fabricd.plan.predict.calibration import Calibrated, read_calibration
from fabricd.plan.predict.model import bus_factor
from fabricd.plan.predict.nccl_tests import Run, parse_results
from fabricd.units import format_bandwidth, format_size

ResultsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RESULTS...", help="Outputs of nccl-tests, text or JSON; - reads standard input.", show_default=False
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option("--nodes", min=1, help="Machines that ran; by default as the results list their ranks."),
]
CollectiveOption = Annotated[
    str, typer.Option("--collective", help=f"Where the results do not say it: {', '.join(COLLECTIVES)}.")
]
OutOption = Annotated[str | None, typer.Option("--out", "-o", metavar="FILE", help="Write the calibration to a file.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("calibrate")(calibrate)


def calibrate(
    results: ResultsArgument,
    *,
    origin: FromOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    collective: CollectiveOption = "",
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Scale predictions to what nccl-tests measured on these machines. One large size is enough."""
    if collective and collective not in COLLECTIVES:
        raise InputError(f"no model of {collective!r}", hint=f"known: {', '.join(COLLECTIVES)}")
    runs = [run for name in results for run in _runs(name)]
    machine = _machine(with_topology(load(origin), topology))
    jobs: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        jobs[collective or run.collective, machine.nodes(run, nodes)].append(run)
    found = [calibrated(same, name, machine.plan(count), machine.conditions) for (name, count), same in jobs.items()]
    calibration = Calibration(results=tuple(found))
    if out is not None:
        _write(out, calibration)
    if as_json:
        print_json(calibration)
    else:
        _show(machine, found, [note for run in runs for note in _notes(run)])


def load_calibration(path: str) -> Calibration:
    """Return what ``--out`` wrote.

    Raises:
        InputError: the file cannot be read.
        ParseError: it is no calibration, or holds figures that cannot be.
    """
    return read_calibration(read_input(path), source=path)


@dataclass(frozen=True, slots=True)
class _Machine:
    """One of the machines that ran, alike in all that the model asks."""

    topology: NcclTopology
    conditions: Conditions
    local: int  #: GPUs

    def nodes(self, run: Run, given: int | None) -> int:
        """Return how many machines a run had."""
        if given is not None:
            return given
        ranks, hosts = len(run.hosts), len(set(run.hosts.values()))
        count, rest = divmod(ranks, self.local)
        if not ranks:
            return 1
        if rest or hosts != count * len(self.topology.host_hashes()):
            raise InputError(
                f"{run.source}: {ranks} ranks on {hosts} hosts, but the topology has {self.local} GPU(s)",
                hint="name the topology of the GPUs that ran, or --nodes",
            )
        return count

    def plan(self, nodes: int) -> NcclPlan:
        return plan(self.topology, nodes=nodes)


def _machine(source: Source) -> _Machine:
    virtual = virtual_of(source.node()) if source.topology is None else None
    topology = merge_ports(source.topology or topology_of(source.node()))
    gpus = [gpu for cpu in topology.cpus for device in cpu.devices() for gpu in device.gpus if gpu.rank is not None]
    if not gpus:
        raise InputError(f"{source.name} has no GPU", hint="--from names a node that ran, or its NCCL topology file")
    return _Machine(topology, conditions_of(topology, virtual=virtual), len(gpus))


def _runs(name: str) -> list[Run]:
    return parse_results(read_input(name).decode("utf-8", "replace"), source="standard input" if name == "-" else name)


def _write(path: str, calibration: Calibration) -> None:
    try:
        Path(path).write_bytes(to_json(calibration) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def _notes(run: Run) -> list[str]:
    shown = [f"{run.source}: {note}" for note in run.notes[:5]]
    more = len(run.notes) - len(shown)
    return [*shown, f"{run.source}: {more} more left out"] if more > 0 else shown


def _show(machine: _Machine, found: Sequence[Calibrated], notes: Sequence[str]) -> None:
    out = console()
    rows = []
    for one in found:
        last, collective = one.points[-1], Collective(one.collective)
        expected = predict(machine.plan(one.nodes), machine.conditions, collective, last.bytes)
        measured = bus_factor(collective, one.ranks) * last.bytes / last.time_seconds
        uncalibrated = expected.busbw_bytes_per_second if expected else None
        name = next(name for name, known in COLLECTIVES.items() if known is collective)
        rows.append(
            (name, one.nodes, one.ranks, len(one.points), format_size(last.bytes), format_bandwidth(measured),
             format_bandwidth(uncalibrated), f"{one.scale:.3f}")
        )  # fmt: skip
    columns = ("COLLECTIVE", ">NODES", ">RANKS", ">SIZES", ">LARGEST", ">MEASURED", ">PREDICTED", ">BANDWIDTH X")
    out.print(table(columns, rows))
    for note in notes:
        out.print(text(note, "yellow"))
