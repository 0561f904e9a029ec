"""Reading kernel files: bounded, never blocking, and every trouble has its word."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.probe.files import FieldReader, parse_cpu_list
from fabricd.smallfile import printable, read_bytes
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Denied, Link, Pipe, Tree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tree = Tree(
        {
            "plain": "8\n",
            "long": "7" * 100_000,
            "pipe": Pipe(),
            "loop": Link("loop"),
            "nowhere": Link("missing"),
            "zero": Link("/dev/zero"),
            "secret": Denied("42"),
            "folder": None,
            "binary": b"\xff\xfe8",
            "nul": "model\0",
        }
    )
    return tree.write(tmp_path)


def test_reads_are_bounded(root: Path) -> None:
    assert len(read_bytes(root / "long", 100)) == 100
    assert len(FieldReader().text(root / "long") or "") == 4096


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("plain", "8", ""),
        ("missing", None, ""),
        ("plain/below", None, ""),
        ("nowhere", None, ""),
        ("loop", None, "symbolic links in a circle"),
        ("pipe", None, "not offered"),
        ("zero", None, "not offered"),
        ("folder", None, "not offered"),
        ("binary", "\\xff\\xfe8", ""),
        ("nul", "model", ""),
        ("a\0b", None, "null"),
        ("n" * 300, None, "name too long"),
    ],
)
def test_text(root: Path, name: str, value: str | None, note: str) -> None:
    read = FieldReader()
    begun = time.monotonic()
    assert read.text(root / name) == value
    assert time.monotonic() - begun < 1  # a pipe without a writer would block for ever
    assert (note.lower() in read.notes[0].lower()) if note else (read.notes == [])


def test_what_may_not_be_read_is_denied_not_absent() -> None:
    read = FieldReader()
    with open_folder() as root:
        Tree({"secret": Denied("42"), "open": "7", "closed/file": "1"}).write(root)
        (root / "closed").chmod(0)
        assert as_nobody(lambda: read.integer(root / "open")) == 7
        assert as_nobody(lambda: read.integer(root / "secret")) is None
        assert as_nobody(lambda: read.entries(root / "closed")) == []
        assert as_nobody(lambda: read.exists(root / "closed/file")) is False
        assert read.notes == [f"{root}/{name}: denied" for name in ("secret", "closed", "closed/file")]


@pytest.mark.parametrize(
    ("text", "base", "value", "noted"),
    [
        ("8", 10, 8, False),
        ("0x1af4", 0, 0x1AF4, False),
        ("-1", 10, None, False),
        ("", 10, None, False),
        ("-2", 10, None, True),
        ("65536", 10, None, True),
        ("9" * 5000, 10, None, True),
        ("N/A (no PMA)", 10, None, True),
        ("８", 10, 8, False),
    ],
)
def test_integer(tmp_path: Path, text: str, base: int, value: int | None, noted: bool) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    read = FieldReader()
    assert read.integer(path, base=base, high=65535, missing=-1) == value
    assert bool(read.notes) is noted


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("", ()), ("0", (0,)), ("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("3,1", (1, 3))],
)
def test_cpu_list(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["x", "0-", "3-1", "0-99999999", "1;2", "0-999999", "-1"])
def test_cpu_list_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        parse_cpu_list(text)


@given(st.sets(st.integers(min_value=0, max_value=2000)))
def test_cpu_list_reads_what_it_means(cpus: set[int]) -> None:
    assert parse_cpu_list(",".join(map(str, cpus))) == tuple(sorted(cpus))


def test_entries_and_links(root: Path) -> None:
    read = FieldReader()
    assert "plain" in read.entries(root)
    assert read.entries(root / "missing") == []
    assert read.entries(root / "plain") == []
    assert read.link_target(root / "nowhere") == "missing"
    assert read.link_target(root / "plain") == ""
    assert read.real_path(root / "nowhere") is None
    assert read.notes == []
    assert read.real_path(root / "loop") is None
    assert len(read.notes) == 1


def test_notes_are_bounded_and_printable() -> None:
    read = FieldReader()
    for _ in range(5000):
        read.note("a\udcffb", "why")
    assert len(read.notes) == 1000
    assert read.notes[0].encode() == b"a\\xffb: why"


@given(st.one_of(st.binary(), st.text(), st.integers(), st.none()))
def test_printable_can_always_be_encoded(value: object) -> None:
    assert printable(value).encode() is not None
