"""Tables on standard output. Cells are data: nothing in a name can colour or move the terminal."""

import io
import shutil
import sys
from collections.abc import Sequence

from intarsia.cli.output import printable


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table; columns whose cells are all numbers, or begin with one, stand on the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        numbers = all(str(row[index])[:1].isdigit() or row[index] in ("", "-") for row in rows)
        table.add_column(Text(column), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(str(cell))) for cell in row))
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 120
    # Drawn apart from standard output: rich answers a reader that has gone with an exit code of its own.
    drawn = io.StringIO()
    Console(file=drawn, width=width, force_terminal=terminal).print(table)
    print(drawn.getvalue(), end="")
