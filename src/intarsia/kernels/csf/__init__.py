"""Expanding the compressed scales of many matrices at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.formats import csf
from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.csf import launch

__all__ = ["Compressed", "expand", "expands_together"]


@dataclass(frozen=True, slots=True)
class Compressed:
    """One matrix: its components by suffix, and the contiguous bytes [rows, columns] they stand for."""

    components: Mapping[str, Tensor]
    out: Tensor


def expands_together(codec: str, rows: int, columns: int, device: torch.device) -> bool:
    """Whether `expand` takes many such matrices in one launch."""
    return choose(Case("csf_expand", (codec,), torch.uint8, device, (rows, columns))) == TRITON


def expand(matrices: Sequence[Compressed], codec: str) -> Tensor | None:
    """Writes the scale bytes of matrices of one shape, whose `out` are views of one tensor.

    In one launch, the answer is a bool on the device: whether a component breaks a rule, and what was written
    is to be thrown away. Otherwise it is None, and CsfError is raised at once, naming the component.
    """
    rows, columns = matrices[0].out.shape
    if not expands_together(codec, rows, columns, matrices[0].out.device):
        for matrix in matrices:
            csf.decode_into(matrix.components, matrix.out, codec)
        return None
    fixed, words = csf.components(codec)
    for matrix in matrices:
        csf.require_shapes(matrix.components, rows, columns, codec)
    return launch.launch(
        [matrix.components[fixed] for matrix in matrices],
        [matrix.components[words] for matrix in matrices],
        [matrix.out for matrix in matrices],
    )
