"""Writes the module map of docs/architecture.md from the first line of every module's docstring.

python tools/module_map.py            # say whether the map is current (exit 1 if not)
python tools/module_map.py --write    # bring it up to date
"""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "intarsia"
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- module map: begin -->", "<!-- module map: end -->"

# Lowest first, as in pyproject.toml's import contract.
LAYERS = [
    "core",
    "formats",
    "checkpoint",
    "families",
    "kernels",
    "selection",
    "planning",
    "loading",
    "gate",
    "groups",
    "models",
    "engine",
    "api.py",
    "server",
    "evidence",
    "cli",
]


def module_map() -> str:
    """A heading a layer and a line a module, in reading order."""
    lines = []
    for layer in LAYERS:
        place = PACKAGE / layer
        modules = [place] if place.is_file() else sorted(place.rglob("*.py"))
        if not modules:
            continue
        lines += ["", f"### {layer}", ""]
        for path in modules:
            summary = first_line(path)
            if summary:
                lines.append(f"- `{path.relative_to(PACKAGE)}` — {summary}")
    return "\n".join(lines).strip()


def first_line(path: Path) -> str:
    """The first line of a module's docstring, empty if it has none."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n", 1)[0]


def rewritten(page: str) -> str:
    """`page` with the map between its markers replaced by the current one."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{module_map()}\n{END}{tail}"


def main() -> int:
    page = PAGE.read_text()
    current = rewritten(page)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(current)
    elif page != current:
        print("docs/architecture.md: the module map is out of date; run `python tools/module_map.py --write`")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
