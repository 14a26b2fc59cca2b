"""Stands where Gluon stands, on torch tensors and without layouts: what a kernel computes, on a CPU.

Gluon has no interpreter. Layouts, barriers and registers are its compiler's business and are checked by
compiling; everything else of a kernel, its addresses, masks and arithmetic, runs here one program at a time.
Shared memory begins as NaN and addresses must lie inside their tensors, so that a wrong one shows. Products
take what they are given and add in float32.
"""

import builtins
import functools
import importlib
import sys
import types

import torch
from torch import Tensor

OPTIONS = ("num_warps", "maxnreg", "launch_pdl", "num_stages")
PROGRAM: list[tuple[int, ...]] = [(), ()]  # which program runs, and of how many


class Value(Tensor):
    """A tensor with the methods that kernels call."""

    @property
    def type(self):
        return types.SimpleNamespace(layout="layout")

    def to(self, dtype, bitcast=False):
        return self.view(dtype) if bitcast else super().to(dtype)


def value(x, dtype=None) -> Value:
    return torch.as_tensor(x, dtype=dtype).as_subclass(Value)


class Kind:
    """The type of a pointer."""

    def __init__(self, element_ty) -> None:
        self.element_ty = element_ty


class Pointer:
    """Addresses in a tensor's memory."""

    def __init__(self, memory: Tensor, offset) -> None:
        self.memory, self.offset, self.dtype = memory, value(offset).long(), Kind(memory.dtype)

    def __add__(self, offset) -> "Pointer":
        return Pointer(self.memory, self.offset + offset)

    def reach(self, mask) -> tuple[Tensor, Tensor]:
        offset = self.offset if mask is None else torch.broadcast_tensors(self.offset, value(mask))[0]
        wanted = torch.ones_like(offset, dtype=torch.bool) if mask is None else value(mask).expand_as(offset)
        inside = (offset >= 0) & (offset < self.memory.numel())
        if not (inside | ~wanted).all():
            raise IndexError(f"address outside a tensor of {self.memory.numel()} elements")
        return torch.where(wanted, offset, 0), wanted


def load(pointer, mask=None, other=0):
    offset, wanted = pointer.reach(mask)
    found = pointer.memory[offset.as_subclass(Tensor)]
    return torch.where(wanted.as_subclass(Tensor), found, torch.tensor(other, dtype=found.dtype)).as_subclass(
        Value
    )


def store(pointer, values, mask=None) -> None:
    offset, wanted = pointer.reach(mask)
    values = value(values).to(pointer.memory.dtype).expand(offset.shape)
    pointer.memory[offset[wanted].as_subclass(Tensor)] = values[wanted].as_subclass(Tensor)


