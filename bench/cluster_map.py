"""The node map at size: memory and time to load it, cost of one change, of a listing and of what paths are given.

    python -m bench.cluster_map [--nodes 100,1000,4000] [--repeat 200]

Nodes are HGX-like: 8 GPUs with 18 NVLinks and all peers, 8 HCAs, 10 interfaces, 48 PCI functions. Each arrives as JSON,
as from a peer, and is decoded; a change takes one link of one node down and up. If work is in proportion to the change,
the time of one does not grow with the number of nodes. Times are the processor's, for machines that are busy.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fabricd.cluster.etcd_record import Record, seal, unseal
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.model.cluster import NodeState
from fabricd.model.codec import content_hash, from_json, to_json
from fabricd.model.device import GpuPeer, InterfaceKind, IpAddress, NetInterface
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hgx

KEY = b"/fabricd/nodes/x"


def snapshot(number: int) -> Snapshot:
    """Return one node."""
    name = f"n{number}"
    base = hgx(name, lid=1 + 8 * (number % 6000))
    peers = [
        tuple(
            GpuPeer(gpu=other, read="ok", write="ok", nvlink="ok", atomics="ok", topology="node")
            for other in range(8)
            if other != index
        )
        for index in range(8)
    ]
    gpus = tuple(
        replace(gpu, peers=peers[gpu.index], name="NVIDIA H100 80GB HBM3", memory_bytes=85899345920)
        for gpu in base.gpus
    )
    interfaces = tuple(interface(number, index) for index in range(10))
    whole = replace(base, gpus=gpus, interfaces=interfaces, instance=f"i{number}", generation=1)
    return replace(whole, content_hash=content_hash(whole))


def interface(number: int, index: int) -> NetInterface:
    """Return one interface, with an address that no other has."""
    address = f"10.{index}.{number // 250}.{number % 250 + 1}"
    return NetInterface(
        name=f"eth{index}",
        index=index,
        kind=InterfaceKind.PHYSICAL,
        driver="mlx5_core",
        mac=f"02:00:{index:02x}:00:{number // 256:02x}:{number % 256:02x}",
        mtu=9000,
        speed_bytes_per_second=50 * 10**9,
        admin_up=True,
        oper_state="up",
        carrier=True,
        addresses=(IpAddress(address=address, prefix_length=16, family=4),),
    )


def resident_bytes() -> int:
    """Return this process's memory. Source: proc(5), VmRSS."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def median(function: Callable[[int], object], repeat: int) -> float:
    """Return the median processor time of a call, seconds."""
    times = []
    for turn in range(repeat):
        begun = time.process_time()
        function(turn)
        times.append(time.process_time() - begun)
    return statistics.median(times)


def peer(taken: Snapshot) -> Peer:
    """Return a node as its poller knows it."""
    return Peer(
        key=taken.node.name, url=f"http://{taken.node.name}:7470", state=NodeState.OK, snapshot=taken, heard_at=0
    )


def flipped(taken: Snapshot, state: str, generation: int) -> Snapshot:
    """Return the node with its first link in another state."""
    first = replace(taken.interfaces[0], oper_state=state, carrier=state == "up")
    changed = replace(taken, interfaces=(first, *taken.interfaces[1:]), generation=generation)
    return replace(changed, content_hash=content_hash(changed))


def measure(count: int, repeat: int) -> dict[str, float]:
    """Load a map of so many nodes and measure it."""
    bodies = [to_json(snapshot(number)) for number in range(count)]
    nodes = NodeMap()
    nodes.set_local(snapshot(count))
    gc.collect()
    before, begun = resident_bytes(), time.process_time()
    parts = SharedParts()
    for body in bodies:
        nodes.set_peer(peer(parts.decode(body, Snapshot)))
    loaded = time.process_time() - begun
    gc.collect()
    memory = resident_bytes() - before
    victim = from_json(bodies[count // 2], Snapshot)
    states = [flipped(victim, "down", 2), flipped(victim, "up", 3)]
    return {
        "memory, KiB a node": memory / count / 1024,
        "JSON, KiB a node": len(bodies[0]) / 1024,
        "load, ms a node": loaded / count * 1e3,
        "a change, us": median(lambda turn: nodes.set_peer(peer(states[turn % 2])), repeat) * 1e6,
        "for paths, us": median(lambda _: nodes.snapshots(), repeat) * 1e6,
        "for paths after a change, us": median(lambda turn: after_change(nodes, states[turn % 2]), repeat) * 1e6,
        "find, us": median(lambda _: nodes.find(victim.node.name), repeat) * 1e6,
        "summary, ms": median(lambda _: nodes.status(summary=True), 5) * 1e3,
    }


def after_change(nodes: NodeMap, taken: Snapshot) -> None:
    """Change one node, then ask for what paths are searched in."""
    nodes.set_peer(peer(taken))
    nodes.snapshots()


def record_cost(repeat: int) -> None:
    """Print what a node's record in etcd costs."""
    record = Record(instance="i", snapshot=snapshot(1))
    sealed = seal(record, KEY, "token")
    times = [
        median(work, repeat) * 1e3
        for work in (lambda _: seal(record, KEY, "token"), lambda _: unseal(sealed, KEY, "token", SharedParts()))
    ]
    print(f"record in etcd: {len(sealed) / 1024:.1f} KiB, sealed in {times[0]:.2f} ms, opened in {times[1]:.2f} ms")


def table(rows: Sequence[tuple[int, dict[str, float]]]) -> None:
    """Print one column for each number of nodes, and the growth from the first to the last."""
    print(f"{'':32}" + "".join(f"{count:>10} nodes" for count, _ in rows) + "     ratio")
    for name in rows[0][1]:
        values = [row[name] for _, row in rows]
        print(f"{name:32}" + "".join(f"{value:16.2f}" for value in values) + f"{values[-1] / values[0]:10.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", default="100,1000")
    parser.add_argument("--repeat", type=int, default=200)
    options = parser.parse_args()
    table([(count, measure(count, options.repeat)) for count in map(int, options.nodes.split(","))])
    record_cost(options.repeat)


if __name__ == "__main__":
    main()
