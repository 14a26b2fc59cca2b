"""The CSF codecs byte by byte, in plain Python: slow, and sharing no code with the package."""


def best_base(values: list[int], width: int) -> int:
    """The lowest window start that holds most of the values."""
    counts = [sum(base <= value < base + width for value in values) for base in range(257 - width)]
    return counts.index(max(counts))


def encode_slab(rows: list[list[int]], bits: int) -> tuple[list[int], list[int]]:
    """The bytes of `fixed` and the words of `exceptions`."""
    width, columns = 1 << bits, len(rows[0])
    bases, code_rows, words = [], [], []
    for index, row in enumerate(rows):
        base = best_base(row, width)
        bases.append(base)
        stream = 0
        for column, value in enumerate(row):
            if base <= value < base + width:
                stream |= (value - base) << (bits * column)
            else:
                words.append(value << 24 | (index * columns + column))
        code_rows.append(list(stream.to_bytes(-(-columns * bits // 8), "little")))
    fixed = []
    for start in range(0, len(rows), 16):
        fixed += bases[start : start + 16]
        for codes in code_rows[start : start + 16]:
            fixed += codes
    return fixed, words


def decode_slab(fixed: list[int], words: list[int], rows: int, columns: int, bits: int) -> list[list[int]]:
    size = -(-columns * bits // 8)
    out = []
    for row in range(rows):
        slab = row // 16 * 16 * (1 + size)
        base = fixed[slab + row % 16]
        start = slab + 16 + row % 16 * size
        stream = int.from_bytes(bytes(fixed[start : start + size]), "little")
        out.append([base + (stream >> bits * column) % (1 << bits) for column in range(columns)])
    for word in words:
        position = word & 0xFFFFFF
        out[position // columns][position % columns] = word >> 24
    return out


def encode_block(rows: list[list[int]]) -> dict[str, list[int]]:
    """The flat contents of the five components."""
    out: dict[str, list[int]] = {
        name: []
        for name in ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")
    }
    for top in range(0, len(rows), 32):
        for left in range(0, len(rows[0]), 2):
            values = [rows[top + at // 2][left + at % 2] for at in range(64)]
            base = best_base(values, 16)
            inside = [base <= value < base + 16 for value in values]
            codes = [value - base if fits else 0 for value, fits in zip(values, inside, strict=True)]
            out["csf_base"].append(base)
            out["csf_codes"] += [codes[at] | codes[at + 1] << 4 for at in range(0, 64, 2)]
            out["csf_escape_count"].append(inside.count(False))
            escapes = [at for at in range(64) if not inside[at]]
            out["csf_escape_position"] += escapes
            out["csf_escape_value"] += [values[at] for at in escapes]
    return out
