"""Probe ``instance``: where the cloud provider says that this virtual machine, or bare-metal instance, stands.

Off unless the configuration says ``instance_metadata = "on"``. Which provider it is, the firmware tells (DMI); where it
names none of those known here, nothing is asked. Sources: the providers' documentation of their metadata services.
"""

import http.client
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec

from fabricd.model.placement import Position
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeDenied, ProbeFailed, ProbeNotRun, ProbeResult
from fabricd.probe.files import FieldReader

#: Where a replay keeps what the service said, in the folder of recorded answers.
RECORDED = "instance.json"
METADATA_URL = "http://169.254.169.254"
_ASK_SECONDS = 2.0
_ALL_SECONDS = 8.0
_MAX_BYTES = 256 * 1024
_MAX_WORD = 255
_MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceAnswer:
    """What the service says."""

    position: Position
    notes: tuple[str, ...] = ()


class InstanceProbe:
    """Asks the provider's metadata service.

    Args:
        url: where it is.
    """

    name = "instance"
    deadline_seconds = 10.0

    def __init__(self, url: str = METADATA_URL) -> None:
        self._url = url

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Ask.

        Raises:
            ProbeNotRun: the machine is another one's files.
            ProbeAbsent: it is no instance of a provider known here.
            ProbeDenied: the service refuses.
            ProbeFailed: it does not answer, or otherwise than documented.
        """
        told = ask(ctx, RECORDED, InstanceAnswer, lambda: self._ask(ctx), from_files=True)
        return ProbeResult(facts={"positions": (told.position,)}, notes=told.notes)

    def _ask(self, ctx: ProbeContext) -> InstanceAnswer:
        if not ctx.this_host:
            raise ProbeNotRun("a metadata service answers only the machine itself")
        provider = _provider(ctx)
        if provider is None:
            raise ProbeAbsent(f"the firmware names none of {', '.join(sorted(_ASK))}")
        service = _Service(self._url)
        position = _ASK[provider](service)
        return InstanceAnswer(position=position, notes=tuple(service.notes))


def _provider(ctx: ProbeContext) -> str | None:
    read = FieldReader()
    dmi = {
        name: read.text(ctx.roots.sys / "class/dmi/id" / name) or ""
        for name in ("sys_vendor", "chassis_asset_tag", "product_name", "bios_vendor")
    }
    if "Amazon EC2" in dmi.values():
        return "aws"
    if dmi["chassis_asset_tag"] == _AZURE_ASSET_TAG:
        return "azure"
    if dmi["product_name"] == "Google Compute Engine":
        return "gcp"
    return "oci" if dmi["chassis_asset_tag"] == "OracleCloud.com" else None


@dataclass(slots=True)
class _Service:
    """A metadata service. No proxy is asked, and no redirect followed."""

    url: str
    notes: list[str] = field(default_factory=list)
    _until: float = field(default_factory=lambda: time.monotonic() + _ALL_SECONDS)

    def ask(self, path: str, headers: Mapping[str, str], *, method: str = "GET") -> bytes | None:
        """Return what is at a path; None where there is nothing (404)."""
        parts = urlsplit(self.url)
        left = self._until - time.monotonic()
        if left <= 0:
            raise ProbeFailed(f"{self.url} did not answer everything within {_ALL_SECONDS:g} s")
        connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port or 80, timeout=min(_ASK_SECONDS, left), blocksize=8192
        )
        try:
            connection.request(method, path, headers={"Connection": "close", **headers})
            answer = connection.getresponse()
            data = answer.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            # EC2 lets packets of a metadata service take one hop by default, which ends at a container's host.
            why = str(error) or type(error).__name__
            raise ProbeFailed(f"{self.url}{path} does not answer (in a container?): {why}") from error
        finally:
            connection.close()
        if answer.status in (401, 403):
            raise ProbeDenied(f"{self.url}{path} refuses: {answer.status} {answer.reason[:80]}")
        if answer.status == 404:
            self.notes.append(f"{path}: not told")
            return None
        if answer.status != 200 or len(data) > _MAX_BYTES:
            raise ProbeFailed(f"{self.url}{path} answers {answer.status} with {len(data)} bytes")
        return data

    def word(self, path: str, headers: Mapping[str, str]) -> str:
        """Return the one word at a path; "" where there is none."""
        return _word((self.ask(path, headers) or b"").decode("utf-8", "backslashreplace"))

    def document(self, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
        """Return the JSON object at a path; empty where there is none."""
        data = self.ask(path, headers)
        if not data:
            return {}
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProbeFailed(f"{self.url}{path} is no JSON object: {error}") from error


def _aws(service: _Service) -> Position:
    """The service knows no network nodes: they come from ``aws ec2 describe-instance-topology``, by instance id."""
    token = service.ask(
        "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60", "Content-Length": "0"}, method="PUT"
    )
    headers = {"X-aws-ec2-metadata-token": _word((token or b"").decode("ascii", "replace"))}
    data = "/latest/meta-data/"
    first = service.word(f"{data}mac", headers)
    return Position(
        source="aws",
        origin=service.url,
        block=service.word(f"{data}placement/group-name", headers),
        zone=service.word(f"{data}placement/availability-zone", headers),
        region=service.word(f"{data}placement/region", headers),
        vpc=service.word(f"{data}network/interfaces/macs/{first}/vpc-id", headers) if _MAC.fullmatch(first) else "",
        instance_id=service.word(f"{data}instance-id", headers),
    )


def _azure(service: _Service) -> Position:
    compute = service.document("/metadata/instance/compute?api-version=2021-02-01", {"Metadata": "true"})
    return Position(
        source="azure",
        origin=service.url,
        # A scale set's placement group is what its InfiniBand partition spans.
        block=_word(compute.get("placementGroupId")) or _word(compute.get("vmScaleSetName")),
        zone=_word(compute.get("zone")),
        region=_word(compute.get("location")),
        instance_id=_word(compute.get("vmId")),
    )


def _gcp(service: _Service) -> Position:
    headers = {"Metadata-Flavor": "Google"}
    data = "/computeMetadata/v1/instance/"
    topology = service.document(f"{data}attributes/physical_host_topology", headers)
    zone = service.word(f"{data}zone", headers).rpartition("/")[2]  # projects/NUMBER/zones/NAME
    return Position(
        source="gcp",
        origin=service.url,
        switches=_levels(topology, "subblock", "block", "cluster"),
        zone=zone,
        region=zone.rpartition("-")[0],
        instance_id=service.word(f"{data}id", headers),
    )


def _oci(service: _Service) -> Position:
    headers = {"Authorization": "Bearer Oracle"}
    host = service.document("/opc/v2/host/", headers)
    instance = service.document("/opc/v2/instance/", headers)
    told = host.get("rdmaTopologyData")
    topology = told if isinstance(told, dict) else {}
    return Position(
        source="oci",
        origin=service.url,
        switches=_levels(topology, "customerLocalBlock", "customerNetworkBlock", "customerHPCIslandId"),
        block=_word(host.get("networkBlockId")),
        rack=_word(host.get("rackId")),
        zone=_word(instance.get("availabilityDomain")),
        region=_word(instance.get("canonicalRegionName")) or _word(instance.get("region")),
        nvlink_domain=_word(topology.get("customerGpuMemoryFabric")),
        instance_id=_word(instance.get("id")),
    )


_ASK: Mapping[str, Callable[[_Service], Position]] = {"aws": _aws, "azure": _azure, "gcp": _gcp, "oci": _oci}


def _levels(topology: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    levels = [_word(topology.get(key)) for key in keys]
    while levels and not levels[-1]:
        levels.pop()
    return tuple(levels)


def _word(value: Any) -> str:
    """Return a short printable text; "" for anything else."""
    text = value.strip() if isinstance(value, str) else ""
    return text if len(text) <= _MAX_WORD and text.isprintable() else ""
