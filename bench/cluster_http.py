"""A cluster at size behind a real daemon: loading its map, memory, path queries over HTTP, changes through etcd.

    python -m bench.cluster_http [--nodes 100,1000,10000] [--queries 400] [--changes 300] [--template h100]

Each cluster is simulated into a file, which one daemon serves (``--replay``). Pairs of GPUs are drawn and asked for
over one connection; the server's time is what its answer's Server-Timing says, the processor's is the daemon's own.
With an etcd on this machine a second daemon reads such nodes as records from there, and changes are written: one at a
time, each waited for, then as fast as they go. What does not depend on the number of nodes has a ratio near 1.
"""

import argparse
import base64
import random
import re
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import psutil

from bench.cluster_map import flipped, table
from demo.daemons import Daemon
from fabric_client.cli.cluster_file import write_cluster
from fabricd.cluster.etcd_record import Record, seal
from fabricd.graph.simulate.design import Design
from fabricd.graph.simulate.nodes import simulate
from fabricd.graph.simulate.templates import load_template
from fabricd.model.cluster_file import Head
from fabricd.model.snapshot import Snapshot
from tests.support.etcd import EtcdServer, b64, etcd_program, etcd_server

PREFIX = "/fabricd/"
_START_SECONDS = 300.0
#: A daemon that takes less of a processor in a second has nothing to do.
_AT_REST = 0.05


class Watched:
    """A daemon, with its processor time and memory."""

    def __init__(self, daemon: Daemon) -> None:
        self._process = psutil.Process(daemon.process.pid)
        self.begun = time.monotonic()
        daemon.wait_ready(_START_SECONDS)
        self.ready_seconds = time.monotonic() - self.begun
        self.http = httpx.Client(base_url=daemon.url, trust_env=False, timeout=60)

    @property
    def processor_seconds(self) -> float:
        """Time of the processor so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @property
    def memory_bytes(self) -> int:
        """Memory that is its own and resident."""
        return int(self._process.memory_info().rss)

    def settle(self) -> float:
        """Wait until it has read the nodes' ports ahead; return the processor time until then."""
        begun, before = time.monotonic(), -1.0
        while self.processor_seconds - before > _AT_REST and time.monotonic() - begun < _START_SECONDS:
            before = self.processor_seconds
            time.sleep(2.0)  # longer than it rests between two looks
        return self.processor_seconds

    def known(self) -> int:
        """How many peers it knows that are fine."""
        found = re.search(r'^fabricd_peers\{state="ok"\} (\d+)', self.http.get("/metrics").text, re.MULTILINE)
        return int(found[1]) if found else 0


def serve_file(file: Path, folder: Path, count: int, queries: int) -> dict[str, float]:
    """Let a daemon serve a cluster's file, and ask it for paths."""
    arguments = ["--port", "0", "--socket", "", "--replay", str(file)]
    with Daemon("replay", folder, arguments) as daemon:
        watched = Watched(daemon)
        loaded = watched.processor_seconds
        figures = {
            "file, MB": file.stat().st_size / 1e6,
            "ready after, s": watched.ready_seconds,
            "processor until ready, s": loaded,
            "daemon's memory, MB": watched.memory_bytes / 1e6,
            "processor until its ports are read, s": watched.settle(),
        }
        for name, query in (("query", ""), ("explained", "&explain=1")):
            times = ask_paths(watched, count, queries, query)
            figures |= {f"{name} {key}": value for key, value in times.items()}
        begun = time.monotonic()
        watched.http.get("/v1/cluster?summary=1")
        figures["listing without snapshots, ms"] = (time.monotonic() - begun) * 1e3
        return figures | {"daemon's memory then, MB": watched.memory_bytes / 1e6}


