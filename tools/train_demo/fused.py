"""Small functions of the network that torch.compile may fuse, with the plain form as the fallback."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo

_regions: list[FusedRegion] = []


class FusedRegion:
    """Calls a function plainly until `compile_regions` is called, then through torch.compile."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.plain = function
        self.call = function
        _regions.append(self)

    def __call__(self, *args: Any) -> Any:
        return self.call(*args)


def fused(function: Callable[..., Any]) -> FusedRegion:
    """Marks a pure function of tensors (and constants) whose elementwise chains are worth one kernel."""
    return FusedRegion(function)


def compile_regions() -> None:
    """Sends every marked function through torch.compile from its next call on."""
    torch._dynamo.config.recompile_limit = 64  # one region serves several widths and dtypes
    for region in _regions:
        region.call = torch.compile(region.plain, fullgraph=True, dynamic=False)


def plain_regions() -> None:
    """Goes back to the plain functions (evaluation with changing shapes; failed compilation)."""
    for region in _regions:
        region.call = region.plain
