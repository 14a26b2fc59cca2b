"""Encoders of weights, as a load that converts calls them: nothing waits for the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.timing import Call
from intarsia.formats.sources import Deferred
from intarsia.formats.stored import Stored
from intarsia.kernels.encode import encode

SIDE = 4096
MATRICES = 16
STD = 0.02
PEER_MODULES = (
    "torchao.prototype.mx_formats.mx_tensor",
    "torchao.prototype.mx_formats.nvfp4_tensor",
)
TORCHAO = "compiled torchao"


@dataclass(frozen=True, slots=True)
class Encoding:
    """A format, and whether the largest magnitude behind NVFP4's global scale is given or has to be found,
    which takes a pass of its own."""

    name: str
    form: str
    given: bool = False

    @property
    def passes(self) -> int:
        """How often the source is read."""
        return 2 if self.form == "NVFP4" and not self.given else 1


def encodings(side: int = SIDE) -> tuple[Encoding, ...]:
    """What is timed."""
    shape = f"[{side}, {side}]"
    return (
        Encoding(f"MXFP8 {shape}", "MXFP8"),
        Encoding(f"NVFP4 {shape}", "NVFP4"),
        Encoding(f"NVFP4 {shape}, amax given", "NVFP4", given=True),
        Encoding(f"FP8_PB_WO {shape}", "FP8_PB_WO"),
    )


def measure(bench: Bench, side: int = SIDE) -> None:
    """Every encoder over BF16 matrices in turn."""
    matrices = [bench.numbers(side, side) * STD for _ in range(MATRICES)]
    largest = [matrix.float().abs().amax() for matrix in matrices]
    fault = torch.zeros((), dtype=torch.bool, device=bench.device)

    for one in encodings(side):
        amaxes = largest if one.given else [None] * MATRICES
        stored = _encode(one.form, matrices[0], amaxes[0], fault)
        calls = [
            partial(_encode, one.form, matrix, amax, fault)
            for matrix, amax in zip(matrices, amaxes, strict=True)
        ]
        taken = bench.clock(calls)
        moved = one.passes * matrices[0].nbytes + stored.nbytes
        beside = {} if one.given else _torchao(bench, one.form, matrices)
        bench.table.add("encode", one.name, side, taken, moved=moved, beside=beside)


def _encode(form: str, matrix: Tensor, amax: Tensor | None, fault: Tensor) -> Stored:
    with Deferred(fault):
        return encode(form, matrix, amax=amax)


def _torchao(bench: Bench, form: str, matrices: Sequence[Tensor]) -> dict[str, float]:
    """torchao's encoders of the same formats, which it leaves to the compiler; their bytes may differ."""
    ready = {"MXFP8": _torchao_mxfp8, "NVFP4": _torchao_nvfp4}.get(form)
    return bench.peer(TORCHAO, lambda: ready(matrices)) if ready else {}


def _torchao_mxfp8(matrices: Sequence[Tensor]) -> list[Call]:
    tensors = import_module(PEER_MODULES[0])
    ceiling = tensors.ScaleCalculationMode.RCEIL
    one = torch.compile(lambda matrix: tensors.to_mx(matrix, torch.float8_e4m3fn, 32, ceiling))
    return [partial(one, matrix) for matrix in matrices]


def _torchao_nvfp4(matrices: Sequence[Tensor]) -> list[Call]:
    tensors = import_module(PEER_MODULES[1])

    def quantize(matrix: Tensor) -> object:
        return tensors.nvfp4_quantize(matrix, 16, tensors.per_tensor_amax_to_scale(matrix.abs().max()))

    one = torch.compile(quantize)
    return [partial(one, matrix) for matrix in matrices]
