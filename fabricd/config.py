"""All settings of the daemon: what each may be, what it is for, and whether a running daemon can take it up."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, get_type_hints

from fabricd import settings
from fabricd.locations import DEFAULT_PORT, TOPOLOGY_FILES, socket_path
from fabricd.model.network import NetworkRule
from fabricd.settings import Rule
from fabricd.settings_networks import network_rules

_FIXED = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All settings of the daemon; the names are those of the file."""

    host: Annotated[str, Rule(settings.address(), "address to listen at", _FIXED)] = "127.0.0.1"
    port: Annotated[int, Rule(settings.integer(0, 65535), "TCP port; 0 takes any", _FIXED)] = DEFAULT_PORT
    socket: Annotated[
        Path | None, Rule(settings.path(socket=True), 'Unix socket for this host; "" for none', _FIXED)
    ] = field(default_factory=socket_path)
    runtime_dir: Annotated[
        Path | None, Rule(settings.path(), "what a restarted daemon must know; by default beside the socket", _FIXED)
    ] = None
    node_id: Annotated[str | None, Rule(settings.name(), "identity of this node; by default the machine's", _FIXED)] = (
        None
    )
    name: Annotated[
        str | None, Rule(settings.name(), "display name of this node; by default its host name", _FIXED)
    ] = None
    token_file: Annotated[
        Path | None, Rule(settings.path(), "bearer token that opens everything; what peers show each other")
    ] = None
    access_file: Annotated[
        Path | None, Rule(settings.path(), "who else may ask and for what: names, scopes, tokens or certificates")
    ] = None
    tls_certificate_file: Annotated[
        Path | None, Rule(settings.path(), "PEM; with it the TCP port speaks TLS, and peers are shown it")
    ] = None
    tls_key_file: Annotated[Path | None, Rule(settings.path(), "PEM; the certificate's key")] = None
    tls_ca_file: Annotated[
        Path | None, Rule(settings.path(), "PEM; CAs of the peers' certificates; by default the system's")
    ] = None
    tls_client_ca_file: Annotated[
        Path | None, Rule(settings.path(), "PEM; CAs of the clients that access_file lets in by certificate")
    ] = None
    tls_peer_name: Annotated[
        str | None, Rule(settings.name(), "name in all peers' certificates; by default the host of each URL")
    ] = None
    allowed_hosts: Annotated[
        tuple[str, ...], Rule(settings.host_names(), "further names in Host headers of local requests")
    ] = ()
    role: Annotated[
        str, Rule(settings.choice("map", "agent"), "agent: hold no map of the cluster, ask map_nodes", _FIXED)
    ] = "map"
    map_nodes: Annotated[
        tuple[str, ...], Rule(settings.urls(), "URLs of the daemons that hold the map, where not all do")
    ] = ()
    cluster_backend: Annotated[
        str, Rule(settings.choice("static", "etcd"), "how nodes find each other: listed as peers, or in etcd", _FIXED)
    ] = "static"
    peers: Annotated[
        tuple[str, ...], Rule(settings.urls(names=True), "URLs of the other nodes' daemons, or dns://NAME:PORT")
    ] = ()
    peers_file: Annotated[
        Path | None, Rule(settings.path(), "further peers, one a line; read again when it changes")
    ] = None
    advertise_url: Annotated[
        str | None, Rule(settings.url(), "etcd: where others ask this daemon; by default from host and port", _FIXED)
    ] = None
    etcd_endpoints: Annotated[tuple[str, ...], Rule(settings.urls(least=1), "URLs of etcd's client ports", _FIXED)] = (
        "http://127.0.0.1:2379",
    )
    etcd_ca_file: Annotated[
        Path | None, Rule(settings.path(), "PEM; CAs of etcd's certificates; by default tls_ca_file")
    ] = None
    etcd_certificate_file: Annotated[
        Path | None, Rule(settings.path(), "PEM; what etcd is shown; by default tls_certificate_file")
    ] = None
    etcd_key_file: Annotated[Path | None, Rule(settings.path(), "PEM; the key of etcd_certificate_file")] = None
    etcd_prefix: Annotated[str, Rule(settings.prefix(), "of all keys; one for each cluster", _FIXED)] = "/fabricd/"
    etcd_lease_seconds: Annotated[
        int, Rule(settings.integer(5, 600), "silence after which etcd drops a daemon's record", _FIXED)
    ] = 15
    peer_gone_seconds: Annotated[float, Rule(settings.seconds(5, 3600), "silence after which a peer is gone")] = 60.0
    probe_interval_seconds: Annotated[
        float, Rule(settings.seconds(1, 3600), "time between two looks at what no event tells of")
    ] = 60.0
    gpu_events: Annotated[
        str, Rule(settings.choice("off", "on"), "on: Xids and ECC errors are seen at once; keeps GPUs open", _FIXED)
    ] = "off"
    ib_fabric: Annotated[
        str, Rule(settings.choice("off", "on"), "on: `fabricd facts` walks over the InfiniBand fabrics")
    ] = "off"
    topology_files: Annotated[
        tuple[str, ...],
        Rule(settings.file_patterns(), "where files may lie that say what a virtual machine hides of its PCIe", _FIXED),
    ] = TOPOLOGY_FILES
    network: Annotated[
        tuple[NetworkRule, ...],
        Rule(network_rules(), "tables [[network]]: the name and role of networks whose ports match", _FIXED),
    ] = ()
    placement_files: Annotated[
        tuple[str, ...],
        Rule(
            settings.files(),
            "files that say where nodes stand: Slurm's topology.conf or topology.yaml, topograph's or kubectl's JSON",
            _FIXED,
        ),
    ] = ()
    instance_metadata: Annotated[
        str,
        Rule(settings.choice("off", "on"), "on: the cloud's metadata service is asked where this node stands", _FIXED),
    ] = "off"
    measure_max_age_seconds: Annotated[
        float, Rule(settings.seconds(0, 86400), "age up to which a measurement between nodes serves for a plan")
    ] = 300.0
    max_connections: Annotated[int, Rule(settings.integer(16, 100_000), "connections open at once")] = 8192
    max_requests: Annotated[int, Rule(settings.integer(1, 10_000), "requests in work at once, without long polls")] = (
        256
    )
    max_long_polls: Annotated[int, Rule(settings.integer(1, 100_000), "long polls and streams open at once")] = 8192
    max_body_bytes: Annotated[int, Rule(settings.integer(1024, 1 << 26), "size of a request's body")] = 1 << 20
    log_level: Annotated[str, Rule(settings.choice("debug", "info", "warning", "error"), "least level to log")] = "info"
    log_format: Annotated[
        str, Rule(settings.choice("auto", "text", "journal", "json"), "auto: journal under systemd, else text", _FIXED)
    ] = "auto"

    @property
    def records_dir(self) -> Path | None:
        """Where records that outlive the process are kept: ``runtime_dir``, else beside the socket under its name."""
        if self.runtime_dir is not None or self.socket is None:
            return self.runtime_dir
        return self.socket.with_suffix(".d")

    @property
    def beyond_loopback(self) -> bool:
        """Whether other hosts can reach the TCP port."""
        return not ipaddress.ip_address(self.host).is_loopback


RULES: Mapping[str, Rule] = {
    key: next(item for item in hint.__metadata__ if isinstance(item, Rule))
    for key, hint in get_type_hints(Config, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def needs_restart(running: Config, wanted: Config) -> list[str]:
    """Return the settings that differ and that only a restart can change."""
    return [key for key, rule in RULES.items() if not rule.reload and getattr(running, key) != getattr(wanted, key)]


def keep_unreloadable(running: Config, wanted: Config) -> Config:
    """Return the wanted configuration with what only a restart can change as it is now."""
    return replace(wanted, **{key: getattr(running, key) for key, rule in RULES.items() if not rule.reload})
