"""``fabricctl plan-diff``: what changes from one plan to another."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

import typer

from fabric_client.cli.show import console, print_json, table
from fabric_client.cli.source import JsonOption, read_input
from fabricd.model.codec import from_json
from fabricd.model.collective import CollectivePlan
from fabricd.plan.plan_diff import Difference, plan_diff

PlanArgument = Annotated[str, typer.Argument(help="A plan (`fabricctl plan --json`); - reads standard input.")]
_MANY = 4


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan-diff")(show_diff)


def _rows(found: Sequence[Difference]) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each difference; where many of a kind come and go, one for all of them."""
    for what, several in groupby(found, key=lambda one: one.what):
        ones = list(several)
        if len(ones) > _MANY:
            gone, new = (sum(bool(getattr(one, side)) for one in ones) for side in ("before", "after"))
            yield what, f"{gone} that are not there any more", f"{new} new; --json lists them", ""
            continue
        for one in ones:
            yield one.what, one.before, one.after, "" if one.ratio is None else f"{one.ratio:.3f}"


def show_diff(before: PlanArgument, after: PlanArgument, *, as_json: JsonOption = False) -> None:
    """Compare two plans: figures, rings, ports, bottlenecks, settings. Exit status 1 where they differ."""
    plans = [from_json(read_input(file), CollectivePlan, what=file) for file in (before, after)]
    found = plan_diff(*plans)
    if as_json:
        print_json(found)
    elif found:
        console().print(table(("WHAT", "BEFORE", "AFTER", ">RATIO"), list(_rows(found))))
    else:
        console().print("the plans are the same")
    if found:
        raise typer.Exit(1)
