"""The module map of docs/architecture.md agrees with the tree, and what pages point to is there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_module_map_is_current():
    command = [sys.executable, ROOT / "tools" / "module_map.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_module_says_what_it_is_for():
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from module_map import PACKAGE, first_line
    finally:
        sys.path.pop(0)
    silent = [
        str(path)
        for path in PACKAGE.rglob("*.py")
        if path.read_text().strip() and path.name != "__main__.py" and not first_line(path)
    ]
    assert silent == []


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub names them."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_links_and_paths_of_a_page_lead_somewhere(page):
    text = page.read_text()
    lost = []
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        if target.startswith("http"):
            continue
        there = page.parent / target if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(f"{target}#{anchor}")
    package = ROOT / "src" / "intarsia"
    for path in re.findall(r"`([\w-]+/[\w./-]+\.py)`", text):
        if not any((folder / path).exists() for folder in (ROOT, package, *package.iterdir())):
            lost.append(path)
    assert lost == []
