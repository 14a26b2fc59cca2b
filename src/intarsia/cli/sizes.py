"""Sizes as people write them: 139GiB, 5GB, 65536."""

import re

from intarsia.core.errors import UsageError

_UNITS = {"": 1, "B": 1}
for _power, _letter in enumerate("KMGT", start=1):
    _UNITS |= {f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}


def size_in_bytes(option: str, text: str) -> int:
    """Bytes of a size with a decimal (GB) or binary (GiB) unit, or none; UsageError names the option."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)\s*([A-Za-z]*)", text.strip())
    factor = _UNITS.get(match[2].upper()) if match else None
    if match is None or factor is None or not int(float(match[1]) * factor):
        raise UsageError(option, found=repr(text), expected="a size such as 139GiB or 5GB")
    return int(float(match[1]) * factor)
