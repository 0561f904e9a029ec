"""``--without``, ``--link-down`` and ``--port-speed``: a machine as it would be."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.plan_request import PlanRequest
from fabricd.plan.what_if import WhatIf, changed, parse_link, parse_speed

WithoutOption = Annotated[
    list[str] | None,
    typer.Option("--without", metavar="NAME", help="What if this port or GPU were gone: mlx5_3, gpu5, node1/mlx5_3."),
]
LinkDownOption = Annotated[
    list[str] | None,
    typer.Option("--link-down", metavar="A-B", help="What if NVLinks were down: gpu0-gpu1, gpu0-nvswitch:1 for one."),
]
PortSpeedOption = Annotated[
    list[str] | None,
    typer.Option("--port-speed", metavar="NAME=GB/s", help="What if a port had this speed, as measured: mlx5_3=25."),
]


def what_if_of(
    without: Sequence[str] | None, links_down: Sequence[str] | None, port_speeds: Sequence[str] | None
) -> WhatIf:
    """Return the changes that options ask for.

    Raises:
        InputError: an option that is not in its form.
    """
    return WhatIf(
        without=tuple(without or ()),
        links_down=tuple(parse_link(text) for text in links_down or ()),
        port_speeds=dict(parse_speed(text) for text in port_speeds or ()),
    )


def asking(question: PlanRequest, what_if: WhatIf) -> PlanRequest:
    """Return a question to a daemon with the changes."""
    links = (f"{a}-{b}" + (f":{count}" if count else "") for a, b, count in what_if.links_down)
    return replace(
        question,
        without=tuple(what_if.without),
        links_down=tuple(links),
        port_speeds=tuple(what_if.port_speeds.items()),
    )


def as_it_would_be(nodes: Sequence[tuple[str, NcclTopology]], what_if: WhatIf) -> list[tuple[str, NcclTopology]]:
    """Return machines with changes made to those that they name, or to all.

    Raises:
        UnknownNameError: a node, port or GPU that there is not.
        InputError: links that a machine has not.
    """
    what_if.check_nodes([name for name, _ in nodes])
    return [(name, changed(topology, what_if.of_node(name))) for name, topology in nodes]
