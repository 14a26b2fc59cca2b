"""One module's weight as it is stored: the tensors of a number format, untouched."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from intarsia.core.errors import Violation
from intarsia.formats.errors import LayoutError


@dataclass(frozen=True, eq=False)
class Stored(Mapping[str, torch.Tensor]):
    """A weight in its stored form; also usable as a mapping from suffix to tensor.

    `tensors` maps the suffix (without a leading dot) to the tensor, in the format's order. `shape` is the
    logical shape: [rows, columns], or [experts, rows, columns] of a stack. `origin` is the position of
    element (0, 0) inside its scale block, and differs from (0, 0) only after a cut through a two-dimensional
    block. `row_parts` counts equal row parts (gate, up) that have scale blocks of their own, each beginning
    at `origin`: a stack of parts that do not end between blocks.
    """

    format: str
    tensors: Mapping[str, torch.Tensor]
    shape: tuple[int, ...]
    origin: tuple[int, int] = (0, 0)
    row_parts: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    def __getitem__(self, suffix: str) -> torch.Tensor:
        return self.tensors[suffix]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def rows(self) -> int:
        return self.shape[-2]

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all stored tensors together."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())

    def map(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Stored":
        """The same weight with `change` applied to every tensor: a device move, a copy."""
        return replace(self, tensors={suffix: change(tensor) for suffix, tensor in self.tensors.items()})

    def to(self, device: torch.device | str) -> "Stored":
        """The same bytes on another device."""
        return self.map(lambda tensor: tensor.to(device))

    def clone(self) -> "Stored":
        """An owning, contiguous copy: a cut shares memory with what it was cut from, this does not."""
        return self.map(lambda tensor: tensor.clone(memory_format=torch.contiguous_format))

    def expert(self, index: int) -> "Stored":
        """One matrix of a stack [experts, rows, columns], as views; zero-dim tensors are shared by all
        experts.
        """
        if len(self.shape) != 3:
            problem = Violation("shape", "weight", f"shape {list(self.shape)}", "[experts, rows, columns]")
            raise LayoutError(self.format, [problem])
        picked = {suffix: tensor[index] if tensor.ndim else tensor for suffix, tensor in self.tensors.items()}
        return replace(self, tensors=picked, shape=self.shape[1:])
