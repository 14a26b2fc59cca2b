"""The module map of docs/architecture.md agrees with the tree."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
