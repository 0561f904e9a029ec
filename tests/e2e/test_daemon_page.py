"""The page for browsers of a real daemon: what it shows, and that nothing but its own style may come with it."""

import base64
import hashlib
import re
from html.parser import HTMLParser

from fabricd.api.page import _event, _finding, _network, _node, _table
from fabricd.model.cluster import NodeState, NodeStatus
from fabricd.model.event import Event, EventKind
from fabricd.model.finding import Finding, Severity
from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from tests.support.clusters import cluster, peer_arguments
from tests.support.daemon import daemon, eventually

VOID = frozenset({"meta"})
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m&\"'"


class Page(HTMLParser):
    """Texts by heading, and a fault for every element that is not closed, or that does something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_shows_nodes_findings_and_what_changed(tmp_path):
    first, second = peer_arguments(tmp_path)
    with daemon(tmp_path, *first, name="n0") as n0, daemon(tmp_path, *second, name="n1") as n1:
        eventually(lambda: {"n1", "node_joined"} <= set(Page(n0.get("/").text).texts), 20, told=[n0, n1])
        answer = n0.get("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        page = Page(answer.text)
        assert {"Findings", "Nodes", "Networks", "Lately", "n0", "n1", "this node"} <= set(page.texts)
        assert "; 2 nodes; " in answer.text
        assert " more</p>" not in answer.text
        assert page.seen <= {
            "html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "a", "span",
            "table", "thead", "tbody", "tr", "th", "td",
        }  # fmt: skip


def test_the_page_has_every_finding(tmp_path):
    with daemon(tmp_path, name="n0") as n0:  # what it shows may be some seconds old
        codes = {one["code"] for one in n0.get("/v1/findings").json()["findings"]}
        eventually(lambda: codes <= set(Page(n0.get("/").text).texts), 20, told=[n0])


def test_nothing_but_its_own_style_may_come_with_it(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        answer = n0.get("/")
        style = re.search("<style>(.*?)</style>", answer.text, re.DOTALL)
        assert style is not None
        digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
        policies = answer.headers.get_list("content-security-policy")
        assert len(policies) == 1
        assert f"style-src 'sha256-{digest}'" in policies[0]
        assert "default-src 'none'" in policies[0]
        assert n0.get("/livez").headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_an_agent_passes_the_page_on_with_its_policy(tmp_path):
    with cluster(tmp_path, maps=1, agents=1) as [_, a0]:
        answer = a0.get("/")
        assert answer.status_code == 200
        assert len(answer.headers.get_list("content-security-policy")) == 1
        assert "style-src" in answer.headers["content-security-policy"]


def test_names_that_others_chose_are_only_shown():
    rows = [
        _finding(Finding(code="facts-conflict", severity=Severity.NOTE, what=HOSTILE, evidence=(HOSTILE,))),
        _node(NodeStatus(node_id="x", name=HOSTILE, state=NodeState.OK, reason=HOSTILE)),
        _network(Network(name=HOSTILE, transport=Transport.ETHERNET, reason=HOSTILE)),
        _event(Event(kind=EventKind.LINK_DOWN, node=HOSTILE, subject=HOSTILE, before=HOSTILE, detail=HOSTILE)),
    ]
    for row in rows:
        text = _table("T", ["c"], 1, [row], "")
        page = Page(text)
        assert page.seen <= {"h2", "table", "thead", "tbody", "tr", "th", "td", "span"}
        assert "\x1b" not in text
        assert "<img src=x onerror=alert(1)>\\x1b[31m&\"'" in page.texts


def test_only_the_daemons_own_node_is_this_node():
    nodes = [NodeStatus(node_id="x", name="n", state=NodeState.OK, this_node=own) for own in (True, False)]
    assert [one.count("this node") for one in map(_node, nodes)] == [1, 0]


def test_a_network_with_ports_of_several_speeds_says_so():
    ports = tuple(
        NetworkPort(node="x", interface=f"mlx5_{at}:1", speed_bytes_per_second=speed)
        for at, speed in enumerate((50 * 10**9, 25 * 10**9, None))
    )
    assert "25 GB/s and more" in _network(Network(name="n", transport=Transport.INFINIBAND, ports=ports))
    assert "50 GB/s" in _network(Network(name="n", transport=Transport.INFINIBAND, ports=ports[:1]))
    assert "?" in _network(Network(name="n", transport=Transport.INFINIBAND, ports=ports[2:]))


def test_a_long_table_says_how_many_more_there_are():
    rows = iter([["x"]] * 1000)
    text = _table("T", ["c"], 1000, rows, "")
    assert text.count("<tr>") == 201
    assert "and 800 more" in text
    assert len(list(rows)) == 800  # nobody has made them up


def test_a_long_text_is_cut():
    row = _finding(Finding(code="driver-differs", severity=Severity.WARNING, what="x" * 10**6, evidence=("y" * 10**6,)))
    assert sum(map(len, row)) < 1000
