"""The register kernels of products on small shapes, on what stands in for Gluon: run as a program.

Prints one JSON object: case -> the largest error relative to the reference's largest value. Addresses, the
order of x, tiles, ranges, buffers and words ahead are what can be wrong here; bits are for a GPU to show.
"""

import builtins
import importlib
import json
import sys
import types
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import codes
from intarsia.kernels.experts import swiglu
from intarsia.kernels.linear import plan
from intarsia.kernels.linear.operands import CODES, first_tiles, scales_of, words_of
from tests.kernels import gluon_stand_in as stand_in
from tests.kernels.gluon_stand_in import Pointer, Shared, Value, layout, value
from tests.kernels.steps import error, randn

KERNELS = (
    "fragments",
    "gluon_sums",
    "gluon_few",
    "gluon_steps",
    "gluon_tiles",
    "gluon_many",
)
LIMIT = 3.0


def halves_of(words: Tensor) -> Tensor:
    """bfloat16 of the halves of words, of which the last dimension holds two copies."""
    half = (words.long() >> (16 * torch.arange(words.shape[-1]) % 32)) & 0xFFFF
    return _bfloat16(half)


def codes_of(words: Tensor, factors: Tensor) -> Tensor:
    """E4M3 codes in the order that the kernels take them from a word, times a factor and 2^-120."""
    words, factors = torch.broadcast_tensors(words.long(), factors.long())
    code = (words >> (8 * torch.tensor([0, 2, 1, 3]))) & 0xFF
    number = _bfloat16((code & 0x7F) << 4 | (code & 0x80) << 8)
    return (number.float() * _bfloat16(factors & 0xFFFF).float()).bfloat16()


