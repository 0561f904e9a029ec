"""Takes a machine's identity out of what was recorded of it: file by file and answer by answer."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fabricd.probe.tree import Entry, Link
from fabricd.redact import Redactor, redactor_for

_HOST_NAMES = frozenset({"proc/sys/kernel/hostname", "etc/hostname"})
_WHOLE_IDS = frozenset({"machine-id", "product_uuid", "boot_id"})
#: Files named otherwise than the model's field that they fill.
_FIELDS = {
    "address": "mac", "perm_hwaddr": "mac", "fw_ver": "firmware", "osrelease": "kernel", "version": "kernel",
    "os-release": "os", "cpuinfo": "os",
}  # fmt: skip
_SERIAL_LINE = re.compile(r"^(serial\s*:[ \t]*)(\S+)", re.IGNORECASE | re.MULTILINE)


def redact_recording(
    entries: Mapping[str, Entry], answers: Mapping[str, Any], *, key: bytes | None = None
) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Return files and answers without what identifies machine, neighbours, and whoever captured it.

    Args:
        entries: see ``fabricd.probe.tree``.
        answers: by name, as dicts, lists and strings.
        key: as for ``fabricd.redact.redact``.
    """
    texts = {path: _text(entry) for path, entry in entries.items() if isinstance(entry, bytes)}
    hosts = {name: "host" for path in _HOST_NAMES for name in _host_names(texts.get(path, ""))}
    redactor = redactor_for([answers], texts=texts.values(), names={**_people(), **hosts}, key=key)
    told: dict[str, Entry] = {}
    for path, entry in entries.items():
        place = redactor.text(path, "place")
        if isinstance(entry, Link):
            told[place] = Link(redactor.text(entry.target, "place"))
        else:
            told[place] = _file(path, texts[path], redactor).encode() if isinstance(entry, bytes) else entry
    return told, redactor.walk(answers)


def _text(data: bytes) -> str:
    """Return content as text: bytes that are none are shown, as probes show them, so that they can be searched."""
    return data.decode("utf-8", "backslashreplace")


def _host_names(text: str) -> set[str]:
    return {text.strip(), text.strip().partition(".")[0]}


def _people() -> dict[str, str]:
    """Return the names of this user and of the user's home directory; root's are everybody's."""
    home = os.environ.get("HOME", "")
    users = {os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER")} | {Path(home).name}
    return {name: "user" for name in users | ({home} if home.count("/") > 1 else set()) if name not in ("", "root")}


def _file(path: str, text: str, redactor: Redactor) -> str:
    name = path.rpartition("/")[2]
    if path in _HOST_NAMES:
        return redactor.text(text, "hostname")
    if name in _WHOLE_IDS:
        return redactor.whole_id(text)
    if name == "cpuinfo":  # of some Arm boards
        text = _SERIAL_LINE.sub(lambda match: match[1] + redactor.text(match[2], "serial"), text)
    return redactor.text(text, _FIELDS.get(name, name))
