"""The line that adds an extra, for each way in which this package can have been installed."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from fabricd import install

PIP = f"{shlex.quote(sys.executable)} -m pip install "


def test_from_the_sources() -> None:
    root = Path(__file__).parents[2]
    assert install.install_line("mpi") == f"{PIP}-e {shlex.quote(f'{root}[mpi]')}"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"url": "file:///{here}/with%20space", "dir_info": {}}, "'{here}/with space[mpi]'"),
        ({"url": "file:///gone/away", "dir_info": {}}, "'.[mpi]' (in the folder of fabricd's sources)"),
        ({"url": "file:///w/fabricd-0.1-py3-none-any.whl"}, "'fabricd[mpi] @ file:///w/fabricd-0.1-py3-none-any.whl'"),
        (
            {"url": "https://example.org/f.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "'fabricd[mpi] @ git+https://example.org/f.git@abc'",
        ),
        (None, "'fabricd[mpi]'"),
        ({"vcs_info": 7}, "'fabricd[mpi]'"),
        ("no object", "'fabricd[mpi]'"),
    ],
)
def test_from_elsewhere(told: object, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip writes it beside the installed package (PEP 610)."""
    here = str(tmp_path).lstrip("/")
    (tmp_path / "with space").mkdir()
    facts = tmp_path / "site/fabricd-0.1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: fabricd\nVersion: 0.1\n")
    if told is not None:
        (facts / "direct_url.json").write_text(json.dumps(told).replace("{here}", here))
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setattr(install, "__file__", str(tmp_path / "site/fabricd/install.py"))
    assert install.install_line("mpi") == PIP + expected.replace("{here}", f"/{here}")
