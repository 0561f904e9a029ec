"""Positions in JSON: of Kubernetes' node labels, of topograph's engine ``graph``, and of EC2's instance topology.

Sources: topograph, docs/engines/graph.md; Kubernetes' API reference (Node); EC2's API reference (InstanceTopology).
"""

import msgspec

from fabricd.errors import ParseError
from fabricd.model.placement import Position
from fabricd.placement.imported import Imported, with_short_names
from fabricd.placement.labels import position_of

_MAX_NODES = 200_000
_MAX_LEVELS = 16
_NOTHING = msgspec.Raw()


class _Metadata(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _KubernetesNode(msgspec.Struct):
    metadata: _Metadata
    kind: str = ""


class _KubernetesList(msgspec.Struct):
    items: list[_KubernetesNode]


class _Instance(msgspec.Struct):
    """Of topograph."""

    id: str
    network_layers: list[str] = []
    attributes: dict[str, object] | None = None


class _Graph(msgspec.Struct):
    instances: list[_Instance]


class _Ec2Instance(msgspec.Struct, rename="pascal"):
    instance_id: str
    network_nodes: list[str] = []  #: the farthest first
    availability_zone: str = ""
    capacity_block_id: str = ""  #: on UltraServers: the instances of one NVLink domain


class _Ec2Topology(msgspec.Struct):
    instances: list[_Ec2Instance] = msgspec.field(name="Instances")


class _Head(msgspec.Struct):
    """What tells the forms apart."""

    kind: str = ""
    items: msgspec.Raw = _NOTHING
    instances: msgspec.Raw = _NOTHING
    ec2: msgspec.Raw = msgspec.field(name="Instances", default=_NOTHING)


def read(data: bytes, origin: str) -> Imported:
    """Return what a JSON document says.

    Raises:
        ParseError: it has none of the forms, or a field of it is wrong.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind == "Node":
            found = _of_kubernetes([msgspec.json.decode(data, type=_KubernetesNode)])
        elif head.items != _NOTHING:
            found = _of_kubernetes(msgspec.json.decode(data, type=_KubernetesList).items)
        elif head.instances != _NOTHING:
            found = _of_topograph(msgspec.json.decode(data, type=_Graph).instances)
        elif head.ec2 != _NOTHING:
            found = _of_ec2(msgspec.json.decode(data, type=_Ec2Topology).instances)
        else:
            raise ParseError(
                f"{origin} has neither items (Kubernetes), instances (topograph) nor Instances (EC2)",
                hint="kubectl get nodes -o json; aws ec2 describe-instance-topology",
            )
    except (msgspec.DecodeError, RecursionError) as error:
        raise ParseError(f"{origin}: {error}") from error
    if len(found) > _MAX_NODES:
        raise ParseError(f"{origin}: more than {_MAX_NODES} nodes")
    notes = () if any(map(_says_something, found.values())) else (f"{origin}: no node has a label of a known kind",)
    return Imported(origin=origin, positions=with_short_names(found), notes=notes)


def _of_kubernetes(nodes: list[_KubernetesNode]) -> dict[str, Position]:
    return {
        node.metadata.name: position_of(node.metadata.labels)
        for node in nodes
        if not node.kind or node.kind == "Node"  # a List may hold anything
    }


def _of_topograph(instances: list[_Instance]) -> dict[str, Position]:
    return {
        one.id: Position(
            source="topograph",
            switches=tuple(one.network_layers[:_MAX_LEVELS]),
            nvlink_domain=str((one.attributes or {}).get("nvlink") or ""),
            instance_id=one.id,
        )
        for one in instances
    }


def _of_ec2(instances: list[_Ec2Instance]) -> dict[str, Position]:
    return {
        one.instance_id: Position(
            source="aws",
            switches=tuple(reversed(one.network_nodes[:_MAX_LEVELS])),
            zone=one.availability_zone,
            nvlink_domain=one.capacity_block_id,
            instance_id=one.instance_id,
        )
        for one in instances
    }


def _says_something(position: Position) -> bool:
    return position != Position(source=position.source)
