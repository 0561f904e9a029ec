"""Which known word was meant."""

import pytest

from fabricd.errors import UnknownNameError
from fabricd.graph.simulate.templates import load_template
from fabricd.graph.snapshot import graph_of
from fabricd.nearest import nearest


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("eht0", ["lo", "eth0", "eth1"], "eth0"),
        ("mlx5_0", ["mlx5_0:1", "mlx5_1:1"], "mlx5_0:1"),
        ("gpu9", ["gpu0", "gpu8"], ""),  # another number is no slip
        ("mlx5_17", ["mlx5_0:1", "mlx5_9:1"], ""),
        ("gpu10", ["gpu0", "gpu1"], ""),
        ("mlx_7", ["mlx5_7:1", "mlx5_6:1"], "mlx5_7:1"),  # one that was left out
        ("h100-007", ["h100-0006", "h100-0007"], "h100-0007"),  # and the same one, written otherwise
        ("node-17", ["login"], ""),
        ("x" * 10_000, ["x" * 79], "x" * 79),
        ("lgin0", [f"h100-{number:04}" for number in range(50_000)] + ["login0"], "login0"),
    ],
)
def test_a_slip_is_told_from_another_thing(word, known, meant):
    assert nearest(word, known, cutoff=0.7) == (f"; did you mean {meant!r}?" if meant else "")


def test_unknown_names_say_what_was_meant():
    error = UnknownNameError("node", "h100a", ["h100-a", "h100-b"])
    assert str(error) == "no node called 'h100a'; did you mean 'h100-a'? (known: h100-a, h100-b)"


def test_devices_that_people_ask_for_are_listed_first():
    names = graph_of(load_template("h100"), node="").names()
    assert names[:10] == [*(f"gpu{number}" for number in range(8)), "mlx5_0:1", "mlx5_1:1"]
    assert {"machine", "numa0", "nvswitch", "0000:02:00.0"} <= set(names)
