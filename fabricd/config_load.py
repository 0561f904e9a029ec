"""Configuration of the daemon: defaults < file (TOML) < environment (``FABRICD_*``) < command line.

Every fault of every layer is found before any is reported.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fabricd import credentials, settings
from fabricd.config import RULES, Config
from fabricd.credentials import Credentials, read_credentials
from fabricd.errors import ConfigError
from fabricd.settings_layers import PREFIX, checked, is_there, read_environ, read_file

DEFAULT_FILE = Path("/etc/fabricd/fabricd.toml")


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
