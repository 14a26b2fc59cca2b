"""What can be wrong in a compiled kernel although its source is right, read from its assembly."""

import re
import subprocess
import tempfile
from pathlib import Path

_PRODUCT = re.compile(r"HGMMA\S* R\d+, R(\d+),")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d+)")
_JUMP = re.compile(r"BRA `\((\.L\S+)\)")
_RESULT = re.compile(r"(?:@!?U?P\d+\s+)?([A-Z]\S*)\s+(?:P\d+,\s*)?R(\d+)")
_NO_RESULT = ("ST", "RED", "BAR", "SYNCS", "ISETP", "FSETP", "R2UR", "UTMA")

Group = tuple[set[int], bool]


def overwritten(kernel) -> list[str]:
    """Instructions that write a register which a product on its way may still read.

    wgmma with its first operand in registers reads them until it is complete, nothing in the hardware waits
    for that, and ptxas keeps account of it in most loops, but not in all.
    """
    code = _lines(kernel)
    found: dict[int, str] = {}
    _scan(code, range(len(code)), [], found)
    labels = {line[:-1]: at for at, line in enumerate(code) if line.endswith(":")}
    for end, line in enumerate(code):
        jump = _JUMP.search(line)
        begin = labels.get(jump[1], end) if jump else end
        if begin < end:
            # Once round, and once more with what the first time left on its way.
            left = _scan(code, range(begin, end), [], {})
            _scan(code, range(begin, end), left, found)
    return list(found.values())


def _scan(code: list[str], where: range, on_their_way: list[Group], found: dict[int, str]) -> list[Group]:
    groups = list(on_their_way)
    for at in where:
        line = code[at]
        if product := _PRODUCT.search(line):
            read = set(range(int(product[1]), int(product[1]) + 4))
            if groups and not groups[-1][1]:
                read |= groups.pop()[0]
            groups.append((read, "gsb0" in line))
        elif wait := _WAIT.search(line):
            left = int(wait[1])
            groups = groups[-left:] if left else []
        elif groups and _written(line) & set().union(*(read for read, _ in groups)):
            found[at] = line
    return groups


def _written(line: str) -> set[int]:
    result = _RESULT.match(line)
    if not result or result[1].startswith(_NO_RESULT):
        return set()
    count = 4 if ".128" in result[1] else 2 if ".64" in result[1] or ".WIDE" in result[1] else 1
    return set(range(int(result[2]), int(result[2]) + count))


def _lines(kernel) -> list[str]:
    """Instructions, and labels with a colon."""
    import triton.backends.nvidia as nvidia

    tool = Path(nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        text = subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^(\.L\S+:)|^\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", text, re.MULTILINE)
    return [label or line for label, line in found]
