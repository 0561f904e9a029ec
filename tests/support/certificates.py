"""Certificates for tests, made by the openssl program: a CA, and what it vouches for."""

import ssl
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fabricd.tls import KeyPair


@dataclass(frozen=True)
class Authority:
    """A CA whose files are NAME.crt and NAME.key of a folder."""

    folder: Path
    name: str = "ca"

    def __post_init__(self) -> None:
        _make(self.folder, self.name, ["-subj", f"/CN={self.name}"])

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.crt"

    def issue(self, name: str, *alternatives: str, days: int = 90) -> KeyPair:
        """Return a certificate whose common name is ``name``; alternatives are e.g. "DNS:a", "IP:127.0.0.1"."""
        more = ["-subj", f"/CN={name}", "-days", str(days), "-addext", "basicConstraints=CA:FALSE"]
        more += ["-addext", f"subjectAltName={','.join(alternatives)}"] if alternatives else []
        key = self.folder / f"{self.name}.key"
        return _make(self.folder, name, [*more, "-CA", str(self.file), "-CAkey", str(key)])

    def client(self, pair: KeyPair | None = None) -> ssl.SSLContext:
        """Return what trusts this CA and shows a certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate_file, pair.key_file)
        return context


def _make(folder: Path, name: str, options: Sequence[str]) -> KeyPair:
    """Make files that replace older ones at once, the key first, as those who renew certificates should."""
    made = {kind: folder / f".{name}.{kind}" for kind in ("key", "crt")}
    kinds = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", str(made["key"]), "-out", str(made["crt"])]
    subprocess.run(["openssl", "req", *kinds, *files, *options], check=True, capture_output=True)
    made["key"].chmod(0o600)
    for kind, path in made.items():
        path.replace(folder / f"{name}.{kind}")
    return KeyPair(certificate_file=folder / f"{name}.crt", key_file=folder / f"{name}.key")
