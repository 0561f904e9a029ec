"""Where a daemon and its clients meet on one host, and how a secret is read from a file. Standard library only.

One function decides each path, so that daemon and client cannot disagree.
"""

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from fabricd.errors import AccessError, InputError

DEFAULT_PORT = 7470
SYSTEM_DIRECTORY = Path("/run/fabricd")
SOCKET_NAME = "fabricd.sock"
#: Where topology files of virtual machines lie. Sources: NCCL 2.30, graph/topo.cc (NVIDIA's vGPU software); Azure's HPC
#: images, azhpc-images, customizations/; the EFA installer and the AWS plugin for NCCL, aws-ofi-nccl, topology/.
TOPOLOGY_FILES = (
    "/run/nvidia-topologyd/virtualTopology.xml",
    "/var/run/nvidia-topologyd/virtualTopology.xml",
    "/opt/microsoft/*-topo.xml",
    "/opt/microsoft/*/topo.xml",
    "/opt/amazon/ofi-nccl/share/aws-ofi-nccl/xml/*.xml",
    "/opt/amazon/efa/share/aws-ofi-nccl/xml/*.xml",
    "/opt/aws-ofi-nccl/share/aws-ofi-nccl/xml/*.xml",
    "/opt/aws-ofi-nccl/install/share/aws-ofi-nccl/xml/*.xml",
)
_SECRET_MAX_BYTES = 4096


def runtime_directory(environ: Mapping[str, str] | None = None) -> Path:
    """Return the directory in which a daemon of this user keeps its socket.

    systemd's ``RUNTIME_DIRECTORY`` where it is set; ``/run/fabricd`` for root; ``$XDG_RUNTIME_DIR/fabricd``; else
    ``~/.local/state/fabricd``; for a user without a home ``/run/user/UID/fabricd``. Never below ``/tmp``: there anybody
    could have made it first.
    """
    environ = os.environ if environ is None else environ
    if environ.get("RUNTIME_DIRECTORY"):
        return Path(environ["RUNTIME_DIRECTORY"].split(":", 1)[0])
    if os.geteuid() == 0:
        return SYSTEM_DIRECTORY
    if environ.get("XDG_RUNTIME_DIR"):
        return Path(environ["XDG_RUNTIME_DIR"]) / "fabricd"
    try:
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    except RuntimeError:  # containers run under user numbers that no passwd file knows
        return Path(f"/run/user/{os.geteuid()}/fabricd")
    return home / ".local/state/fabricd"


def socket_path(environ: Mapping[str, str] | None = None) -> Path:
    """Return where a daemon started by this user listens: ``FABRICD_SOCKET``, else in its runtime directory."""
    environ = os.environ if environ is None else environ
    if environ.get("FABRICD_SOCKET"):
        return Path(environ["FABRICD_SOCKET"])
    return runtime_directory(environ) / SOCKET_NAME


def find_socket(environ: Mapping[str, str] | None = None) -> Path | None:
    """Return the Unix socket of this host's daemon for a client: this user's own, else the system's, else None.

    The one that ``FABRICD_SOCKET`` names is returned also where there is none: who sets it means that one or an error.
    """
    environ = os.environ if environ is None else environ
    if environ.get("FABRICD_SOCKET"):
        return Path(environ["FABRICD_SOCKET"])
    candidates = (socket_path(environ), SYSTEM_DIRECTORY / SOCKET_NAME)
    return next((path for path in candidates if _is_socket(path)), None)


def _is_socket(path: Path) -> bool:
    try:
        return path.is_socket()
    except OSError:  # below another user's home: su and sudo may leave HOME as it was
        return False


def read_secret_file(path: Path, source: str) -> str:
    """Return the secret in a file, without the white space around it.

    Args:
        path: the file.
        source: what named the file, for messages, e.g. ``"FABRICD_TOKEN_FILE"``. Messages never show the secret.

    Raises:
        AccessError: the file cannot be read, or others than its owner and group could read or write it.
        InputError: its content can be no secret.
    """
    data = read_private_file(path, source, limit=_SECRET_MAX_BYTES)
    return check_secret(data.decode("utf-8", "replace").strip(), source)


def read_private_file(path: Path, source: str, *, limit: int) -> bytes:
    """Return what a file holds that only its owner and group may see, at most one byte more than ``limit``.

    Raises:
        AccessError: it cannot be read, or others than its owner and group could read or write it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(limit + 1)
    except OSError as error:
        raise AccessError(f"cannot read the file of {source}: {error}") from None
    # Kubernetes mounts secrets 0440 at best with an fsGroup: the group may read, but nobody else.
    if status.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
        raise AccessError(
            f"the file of {source} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): {path}",
            hint=f"chmod 600 {path} (Kubernetes: defaultMode: 0400)",
        )
    return data


def check_secret(secret: str, source: str) -> str:
    """Return the secret if a header can carry it.

    Raises:
        InputError: empty, too long, or not printable ASCII; the message names the source and never shows the secret.
    """
    if len(secret) > _SECRET_MAX_BYTES or not re.fullmatch(r"[!-~]+", secret):
        raise InputError(
            f"the secret from {source} is empty, longer than {_SECRET_MAX_BYTES} bytes or not printable ASCII",
            hint="make one with: python3 -c 'import secrets; print(secrets.token_hex(32))'",
        )
    return secret
