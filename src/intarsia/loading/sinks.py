"""Where encoded rows go: into tensors that are already in their final place, or elsewhere."""

from collections.abc import Mapping
from typing import Protocol

import torch

from intarsia.loading.layout import Region
from intarsia.loading.window import Window


class Sink(Protocol):
    """Takes the encoded tensors of one matrix, rows in order."""

    @property
    def window(self) -> Window | None:
        """The part of the matrix that it takes, whose first entries are 0 to it; None: all of it."""

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """`part` is entries `row` and on of the tensor `suffix`; one without rows comes once, as row 0."""


class Place:
    """The final tensors of a matrix by suffix, as views of whatever they are a part of.

    With `regions` they hold that part of the matrix, and what lies outside is dropped; with a `window` the
    regions are counted from where that begins.
    """

    def __init__(
        self,
        views: Mapping[str, torch.Tensor],
        regions: Mapping[str, Region] | None = None,
        window: Window | None = None,
    ) -> None:
        self.window = window
        self._views = views
        self._regions = regions

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """Copies the part to its place; nothing of it is kept."""
        view = self._views[suffix]
        if part.ndim and self._regions is not None:
            region = self._regions[suffix]
            where = region.inside(range(row, row + part.shape[0]))
            if where[0].start >= where[0].stop:
                return
            part, row = part[where], row + where[0].start - region.starts[0]
        if part.ndim:
            view = view[row : row + part.shape[0]]
        view.copy_(part)
