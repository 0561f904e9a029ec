"""The locks that deployments install from: they hold all that the project asks for, in versions that it takes."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = Path(__file__).parents[2]
#: Files in deploy/, and the extras that each is for.
LOCKS = {"requirements.lock": ("daemon",), "requirements-client.lock": ("cli", "mpi")}
_PIN = re.compile(r"([a-z0-9.-]+)==([^ ;]+)( ; [^\\]+)? \\")
_HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def asked(*extras: str) -> list[Requirement]:
    """Return what the project needs with some extras; extras of its own are resolved."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    found = []
    for requirement in map(Requirement, texts):
        found += asked(*requirement.extras) if requirement.name == "fabricd" else [requirement]
    return found


@pytest.fixture(params=LOCKS)
def lock(request) -> str:
    return request.param


def pins(lock: str) -> dict[str, Version]:
    """Return names and versions; fail on a line that is neither a version nor one of its hashes."""
    found: dict[str, Version] = {}
    hashes: dict[str, int] = {}
    name = ""
    for line in (PROJECT / "deploy" / lock).read_text().splitlines():
        if match := _PIN.fullmatch(line):
            name = match[1]
            assert name not in found, f"{name} twice"
            found[name] = Version(match[2])
        else:
            assert _HASH.fullmatch(line), line
            hashes[name] = hashes.get(name, 0) + 1
    assert set(hashes) == set(found), "a version without hash"
    return found


def test_a_lock_has_all_that_its_extras_ask_for_in_versions_that_they_take(lock):
    found = pins(lock)
    wrong = [
        f"{requirement}: {found.get(canonicalize_name(requirement.name))}"
        for requirement in asked(*LOCKS[lock])
        if (version := found.get(canonicalize_name(requirement.name))) is None or version not in requirement.specifier
    ]
    assert wrong == [], "run: make lock"


def test_both_locks_agree():
    daemon, client = (pins(lock) for lock in LOCKS)
    assert {
        name: (daemon[name], client[name]) for name in daemon.keys() & client.keys() if daemon[name] != client[name]
    } == {}
