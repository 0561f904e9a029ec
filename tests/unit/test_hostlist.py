"""Slurm's hostlists: what they stand for, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import ParseError
from fabricd.placement.hostlist import MAX_NAMES, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", ["login"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-010,100]", ["gpu008", "gpu009", "gpu010", "gpu100"]),
        ("a[1,3],b,c[2]", ["a1", "a3", "b", "c2"]),
        ("rack[1-2]-node[1-2]", ["rack1-node1", "rack1-node2", "rack2-node1", "rack2-node2"]),
        ("n[0-1].cluster", ["n0.cluster", "n1.cluster"]),
    ],
)
def test_what_lists_stand_for(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "a name is empty"),
        ("a,,b", "a name is empty"),
        ("a[1-2", "not closed"),
        ("a]", "do not match"),
        ("a[[1]]", "do not match"),
        ("a[2-1]", "ends before it begins"),
        ("a[1-]", "no number or range"),
        ("a[x]", "no number or range"),
        ("a b", "is no name"),
        (f"a[0-{MAX_NAMES}]", "more than"),
        ("a[0-999]b[0-999]", "more than"),
        ("a[0-1][0-1][0-1][0-1][0-1]", "more than"),
    ],
)
def test_what_is_none_says_what_is_wrong(text, says):
    with pytest.raises(ParseError, match=says):
        expand(text)


WORD = st.from_regex(r"[a-z][a-z-]{0,5}[a-z]", fullmatch=True)
RANGES = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 30)), min_size=1, max_size=4)


@given(WORD, RANGES, st.integers(1, 4))
def test_a_list_stands_for_as_many_names_as_its_ranges_hold_with_their_zeros(word, ranges, width):
    written = ",".join(f"{first:0{width}d}-{first + more:0{width}d}" for first, more in ranges)
    expected = [f"{word}{number:0{width}d}" for first, more in ranges for number in range(first, first + more + 1)]
    assert expand(f"{word}[{written}]") == expected
    assert expand(",".join(expected)) == expected


@given(st.text(alphabet="ab[]-,0129 ", max_size=40))
def test_any_text_is_names_or_an_error(text):
    try:
        names = expand(text)
    except ParseError:
        return
    assert names
    assert all(name and not set(name) & set("[], ") for name in names)
