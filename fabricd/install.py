"""How to add an extra to this very installation. Standard library only.

The package may run from a folder of its sources, or have been installed from one, from an archive, a repository or an
index: the line that is right for one of them does nothing for the others.
"""

import json
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NAME = "fabricd"


def install_line(extra: str) -> str:
    """Return the command that installs an extra, e.g. ``/venv/bin/python -m pip install '/src/fabricd[mpi]'``."""
    return f"{shlex.quote(sys.executable or 'python3')} -m pip install {_requirement(extra)}"


def _requirement(extra: str) -> str:
    sources = Path(__file__).parents[1]
    if (sources / "pyproject.toml").is_file():
        return f"-e {shlex.quote(f'{sources}[{extra}]')}"
    url = _installed_from()
    if url.startswith("file://") and not url.endswith((".whl", ".tar.gz", ".zip")):
        folder = unquote(urlsplit(url).path)
        gone = not Path(folder).is_dir()  # as in images whose build has removed it
        return f"'.[{extra}]' (in the folder of {_NAME}'s sources)" if gone else shlex.quote(f"{folder}[{extra}]")
    return shlex.quote(f"{_NAME}[{extra}] @ {url}" if url else f"{_NAME}[{extra}]")


def _installed_from() -> str:
    """Return the URL that pip was given for this package; "" when it came from an index, or nothing is known.

    Source: PEP 610, direct_url.json.
    """
    from importlib import metadata  # slow to import, and rarely needed

    try:
        told = json.loads(metadata.distribution(_NAME).read_text("direct_url.json") or "{}")
        repository = told.get("vcs_info")
        if repository:
            return f"{repository['vcs']}+{told['url']}@{repository['commit_id']}"
        return str(told.get("url", ""))
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return ""
