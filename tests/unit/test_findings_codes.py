"""Every kind of finding has a code that is listed, explained in the documentation, and made somewhere."""

import re
from pathlib import Path

from fabricd.findings.codes import CODES
from fabricd.model.finding import Severity

ROOT = Path(__file__).parents[2]
RULES = ROOT / "fabricd/findings"


def test_the_documentation_has_a_line_for_each_code() -> None:
    lines = (ROOT / "docs/findings.md").read_text().splitlines()
    rows = (re.fullmatch(r"\| `([a-z0-9-]+)` \| .+ \| (.+) \|", line) for line in lines)
    assert {row[1]: row[2] for row in rows if row} == CODES


def test_every_code_is_made_by_a_rule_and_no_other_is() -> None:
    source = "".join(path.read_text() for path in sorted(RULES.glob("*.py")) if path.name != "codes.py")
    made = {code for code in CODES if f'"{code}"' in source}
    composed = {code for code in CODES if code.startswith(("probe-", "node-"))}
    assert made | composed == CODES.keys()
    written = set(re.findall(r'code="([a-z0-9-]+)"', source)) | set(re.findall(r'_of\(gpu, "([a-z0-9-]+)"', source))
    assert written <= CODES.keys()


def test_severities_are_ordered_from_the_worst() -> None:
    assert [one.rank for one in Severity] == [0, 1, 2]
    assert Severity("of a later version") is Severity.NOTE
