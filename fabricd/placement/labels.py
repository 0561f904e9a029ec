"""What labels of a Kubernetes node say of where it stands.

Sources: Kubernetes, "Well-Known Labels, Annotations and Taints"; topograph, docs/reference/node-labels.md; the clouds'
documentation of their labels (EKS, GKE, OKE, CoreWeave, Nebius); NVIDIA's GPU operator.
"""

from collections.abc import Mapping

from fabricd.model.placement import Position

_TOPOGRAPH = "network.topology.nvidia.com/"
_TIER = "fabric.topograph.run/tier-"
_AWS = "topology.k8s.aws/network-node-layer-"
_GCE = "cloud.google.com/gce-topology-"
_OCI = "oci.oraclecloud.com/"
_COREWEAVE = "backend.coreweave.cloud/"
_NEBIUS = "topology.nebius.com/tier-"
#: Families of labels, nearest level first. The first family that a node has counts.
_LEVELS: tuple[tuple[str, ...], ...] = (
    tuple(f"{_TIER}{tier}" for tier in range(8)),
    tuple(_TOPOGRAPH + level for level in ("leaf", "spine", "core")),
    tuple(f"{_AWS}{layer}" for layer in (4, 3, 2, 1)),
    (f"{_GCE}subblock", f"{_GCE}block"),
    tuple(f"{_OCI}rdma.{level}_id" for level in ("local_block", "network_block", "hpc_island")),
    (f"{_OCI}host.network_block_id",),
    tuple(_COREWEAVE + level for level in ("leafgroup", "superpod", "fabric")),
    (f"{_NEBIUS}1", f"{_NEBIUS}2", f"{_NEBIUS}3"),
)
#: The GPUs' own word comes first: others may name the rack, which can hold several partitions.
_DOMAIN = (
    "nvidia.com/gpu.clique",
    "accelerator.topograph.run/domain",
    f"{_TOPOGRAPH}accelerator",
    "topology.k8s.aws/ultraserver-id",
    "ds.coreweave.com/nvlink.domain",
)
_RACK = (f"{_OCI}host.rack_id", "topology.kubernetes.io/rack")
_ZONE = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
_REGION = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")


def position_of(labels: Mapping[str, str]) -> Position:
    """Return where a node with these labels stands; levels that its family lacks in the middle stay ""."""
    family = next((keys for keys in _LEVELS if any(labels.get(key) for key in keys)), ())
    switches = [labels.get(key, "") for key in family]
    if family and family[0].startswith(_AWS) and not switches[0]:
        del switches[0]  # most of their networks have three layers
    while switches and not switches[-1]:
        switches.pop()
    return Position(
        source="kubernetes",
        switches=tuple(switches),
        rack=_first(labels, _RACK),
        zone=_first(labels, _ZONE),
        region=_first(labels, _REGION),
        nvlink_domain=_first(labels, _DOMAIN),
    )


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
