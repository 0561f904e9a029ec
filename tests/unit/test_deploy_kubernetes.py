"""The manifests for Kubernetes: right by its API's schemas, with a configuration that the daemon takes."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from fabricd.config import RULES, Config
from fabricd.config_load import load

KUBERNETES = Path(__file__).parents[2] / "deploy/kubernetes"
#: The oldest that the schemas are there for and that is in use, and the newest.
VERSIONS = ("1.28", kubernetes_validate.latest_version())
NODE = {"status.hostIP": "10.0.0.7", "spec.nodeName": "gpu-007.example.org"}

Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def plain() -> list[Document]:
    """Return what base consists of, as it stands in its files."""
    base = KUBERNETES / "base"
    listed = yaml.safe_load((base / "kustomization.yaml").read_text())["resources"]
    assert sorted([*listed, "kustomization.yaml"]) == sorted(path.name for path in base.iterdir())
    return [document for name in listed for document in documents((base / name).read_text())]


def of_kind(kind: str, found: list[Document]) -> Document:
    (one,) = (document for document in found if document["kind"] == kind)
    return one


def built(tmp_path: Path, resources: str, *components: str) -> list[Document]:
    """Return what kustomize makes of them."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl, which has kustomize")
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    mine = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../kubernetes/{resources}"],
        "components": [f"../kubernetes/{name}" for name in components],
    }
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/kustomization.yaml").write_text(yaml.safe_dump(mine))
    done = subprocess.run(
        ["kubectl", "kustomize", str(tmp_path / "mine")], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def configuration(found: list[Document], tmp_path: Path) -> Config:
    """Return what the daemon would make of its file and its container's environment on a node."""
    secrets = {"/etc/fabricd-token": "token"}
    text = of_kind("ConfigMap", found)["data"]["fabricd.toml"]
    for folder, name in secrets.items():
        (tmp_path / name).touch(mode=0o440)
        (tmp_path / name).write_text("0123456789abcdef" * 4)
        text = text.replace(folder, str(tmp_path))
    (tmp_path / "fabricd.toml").write_text(text)
    environ = {one["name"]: value_on_node(one) for one in container(found)["env"]}
    return load(tmp_path / "fabricd.toml", environ=environ).config


def value_on_node(variable: Document) -> str:
    if "value" in variable:
        return str(variable["value"])
    return NODE[variable["valueFrom"]["fieldRef"]["fieldPath"]]


def pod(found: list[Document]) -> Document:
    spec: Document = of_kind("DaemonSet", found)["spec"]["template"]["spec"]
    return spec


def container(found: list[Document]) -> Document:
    (one,) = pod(found)["containers"]
    assert isinstance(one, dict)
    return one


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_take_every_document(version):
    found = plain() + documents((KUBERNETES / "job-example.yaml").read_text())
    for document in found:
        kubernetes_validate.validate(document, version, strict=True)
    wrong = of_kind("DaemonSet", found) | {"spec": {**of_kind("DaemonSet", found)["spec"], "replicas": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize(("resources", "components"), [("base", []), ("nvidia", ["tls"])])
def test_what_kustomize_makes_of_them_is_right_too(tmp_path, resources, components):
    found = built(tmp_path, resources, *components)
    for document in found:
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)
        assert document["metadata"].get("namespace", "fabricd") == "fabricd"
    assert pod(found).get("runtimeClassName") == ("nvidia" if resources == "nvidia" else None)
    probes = {container(found)[f"{name}Probe"]["httpGet"].get("scheme", "HTTP") for name in ("liveness", "readiness")}
    assert probes == ({"HTTPS"} if components else {"HTTP"})
    variables = {one["name"].removeprefix("FABRICD_").lower() for one in container(found)["env"]}
    assert variables >= {"host", "node_id"}  # patches add to them
    assert {name for name in variables if not name.startswith("nvidia_")} <= set(RULES)
    volumes = {one["name"] for one in pod(found)["volumes"]}
    assert volumes >= {one["name"] for one in container(found)["volumeMounts"]}


def test_the_daemon_takes_the_configuration_as_it_is_on_a_node(tmp_path):
    config = configuration(plain(), tmp_path)
    assert (config.host, config.name, config.node_id) == ("10.0.0.7", NODE["spec.nodeName"], NODE["spec.nodeName"])
    service = of_kind("Service", plain())
    name = f"{service['metadata']['name']}.{of_kind('Namespace', plain())['metadata']['name']}.svc"
    assert config.peers == (f"dns://{name}:{service['spec']['ports'][0]['port']}",)
    assert config.port == container(plain())["ports"][0]["containerPort"] == service["spec"]["ports"][0]["targetPort"]
    assert str(config.socket) == "/run/fabricd/fabricd.sock"


def test_the_pod_may_do_no_more_than_it_must():
    found = plain()
    spec, main = pod(found), container(found)
    everywhere = spec["securityContext"]
    assert everywhere["runAsNonRoot"] is True
    assert everywhere["seccompProfile"] == {"type": "RuntimeDefault"}
    for one in (main, *spec["initContainers"]):
        allowed = one["securityContext"]
        assert allowed["allowPrivilegeEscalation"] is False
        assert allowed["readOnlyRootFilesystem"] is True
        assert allowed["capabilities"]["drop"] == ["ALL"]
        assert allowed["capabilities"].get("add", []) == (["CHOWN"] if one is not main else [])
        assert one["resources"]["limits"]["memory"]
    assert not {"hostPID", "hostIPC"} & spec.keys()
    assert spec["automountServiceAccountToken"] is False
    assert of_kind("ServiceAccount", found)["automountServiceAccountToken"] is False
    paths = [volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume]
    assert paths == ["/run/fabricd"]
    (secret,) = (volume["secret"] for volume in spec["volumes"] if "secret" in volume)
    assert secret["defaultMode"] == 0o440  # as it is written there, YAML 1.1 makes of it what is meant
