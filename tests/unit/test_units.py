"""Quantities from text: units by their definitions, and no number that a computer cannot hold."""

import pytest

from fabricd.errors import ParseError
from fabricd.units import format_names, parse_port_rate, parse_size, parse_transfer_rate, pcie_bandwidth


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("1000", 1000), ("1K", 1024), ("1.5k", 1536), ("16M", 16 << 20), ("1GiB", 1 << 30), (" 2 TB ", 2 << 40)],
)
def test_sizes(text, count):
    assert parse_size(text) == count


@pytest.mark.parametrize(
    ("text", "rate"), [("400 Gb/sec (4X NDR)", 50_000_000_000), ("2.5 Gb/sec (1X SDR)", 312_500_000), ("0 Gb/sec", 0)]
)
def test_port_rates(text, rate):
    assert parse_port_rate(text) == rate


def test_pcie():
    assert parse_transfer_rate("16.0 GT/s PCIe") == 16.0
    assert pcie_bandwidth(2.5, 1) == 250_000_000
    assert pcie_bandwidth(16.0, 16) == pytest.approx(31.5e9, rel=0.001)
    with pytest.raises(ParseError):
        pcie_bandwidth(10.0, 16)


@pytest.mark.parametrize("number", ["", "-1", "1e9", "x", "9" * 400, "9" * 5000])
@pytest.mark.parametrize(
    ("parse", "unit"), [(parse_size, "G"), (parse_port_rate, " Gb/sec"), (parse_transfer_rate, " GT/s PCIe")]
)
def test_what_is_no_quantity(parse, unit, number):
    with pytest.raises(ParseError):
        parse(number + unit)


def test_of_many_names_some_are_told_and_how_many_there_are_besides():
    assert format_names([]) == ""
    assert format_names(["a", "b"], 2) == "a, b"
    assert format_names((name for name in "abcde"), 2, separator="; ") == "a; b and 3 more"
