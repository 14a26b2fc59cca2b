"""What an exported checkpoint will hold, shard by shard, known before a weight is read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from intarsia import formats
from intarsia.checkpoint import Checkpoint, Module, TensorEntry
from intarsia.checkpoint.contracts import FREE
from intarsia.checkpoint.dtypes import STORED
from intarsia.checkpoint.streamed import Fixed, Variable
from intarsia.formats import csf
from intarsia.planning.items import unit_key
from intarsia.selection.resolve import Selection, Target

BLOCK_ROWS = 32
EXCEPTIONS = 1 / 32
"""Exceptions a compressed scale that room is kept for. Scales of normal weights have 4 (slab) to 12 (block)
in a thousand; the most there can be, 15 of 16, would ask for several times the room the scales take.
"""
_EXCEPTION_BYTES = {"nvfp4_slab": 4, "csf_32x2_v1": 2}


@dataclass(frozen=True, slots=True)
class Output:
    """Tensors that are written together: one copied as stored, or the matrices of one unit, encoded.

    `exceptions` is an estimate of the bytes of `variable`, by `EXCEPTIONS`.
    """

    fixed: tuple[Fixed, ...]
    variable: tuple[Variable, ...] = ()
    copied: TensorEntry | None = None
    targets: tuple[Target, ...] = ()
    exceptions: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes, without what only the content decides."""
        return sum(item.nbytes for item in self.fixed)


def outputs(checkpoint: Checkpoint, modules: Mapping[str, Module], selection: Selection) -> Iterator[Output]:
    """Everything the export writes, in the source's order; a unit stands where its first member did."""
    units: dict[str, list[Target]] = {}
    for target in selection.targets.values():
        units.setdefault(unit_key(target.module, target.format, target.group), []).append(target)
    replaced: dict[str, Target] = {}
    for module, target in selection.targets.items():
        for suffix, entry in modules[module].tensors.items():
            if not _stays(suffix, target):
                replaced[entry.name] = target
    done: set[str] = set()
    for name, entry in checkpoint.tensors.items():
        owner = replaced.get(name)
        if owner is None:
            yield Output((Fixed(name, entry.dtype, entry.shape),), copied=entry)
            continue
        key = unit_key(owner.module, owner.format, owner.group)
        if key not in done:
            done.add(key)
            yield _encoded(tuple(units[key]), modules)


def _stays(suffix: str, target: Target) -> bool:
    return suffix in FREE or (suffix == "input_scale" and target.format == "NVFP4")


def _encoded(targets: tuple[Target, ...], modules: Mapping[str, Module]) -> Output:
    fixed: list[Fixed] = []
    variable: list[Variable] = []
    exceptions = 0
    for target in targets:
        shape = modules[target.module].shape or ()
        for suffix, spec in formats.get(target.format).layout(shape).items():
            if suffix == "weight_scale" and target.codec is not None:
                _components(f"{target.module}.{suffix}", target.codec, spec.shape, fixed, variable)
                exceptions += int(prod(spec.shape) * EXCEPTIONS) * _EXCEPTION_BYTES[target.codec]
            else:
                fixed.append(Fixed(f"{target.module}.{suffix}", STORED[spec.dtype], spec.shape))
    return Output(tuple(fixed), tuple(variable), targets=targets, exceptions=exceptions)


def _components(
    scale: str, codec: str, shape: tuple[int, ...], fixed: list[Fixed], variable: list[Variable]
) -> None:
    rows, columns = shape
    if codec == "csf_32x2_v1":
        grid = (rows // BLOCK_ROWS, columns // 2)
        fixed.append(Fixed(f"{scale}.csf_base", "U8", grid))
        fixed.append(Fixed(f"{scale}.csf_codes", "U8", (*grid, BLOCK_ROWS)))
        fixed.append(Fixed(f"{scale}.csf_escape_count", "U8", grid))
        variable += [Variable(f"{scale}.{name}", "U8") for name in csf.components(codec)[3:]]
    else:
        fixed_name, exceptions = csf.components(codec)
        fixed.append(Fixed(f"{scale}.{fixed_name}", "U8", (rows // 16, 16 * (1 + columns // 2))))
        variable.append(Variable(f"{scale}.{exceptions}", "U32"))


def shards(items: Sequence[Output], shard_size: int) -> list[list[Output]]:
    """Outputs dealt to shards in order; what is written together stays together."""
    result: list[list[Output]] = []
    filled = shard_size + 1
    for item in items:
        if filled + item.nbytes > shard_size:
            result.append([])
            filled = 0
        result[-1].append(item)
        filled += item.nbytes
    return result
