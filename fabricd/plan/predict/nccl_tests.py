"""What nccl-tests print, as values: their text of all versions, with whatever a launcher put before it, or their JSON.

Source: NVIDIA/nccl-tests 2.0 to 2.19, src/common.cu and src/util.cu.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.plan.predict.nccl_tests_json import JsonReport

#: More than any sweep has.
_MAX_ROWS = 100_000
_MAX_SIZE = 1 << 50
_TYPES = frozenset({
    "char", "int", "uint", "int8", "uint8", "int32", "uint32", "int64", "uint64", "half", "float", "double", "float16",
    "bfloat16", "float32", "float64", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2",
})  # fmt: skip
_PROGRAM = re.compile(r"\b([a-z]{2,10}(?:_[a-z]{2,10})?)_perf\b")
_SIZE = re.compile(r"\d{1,18}$")  # a launcher may have put "[1,0]<stdout>:" right before it
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{0,18})?(?:e[+-]?\d{1,2})?", re.IGNORECASE)
_RANK = re.compile(
    r"#\s{1,8}Rank\s{1,8}(\d{1,7}) (?:Group\s{1,8}\d{1,7} )?\s{0,8}Pid\s{1,12}\d{1,10} on\s{1,32}(\S{1,256}) dev"
)
_STARTS = "# nThread "  #: begins what every version prints
_MAX_LINE = 4096
#: Times beyond 10 s have two digits, and bandwidths below 1 GB/s have two decimals.
_RELATIVE, _ABSOLUTE = 0.06, 0.0065


@dataclass(frozen=True, slots=True)
class Row:
    """A message out of place."""

    bytes: int
    time: float  #: us
    algbw: float  #: GB/s
    busbw: float  #: GB/s


@dataclass(slots=True)
class Run:
    """One run of one program.

    Attributes:
        source: the file.
        collective: of the program's name, "all_reduce"; "" if nothing says it.
        hosts: of each rank; empty if the output does not list them.
        rows: in the order of the output.
        notes: what was left out and why.
    """

    source: str
    collective: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def parse_results(text: str, *, source: str) -> list[Run]:
    """Return the runs in an output of nccl-tests that have results.

    Args:
        text: of one run or several, one after another.
        source: what to call it in messages.

    Raises:
        ParseError: it holds no results, or the processes did not run as one job.
    """
    runs = [_from_json(text, source)] if text.lstrip()[:1] == "{" else list(_from_text(text, source))
    runs = [run for run in runs if run.rows]
    if not runs:
        raise ParseError(
            f"{source} holds no results of nccl-tests",
            hint="the output of all_reduce_perf and the like, with size, time, algbw and busbw, or its --output_file",
        )
    return runs


def _from_text(text: str, source: str) -> Iterator[Run]:
    run, count = Run(source), 0
    for number, line in enumerate(text.splitlines(), 1):
        name = _PROGRAM.search(line[:_MAX_LINE]) if "_perf" in line else None
        rank = _RANK.search(line[:_MAX_LINE]) if "Rank" in line else None
        if run.rows and (name or rank or _STARTS in line):
            yield run
            run = Run(source)
        if name:
            run.collective = name[1]
        elif rank:
            _add_rank(run, int(rank[1]), rank[2])
        elif _STARTS in line:
            run.hosts.clear()  # of an attempt that had no results
        elif _may_be_row(words := line[:_MAX_LINE].split()[:16]):
            count += 1
            if count > _MAX_ROWS:
                raise ParseError(f"{source} has more than {_MAX_ROWS} results", hint="is it one sweep over sizes?")
            _add_row(run, words, f"line {number}")
    yield run


def _add_rank(run: Run, rank: int, host: str) -> None:
    if rank in run.hosts:
        raise ParseError(
            f"{run.source}: rank {rank} is listed twice",
            hint="nccl-tests built without MPI run as many jobs of their own; build them with MPI=1",
        )
    run.hosts[rank] = host


def _may_be_row(words: list[str]) -> bool:
    return any(word in _TYPES for word in words[2:])


def _add_row(run: Run, words: list[str], where: str) -> None:
    """Add a result: size, count, type, [operator], [root], then time, algbw, busbw and #wrong out of place."""
    place = next(place for place, word in enumerate(words) if place >= 2 and word in _TYPES)
    size = _SIZE.search(words[place - 2])
    if size is None or not words[place - 1].isdecimal():
        return
    figures = words[place + 1 :]
    if figures and figures[0].isalpha():
        figures = figures[1:]  # the operator
    if figures and figures[0].startswith("-"):
        figures = figures[1:]  # no root
    # A root of 0 or more looks like a time; only one reading agrees with size and algbw.
    for offset in (0, 1):
        part = figures[offset : offset + 4]
        if len(part) >= 3 and all(map(_is_number, part[:3])):
            row = Row(int(size[0]), *(float(word) for word in part[:3]))
            if _agrees(row):
                _keep(run, row, part[3] if len(part) > 3 else "N/A", where)
                return
    if int(size[0]):  # sizes below a rank's share are rounded to 0
        run.notes.append(f"{where} left out: time and algbw do not agree")


def _is_number(word: str) -> bool:
    return _NUMBER.fullmatch(word) is not None


def _agrees(row: Row) -> bool:
    """Return whether size, time and bandwidth belong together, as far as they were printed."""
    if not 0 < row.bytes <= _MAX_SIZE or row.time <= 0:
        return False
    return abs(row.bytes / row.time / 1e3 - row.algbw) <= _RELATIVE * row.algbw + _ABSOLUTE


def _keep(run: Run, row: Row, wrong: str, where: str) -> None:
    # Versions before 2.13 print the largest deviation here, which is far below 1.
    if _is_number(wrong) and float(wrong) >= 1:
        run.notes.append(f"{where} left out: {wrong} elements are wrong")
    else:
        run.rows.append(row)


def _from_json(text: str, source: str) -> Run:
    report = from_json(text, JsonReport, what=source)
    run = Run(source)
    for word in report.args[:1]:
        if match := _PROGRAM.search(word):
            run.collective = match[1]
    for device in report.config.devices:
        _add_rank(run, device.rank, device.hostname)
    for number, one in enumerate(report.results[:_MAX_ROWS]):
        body = one.out_of_place
        row = Row(one.size, body.time or body.cpu_time or 0.0, body.alg_bw, body.bus_bw) if body else None
        if body and row and _agrees(row):
            _keep(run, row, str(body.nwrong or 0), f"results[{number}]")
        elif one.size:
            run.notes.append(f"results[{number}] left out: no time out of place, or it does not agree with alg_bw")
    return run
