"""Reading the values of a checkpoint and checking those that can be wrong: scales, globals, floats.

Four-bit codes are the only data left unread: every value of them is valid. Everything else is streamed
through one buffer. A scale byte with a set sign or a NaN pattern, an exponent byte of 255, a global scale
that is not a positive number, compressed scales that break their codec, and numbers that are not finite are
violations; what is legal but odd is a note.
"""

from collections.abc import Callable, Iterator
from math import isfinite

import torch

from intarsia.checkpoint.algorithms import CONTRACTS
from intarsia.checkpoint.contracts import SCALES
from intarsia.checkpoint.dtypes import TORCH
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.errors import CheckpointError
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.reader import Reader
from intarsia.core.progress import Phase
from intarsia.formats import CsfError, csf

CHUNK = 4 << 20
E4M3_NAN = 0x7F
E8M0_NAN = 0xFF

MAX_GLOBALS = 1 << 16  # numbers in a global scale that is worth reading at once
MAX_COMPONENTS = 1 << 30  # bytes of one matrix's compressed scales

_GLOBALS = ("weight_scale_2", "input_scale", "weight_global_scale", "input_global_scale")
_POSITIVE = (*_GLOBALS, "k_scale", "v_scale")

# From raw bytes to one flag an element.
Test = Callable[[torch.Tensor], torch.Tensor]

_FLOATS = frozenset(("F64", "F32", "F16", "BF16"))


def values_to_read(module: Module) -> list[TensorEntry]:
    """The entries whose values are checked: all but codes and integers."""
    return [entry for suffix, entry in module.tensors.items() if _has_rules(module, suffix, entry)]


def _has_rules(module: Module, suffix: str, entry: TensorEntry) -> bool:
    scale = suffix.partition(".")[0] in SCALES
    return scale or entry.dtype in _FLOATS or entry.dtype == "F8_E4M3"


