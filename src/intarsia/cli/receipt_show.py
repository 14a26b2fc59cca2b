"""intarsia receipt show and diff: what receipts say, and where two of them differ."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from intarsia.cli.output import emit_json, require_files
from intarsia.cli.tables import show_table

LONGEST = 60
MOST_ROWS = 60


@dataclass(frozen=True, kw_only=True)
class ReceiptShow:
    """Show what receipts say."""

    files: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """Receipts."""
    json: bool = False
    """Print them as one JSON document: an object for one file, a list for several."""

    def run(self) -> int:
        require_files("receipt show", self.files)
        found = [_read(file) for file in self.files]
        if self.json:
            emit_json(found[0] if len(found) == 1 else found)
            return 0
        for file, document in zip(self.files, found, strict=True):
            rows = _values(document)
            title = f"{file}: {document['kind']}, {document['created']}"
            show_table(title, ("field", "value"), rows[:MOST_ROWS])
            if len(rows) > MOST_ROWS:
                print(f"and {len(rows) - MOST_ROWS} more (--json shows all)\n")
        return 0


@dataclass(frozen=True, kw_only=True)
class ReceiptDiff:
    """List the fields in which two receipts differ. Exit code 1 when there is one besides id and time."""

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A.json")]
    """A receipt."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B.json")]
    """Another."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        require_files("receipt diff", (self.a, self.b))
        from intarsia.evidence.verify import changes

        found = list(changes(_read(self.a), _read(self.b)))
        if self.json:
            emit_json([{"field": field, "a": a, "b": b} for field, a, b in found])
        elif found:
            rows = [(field, _short(a), _short(b)) for field, a, b in found[:MOST_ROWS]]
            show_table("Differing fields", ("field", "first", "second"), rows)
            if len(found) > MOST_ROWS:
                print(f"and {len(found) - MOST_ROWS} more (--json shows all)")
        else:
            print("equal")
        return 1 if any(field not in ("id", "created") for field, _, _ in found) else 0


def _read(file: str) -> dict[str, Any]:
    import msgspec

    from intarsia.core import receipt as receipts

    document: dict[str, Any] = msgspec.to_builtins(receipts.read(file))
    return document


def _values(document: Any, path: str = "") -> list[tuple[str, str]]:
    """Single values by path; lists of parts are told by their length."""
    if isinstance(document, dict):
        return [
            row
            for key, value in document.items()
            for row in _values(value, f"{path}.{key}" if path else str(key))
        ]
    if isinstance(document, list) and document and isinstance(document[0], dict | list):
        return [(path, f"{len(document)} entries")]
    return [(path, _short(document))]


def _short(value: Any) -> str:
    shown = str(value)
    return shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…"
