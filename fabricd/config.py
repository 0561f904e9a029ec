"""Configuration of the daemon: defaults < file (TOML) < environment (``FABRICD_*``) < command line.

Every fault of every layer is found before any is reported.
"""

import ipaddress
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from fabricd import credentials, settings
from fabricd.credentials import Credentials, read_credentials
from fabricd.errors import ConfigError
from fabricd.locations import DEFAULT_PORT, TOPOLOGY_FILES, socket_path
from fabricd.model.network import NetworkRule
from fabricd.settings import Rule
from fabricd.settings_layers import PREFIX, checked, is_there, read_environ, read_file
from fabricd.settings_networks import network_rules

DEFAULT_FILE = Path("/etc/fabricd/fabricd.toml")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration as it was read."""

    config: Config
    credentials: Credentials = field(default_factory=Credentials)
    file: Path | None = None  #: the file that was read

    @property
    def warnings(self) -> tuple[str, ...]:
        """What works, and should not stay as it is."""
        return credentials.warnings(self.config, self.credentials)


RULES: Mapping[str, Rule] = {
    key: next(item for item in hint.__metadata__ if isinstance(item, Rule))
    for key, hint in get_type_hints(Config, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
    default_file: Path = DEFAULT_FILE,
) -> Loaded:
    """Read all layers.

    Args:
        file: the file; None takes ``FABRICD_CONFIG``, else ``default_file`` if that exists.
        environ: the environment, by default this process's.
        options: settings of the command line; None as a value is "not given".
        default_file: where the file is by default.

    Raises:
        ConfigError: lists every fault.
    """
    environ = os.environ if environ is None else environ
    faults: list[str] = []
    values: dict[str, Any] = {}
    if file is None and environ.get(PREFIX + "CONFIG"):
        file = Path(environ[PREFIX + "CONFIG"])
    if file is None and is_there(default_file):
        file = default_file
    if file is not None:
        values.update(checked(read_file(file, RULES, faults), str(file), RULES, faults))
    values.update(checked(read_environ(environ, RULES, faults), "environment", RULES, faults))
    given = {key: value for key, value in (options or {}).items() if value is not None}
    values.update(checked(given, "command line", RULES, faults))
    config = Config(**values)
    shown = read_credentials(config, faults)
    faults += credentials.contradictions(config, shown) + _contradictions(config)
    if faults:
        raise ConfigError(faults)
    return Loaded(config=config, credentials=shown, file=file)


def needs_restart(running: Config, wanted: Config) -> list[str]:
    """Return the settings that differ and that only a restart can change."""
    return [key for key, rule in RULES.items() if not rule.reload and getattr(running, key) != getattr(wanted, key)]


def keep_unreloadable(running: Config, wanted: Config) -> Config:
    """Return the wanted configuration with what only a restart can change as it is now."""
    return replace(wanted, **{key: getattr(running, key) for key, rule in RULES.items() if not rule.reload})


def _contradictions(config: Config) -> list[str]:
    faults = []
    if config.role == "agent" and not config.map_nodes:
        faults.append("role agent holds no map and needs map_nodes: the URLs of those that do")
    if config.cluster_backend == "etcd" and (config.peers or config.peers_file):
        faults.append("with cluster_backend etcd nodes find each other there: leave peers and peers_file out")
    if len(config.peers) > settings.MAX_EQUAL_PEERS and not config.map_nodes:
        faults.append(
            f"{len(config.peers)} peers that all ask each other are more than {settings.MAX_EQUAL_PEERS}: choose 3 to "
            "5 as map_nodes, with role map, and give the others role agent; or use cluster_backend etcd"
        )
    return faults
