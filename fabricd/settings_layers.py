"""The layers that a configuration is made of: a file, the environment, the command line.

None of this raises: what is wrong is added to a list, so that every fault of every layer is told at once.
"""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fabricd.errors import InputError
from fabricd.nearest import nearest
from fabricd.settings import Rule

PREFIX = "FABRICD_"
_FILE_MAX_BYTES = 1 << 20
#: A misspelt variable is a fault only when it is this near to a setting: other programs may use the prefix too.
_NEAR = 0.85
#: Read by clients and by ``fabricd.config_load`` itself.
_NO_SETTINGS = frozenset(
    PREFIX + name
    for name in ("CONFIG", "URL", "GROUP_SECRET", "GROUP_SECRET_FILE", "CA_FILE", "CERTIFICATE_FILE", "KEY_FILE")
)


def is_there(file: Path) -> bool:
    """Return whether there is a file, also one that this process may not see."""
    try:
        return file.exists()
    except OSError:
        return True  # reading it tells why not


def read_file(file: Path, rules: Mapping[str, Rule], faults: list[str]) -> dict[str, Any]:
    """Return the settings of a TOML file, unchecked.

    Args:
        file: where it is.
        rules: of all settings, by name.
        faults: a sentence is added for each.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_FILE_MAX_BYTES + 1)
        if len(data) > _FILE_MAX_BYTES:
            faults.append(f"{file}: more than {_FILE_MAX_BYTES} bytes")
            return {}
        return dict(_flat(tomllib.loads(data.decode("utf-8")), rules))
    except OSError as error:
        faults.append(f"cannot read {file}: {error.strerror or error}")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        faults.append(f"{file}: not TOML: {error}")
    return {}


def _flat(table: Mapping[str, Any], rules: Mapping[str, Rule]) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a file: ``backend`` in the table ``[cluster]`` is ``cluster_backend``."""
    for key, value in table.items():
        if isinstance(value, dict) and key not in rules:
            yield from ((f"{key}_{inner}", inner_value) for inner, inner_value in value.items())
        else:
            yield key, value


def read_environ(environ: Mapping[str, str], rules: Mapping[str, Rule], faults: list[str]) -> dict[str, Any]:
    """Return the settings in the environment, as TOML's values, unchecked. An empty variable counts as not set."""
    found: dict[str, Any] = {}
    for variable, text in sorted(environ.items()):
        key = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable in _NO_SETTINGS or not text:
            continue
        if key not in rules:
            near = nearest(key.upper(), [name.upper() for name in rules], cutoff=_NEAR)
            if near:
                faults.append(f"environment: {variable} is no setting" + near.replace("'", f"'{PREFIX}", 1))
            continue
        if key == "port" and text.startswith("tcp://"):
            continue  # Kubernetes sets it so for a service that is called fabricd
        try:
            found[key] = rules[key].kind.parse(text)
        except ValueError:
            found[key] = text  # the check says what it should be
    return found


def checked(layer: Mapping[str, Any], source: str, rules: Mapping[str, Rule], faults: list[str]) -> dict[str, Any]:
    """Return the settings of a layer that are right; add a sentence to ``faults`` for each that is not."""
    values = {}
    for key, value in layer.items():
        if key not in rules:
            near = nearest(key, rules)
            faults.append(f"{source}: {key} is no setting{near or '; see fabricd check-config --help'}")
            continue
        try:
            values[key] = rules[key].kind.check(value)
        except InputError as error:
            faults.append(f"{source}: {key}: {error.message}")
    return values
