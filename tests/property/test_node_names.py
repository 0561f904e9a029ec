"""Names of nodes that are kept in step say what they would if they were worked out anew."""

from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.identity import NodeIdentity
from fabricd.model.snapshot import Snapshot
from fabricd.paths.names import NodeNames

MAPS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["", "a", "x", "y", "z"]), max_size=6)


def nodes_of(names, known):
    """Snapshots by node_id; those that did not change are the same objects."""
    made = {}
    for node_id, name in names.items():
        before = known.get(node_id)
        fresh = Snapshot(node=NodeIdentity(node_id=node_id, name=name))
        made[node_id] = before if before == fresh else fresh
    return made


@given(st.lists(MAPS, min_size=1, max_size=8))
def test_kept_names_are_those_worked_out_anew(maps):
    names, nodes = NodeNames(), {}
    for step in maps:
        nodes = nodes_of(step, nodes)
        names.keep_to(nodes)
        told = list(step.values())
        shown = {node_id: name if name and told.count(name) == 1 else node_id for node_id, name in step.items()}
        assert {node_id: names.shown(node_id) for node_id in nodes} == shown
        assert names.all() == sorted(shown.values())
        for word in (*"abcdefxyz", ""):
            meant = word if word in step else next((one for one, name in shown.items() if name == word), None)
            assert names.find(word) == meant
