"""Every weight of a checkpoint as it will be after loading and after export, from headers and a selection."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Module, TensorEntry
from intarsia.checkpoint.dtypes import TORCH
from intarsia.families.groups import container_of
from intarsia.kernels.encode import WITH_GLOBAL
from intarsia.planning.shares import Form, Spec
from intarsia.planning.working import NEEDS_LARGEST
from intarsia.selection.resolve import Selection, Target
from intarsia.selection.source import Source

BLOCK_ROWS, BLOCK_COLUMNS = 32, 2


@dataclass(frozen=True, slots=True)
class Item:
    """One weight. `name` is a module's for matrices in a number format, else the tensor's.

    `exported` is its bytes in an exported checkpoint, before the exceptions of compressed scales. `converted`
    says that it is encoded while loading, from `stored` (None: plain) matrices of `source_bytes`.
    """

    name: str
    form: Form
    section: str
    used: bool
    source_bytes: int
    exported: int
    converted: bool = False
    stored: str | None = None
    codec: str | None = None
    tensors: int = 1

    @property
    def kind(self) -> str:
        """The format as a table names it: the number format, or the plain dtype."""
        return self.form.format or _PLAIN.get(self.form.tensors[0][1], "other")


_PLAIN = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def items(
    checkpoint: Checkpoint, modules: Mapping[str, Module], source: Source, selection: Selection | None
) -> Iterator[Item]:
    """The weights in the checkpoint's order of modules."""
    targets: Mapping[str, Target] = selection.targets if selection is not None else {}
    for module in modules.values():
        section = "draft" if source.family.is_draft(module.name) else "main"
        known = source.modules.get(module.name)
        used = known is None or known.used
        target = targets.get(module.name)
        if target is not None and "weight" in module.tensors:
            yield _converted(module, target, section)
            yield from _plain(module, section, used, skip=_OWN)
        elif module.format is not None:
            yield _as_stored(module, section, used)
        else:
            yield from _plain(module, section, used)


_OWN = frozenset(["weight", "weight_scale", "weight_scale_2", "weight_scale_inv", "input_scale"])


def _plain(module: Module, section: str, used: bool, skip: frozenset[str] = frozenset()) -> Iterator[Item]:
    for suffix, entry in module.tensors.items():
        if suffix in skip or "." in suffix:
            continue
        form = Form(None, entry.shape, (_spec("weight", entry),))
        yield Item(entry.name, form, section, used, entry.nbytes, entry.nbytes)


def _as_stored(module: Module, section: str, used: bool) -> Item:
    shape = module.shape or ()
    specs = [_spec(suffix, entry) for suffix, entry in module.tensors.items() if "." not in suffix]
    if module.codec is not None:
        specs.append(("weight_scale", torch.float8_e4m3fn, (*shape[:-1], shape[-1] // 16)))
    form = Form(module.format, shape, tuple(specs))
    stored = sum(entry.nbytes for entry in module.tensors.values())
    count = len(module.tensors)
    return Item(module.name, form, section, used, stored, stored, codec=module.codec, tensors=count)


def _converted(module: Module, target: Target, section: str) -> Item:
    shape = module.shape or ()
    specs = [*_layout(target.format, shape)]
    if target.format == "NVFP4" and "input_scale" in module.tensors:
        specs.append(_spec("input_scale", module.tensors["input_scale"]))
    exported = sum(prod(size) * dtype.itemsize for _, dtype, size in specs)
    count = len(specs)
    if target.codec is not None:
        rows, columns = shape[0], shape[1] // 16
        exported += compressed_bytes(target.codec, rows, columns) - rows * columns
        count += 1 if target.codec == "nvfp4_slab" else 4
    source = sum(entry.nbytes for suffix, entry in module.tensors.items() if suffix in _OWN or "." in suffix)
    form = Form(target.format, shape, tuple(specs))
    return Item(
        module.name, form, section, True, source, exported, True, module.format, target.codec, tensors=count
    )


@lru_cache(maxsize=1024)
def _layout(format_name: str, shape: tuple[int, ...]) -> tuple[Spec, ...]:
    layout = formats.get(format_name).layout(shape)
    return tuple((suffix, spec.dtype, spec.shape) for suffix, spec in layout.items())


def compressed_bytes(codec: str, rows: int, columns: int) -> int:
    """Bytes of a compressed scale matrix without any exception."""
    if codec == "csf_32x2_v1":
        blocks = (rows // BLOCK_ROWS) * (columns // BLOCK_COLUMNS)
        return blocks * (2 + BLOCK_ROWS)
    return rows * (1 + columns // 2)


def unit_key(module: str, format_name: str, group: str | None) -> str:
    """Matrices with the same key share one global scale; mostly a matrix has its own.

    Members of a fused group share it, and so do an expert's gate and up; experts never share one.
    """
    if format_name not in WITH_GLOBAL:
        return module
    if container_of(module) is None:
        return group or module
    expert, _, name = module.rpartition(".")
    # w1 and w3 are other architectures' names of gate and up
    return f"{expert}.gate_up" if name in ("gate_proj", "up_proj", "w1", "w3") else module


def needs_largest(format_name: str) -> bool:
    """True for formats whose scale covers a whole matrix."""
    return format_name in NEEDS_LARGEST


def _spec(suffix: str, entry: TensorEntry) -> tuple[str, torch.dtype, tuple[int, ...]]:
    dtype = TORCH.get(entry.dtype)
    return (suffix, dtype, entry.shape) if dtype is not None else (suffix, torch.uint8, (entry.nbytes,))
