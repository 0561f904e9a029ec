"""Findings for people: alike ones of many nodes once, with facts and the next step."""

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from fabric_client.cli.show import console, text
from fabricd.model.finding import Finding, Findings, Severity
from fabricd.units import format_count, format_names

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}
_SHOWN_NODES, _SHOWN_FACTS = 6, 3


def show_findings(kept: Sequence[Finding], found: Findings) -> None:
    """Print findings, those that several nodes have once, and how many there are.

    Args:
        kept: what is shown, in this order.
        found: the answer that it comes from.
    """
    out = console()
    for alike in _grouped(kept):
        first = alike[0]
        where = _nodes(one.node for one in alike)
        head = f"{first.severity.value:8} {first.code}"
        out.print(Text.assemble(text(head, _STYLES[first.severity]), text(f"  {where}" if where else "")))
        out.print(text(f"         {first.what}"))
        for line in _evidence(alike):
            out.print(text(f"         because: {line}"))
        if first.fix:
            out.print(text(f"         next: {first.fix}"))
    if found.left_out:
        out.print(text(f"{found.left_out} more were left out; ask for fewer nodes: --nodes", "yellow"))
    counts = [sum(one.severity is severity for one in kept) for severity in Severity]
    told = ", ".join(format_count(count, severity.value) for count, severity in zip(counts, Severity, strict=True))
    out.print(f"{told} on {format_count(found.nodes, 'node')}")


def _grouped(findings: Iterable[Finding]) -> Iterator[Sequence[Finding]]:
    """Yield findings that say the same of several nodes together, in the order in which they come."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for one in findings:
        groups.setdefault((one.code, one.what), []).append(one)
    yield from groups.values()


def _evidence(alike: Iterable[Finding]) -> Iterator[str]:
    """Yield the facts of findings that say the same: of a few nodes each node's, of more the first one's."""
    by_facts: dict[tuple[str, ...], list[str]] = {}
    for one in alike:
        if one.evidence:
            by_facts.setdefault(one.evidence, []).append(one.node)
    lines = [("; ".join(facts), _nodes(nodes)) for facts, nodes in by_facts.items()]
    if len(lines) > _SHOWN_FACTS:
        yield f"{lines[0][0]}; and the like"
    elif len(lines) > 1:
        yield from (f"{told} ({nodes})" if nodes else told for told, nodes in lines)
    else:
        yield from (told for told, _ in lines)


def _nodes(names: Iterable[str]) -> str:
    return format_names(dict.fromkeys(filter(None, names)), _SHOWN_NODES)
