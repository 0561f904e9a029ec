"""Files of measured figures: what nccl-tests prints, tables of pairs, calibrations, lists of hosts."""

from fabricd.errors import InputError
from fabricd.placement.hostlist import expand
from fabricd.plan.order.pairs_csv import read_pairs
from fabricd.plan.predict.calibration import read_calibration
from fabricd.plan.predict.nccl_tests import parse_results
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    text = data.decode("latin-1")
    for read in (_results, _pairs, _calibration, _hosts):
        try:
            read(text)
        except InputError:
            continue


def _results(text: str) -> None:
    for run in parse_results(text, source="it"):
        assert run.rows


def _pairs(text: str) -> None:
    read_pairs(text, source="it")


def _calibration(text: str) -> None:
    assert read_calibration(text, source="it").results


def _hosts(text: str) -> None:
    assert len(expand(text)) <= len(text) * 100_000


_PRINTED = b"""$ mpirun /opt/nccl-tests/build/all_reduce_perf -b 8 -e 8G -f 2 -g 1
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#  Rank  0 Group  0 Pid   6899 on     node-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6733 on     node-b device  0 [0000:04:00] NVIDIA H100 80GB HBM3
  1073741824  268435456  float  sum  -1   6759.0  158.86  297.86      0   6752.3  159.02  298.16      0
"""
_JSON = (
    b'{"version":1,"args":["/opt/build/all_reduce_perf"],"config":{"devices":[{"rank":0,"hostname":"a","pid":1}]},'
    b'"results":[{"size":1073741824,"count":1,"root":"-1","out_of_place":{"time":6759.0,"alg_bw":158.86,'
    b'"bus_bw":297.86,"nwrong":null},"in_place":null}]}'
)
_CALIBRATION = (
    b'{"schema":1,"results":[{"collective":"all_reduce","job":{"nodes":2,"ranks":16},"scale":0.9,'
    b'"points":[{"bytes":1024,"time_seconds":1e-5},{"bytes":1048576,"time_seconds":1e-4}]}]}'
)
TARGET = Target(
    check=check,
    seeds=lambda: [
        _PRINTED,
        _JSON,
        _CALIBRATION,
        b"src,dst,bandwidth_GBs\na,b,12.5\nb,a,12.4\n",
        b'nodes,avg_bus_bw_GBs\n"a,b",3.5\n',
        b"gpu[001-004,9],login,rack[1-2]node[01-10]",
    ],
    words=(
        "# Rank  0 Group", " on node-a device", "float", "sum", "all_reduce_perf", "N/A", "1e+07", "-1", "src,dst,",
        "nodes,", "busbw", "bandwidth_bytes_per_second", "\n", ",", "[0-", "]", "inf", "nan", '"',
    ),
    max_bytes=1 << 14,
)  # fmt: skip
