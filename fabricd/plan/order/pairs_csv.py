"""Measured bandwidth between pairs of nodes, from a table (CSV with a header).

The pair stands in columns ``src`` and ``dst``, or in ``nodes`` as a hostlist of two (``node-[001,004]``), as tables of
nccl-tests over all pairs have it. The figure stands in ``bandwidth_bytes_per_second``, ``bandwidth_GBs``,
``avg_bus_bw_GBs`` or ``busbw``; the latter three are GB/s.
"""

import csv
import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

from fabricd.errors import InputError, ParseError
from fabricd.placement.hostlist import expand
from fabricd.plan.order.bandwidth import MAX_PAIRS, PairBandwidth

#: Columns with the figure, and what turns it into bytes/s.
_FIGURES = {"bandwidth_bytes_per_second": 1.0, "bandwidth_GBs": 1e9, "avg_bus_bw_GBs": 1e9, "busbw": 1e9}
_MAX_COLUMNS, _MAX_FIELD = 64, 4096


def read_pairs(text: str, *, where: Mapping[str, str] | None = None, source: str = "table") -> PairBandwidth:
    """Return the bandwidth between nodes that a table tells.

    Args:
        text: the whole table.
        where: values that columns must have; other rows are left out.
        source: what to call it in messages.

    Raises:
        ParseError: not such a table; says in which line.
        InputError: no row is left, or several rows tell different figures of one pair in one direction.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    try:
        columns = reader.fieldnames or ()
    except csv.Error as error:
        raise ParseError(f"{source}, line 1: {error}") from error
    figure = next((name for name in _FIGURES if name in columns), None)
    if figure is None or len(columns) > _MAX_COLUMNS or not ({"src", "dst"} <= set(columns) or "nodes" in columns):
        raise ParseError(
            f"{source}: the header names no pair and figure: {', '.join(columns)[:200]}",
            hint=f"src and dst, or nodes; and one of {', '.join(_FIGURES)}",
        )
    unknown = [name for name in where or {} if name not in columns]
    if unknown:
        raise InputError(f"{source} has no column {unknown[0][:40]!r}", hint=f"columns: {', '.join(columns)[:400]}")
    found: dict[tuple[str, str], dict[str, str]] = {}
    try:
        for row in reader:
            if all(row[name] == value for name, value in (where or {}).items()):
                pair = _pair(row, f"{source}, line {reader.line_num}")
                _add(found, pair, row, columns, source)
    except csv.Error as error:
        raise ParseError(f"{source}, line {reader.line_num}: {error}") from error
    if not found:
        raise InputError(f"{source}: no row is left", hint=_choices(text, where or {}))
    # An empty figure is a test that did not end: not measured.
    told = {pair: row[figure] for pair, row in found.items() if row[figure].strip()}
    return PairBandwidth({pair: _FIGURES[figure] * _number(text, source, pair) for pair, text in told.items()})


def _pair(row: Mapping[Any, Any], where: str) -> tuple[str, str]:
    if None in row or any(value is None or len(value) > _MAX_FIELD for value in row.values()):
        raise ParseError(f"{where}: fields are missing, or too many, or too long")
    if row.get("src") and row.get("dst"):
        return str(row["src"]), str(row["dst"])
    names = expand(row.get("nodes") or "")
    if len(names) != 2:
        raise ParseError(f"{where}: {len(names)} nodes, expected a pair")
    return names[0], names[1]


def _add(
    found: dict[tuple[str, str], dict[str, str]],
    pair: tuple[str, str],
    row: dict[str, str],
    columns: Iterable[str],
    source: str,
) -> None:
    known = found.setdefault(pair, row)
    if known is not row:
        others = [name for name in columns if known[name] != row[name] and name not in _FIGURES]
        told = "; ".join(f"{name} {known[name][:40]} and {row[name][:40]}" for name in others)
        raise InputError(
            f"{source} has several rows for {pair[0]} and {pair[1]}{': ' if told else ''}{told[:400]}",
            hint="choose one kind of row, e.g. --where test=sendrecv_perf",
        )
    if len(found) > MAX_PAIRS:
        raise InputError(f"{source} has more than {MAX_PAIRS} pairs")


def _choices(text: str, where: Mapping[str, str]) -> str:
    """Return the values that the columns asked for have."""
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    told = [f"{name}: {', '.join(sorted({row[name] for row in rows})[:20])}" for name in where]
    return "; ".join(told)


def _number(text: str, source: str, pair: tuple[str, str]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ParseError(f"{source}: {text[:40]!r} between {pair[0]} and {pair[1]} is no bandwidth")
    return value
