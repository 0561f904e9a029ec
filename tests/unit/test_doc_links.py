"""Pages of docs/: none is forgotten in the README, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]*)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def test_the_readme_has_every_page():
    linked = set(_LINK.findall(PAGES[0].read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    for link in _LINK.findall(page.read_text()):
        file, _, heading = link.partition("#")
        found = page.parent / file if file else page
        assert found.exists(), link
        if heading:
            assert heading in map(_anchor, _HEADING.findall(found.read_text())), link


def _anchor(heading: str) -> str:
    """Return what a heading is called in links, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
