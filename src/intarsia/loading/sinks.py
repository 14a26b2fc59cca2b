"""Where encoded rows go: into tensors that are already in their final place, or elsewhere."""

from collections.abc import Mapping
from typing import Protocol

import torch


class Sink(Protocol):
    """Takes the encoded tensors of one matrix, rows in order."""

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """`part` is entries `row` and on of the tensor `suffix`; one without rows comes once, as row 0."""


class Place:
    """The final tensors of a matrix by suffix, as views of whatever they are a part of."""

    def __init__(self, views: Mapping[str, torch.Tensor]) -> None:
        self._views = views

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """Copies the part to its place; nothing of it is kept."""
        view = self._views[suffix]
        if part.ndim:
            view = view[row : row + part.shape[0]]
        view.copy_(part)