def pairs_of(words: Tensor) -> Tensor:
    """Numbers 0 to 3 of two words as 0, 2 and 1, 3."""
    halves = halves_of(words).reshape(*words.shape[:-2], words.shape[-2] // 2, 2, 2)
    return halves.transpose(-1, -2).reshape(words.shape)


def _bfloat16(bits: Tensor) -> Tensor:
    return (bits << 16).to(torch.int32).contiguous().view(torch.float32).bfloat16()


def assembly(text: str, _, arguments, **__):
    known: dict[str, Callable[..., Tensor]] = {"07F007F0": codes_of, "prmt": pairs_of, "mov": halves_of}
    if text.startswith("ld.global"):
        return stand_in.load(arguments[0])
    return next(run for sign, run in known.items() if sign in text)(*arguments).as_subclass(Value)


def choose(condition, a, b):
    if isinstance(a, Pointer) or isinstance(b, Pointer):
        return a if bool(condition) else b
    return torch.where(value(condition), *(one if isinstance(one, float) else value(one) for one in (a, b)))


def allocate(dtype, shape, _):
    fill = torch.nan if dtype.is_floating_point else -1
    return Shared(torch.full(tuple(shape), fill, dtype=dtype))


def check(condition, message="") -> None:
    if not condition:
        raise AssertionError(message)


class Rows:
    """Rows of x as a descriptor gives them: zeros beyond the last."""

    def __init__(self, rows: Tensor) -> None:
        self.rows, self.layout = rows, "layout"

    def copy(self, place, _, tile, pred=True) -> None:
        if pred:
            row, column = map(int, place)
            part = self.rows[row : row + tile.memory.shape[0], column : column + tile.memory.shape[1]]
            tile.memory.zero_()[: len(part)] = part


def multiply(a, b, total, use_acc=True, is_async=False):
    return (total if use_acc else 0) + a.float() @ b.memory.float()


def modules() -> dict[str, types.ModuleType]:
    """What the kernels import, by name."""
    root = "triton.experimental.gluon"
    names = (root, f"{root}.language.nvidia.ampere", f"{root}.language.nvidia.hopper")
    top, ampere, hopper = (types.ModuleType(name) for name in names)
    gl = stand_in.language()
    nothing = dict.fromkeys(("init", "expect", "wait", "invalidate"), lambda *_, **__: None)
    gl.inline_asm_elementwise, gl.where, gl.allocate_shared_memory = assembly, choose, allocate
    gl.static_assert, gl.NVMMASharedLayout = check, layout
    gl.DistributedLinearLayout = lambda *bases: types.SimpleNamespace(shape=bases[-1])
    gl.cdiv = lambda a, b: -(-int(a) // int(b))
    gl.maximum = lambda a, b: torch.maximum(value(a), value(b))
    gl.full = lambda shape, fill, dtype, layout=None: torch.full(tuple(shape), fill, dtype=dtype).as_subclass(
        Value
    )
    gl.fma = lambda a, b, c: a * b + c
    gl.load = lambda pointer, mask=None, other=0, **_: stand_in.load(pointer, mask, other)
    gl.permute = lambda x, order: x.permute(tuple(order))
    gl.expand_dims = lambda x, dim: x.unsqueeze(dim)
    top.jit, top.language = stand_in.jit, gl
    made = ("weight_layout", "word_layout", "x_layout", "steps_along")
    top.constexpr_function = lambda function: function if function.__name__ in made else layout
    ampere.mma_v2 = stand_in.mma_v2
    hopper.mbarrier = types.SimpleNamespace(**nothing, MBarrierLayout=layout)
    hopper.tma = types.SimpleNamespace(
        async_copy_global_to_shared=lambda rows, *rest, **k: rows.copy(*rest, **k)
    )
    hopper.warpgroup_mma, hopper.fence_async_shared = multiply, lambda: None
    hopper.warpgroup_mma_wait = lambda _, deps: deps[0] if len(deps) == 1 else tuple(deps)
    return {module.__name__: module for module in (top, gl, ampere, hopper)}


def load_kernels() -> list[types.ModuleType]:
    """The kernels' modules, with stand-ins for what they import."""
    found = modules()
    experimental = importlib.import_module("triton.experimental")
    real = {name: importlib.import_module(name) for name in found}
    codes.PLAIN, codes.MXFP8, codes.BLOCK = 0, 1, 2
    Value.type = property(lambda self: types.SimpleNamespace(shape=list(self.shape), layout="layout"))
    Pointer.to = lambda self, _: self
    sys.modules.update(found)
    experimental.gluon = found["triton.experimental.gluon"]
    try:
        loaded = [importlib.import_module(f"intarsia.kernels.linear.{name}") for name in KERNELS]
    finally:
        sys.modules.update(real)
        experimental.gluon = real["triton.experimental.gluon"]
    for module in loaded:
        module.min, module.len = builtins.min, builtins.len
        module.gdc_wait = module.gdc_launch_dependents = lambda: None
    return loaded


def pointer(x: Tensor) -> Pointer:
    return Pointer(stand_in.flat(x), 0)


def arranged(x: Tensor, code: bool) -> Tensor:
    """What `arrange_rows` makes of x."""
    shape, order = ((2, 4, 4, 2, 2), (0, 2, 4, 1, 3)) if code else ((4, 4, 2, 2, 2), (0, 2, 3, 1, 4))
    split = x.reshape(len(x), -1, *shape).permute(0, 1, *(2 + dim for dim in order))
    return split.reshape(x.shape).contiguous()


def case(name: str, sizes: tuple[int, ...], columns: int, rows: int, shape: plan.Shape, limit=None) -> float:
    """One launch, with the constants of `gluon.launch`."""
    weights = [formats.get(name).encode(randn(size, columns, seed=i)) for i, size in enumerate(sizes)]
    x = randn(rows, columns, seed=9).bfloat16()
    ranges, apart = plan.ranges_of(sum(sizes), columns), isinstance(shape, plan.Many) and shape.apart
    widths = [size if limit is None else size // 2 for size in sizes]
    outs = [torch.full((ranges if apart else 1, rows, width), torch.nan) for width in widths]
    tile = shape.tile * (shape.parts if isinstance(shape, plan.Many) else 1)
    first = first_tiles(sizes, tile)
    operands = (
        tuple(pointer(words_of(weight)) for weight in weights),
        tuple(pointer(scales_of(weight)) for weight in weights),
        tuple(map(pointer, outs)),
        tuple(widths),
        None,
        rows,
    )
    constants = {
        "LIMIT": limit,
        "NS": sizes,
        "FIRST": first,
        "K": columns,
        "FORMAT": CODES[name],
        "RANGES": ranges,
        "WARPS": shape.warps,
        "BN": shape.tile,
        "GATED": limit is not None,
        "EVEN": not any(size % tile for size in sizes),
    }
    if isinstance(shape, plan.Few):
        kernel = sys.modules["intarsia.kernels.linear.gluon_few"].few_rows
        words = (pointer(x.view(torch.int32)),)
        own = {
            "CHUNKS": shape.chunks,
            "DEPTH": shape.depth,
            "AHEAD": shape.ahead,
            "RELEASES": False,
            "NT": next(size for size in (8, 16, 32) if rows <= size),
        }
        kernel[(first[-1],)](words, *operands, columns // 2, **constants, **own)
    else:
        kernel = sys.modules["intarsia.kernels.linear.gluon_many"].many_rows
        own = {"APART": apart, "PARTS": shape.parts, "NT": shape.rows, "STAGES": shape.stages}
        own |= {"LEAD": shape.lead, "GROUP": max(1, shape.group // shape.rows)}
        own["FINE"] = shape.fine and name != "BF16"
        grid = (-(-rows // shape.rows) * first[-1], ranges if apart else 1)
        kernel[grid](Rows(arranged(x, name != "BF16")), *operands, **constants, **own)
    return max(largest_error(out.sum(0), weight, x, limit) for out, weight in zip(outs, weights, strict=True))


def largest_error(out: Tensor, weight: Stored, x: Tensor, limit: float | None) -> float:
    expected = x.float() @ formats.get(weight.format).decode(weight, torch.float32).T
    if limit is not None:
        expected = swiglu(expected, limit)
    return error(out, expected)


def cases() -> dict[str, Callable[[], float]]:
    """Few and many rows in each format: tiles that are not full, several matrices, ranges, two tiles a
    program, words ahead that are no whole step, row groups, and a SwiGLU.
    """
    few, many = plan.Few, plan.Many
    wide = many(128, 2, 128, 8, 2, 4, 128, False, False)
    found = {
        "few MXFP8": ("MXFP8", (64, 48), 4096, 5, few(1, 16, 2, 2, 1)),
        "few BF16": ("BF16", (64, 200), 512, 11, few(2, 32, 2, 2, 2)),
        "few blocks": ("FP8_PB_WO", (256,), 2048, 16, few(1, 32, 2, 1, 1), LIMIT),
        "few blocks, 30 rows": ("FP8_PB_WO", (200,), 2048, 30, few(1, 16, 2, 2, 1)),
        "many MXFP8, two tiles": ("MXFP8", (256, 200), 512, 300, wide),
        "many MXFP8, finely": ("MXFP8", (272,), 2048, 130, many(128, 2, 128, 8, 2, 3, 128, True, False)),
        "many MXFP8, one range": ("MXFP8", (272,), 384, 40, many(64, 1, 32, 4, 2, 8, 1024, False, False)),
        "many MXFP8, swiglu": ("MXFP8", (512,), 512, 130, wide, LIMIT),
        "many MXFP8, apart": ("MXFP8", (256, 200), 2048, 40, many(64, 1, 32, 4, 3, 8, 1024, False, True)),
        "many blocks, finely": (
            "FP8_PB_WO",
            (256, 200),
            2048,
            200,
            many(128, 1, 128, 8, 2, 2, 128, True, False),
        ),
        "many blocks, swiglu": (
            "FP8_PB_WO",
            (512,),
            512,
            130,
            many(128, 1, 128, 8, 2, 3, 128, False, False),
            LIMIT,
        ),
        "many BF16": ("BF16", (256, 200), 512, 300, wide),
    }
    return {name: partial(case, *arguments) for name, arguments in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    load_kernels()
    print(json.dumps({name: run() for name, run in cases().items()}))


if __name__ == "__main__":
    main()
