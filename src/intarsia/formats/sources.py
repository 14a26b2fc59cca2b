"""What encoders ask of a weight, and exact division on every device."""

from contextvars import ContextVar, Token
from types import TracebackType
from typing import NoReturn

import torch
from torch import Tensor

from intarsia.formats.errors import UnencodableError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Deferred:
    """While it is entered, values that cannot be encoded are noted in `fault` and not refused.

    `fault` is one bool on the encoding device, left as it is or set. So nothing waits for the device; who
    looks at it later has to find the value again. What was encoded is to be thrown away then.
    """

    def __init__(self, fault: Tensor) -> None:
        self._fault = fault
        self._token: Token[Tensor | None] | None = None

    def __enter__(self) -> None:
        self._token = _FAULT.set(self._fault)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _FAULT.reset(self._token)

    @staticmethod
    def noting() -> Tensor | None:
        """The bool to set, for who notes faults on the device; None when checks are not deferred."""
        return _FAULT.get()

    @staticmethod
    def took(fault: Tensor) -> bool:
        """Notes the outcome of a check, a bool on the device; false when checks are not deferred."""
        deferred = _FAULT.get()
        if deferred is not None:
            deferred.logical_or_(fault)
        return deferred is not None


_FAULT: ContextVar[Tensor | None] = ContextVar("fault", default=None)


def source(weight: Tensor, name: str) -> Tensor:
    """The weight, contiguous, once its dtype and rank are known to be encodable. Raises UnencodableError."""
    if weight.dtype not in DTYPES:
        raise UnencodableError(name, found=str(weight.dtype), expected="float32, bfloat16 or float16")
    if weight.ndim not in (2, 3) or weight.numel() == 0:
        expected = "[rows, columns] or [experts, rows, columns], not empty"
        raise UnencodableError(name, found=f"shape {list(weight.shape)}", expected=expected)
    return weight.detach().contiguous()


def require_columns(name: str, columns: int, group: int) -> None:
    """Raises UnencodableError unless the columns are whole groups."""
    if columns % group:
        raise UnencodableError(name, found=f"{columns} columns", expected=f"a multiple of {group}")


def require_finite(weight: Tensor, amax: Tensor, name: str) -> None:
    """Raises UnencodableError, naming the first such element, when the float32 maxima show that there is NaN
    or infinity.
    """
    fault = amax.view(torch.int32).amax() >= 0x7F800000
    if not Deferred.took(fault) and bool(fault):
        _refuse_not_finite(weight, name)


def _refuse_not_finite(weight: Tensor, name: str) -> NoReturn:
    for index, matrix in enumerate(weight.reshape(-1, *weight.shape[-2:])):
        bad = torch.nonzero(~torch.isfinite(matrix))
        if bad.numel():
            row, column = bad[0].tolist()
            expert = f"expert {index}, " if weight.ndim == 3 else ""
            found = f"{float(matrix[row, column])} at {expert}row {row}, column {column}"
            raise UnencodableError(name, found=found, expected="finite values", action="repair the source")
    raise UnencodableError(name, found="values beyond float32", expected="finite values")


def true_divide(values: Tensor, divisor: float) -> Tensor:
    """values / divisor, correctly rounded on every device.

    A Python divisor would become a multiplication by its reciprocal on CUDA, which is an ulp off now and
    then.
    """
    return values / torch.full((), divisor, dtype=torch.float32, device=values.device)


def shared_amax(weight: Tensor, own: Tensor, amax: Tensor | float | None, name: str) -> Tensor:
    """The largest magnitude behind each global scale: [*lead], or [*lead, parts] for row parts.

    `own` float32 [*lead, rows] is the largest magnitude of each row. Raises UnencodableError when a given
    `amax` is of another shape, not finite, or below what it has to cover: encoding would clip in silence.
    """
    if amax is None:
        return own.amax(dim=-1)
    given = torch.as_tensor(amax, dtype=torch.float32, device=weight.device)
    lead = tuple(weight.shape[:-2])
    if given.ndim == 0:
        given = given.expand(lead).clone()
    parts = given.shape[-1] if given.ndim == len(lead) + 1 else 1
    if tuple(given.shape) not in (lead, (*lead, parts)) or parts < 1 or weight.shape[-2] % parts:
        expected = f"one value, shape {list(lead)}, or one dimension more for equal parts of the rows"
        raise UnencodableError(f"{name} amax", found=f"shape {list(given.shape)}", expected=expected)
    covered = own.view(*lead, parts, -1).amax(dim=-1).view(given.shape)
    fine = (torch.isfinite(given) & (given >= covered)).all()
    if not Deferred.took(~fine) and not bool(fine):
        expected = "finite values, at least the weight's own largest magnitude"
        raise UnencodableError(f"{name} amax", found=str(given.tolist()), expected=expected)
    return given


def per_row(scale: Tensor, lead: int, rows: int) -> Tensor:
    """A global scale [*lead] or [*lead, parts] for every row of the flattened stack, [all rows, 1]."""
    parts = scale.shape[-1] if scale.ndim > lead else 1
    return scale.reshape(-1, 1).expand(-1, rows // parts).reshape(-1, 1)
