"""What the operations were meant to take on one H200, beside what they took."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.evidence.kernels.encode import encodings
from intarsia.evidence.kernels.experts import CASE as EXPERTS
from intarsia.evidence.kernels.experts import COMPRESSED
from intarsia.evidence.kernels.kda import DECODE, FLA, PROMPT
from intarsia.evidence.kernels.linear import CUBLAS
from intarsia.evidence.kernels.table import Row

DEVICE = "H200"
"""In the name of the device that the aims were set for."""


@dataclass(frozen=True, slots=True)
class Aim:
    """Of one figure. `us` is the most it may take; or it is `factor` times what `against` takes, a variant or
    peer of the same row, or the row itself if empty. `of` names the variant that counts, if not the row's
    own.
    """

    work: str
    operation: str
    case: str
    rows: int
    us: float | None = None
    of: str = ""
    against: str = ""
    factor: float = 1.0

    def of_row(self, row: Row) -> "Reached | None":
        """The aim and what was reached; None where what it speaks of was not timed."""
        taken = row.beside.get(self.of) if self.of else row.us
        other = row.beside.get(self.against) if self.against else row.us
        most = self.us if self.us is not None else other and self.factor * other
        if taken is None or most is None:
            return None
        return Reached(self.work, self.rows, taken, most, self.said, self.operation, self.case, bool(self.of))

    @property
    def said(self) -> str:
        """The aim in words where it is no figure of its own."""
        if self.us is not None:
            return ""
        of = self.against or "itself without"
        return f"{self.factor:g} times {of}" if self.factor != 1 else f"as fast as {of}"


@dataclass(frozen=True, slots=True)
class Reached:
    """One line of the aims: us taken, us that it may take, and what those are; the row it is of, and whether
    of a variant of that.
    """

    work: str
    rows: int
    us: float
    aim_us: float
    aim: str = ""
    operation: str = ""
    case: str = ""
    of: bool = False

    @property
    def met(self) -> bool:
        """True where it took no longer."""
        return self.us <= self.aim_us

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"met": self.met}


def reached(rows: Iterable[Row]) -> list[Reached]:
    """Every aim of which there is a figure."""
    by_case = {(row.operation, row.case, row.rows): row for row in rows}
    found = []
    for aim in AIMS:
        row = by_case.get((aim.operation, aim.case, aim.rows))
        line = aim.of_row(row) if row is not None else None
        if line is not None:
            found.append(line)
    return found


def _several(
    work: str, operation: str, case: str, counts: Sequence[int], times: Sequence[float]
) -> Iterator[Aim]:
    for rows, us in zip(counts, times, strict=True):
        yield Aim(work, operation, case, rows, us)


def _aims() -> Iterator[Aim]:
    decoded, prompts = (1, 8, 32, 128), (512, 2048, 8192)
    yield from _several("expert layer (w13 + w2)", "experts", EXPERTS, decoded, (37, 205, 605, 945))
    for rows in decoded:
        name = "the same with CSF scales read inside"
        yield Aim(name, "experts", EXPERTS, rows, of=COMPRESSED, factor=1.04)
    yield from _several("expert layer (w13 + w2)", "experts", EXPERTS, prompts, (1400, 2200, 5500))
    for name, case, us in (
        ("MXFP8 linear, KDA in", "KDA q, k, v MXFP8", 27.0),
        ("MXFP8 linear, KDA o", "KDA o MXFP8", 11.5),
        ("MXFP8 linear, head", "head MXFP8", 156.0),
        ("FP8 block linear, MLA q_b", "MLA q_b FP8_PB_WO", 8.6),
        ("FP8 block linear, MLA o", "MLA o FP8_PB_WO", 19.0),
    ):
        yield from _several(name, "linear", case, (1, 8), (us, us))
        yield Aim(name, "linear", case, 2048, against=CUBLAS, factor=1.08)
    yield from _several("KDA decode", "kda", DECODE, decoded, (6.1, 24, 84, 320))
    for rows in (2048, 8192):
        yield Aim("KDA prompt", "kda", PROMPT, rows, against=FLA)
    mxfp8, nvfp4, *_ = encodings()
    yield Aim("MXFP8 encode", "encode", mxfp8.name, 4096, 16)
    yield Aim("NVFP4 encode", "encode", nvfp4.name, 4096, 28)


AIMS = tuple(_aims())
