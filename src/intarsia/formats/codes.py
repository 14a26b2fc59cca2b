"""Element codecs E2M1, E4M3 and E8M0, the same on every device.

E2M1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 in three bits and a sign in the fourth; two codes share a
byte, the even element in the low nibble. E4M3 is torch's float8_e4m3fn: at most 448, NaN only as 0x7F and
0xFF. E8M0 is an exponent byte, 2^(byte - 127); 0xFF is NaN.

Decoding looks up two elements at a time, because a lookup costs as much as five arithmetic passes.
"""

import math
from collections.abc import Iterator
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 1 << 19
"""Elements a core handles at a time: large enough to hide the cost of an operation, and within the caches."""
E2M1_MAX = 6.0
E4M3_MAX = 448.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_EVEN_ABOVE = (False, True, False, True, False, True, False)
"""Whether the code just above a bound is the even one, which a tie goes to."""


def chunk_elements(device: torch.device) -> int:
    """Elements to handle at a time: what keeps all cores busy and fits their caches; on a GPU, many."""
    return CHUNK * torch.get_num_threads() if device.type == "cpu" else 1 << 26


def chunks(matrix: Tensor) -> Iterator[slice]:
    """Slices of a matrix's rows of `chunk_elements` or one row."""
    rows, columns = matrix.shape
    step = max(1, chunk_elements(matrix.device) // columns)
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


@lru_cache(maxsize=64)
def e4m3_values(device: torch.device) -> Tensor:
    """Float32 values [256] of every E4M3 byte; 0x7F and 0xFF are NaN."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().to(device)


@lru_cache(maxsize=64)
def e8m0_values(device: torch.device) -> Tensor:
    """Float32 values [256] of every E8M0 byte: 2^(byte - 127); byte 0 is a subnormal, 0xFF is NaN."""
    values = [math.ldexp(1.0, byte - 127) for byte in range(255)]
    return torch.tensor([*values, math.nan], dtype=torch.float32).to(device)


@lru_cache(maxsize=64)
def _e2m1_pairs(device: torch.device) -> Tensor:
    """The two float32 values of every byte of E2M1 codes, as one int64 [256]."""
    values = torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)], dtype=torch.float32)
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1).view(torch.int64).view(-1).to(device)


@lru_cache(maxsize=64)
def _e4m3_pairs(device: torch.device) -> Tensor:
    """The two float32 values of every two E4M3 bytes, as one int64 [65536]."""
    values = e4m3_values(torch.device("cpu"))
    two = torch.arange(1 << 16)
    return torch.stack([values[two & 255], values[two >> 8]], dim=1).view(torch.int64).view(-1).to(device)


def _pairwise(table: Tensor, index: Tensor, out: Tensor) -> None:
    """out = table[index] where an entry is two float32 values; `out` is contiguous, twice as long."""
    torch.index_select(table, 0, index, out=out.view(-1).view(torch.int64))


def _fits_pairs(out: Tensor) -> bool:
    return out.is_contiguous() and out.numel() % 2 == 0 and out.storage_offset() % 2 == 0


def decode_e2m1_into(packed: Tensor, out: Tensor) -> None:
    """Writes the float32 values of packed codes [..., n] into the contiguous `out` [..., 2n]."""
    index = packed.reshape(-1).int()
    if _fits_pairs(out):
        _pairwise(_e2m1_pairs(packed.device), index, out)
    else:
        out.copy_(
            torch.index_select(_e2m1_pairs(packed.device), 0, index).view(torch.float32).view(out.shape)
        )


def decode_e4m3_into(values: Tensor, out: Tensor) -> None:
    """Writes the float32 values of E4M3 bytes (float8_e4m3fn or uint8) into `out` of the same shape."""
    flat = values.reshape(-1).contiguous().view(torch.uint8)
    if _fits_pairs(out) and flat.storage_offset() % 2 == 0:
        _pairwise(_e4m3_pairs(values.device), flat.view(torch.uint16).int(), out)
    else:
        out.copy_(torch.index_select(e4m3_values(values.device), 0, flat.int()).view(out.shape))


def decode_e4m3(values: Tensor) -> Tensor:
    """Float32 values of E4M3 bytes (float8_e4m3fn or uint8), all 256 of them."""
    flat = values.view(torch.uint8).reshape(-1).int()
    return torch.index_select(e4m3_values(values.device), 0, flat).view(values.shape)


def decode_e8m0(exponents: Tensor) -> Tensor:
    """Float32 values 2^(byte - 127) of E8M0 bytes."""
    flat = exponents.view(torch.uint8).reshape(-1).int()
    return torch.index_select(e8m0_values(exponents.device), 0, flat).view(exponents.shape)


def encode_e4m3(values: Tensor) -> Tensor:
    """Rounds float32 to E4M3, ties to even, saturating at 448.

    The clamp is explicit because torch's own cast saturates or gives NaN depending on its version and device.
    """
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def encode_e4m3_into(values: Tensor, out: Tensor) -> None:
    """Writes float32 `values`, which it may overwrite, to E4M3 as `encode_e4m3` rounds them."""
    out.copy_(values.clamp_(-E4M3_MAX, E4M3_MAX))


def encode_e2m1(values: Tensor) -> Tensor:
    """Codes (uint8): the nearest, ties to the even code, saturating at 6; the sign is set only below zero."""
    magnitude = values.abs()
    codes = (values < 0).to(torch.uint8) << 3
    for bound, even_above in zip(E2M1_BOUNDS, _EVEN_ABOVE, strict=True):
        codes += magnitude >= bound if even_above else magnitude > bound
    return codes


def encode_e2m1_ties_down(values: Tensor) -> Tensor:
    """Codes (uint8): the nearest, ties toward zero, saturating at 6; everything not above zero has the sign
    set.
    """
    magnitude = values.abs()
    codes = (~(values > 0)).to(torch.uint8) << 3
    for bound in E2M1_BOUNDS:
        codes += magnitude > bound
    return codes


@lru_cache(maxsize=64)
def _packing_table(device: torch.device, ties_down: bool) -> Tensor:
    """The packed byte of every two signed bytes that `pack_e2m1_into` makes, uint8 [65536]; the low byte is
    the even one.
    """
    step = torch.arange(256, dtype=torch.uint8).view(torch.int8).float() / 8
    codes = encode_e2m1_ties_down(step) if ties_down else encode_e2m1(step)
    two = torch.arange(1 << 16)
    return (codes[two & 255] | (codes[two >> 8] << 4)).to(device)


def pack_e2m1_into(values: Tensor, out: Tensor, *, ties_down: bool = False) -> None:
    """Writes packed codes into the contiguous `out` uint8, for twice as many float32 `values`, which it
    overwrites.

    The values are below 15 in magnitude.

    Every bound of E2M1 is a multiple of a quarter, so it is enough to know between or on which quarters a
    value lies: floor(4v) + ceil(4v) is odd between two and even on one. Two of these bytes index a table of
    packed codes that `encode_e2m1` (or `encode_e2m1_ties_down`) filled.
    """
    quarters = values.mul_(4)
    upper = torch.ceil(quarters)
    place = quarters.floor_().add_(upper).to(torch.int8)
    index = place.view(-1).view(torch.uint16).int()
    torch.index_select(_packing_table(values.device, ties_down), 0, index, out=out.view(-1))


@lru_cache(maxsize=64)
def ceil_log2_carry(device: torch.device) -> Tensor:
    """What to add to the bits of a float32 in the binade of 2^k so that its exponent field is ceil(log2) +
    127.

    int32 [256], index k + 127; the last, of what is not finite, only keeps indices in range. The
    carry leaves out the few float32 steps above 2^k whose log2 still rounds to k: log2(2^k (1 + f)) is
    k + f / ln 2 to first order, and rounds to k while nearer to k than to the next float32.
    """
    carry = []
    for k in range(-127, 128):
        place = abs(k).bit_length() - 1
        if k < 0 and -k == 1 << place:
            place -= 1  # towards zero the next float32 is half as far
        steps = math.floor(2.0 ** (place - 1) * math.log(2)) if k else 0
        carry.append((1 << 23) - 1 - steps)
    # Subnormals: exponent field 0 ends at 2^-127, which is 2^22 of their steps, and these are twice as wide.
    carry[0] = (1 << 22) - 1 - (((1 << 23) - 1 - carry[0]) >> 1)
    return torch.tensor([*carry, 0], dtype=torch.int32).to(device)


def ceil_log2_byte(values: Tensor) -> Tensor:
    """The E8M0 byte (uint8) of ceil of the float32 log2 of float32 values, finite and not negative; zero
    gives 0.

    Rounding log2 to float32 before ceil is what nvidia-modelopt does; it loses one for values a few float32
    steps above a power of two. Written on the bits, so that every device gives the same answer.
    """
    bits = values.contiguous().view(torch.int32).view(-1)
    carry = torch.index_select(ceil_log2_carry(values.device), 0, bits >> 23)
    return (carry.add_(bits) >> 23).to(torch.uint8).view(values.shape)


def e8m0_reciprocals(exponents: Tensor) -> Tensor:
    """Float32 2^(127 - byte) of E8M0 bytes up to 253."""
    return ((254 - exponents.int()) << 23).view(torch.float32)


def magnitude_bits(values: Tensor) -> Tensor:
    """The float32 bits of |values| as int32, which order as magnitudes do; NaN and infinity are the
    largest.
    """
    if values.dtype == torch.float32:
        return values.view(torch.int32) & 0x7FFFFFFF
    return values.float().view(torch.int32).bitwise_and_(0x7FFFFFFF)


def block_maxima(flat: Tensor, size: int) -> Tensor:
    """The largest magnitude of every `size` columns, float32 [rows, columns / size] of a contiguous matrix.

    On integers, since torch's float reduction over few neighbours is several times slower than its integer
    one.
    """
    rows, columns = flat.shape
    maxima = torch.empty(rows, columns // size, dtype=torch.int32, device=flat.device)
    for part in chunks(flat):
        torch.amax(magnitude_bits(flat[part]).view(-1, size), dim=1, out=maxima[part].view(-1))
    return maxima.view(torch.float32)