class ValueCheck:
    """Checks the values of one module after another, through one reader and one buffer."""

    def __init__(self, reader: Reader, findings: Findings, notes: Findings, phase: Phase) -> None:
        self.reader, self.findings, self.notes, self.phase = reader, findings, notes, phase
        self._buffer = torch.empty(CHUNK, dtype=torch.uint8)

    def module(self, module: Module) -> None:
        """Check every tensor of a module that has rules; unreadable ones become violations."""
        try:
            if self._is_all_zero_export(module):
                return
            for suffix, entry in module.tensors.items():
                if _has_rules(module, suffix, entry) and "." not in suffix:
                    self._tensor(module, suffix, entry)
                    self.phase.advance(entry.nbytes)
            if module.codec is not None:
                self._compressed(module)
        except CheckpointError as error:
            self.findings.add("unreadable-values", error.where, error.found, error.expected, error.action)

    def _tensor(self, module: Module, suffix: str, entry: TensorEntry) -> None:
        if suffix in SCALES and module.format is not None:
            self._scale(module, entry)
        elif suffix in _POSITIVE and entry.dtype in _FLOATS:
            self._positive(entry, suffix)
        elif entry.dtype == "F8_E4M3":
            self._all(entry, "nan-code", lambda raw: (raw & 0x7F) == E4M3_NAN, "codes that are not NaN")
        elif entry.dtype in _FLOATS:
            dtype = TORCH[entry.dtype]
            self._all(entry, "non-finite", lambda raw: ~torch.isfinite(raw.view(dtype)), "finite numbers")

    def _scale(self, module: Module, entry: TensorEntry) -> None:
        contract = CONTRACTS[module.format or ""]
        if entry.dtype in _FLOATS:
            self._positive(entry, "scale")
        elif entry.dtype == "F8_E4M3":
            zeros = False

            def wrong(raw: torch.Tensor) -> torch.Tensor:
                nonlocal zeros
                zeros = zeros or bool((raw == 0).any())
                return raw >= E4M3_NAN

            self._all(entry, "scale-value", wrong, "bytes 0x00 to 0x7E, without sign and NaN")
            if zeros:
                self._zeros(module, entry, contract.group)
        else:
            self._all(entry, "scale-value", lambda raw: raw == E8M0_NAN, "exponent bytes below 255")

    def _zeros(self, module: Module, entry: TensorEntry, group: int) -> None:
        """A zero scale decodes its block to zero, which loses codes that are not."""
        weight = module.tensors.get("weight")
        for begin, raw in self._chunks(entry):
            spots = torch.nonzero(raw == 0).flatten()
            if not len(spots) or weight is None:
                continue
            count = group // 2
            for spot in spots[:16].tolist():
                codes = bytearray(count)
                self.reader.read_into(weight, codes, (begin + spot) * count, (begin + spot + 1) * count)
                if any(code & 0x77 for code in codes):
                    self.notes.add(
                        "zero-scale",
                        _at(entry, begin + spot),
                        "a scale of zero over codes that are not",
                        "a scale that keeps them; they decode to zero",
                    )
                    return

    def _positive(self, entry: TensorEntry, kind: str) -> None:
        """Scales kept as numbers must be finite and above zero."""

        def wrong(raw: torch.Tensor) -> torch.Tensor:
            values = raw.view(TORCH[entry.dtype])
            return ~(torch.isfinite(values) & (values > 0))

        if not self._all(entry, "scale-value", wrong, "finite numbers above zero"):
            return
        if kind in ("weight_scale_2", "weight_global_scale") and _elements(entry) <= MAX_GLOBALS:
            value = float(self.reader.read_entry(entry).float().max())
            if value > 1 if kind == "weight_scale_2" else value < 1:
                expected = "below 1: it multiplies" if kind == "weight_scale_2" else "above 1: it divides"
                self.notes.add("global-magnitude", entry.name, f"{value:g}", expected)

    def _all(self, entry: TensorEntry, rule: str, wrong: Test, expected: str) -> bool:
        """Note the number of wrong elements and the place of the first; whether there are none."""
        count, first, sample = 0, -1, ""
        size = max(1, entry.nbytes // max(1, _elements(entry)))
        for begin, raw in self._chunks(entry):
            flags = wrong(raw)
            if bool(flags.any()):
                spots = torch.nonzero(flags).flatten()
                count += len(spots)
                if first < 0:
                    first = begin // size + int(spots[0])
                    offset = int(spots[0]) * size
                    sample = _sample(raw[offset : offset + size], entry.dtype)
        if count:
            self.findings.add(
                rule,
                _at(entry, first),
                f"{sample}" + (f", and {count - 1:,} more in this tensor" if count > 1 else ""),
                expected,
                "export or download the tensor again",
            )
        return count == 0

    def _chunks(self, entry: TensorEntry) -> Iterator[tuple[int, torch.Tensor]]:
        """Offset and bytes of consecutive pieces, in the one buffer; a piece lives until the next is read."""
        for begin in range(0, entry.nbytes, CHUNK):
            end = min(begin + CHUNK, entry.nbytes)
            raw = self._buffer[: end - begin]
            self.reader.read_into(entry, raw, begin, end)
            yield begin, raw

    def _compressed(self, module: Module) -> None:
        """Decode compressed scales, check the bytes, and see whether they are in canonical form."""
        codec = module.codec or ""
        held = {suffix.partition(".")[2]: e for suffix, e in module.tensors.items() if "." in suffix}
        rows, columns = (module.shape or (0, 0))[-2:]
        scales = columns // CONTRACTS[module.format or "NVFP4"].group
        if sum(entry.nbytes for entry in held.values()) > MAX_COMPONENTS:
            self.findings.add(
                "csf-stream", module.name, "components of more than 1 GiB", "one matrix's scales"
            )
            return
        components = {part: self.reader.read_entry(entry) for part, entry in held.items()}
        self.phase.advance(sum(entry.nbytes for entry in held.values()))
        where = f"{module.name}.weight_scale"
        problem: CsfError | None = None
        try:
            decoded = csf.decode(components, rows, scales, codec)
        except CsfError as error:
            problem = error
        if problem is not None:
            component = problem.where.rpartition("component ")[2]
            named = f"{where}.{component}" if component in components else where
            self.findings.add("csf-stream", named, problem.found, f"{problem.expected} ({codec})")
            return
        wrong = decoded >= E4M3_NAN if codec != "mxfp4_slab" else decoded == E8M0_NAN
        if bool(wrong.any()):
            row, column = torch.nonzero(wrong)[0].tolist()
            self.findings.add(
                "scale-value",
                f"{where} [{row}, {column}]",
                f"byte {int(decoded[row, column]):#04x} after decoding, {int(wrong.sum()):,} in all",
                "scale bytes without sign and NaN",
                "export or download the tensor again",
            )
        again = csf.encode(decoded, codec)
        if any(not _same_bytes(again[part], components[part]) for part in again):
            found = f"components that {codec} would write differently"
            self.notes.add("csf-not-canonical", where, found, "canonical form; they decode all the same")

    def _is_all_zero_export(self, module: Module) -> bool:
        """The pattern that an all-zero weight leaves: a global scale of zero over NaN block scales."""
        scale_2, scale = module.tensors.get("weight_scale_2"), module.tensors.get("weight_scale")
        if scale_2 is None or scale is None or scale_2.dtype != "F32" or scale.dtype != "F8_E4M3":
            return False
        if _elements(scale_2) > MAX_GLOBALS or scale.nbytes == 0:
            return False
        if bool(self.reader.read_entry(scale_2).any()):
            return False
        if not all(bool(((raw & 0x7F) == E4M3_NAN).all()) for _, raw in self._chunks(scale)):
            return False
        self.findings.add(
            "all-zero-export",
            module.name,
            "weight_scale_2 of zero under NaN block scales, as exporters write for an all-zero weight",
            "scales that decode to zeros",
            "repair the module: it decodes to NaN as it is",
        )
        return True


def _elements(entry: TensorEntry) -> int:
    count = 1
    for size in entry.shape:
        count *= size
    return count


def _at(entry: TensorEntry, index: int) -> str:
    """A tensor's name with the position of an element."""
    position = []
    for size in reversed(entry.shape):
        position.append(index % size)
        index //= size
    return f"{entry.name} {position[::-1]}" if position else entry.name


def _sample(raw: torch.Tensor, dtype: str) -> str:
    if dtype in _FLOATS:
        value = float(raw.clone().view(TORCH[dtype]))
        return f"{value:g}" if isfinite(value) else str(value)
    return f"byte {int(raw[0]):#04x}"


def _same_bytes(left: torch.Tensor, right: torch.Tensor) -> bool:
    flat = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (left, right)]
    return torch.equal(*flat)