def ask_paths(watched: Watched, count: int, queries: int, more: str) -> dict[str, float]:
    """Ask for the paths between GPUs that are drawn."""
    draw = random.Random(count)
    names = [node["name"] for node in watched.http.get("/v1/cluster?summary=1").json()["nodes"]]
    server: list[float] = []
    client: list[float] = []
    before = watched.processor_seconds
    for _ in range(queries):
        ends = [f"{name}/gpu{draw.randrange(8)}" for name in draw.sample(names, 2)]
        begun = time.monotonic()
        answer = watched.http.get(f"/v1/paths?src={ends[0]}&dst={ends[1]}{more}")
        client.append((time.monotonic() - begun) * 1e3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["paths"], answer.text
        server.append(float(answer.headers["server-timing"].partition("dur=")[2]))
    return {
        "p50 at the server, ms": statistics.median(server),
        "p99 at the server, ms": statistics.quantiles(server, n=100)[98],
        "p50 at the client, ms": statistics.median(client),
        "processor, ms": (watched.processor_seconds - before) / queries * 1e3,
    }


class Records:
    """The nodes of a cluster as records in etcd, as their daemons would have written them."""

    def __init__(self, etcd: EtcdServer) -> None:
        self._etcd = etcd
        self._http = httpx.Client(base_url=etcd.url, trust_env=False, timeout=60)
        self._lease = secrets.randbits(62) + 1
        etcd.call("lease/grant", ID=self._lease, TTL=3600)

    def put(self, snapshots: Iterator[Snapshot]) -> None:
        """Write nodes, as fast as they go."""
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(self.put_one, snapshots):
                pass

    def put_one(self, snapshot: Snapshot) -> None:
        """Write one node."""
        key = f"{PREFIX}nodes/{snapshot.node.node_id}"
        value = seal(Record(instance=snapshot.instance, snapshot=snapshot), key.encode(), None)
        body = {"key": b64(key), "value": base64.b64encode(value).decode(), "lease": self._lease}
        answer = self._http.post("/v3/kv/put", json=body)
        assert answer.status_code == 200, answer.text


def serve_etcd(design: Design, folder: Path, changes: int) -> dict[str, float]:
    """Let a daemon read the nodes from etcd, and change some."""
    with etcd_server(folder / "etcd") as etcd:
        records = Records(etcd)
        records.put(one.snapshot for one in simulate(design) if one.snapshot)
        config = folder / "etcd.toml"
        config.write_text(f'cluster_backend = "etcd"\netcd_endpoints = ["{etcd.url}"]\n')
        with Daemon("etcd", folder, ["-c", str(config), "--port", "0", "--socket", ""]) as daemon:
            watched = Watched(daemon)
            while watched.known() < design.nodes:
                assert time.monotonic() - watched.begun < _START_SECONDS
                time.sleep(0.1)
            figures = {
                "etcd: all nodes known after, s": time.monotonic() - watched.begun,
                "etcd: processor until then, s": watched.processor_seconds,
                "etcd: daemon's memory, MB": watched.memory_bytes / 1e6,
            }
            return figures | change(watched, records, design, changes)


def change(watched: Watched, records: Records, design: Design, changes: int) -> dict[str, float]:
    """Take links of nodes down: one by one, then as fast as etcd takes them; wait until the daemon tells of each."""
    victims = [
        one.snapshot for one, _ in zip(simulate(design), range(min(50, design.nodes)), strict=False) if one.snapshot
    ]
    cursor = watched.http.get("/v1/cluster?summary=1").json()["event_cursor"]
    seen, asked = [], []
    ends = "&".join(f"{end}={one.node.name}/gpu0" for end, one in zip(("src", "dst"), victims[-2:], strict=True))
    for turn in range(40):
        changed = flipped(victims[turn % len(victims)], "down" if turn < len(victims) else "up", turn + 2)
        begun = time.monotonic()
        records.put_one(changed)
        page = watched.http.get("/v1/events", params={"since": cursor, "wait": 30}).json()
        seen.append((time.monotonic() - begun) * 1e3)
        cursor = page["cursor"]
        answer = watched.http.get(f"/v1/paths?{ends}")
        asked.append(float(answer.headers["server-timing"].partition("dur=")[2]))
    flips = [
        flipped(victims[turn % len(victims)], ("up", "down")[turn // len(victims) % 2], turn + 50)
        for turn in range(changes)
    ]
    begun, before = time.monotonic(), watched.processor_seconds
    records.put(iter(flips))
    count = 0
    while count < changes:
        page = watched.http.get("/v1/events", params={"since": cursor, "wait": 5}).json()
        assert page["events"], f"only {count} of {changes} changes were told"
        cursor = page["cursor"]
        count += sum(event["kind"] == "node_changed" for event in page["events"])
    return {
        "etcd: a change seen p50, ms": statistics.median(seen),
        "etcd: a change seen p99, ms": statistics.quantiles(seen, n=100)[98],
        "etcd: query after a change p50, ms": statistics.median(asked),
        "etcd: changes a second": changes / (time.monotonic() - begun),
        "etcd: processor a change, ms": (watched.processor_seconds - before) / changes * 1e3,
    }


def measure(count: int, options: argparse.Namespace) -> dict[str, float]:
    """Measure a cluster of so many nodes."""
    design = Design(template=load_template(options.template), name=options.template, nodes=count)
    with tempfile.TemporaryDirectory(prefix="fabricd-bench-") as name:
        folder = Path(name)
        file = folder / "cluster.jsonl.gz"
        begun = time.process_time()
        write_cluster(file, Head(nodes=count), simulate(design))
        figures = {"simulating, ms a node": (time.process_time() - begun) / count * 1e3}
        figures |= serve_file(file, folder, count, options.queries)
        if etcd_program() and options.changes:
            figures |= serve_etcd(replace(design, seed=1), folder, options.changes)
        return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--changes", type=int, default=300, help="0: without etcd")
    parser.add_argument("--template", default="h100")
    options = parser.parse_args(arguments)
    rows = []
    for count in map(int, options.nodes.split(",")):
        rows.append((count, measure(count, options)))
        table(rows[-1:])
    if len(rows) > 1:
        table(rows)


if __name__ == "__main__":
    main()
