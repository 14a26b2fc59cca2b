"""Numbers as people read them."""

from intarsia.evidence.report.markup import Content

MISSING = "–"


def number(value: object, digits: int = 4) -> str:
    """A number in a few significant digits; a dash for none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def signed(value: object, digits: int = 3) -> str:
    """With its sign."""
    shown = number(value, digits)
    return f"+{shown}" if isinstance(value, int | float) and value > 0 else shown.replace("-", "\u2212")


def percent(value: object, decimals: int = 2) -> str:
    """A fraction as a percentage."""
    return f"{100 * value:.{decimals}f} %" if isinstance(value, int | float) else MISSING


def change(value: object) -> str:
    """A fraction as a signed percentage."""
    shown = percent(value)
    if shown in ("0.00 %", "-0.00 %"):
        return "0.00 %"  # whatever its sign
    return (f"+{shown}" if isinstance(value, int | float) and value > 0 else shown).replace("-", "\u2212")


def size(value: object) -> str:
    """Bytes in decimal units."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= step:
            return f"{value / step:.2f} {unit}"
    return f"{value:.0f} B"


def interval(pair: object, digits: int = 3) -> Content:
    """Both ends of an interval."""
    if isinstance(pair, list) and len(pair) == 2:
        return f"{number(pair[0], digits)} to {number(pair[1], digits)}"
    return MISSING
