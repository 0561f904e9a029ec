"""The tour and the README: every example is run."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests.support.doc_examples import DOCS, blocks, differences

_PROGRAM = re.compile(r"Save as `(\S+)`:\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.mpi
@pytest.mark.timeout(300)  # two dozen programs, one after another, maybe on a busy machine
@pytest.mark.parametrize("page", [DOCS / "tour.md", DOCS.parent / "README.md"], ids=lambda page: page.stem)
def test_every_example_prints_what_the_page_says(page, tmp_path):
    for name, text in _PROGRAM.findall(page.read_text()):
        (tmp_path / name).write_text(text)
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    found = blocks(page)
    wrong = [text for block in found for text in differences(block, tmp_path, environ, {})]
    assert found
    assert not wrong, "\n\n".join(wrong)
