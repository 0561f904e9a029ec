"""Whether etcd answers, as the node map is told: graces, ages, and which part counts for what."""

from fabricd.cluster.etcd_health import GRACE_SECONDS, LEASE, WATCH, StoreHealth
from fabricd.cluster.nodes import NodeMap
from fabricd.model.cluster import NodeState
from tests.unit.test_node_map import snapshot


class Bench:
    def __init__(self, *parts: str) -> None:
        self.now = 1000.0
        self.nodes = NodeMap(clock=lambda: self.now)
        self.nodes.set_local(snapshot("here"))
        self.health = StoreHealth(self.nodes, parts or (LEASE, WATCH), clock=lambda: self.now)

    def after(self, seconds: float) -> StoreHealth:
        self.now += seconds
        return self.health

    def told(self) -> tuple[NodeState, float | None, str]:
        store = self.nodes.status().store
        return (store.state, store.age_seconds, store.reason)


def test_it_is_good_once_every_part_is():
    bench = Bench()
    assert bench.told() == (NodeState.UNKNOWN, None, "etcd has not answered yet")
    bench.health.ok(LEASE)
    assert bench.told()[0] is NodeState.UNKNOWN
    bench.health.ok(WATCH)
    assert bench.told() == (NodeState.OK, 0.0, "")
    alone = Bench(LEASE)
    alone.health.ok(LEASE)
    assert alone.told() == (NodeState.OK, 0.0, "")


def test_one_that_never_answered_is_unknown_and_says_why():
    bench = Bench()
    bench.health.failed(LEASE, "no")
    assert bench.told()[2] == "etcd has not answered yet"
    bench.after(GRACE_SECONDS).failed(LEASE, "still no")
    assert bench.told() == (NodeState.UNKNOWN, None, "still no")


def test_a_watch_that_was_silent_for_an_hour_is_as_fresh_as_the_lease():
    bench = Bench()
    bench.health.ok(WATCH)
    for _ in range(720):
        bench.after(5.0).ok(LEASE)
    assert bench.told() == (NodeState.OK, 0.0, "")
    bench.after(4.0).failed(WATCH, "broken")
    assert bench.told() == (NodeState.OK, 4.0, "")  # a moment's grace
    bench.after(GRACE_SECONDS).failed(WATCH, "broken")
    assert bench.told() == (NodeState.STALE, 4.0 + GRACE_SECONDS, "broken")


def test_a_watch_that_fails_while_the_lease_is_kept_makes_the_map_stale():
    bench = Bench()
    bench.health.ok(LEASE)
    bench.health.ok(WATCH)
    bench.after(5.0).failed(WATCH, "broken")
    for _ in range(4):
        bench.after(5.0).ok(LEASE)
        bench.health.failed(WATCH, "broken")
    assert bench.told() == (NodeState.STALE, 20.0, "broken")
    bench.health.ok(WATCH)
    assert bench.told() == (NodeState.OK, 0.0, "")
    kinds = [event.kind.value for event in bench.nodes.history.since(None).events]
    assert kinds == ["node_joined", "store_lost", "store_back"]
