"""A command line that is wrong: what was meant, or a line that is right."""

import pytest

NODE_FILE = "capture.txt"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["run", "--", "python"], "Missing option '-n' / '--ranks'.\nExample: fabricctl run -n 4 -- python train.py"),
        (["run", "-n", "x", "--", "python"], "\nExample: fabricctl run -n 4 -- python train.py"),
        (["topo", "gpu-0017"], "\nDid you mean: fabricctl topo --node gpu-0017"),
        (["doctor", "gpu-1", "gpu-2"], "\nDid you mean: fabricctl doctor --nodes gpu-1"),
        (["nodes", "http://node0:7470"], "\nDid you mean: fabricctl nodes --from http://node0:7470"),
        (["topo", "x" * 300], f"\nDid you mean: fabricctl topo --node {'x' * 300}"),
        (["topo", NODE_FILE], f"\nDid you mean: fabricctl topo --from {NODE_FILE}"),
        (["simulate", "h100"], "\nExample: fabricctl simulate"),  # its --nodes is a number
        (["nodes", "--form", "x"], "(Possible options: --from)"),
        (
            ["nodes", "--from", "10.0.0.1:7470"],
            "No such file or directory; did you mean http://10.0.0.1:7470? "
            "(a file, or an address: http://HOST:7470, unix:/path)",
        ),
        (["nodes", "--from", NODE_FILE], "`fabricctl topo --from` shows one machine)"),
        (["plan-diff", "none.json", NODE_FILE], "No such file or directory (a file, or - (standard input))"),
        (["doctr"], "No such command 'doctr'. Did you mean 'doctor'?"),
    ],
)
def test_the_next_step_is_told_with_the_fault(words, told, fabricctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / NODE_FILE).touch()
    status, out, err = fabricctl(*words)
    assert (status, out) == (2, "")
    assert err.rstrip().endswith(told)
