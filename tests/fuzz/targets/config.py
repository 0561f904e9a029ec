"""The daemon's configuration file, whatever stands in it: a configuration, or every fault in words."""

import os
import tempfile
from pathlib import Path

from fabricd.config import RULES, keep_unreloadable, needs_restart
from fabricd.config_load import load
from fabricd.errors import ConfigError
from tests.fuzz.target import ROOT, Target

_FOLDER = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


def check(data: bytes) -> None:
    file = _FOLDER / f"fabricd-fuzz-{os.getpid()}.toml"
    try:
        file.write_bytes(data)
        loaded = load(file, environ={})
    except ConfigError as error:
        faults = error.faults
    else:
        faults = ()
        assert needs_restart(loaded.config, keep_unreloadable(loaded.config, loaded.config)) == []
        assert all(loaded.warnings)
    finally:
        file.unlink(missing_ok=True)
    assert all(fault.strip() for fault in faults)


_SAMPLE = (ROOT / "deploy/fabricd.toml").read_bytes()
TARGET = Target(
    check=check,
    seeds=lambda: [
        _SAMPLE,
        _SAMPLE.replace(b"\n# ", b"\n").replace(b"\n#", b"\n"),
        b'host = "127.0.0.1"\nport = 0\nsocket = ""\npeers = ["http://10.0.0.1:7470"]\nlog_level = "debug"\n',
        b'role = "agent"\nmap_nodes = ["https://a:7470"]\n[[network]]\nname = "x"\nrole = "storage"\n',
        b'[cluster]\nbackend = "etcd"\n[etcd]\nendpoints = ["http://127.0.0.1:2379"]\nlease_seconds = 15\n',
        b'placement_files = ["/etc/slurm/topology.conf"]\ntopology_files = ["/usr/share/*/topo*.xml"]\n',
    ],
    words=(
        *(f"{key} = " for key in RULES), "[[network]]\n", "[cluster]\n", "[etcd]\n", '""', "[]", "{}", "true", "inf",
        "nan", "-1", "1e400", '"http://', '"https://[::1]:7470"', '"unix:/x"', "'''", '"\\u0000"', "1979-05-27", "\n",
        '"dns://a:1"', '"/dev/null"',
    ),
    max_bytes=1 << 14,
)  # fmt: skip
