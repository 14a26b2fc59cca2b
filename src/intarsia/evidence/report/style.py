"""The page's style: one sheet for light and dark, for phones and for paper."""

from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).resolve().parents[2] / "assets" / "report.css"


@lru_cache(maxsize=1)
def sheet() -> str:
    """The style sheet that every page carries."""
    return FILE.read_text(encoding="utf-8")
