"""Every metric and label that an alert asks for is one that a daemon has; a name nobody has would never fire."""

import re
import signal
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fabricd.model.cluster import NodeState
from fabricd.model.observation import Outcome
from fabricd.shortage import Resource
from tests.support.certificates import Authority
from tests.support.daemon import daemon, eventually

PROJECT = Path(__file__).parents[2]
RULES = PROJECT / "deploy/alerts/fabricd.rules.yml"
_SELECTOR = re.compile(r"\b((?:fabricd|process)_[a-z_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)=(~?)"([^"]*)"')
#: Given by Prometheus to everything that it scrapes.
_OF_THE_SCRAPE = {"job", "instance"}
_VALUES = {
    "outcome": {*Outcome, "ok", "failed"},
    "state": set(NodeState),
    "resource": set(Resource),
    "status": {"500", "502", "503"},
}


def rules():
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def labels_of_samples(text):
    """Return the names of the labels of each sample, by the sample's name."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """The routes of a daemon that has been asked and reloaded, has a certificate and a peer, and its metrics."""
    folder = tmp_path_factory.mktemp("scraped")
    shown = Authority(folder).issue("node", "IP:127.0.0.1")
    config = folder / "fabricd.toml"
    config.write_text(f'tls_certificate_file = "{shown.certificate_file}"\ntls_key_file = "{shown.key_file}"\n')
    with (
        daemon(folder, "--config", str(config), "--peer", "https://127.0.0.1:1") as running,
        running.unix() as client,
    ):
        routes = client.get("/openapi.json").json()["paths"].keys() | {"/livez", "/readyz"}
        client.get("/v1/node")
        running.process.send_signal(signal.SIGHUP)
        awaited = ("fabricd_reloads_total{", "fabricd_peer_polls_total{")
        eventually(lambda: all(one in client.get("/metrics").text for one in awaited), told=[running])
        return routes, labels_of_samples(client.get("/metrics").text)


def told_of(section):
    """Return the labels of each metric that a section of the page has a line for."""
    text = (PROJECT / "docs/operations.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    found = re.findall(r"`(fabricd_\w+)(?:{([\w,]+)})?`", rows)
    return {name: set(labels.split(",")) - {""} for name, labels in found}


def test_the_page_on_metrics_names_all_with_their_labels(scraped):
    known = {}
    for sample, labels in scraped[1].items():
        if sample.startswith("fabricd_") and not sample.endswith("_created"):
            known.setdefault(re.sub(r"_(bucket|count|sum)$", "", sample), set()).update(labels - {"le"})
    of_hardware = told_of("Hardware as metrics")  # of which a machine may have none
    assert told_of("Metrics") == {name: labels for name, labels in known.items() if name not in of_hardware}
    assert all(of_hardware[name] == labels for name, labels in known.items() if name in of_hardware)


def test_a_daemon_has_what_the_alerts_ask_for(scraped):
    routes, known = scraped
    asked = 0
    for rule in rules():
        for name, matchers in _SELECTOR.findall(rule["expr"]):
            assert name in known, rule["alert"]
            asked += 1
            for label, pattern, value in _MATCHER.findall(matchers):
                assert label in known[name] | _OF_THE_SCRAPE, (rule["alert"], label)
                allowed = routes if label == "route" else _VALUES.get(label, {value})
                assert set(value.split("|") if pattern else [value]) <= allowed, (rule["alert"], value)
        for label in re.findall(r"\$labels\.([a-z_]+)", rule["annotations"]["summary"]):
            assert any(label in known.get(name, ()) for name, _ in _SELECTOR.findall(rule["expr"])) or (
                label in _OF_THE_SCRAPE
            ), (rule["alert"], label)
    assert asked >= len(rules()) - 1  # all but `up`


def test_each_alert_is_explained_and_played_through():
    names = [rule["alert"] for rule in rules()]
    page = (PROJECT / "docs/alerts.md").read_text()
    assert re.findall(r'<a id="([a-z]+)"></a>`([A-Za-z]+)`', page) == [(name.lower(), name) for name in names]
    assert [rule["annotations"]["runbook"] for rule in rules()] == [f"docs/alerts.md#{name.lower()}" for name in names]
    played = yaml.safe_load((PROJECT / "tests/alerts/rules.test.yml").read_text())["tests"]
    fired = {one["alertname"] for test in played for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fired == set(names)