class Shared:
    """Shared memory, and views of it."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory

    def load(self, layout) -> Value:
        return self.memory.clone().as_subclass(Value)

    def store(self, values) -> None:
        self.memory.copy_(values.reshape(self.memory.shape))

    def _reinterpret(self, dtype, shape, layout) -> "Shared":
        """Other bytes in other places: what was there is not to be read."""
        return Shared(self.memory.view(-1).view(dtype).view(tuple(shape)))

    def slice(self, start, length, dim=0) -> "Shared":
        return Shared(self.memory.narrow(dim, int(start), length))

    def reshape(self, shape) -> "Shared":
        return Shared(self.memory.view(tuple(shape)))

    def index(self, i) -> "Shared":
        return Shared(self.memory[int(i)])

    def permute(self, order) -> "Shared":
        return Shared(self.memory.permute(order))


def reduce(x, axis, combine):
    parts = x if isinstance(x, tuple) else (x,)
    total = tuple(part.select(axis, 0) for part in parts)
    for i in range(1, parts[0].shape[axis]):
        total = combine(*total, *(part.select(axis, i) for part in parts))
        total = total if isinstance(total, tuple) else (total,)
    return total if isinstance(x, tuple) else total[0]


def associative_scan(x, axis, combine):
    rows = [x.select(axis, 0)]
    for i in range(1, x.shape[axis]):
        rows.append(combine(rows[-1], x.select(axis, i)))
    return torch.stack(rows, axis).as_subclass(Value)


def where(condition, a, b):
    if isinstance(a, Pointer):
        return a if condition else b
    return torch.where(value(condition), value(a) if not isinstance(a, float) else a, b)


def inline_asm_elementwise(asm, constraints, arguments, dtype, **_):
    if asm.startswith("ex2"):
        return torch.exp2(arguments[0])
    if asm.startswith("rcp"):
        return 1 / arguments[0]
    raise NotImplementedError(asm)


def mma_v2(a, b, total):
    return total + (a.float() @ b.float())


def warpgroup_mma(a, b, total, is_async=False):
    """What is multiplied must not change before it is waited for, which nothing here checks."""
    return total + (a.float() @ b.memory.float())


def warpgroup_mma_wait(outstanding, deps):
    return deps[0] if len(deps) == 1 else tuple(deps)


class Box:
    """A tensor descriptor."""

    def __init__(self, descriptor) -> None:
        self.base, self.shape, self.layout = descriptor.base, descriptor.block_shape, descriptor.layout


def copy_box(box, coordinates, barrier, tile, pred=True) -> None:
    if pred:
        row, column = (int(at) for at in coordinates)
        tile.store(box.base[row : row + box.shape[0], column : column + box.shape[1]])


def store_box(box, coordinates, tile) -> None:
    row, column = (int(at) for at in coordinates)
    box.base[row : row + box.shape[0], column : column + box.shape[1]] = tile.memory


class Kernel:
    """A jitted function: called by others, or launched over a grid."""

    def __init__(self, function) -> None:
        self.function = function
        functools.update_wrapper(self, function)
        function.__globals__["range"] = each

    def __call__(self, *args, **keywords):
        return self.function(*args, **keywords)

    def __getitem__(self, grid):
        def launch(*args, **keywords) -> None:
            kept = {name: one for name, one in keywords.items() if name not in OPTIONS}
            given = [argument(one) for one in args]
            for y in builtins.range(grid[1] if len(grid) > 1 else 1):
                for x in builtins.range(grid[0]):
                    PROGRAM[:] = [(x, y), tuple(grid)]
                    self.function(*given, **kept)

        return launch


def argument(one):
    if isinstance(one, Tensor):
        return Pointer(flat(one), 0)
    return Box(one) if hasattr(one, "block_shape") else one


def flat(x: Tensor) -> Tensor:
    """The memory of a tensor from its first element on."""
    return x.as_strided((x.untyped_storage().nbytes() // x.element_size() - x.storage_offset(),), (1,))


def each(*bounds):
    return (value(i, torch.int32) for i in builtins.range(*(int(bound) for bound in bounds)))


def jit(function=None, **_):
    return Kernel(function) if function is not None else Kernel


def layout(*_, **__) -> str:
    return "layout"


def language() -> types.ModuleType:
    gl = types.ModuleType("triton.experimental.gluon.language")
    for name in ("float32", "bfloat16", "int64", "int32", "int16"):
        setattr(gl, name, getattr(torch, name))
    for name in ("BlockedLayout", "SliceLayout", "DistributedLinearLayout", "NVMMADistributedLayout"):
        setattr(gl, name, layout)
    gl.SwizzledSharedLayout = gl.DotOperandLayout = layout
    gl.NVMMASharedLayout = layout
    gl.int1, gl.constexpr, gl.static_range = torch.bool, lambda x: x, builtins.range
    gl.load, gl.store, gl.reduce, gl.associative_scan = load, store, reduce, associative_scan
    gl.inline_asm_elementwise = inline_asm_elementwise
    gl.program_id = lambda axis: value(PROGRAM[0][axis], torch.int32)
    gl.num_programs = lambda axis: PROGRAM[1][axis]
    gl.thread_barrier = lambda: None
    gl.arange = lambda begin, end, layout=None: torch.arange(begin, end, dtype=torch.int32).as_subclass(Value)
    gl.zeros = lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype).as_subclass(Value)
    gl.full = lambda shape, fill, dtype, layout=None: (
        torch.zeros(shape, dtype=dtype).as_subclass(Value) + value(fill).to(dtype)
    ).to(dtype)
    gl.where = where
    gl.sum = lambda x, axis: x.sum(axis)
    gl.minimum = lambda a, b: torch.minimum(value(a), value(b))
    gl.maximum = lambda a, b: torch.maximum(value(a), value(b))
    gl.exp, gl.exp2, gl.rsqrt = torch.exp, torch.exp2, torch.rsqrt
    gl.fma = lambda a, b, c: a * b + c
    gl.permute = lambda x, order: x.permute(tuple(order))
    gl.join = lambda a, b: torch.stack([a, b], -1)
    gl.reshape = lambda x, shape: x.reshape(shape)
    gl.split = lambda x: (x[..., 0], x[..., 1])
    gl.convert_layout = lambda x, layout, assert_trivial=False: x
    gl.allocate_shared_memory = lambda dtype, shape, layout: Shared(
        torch.full(tuple(shape), torch.nan if dtype.is_floating_point else -1, dtype=dtype)
    )
    return gl


def load_kernels(*names: str) -> None:
    """Import modules that hold Gluon kernels, with this in Gluon's place while they are imported."""
    gluon, gl = types.ModuleType("triton.experimental.gluon"), language()
    gluon.jit, gluon.language = jit, gl
    gluon.constexpr_function = lambda function: function
    ampere = types.ModuleType("triton.experimental.gluon.language.nvidia.ampere")
    ampere.mma_v2 = mma_v2
    hopper = types.ModuleType("triton.experimental.gluon.language.nvidia.hopper")
    hopper.warpgroup_mma, hopper.warpgroup_mma_wait = warpgroup_mma, warpgroup_mma_wait
    hopper.fence_async_shared = lambda: None
    hopper.tma = types.SimpleNamespace(
        async_copy_global_to_shared=copy_box,
        async_copy_shared_to_global=store_box,
        store_wait=lambda pending: None,
    )
    hopper.mbarrier = types.SimpleNamespace(
        **dict.fromkeys(("init", "expect", "wait", "invalidate"), lambda *_, **__: None),
        MBarrierLayout=layout,
    )
    stand_ins = {module.__name__: module for module in (gluon, gl, ampere, hopper)}
    experimental = importlib.import_module("triton.experimental")
    real = {name: importlib.import_module(name) for name in stand_ins}
    sys.modules.update(stand_ins)
    experimental.gluon = gluon
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        sys.modules.update(real)
        experimental.gluon = real[gluon.__name__]
