"""NVFP4 experts in the order in which the lanes of a tensor core read them: the stored bytes, permuted.

Rows go in tiles of 128, columns in steps of 128:

    codes   [tile, step, quarter 4, place 32, lane 4, 16 bytes]    16 bytes are 32 consecutive columns
    scales  [tile, step, place 32, lane 4, quarter 4, 2 bytes]     those of the same columns

so that a warp's load of codes is 512 consecutive bytes and a lane's eight scales of a step are one load of
eight bytes. Of a plain stack, row 128 tile + 32 quarter + place lies there. Of gate and up rows, even
quarters hold gate rows and odd ones the up rows of the same number, which puts each pair into one lane; they
are also renumbered inside each 128 (`_rows_of_places`), so that neighbouring lanes write neighbouring values
of what the next product reads.

The bits of each 32-bit word of codes are moved too. Its codes i and i + 4 become pair i of the operand, a
bfloat16 of which is `s` at bit 15 and `e e m` at bits 8:6; they lie in the word such that pair 0 is there
already, pairs 1 and 2 after a rotation, and pair 3 after one product (`_MOVES`), which takes eight
instructions for eight codes.

`pack` and `unpack` work in place: a layer's experts are gigabytes and no second copy of them may live.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.device import byte_view, on_device_of
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts.resident import TILE, ResidentScales, compress, expand

FORMATS = ("NVFP4", "W4A16_NVFP4")
SCRATCH_BYTES = 32 << 20
"""The most memory that a permutation takes beside the stack, unless one expert is larger."""
# Bits of both halves of a word, and how far they are rotated to the left. Pair 0: to where it is used. Pairs
# 1 and 2: there less 10 and 13. Pair 3: m to bit 4, e e to 1:0 and s to 3, which a product with
# 2^2 + 2^7 + 2^12 brings to 6, 8:7 and 15.
_MOVES = (
    (0x00070007, 6),
    (0x00080008, 12),
    (0x00700070, 24),
    (0x00800080, 30),
    (0x07000700, 17),
    (0x08000800, 23),
    (0x10001000, 24),
    (0x60006000, 19),
    (0x80008000, 20),
)
_CODES, _SCALES = torch.int64, torch.int16
"""Wide units that no permutation tears apart: the fewer elements, the faster."""
_RELAID: WeakValueDictionary[int, Stored] = WeakValueDictionary()
_LARGEST_SCALE = 0x7E  # of E4M3, and positive: the kernels read scales without a sign


@dataclass(frozen=True, eq=False, slots=True)
class PackedExperts:
    """A stack [E, N, K] of NVFP4 experts in tiles; `gated` where its rows are gate rows and then up rows.

    `codes` uint8 [E, N, K / 2] and `scales` uint8 [E, N, K / 16] hold the stored bytes in another order, the
    scales perhaps in their compressed form; `others` the remaining tensors of the format as stored,
    `global_scales` float32 [E, parts] one for each of equally many rows.
    """

    format: str
    shape: tuple[int, ...]
    gated: bool
    codes: Tensor
    scales: Tensor | ResidentScales
    others: Mapping[str, Tensor]
    global_scales: Tensor = field(repr=False)

    @property
    def device(self) -> torch.device:
        return self.codes.device

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        tensors = (self.codes, *self.others.values())
        return self.scales.nbytes + sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def expert(self, index: int) -> Stored:
        """One matrix as it was stored, in memory of its own."""
        codes = _moved(self.codes[index : index + 1].clone(), back=True)
        codes = _to_rows(codes, self.gated, _codes_to_rows)[0]
        own = slice(index, index + 1)
        scales = self.scales[own] if isinstance(self.scales, Tensor) else expand(self.scales, own)
        scales = _to_rows(scales, self.gated, _scales_to_rows)[0]
        others = {name: tensor[index] if tensor.ndim else tensor for name, tensor in self.others.items()}
        tensors = {"weight": codes, "weight_scale": scales.view(torch.float8_e4m3fn), **others}
        return Stored(self.format, tensors, self.shape[1:])


ExpertStack = Stored | Tensor | PackedExperts
"""A stack of experts as stored, or in the order that a kernel of theirs wants."""


def refusal(format_name: str, shape: tuple[int, ...]) -> str:
    """Why a stack [E, N, K] cannot be laid out in tiles, or the empty string."""
    if format_name not in FORMATS:
        return f"no tiles for {format_name}; there are some for {', '.join(FORMATS)}"
    if len(shape) != 3 or any(size % TILE for size in shape[1:]):
        return f"a stack of shape {list(shape)}; rows and columns in multiples of {TILE} are needed"
    return ""


def is_relaid(stored: Stored) -> bool:
    """Whether `pack` has spent a stack: its tensors no longer hold what their names say."""
    return _RELAID.get(id(stored)) is stored


def pack(stored: Stored, *, gated: bool) -> PackedExperts:
    """Lay a contiguous stack out in tiles, in its own memory: `stored` means nothing afterwards.

    Raises KernelError for a stack that `refusal` names, that is not contiguous from a multiple of 16 bytes,
    or that has a negative or NaN block scale; it is untouched then.
    """
    reason = refusal(stored.format, stored.shape) or (gated and refusal(stored.format, _half(stored.shape)))
    if reason:
        raise KernelError("experts", found=reason, action="keep the stack as stored")
    codes, scales = byte_view(stored["weight"]), byte_view(stored["weight_scale"])
    if not all(tensor.is_contiguous() and tensor.data_ptr() % 16 == 0 for tensor in (codes, scales)):
        raise KernelError(
            "experts",
            found="a stack that is not contiguous, or does not begin at a multiple of 16 bytes",
            action="pass a copy",
        )
    if int(scales.amax()) > _LARGEST_SCALE:
        raise KernelError(
            "experts",
            found="a block scale that is negative or not a number",
            expected="positive E4M3 scales",
            action="audit the checkpoint with --values",
        )
    _RELAID[id(stored)] = stored
    _in_place(codes, _CODES, lambda part: _moved(_to_tiles(part, gated, _codes_to_tiles), back=False))
    _in_place(scales, _SCALES, lambda part: _to_tiles(part, gated, _scales_to_tiles))
    others = {name: stored[name] for name in stored if name not in ("weight", "weight_scale")}
    scale_2 = stored["weight_scale_2"]
    wide = scale_2.expand(stored.shape[0]) if scale_2.ndim == 0 else scale_2
    return PackedExperts(
        format=stored.format,
        shape=tuple(stored.shape),
        gated=gated,
        codes=codes,
        scales=scales,
        others=MappingProxyType(others),
        global_scales=wide.reshape(stored.shape[0], -1).contiguous(),
    )


def compressed(packed: PackedExperts) -> PackedExperts:
    """The same stack with its scales in their compressed form. The memory of the plain ones is given back,
    where nothing else lies in it; `packed` means nothing afterwards.
    """
    plain = packed.scales
    if not isinstance(plain, Tensor):
        return packed
    small = replace(packed, scales=compress(plain))
    memory = plain.untyped_storage()
    if memory.nbytes() == plain.nbytes:
        memory.resize_(0)
    return small


def unpack(packed: PackedExperts) -> Stored:
    """The stack as it was stored, in the memory of `packed`, which means nothing afterwards; scales that are
    compressed are written out.
    """
    gated = packed.gated
    _in_place(packed.codes, _CODES, lambda part: _to_rows(_moved(part, back=True), gated, _codes_to_rows))
    scales = packed.scales if isinstance(packed.scales, Tensor) else expand(packed.scales)
    _in_place(scales, _SCALES, lambda part: _to_rows(part, gated, _scales_to_rows))
    tensors = {"weight": packed.codes, "weight_scale": scales.view(torch.float8_e4m3fn)}
    return Stored(packed.format, tensors | dict(packed.others), packed.shape)


def _half(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the gate rows alone: their renumbering needs whole tiles of them."""
    return (shape[0], shape[1] // 2, *shape[2:])


def _in_place(bytes_: Tensor, unit: torch.dtype, change: Callable[[Tensor], Tensor]) -> None:
    """Permute the bytes of each expert in units that stay together, as many experts at a time as the scratch
    holds.
    """
    whole = bytes_.view(unit)
    each = max(1, SCRATCH_BYTES // (2 * bytes_[0].numel()))
    for begin in range(0, whole.shape[0], each):
        part = whole[begin : begin + each]
        made = change(part)
        # Of one tile and one step the order can be a view of what it is made from.
        within = made.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
        part.copy_(made.clone() if within else made)


@cache
def _rows_of_places(rows: int, gated: bool, device: torch.device) -> Tensor:
    """int64 [rows]: the row of an expert that lies at [tile, quarter, place]."""
    at = torch.arange(rows)
    if gated:
        quarter = at // 32 % 4
        n = at // TILE * 64 + quarter // 2 * 32 + at % 32
        # Place [w w i i t t h] (bits) holds what belongs at column [t t w w h i i] of the next product.
        n = n & ~127 | (n & 6) << 4 | (n & 0x60) >> 2 | (n & 1) << 2 | n >> 3 & 3
        at = n + quarter % 2 * (rows // 2)
    return at.to(device)


def _moved(part: Tensor, back: bool) -> Tensor:
    """Codes with the bits of their words moved, or moved back, in their own memory."""
    words = part.view(torch.int32)
    if part.is_cuda and importlib.util.find_spec("triton") is not None:
        from intarsia.kernels.experts import triton_packing

        with on_device_of(words):
            size = triton_packing.SIZE
            triton_packing.move_bits[(-(-words.numel() // size),)](
                words, words.numel(), BACK=back, SIZE=size, num_warps=4
            )
        return part
    wide = words.long() & 0xFFFFFFFF
    total = torch.zeros_like(wide)
    for mask, left in _MOVES:
        if back:
            mask, left = _rotated(mask, left), 32 - left
        bits = wide & mask
        total |= (bits << left | bits >> (32 - left)) & 0xFFFFFFFF
    words.copy_(torch.where(total >= 1 << 31, total - (1 << 32), total))
    return part


def _rotated(number: int, left: int) -> int:
    return (number << left | number >> (32 - left)) & 0xFFFFFFFF


def _to_tiles(part: Tensor, gated: bool, order: Callable[[Tensor], Tensor]) -> Tensor:
    picked = part[:, _rows_of_places(part.shape[1], gated, part.device)] if gated else part
    return order(picked).reshape(part.shape)


def _to_rows(part: Tensor, gated: bool, order: Callable[[Tensor], Tensor]) -> Tensor:
    placed = order(part).reshape(part.shape)
    if not gated:
        return placed
    rows = torch.empty_like(part)
    rows[:, _rows_of_places(part.shape[1], gated, part.device)] = placed
    return rows


def _codes_to_tiles(part: Tensor) -> Tensor:
    experts, rows, _ = part.shape
    each = 16 // part.element_size()
    return part.view(experts, rows // TILE, 4, 32, -1, 4, each).permute(0, 1, 4, 2, 3, 5, 6)


def _codes_to_rows(part: Tensor) -> Tensor:
    experts, rows, _ = part.shape
    each = 16 // part.element_size()
    return part.view(experts, rows // TILE, -1, 4, 32, 4, each).permute(0, 1, 3, 4, 2, 5, 6)


def _scales_to_tiles(part: Tensor) -> Tensor:
    experts, rows, _ = part.shape
    each = 2 // part.element_size()
    return part.view(experts, rows // TILE, 4, 32, -1, 4, each).permute(0, 1, 4, 3, 5, 2, 6)


def _scales_to_rows(part: Tensor) -> Tensor:
    experts, rows, _ = part.shape
    each = 2 // part.element_size()
    return part.view(experts, rows // TILE, -1, 32, 4, 4, each).permute(0, 1, 5, 3, 2, 4, 6)
