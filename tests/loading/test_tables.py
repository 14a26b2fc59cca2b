"""The table of requirements names tests that exist, and all 29 of them."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "conversion-tests.md"


def rows():
    lines = PAGE.read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| T")]


def functions(path):
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_named_test_exists():
    names = [name for row in rows() for name in re.findall(r"`(tests/[^`]+)`", row[2])]
    assert len(names) > 15
    for name in names:
        file, _, function = name.partition("::")
        assert (ROOT / file).is_file(), name
        assert not function or function in functions(ROOT / file), name


def test_all_29_are_there_with_a_test_or_a_reason():
    numbers = []
    for first, requirement, here, note in rows():
        start, _, end = first.replace("T", "").partition("-")
        numbers += range(int(start), int(end or start) + 1)
        assert requirement
        assert here != "none" or note
    assert numbers == list(range(1, 30))
