"""``python -m tests.fuzz.campaign TARGET CORPUS [libFuzzer's options]``: one target, until something breaks.

Ends by itself after ``-max_total_time``; what broke lies where ``-artifact_prefix`` says. Only this module needs
atheris.
"""

import random
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["fabricd", "fabric_client"]):
    from tests.fuzz.target import Target, findings, load

    _target: Target = load(sys.argv[1])

from tests.fuzz.json_values import changed


def main() -> None:
    """Fuzz; does not return."""
    name, corpus = sys.argv[1], Path(sys.argv[2])
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(_target.seeds()):
        (corpus / f"seed-{number}").write_bytes(seed)
    for path in findings(name):
        (corpus / f"found-{path.name}").write_bytes(path.read_bytes())
    words = corpus.with_suffix(".dict")
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in _target.words))
    options = [f"-max_len={_target.max_bytes}", *([f"-dict={words}"] if _target.words else []), *sys.argv[3:]]
    mutator = {"custom_mutator": _change_json} if _target.json else {}
    atheris.Setup([sys.argv[0], str(corpus), *options], _target.check, **mutator)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word.encode())


def _change_json(data: bytes, max_bytes: int, seed: int) -> bytes:
    chance = random.Random(seed)
    found = changed(data, chance) if chance.random() < 0.85 else None
    if found is None or len(found) > max_bytes:
        return bytes(atheris.Mutate(data, max_bytes))
    return found


if __name__ == "__main__":
    main()
