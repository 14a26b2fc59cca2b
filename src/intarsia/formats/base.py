"""What every number format offers: its storage contract, encode, decode, cut and check."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from intarsia.core.errors import Violation
from intarsia.formats.errors import CutError, LayoutError, UnencodableError
from intarsia.formats.stored import Stored

SOURCE_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHUNK = 1 << 16
"""Elements that decode and encode handle at a time, so that the intermediate values stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor: its torch dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count * self.dtype.itemsize


class Format(ABC):
    """One number format. Instances hold no state; `intarsia.formats.get` returns the one of a name."""

    name: ClassVar[str]
    block: ClassVar[tuple[int, int]] = (1, 1)
    """Rows and columns that share one stored entry, which bounds where a weight may be cut."""
    optional: ClassVar[frozenset[str]] = frozenset()
    """Suffixes that may be present, and travel unchanged, such as `input_scale`."""

    @abstractmethod
    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The tensors `encode` writes for a logical shape, [rows, columns] or [experts, rows, columns].

        Raises UnencodableError when the format's blocks do not divide the shape.
        """

    @abstractmethod
    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        """Encodes a float32, bfloat16 or float16 weight [.., rows, columns]; the same bytes on every device.

        `amax` is the largest magnitude that a fused group shares, for formats with a global scale.
        """

    @abstractmethod
    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        """Writes the values of a two-dimensional `stored` into `out` [rows, columns]."""

    @abstractmethod
    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        """The cut, of ranges already known to be inside."""

    def decode(
        self,
        stored: Mapping[str, torch.Tensor],
        dtype: torch.dtype = torch.float32,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The values as float32, bfloat16 or float16, rounded once at the end. `out`, if given, receives them."""
        whole = stored if isinstance(stored, Stored) else self.stored(stored)
        if out is None:
            out = torch.empty(whole.shape, dtype=dtype, device=whole["weight"].device)
        if len(whole.shape) == 3:
            for index in range(whole.shape[0]):
                self._decode_rows(whole.expert(index), out[index])
        else:
            self._decode_rows(whole, out)
        return out

    def cut(self, stored: Mapping[str, torch.Tensor], rows: range, columns: range) -> Stored:
        """The part at logical `rows` and `columns`, as views: the stored entries themselves, never encoded again.

        Raises CutError when the part is empty, out of range, or would split a stored entry.
        """
        whole = stored if isinstance(stored, Stored) else self.stored(stored)
        for axis, wanted, size in (("rows", rows, whole.rows), ("columns", columns, whole.columns)):
            if wanted.step != 1 or not 0 <= wanted.start < wanted.stop <= size:
                raise CutError(
                    f"cut of {self.name}",
                    found=f"{axis} {wanted.start}:{wanted.stop}:{wanted.step}",
                    expected=f"a range with step 1 and at least one of {size} {axis}",
                )
        return self._cut(whole, rows, columns)

    @abstractmethod
    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        """Wraps tensors by suffix, after checking that they are this format's. Raises LayoutError."""

    def check(self, stored: Mapping[str, torch.Tensor], where: str = "") -> list[Violation]:
        """Every broken rule of shapes, dtypes and values; empty when the weight is sound. Reads the values."""
        try:
            whole = self.stored(stored, origin=getattr(stored, "origin", (0, 0)))
        except LayoutError as error:
            return [Violation("layout", where or error.where, error.found, error.expected, error.action)]
        return self._check_values(whole, where or self.name)

    def _check_values(self, stored: Stored, where: str) -> list[Violation]:
        return []


def source(weight: torch.Tensor, name: str) -> torch.Tensor:
    """The weight itself, once its dtype and rank are known to be encodable."""
    if weight.dtype not in SOURCE_DTYPES:
        raise UnencodableError(name, found=str(weight.dtype), expected="float32, bfloat16 or float16")
    if weight.ndim not in (2, 3) or weight.numel() == 0:
        found = f"shape {tuple(weight.shape)}"
        raise UnencodableError(
            name, found=found, expected="[rows, columns] or [experts, rows, columns], not empty"
        )
    return weight.contiguous()


def refuse_not_finite(weight: torch.Tensor, name: str) -> None:
    """Raises UnencodableError naming the first element that is NaN or infinite."""
    spot = torch.nonzero(~torch.isfinite(weight.float()))[0].tolist()
    place = ", ".join(
        f"{axis} {at}" for axis, at in zip(("expert", "row", "column")[-len(spot) :], spot, strict=True)
    )
    value = float(weight[tuple(spot)])
    raise UnencodableError(
        name, found=f"{value} at {place}", expected="finite values", action="repair the source"
    )


def true_divide(values: torch.Tensor, divisor: float) -> torch.Tensor:
    """values / divisor, correctly rounded on every device.

    A Python divisor would become a multiplication by its reciprocal on CUDA, which is one ulp off now and then.
    """
    return values / torch.full((), divisor, dtype=torch.float32, device=values.device)
