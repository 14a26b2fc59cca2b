"""Element codecs: E2M1, E4M3 and E8M0, exact on every device.

E2M1 has the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 in three bits and a sign in the fourth; two codes share a byte, the even
element in the low nibble. E4M3 is torch's float8_e4m3fn: at most 448, NaN only as 0x7F and 0xFF. E8M0 is an exponent
byte: 2^(byte - 127), 0xFF is NaN.
"""

import math
from functools import lru_cache

import torch

E2M1_MAX = 6.0
E4M3_MAX = 448.0
E2M1_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@lru_cache(maxsize=64)
def e2m1_pairs(device: torch.device, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values [256, 2] of every byte's two codes, low nibble first."""
    values = torch.tensor([*E2M1_MAGNITUDES, *(-value for value in E2M1_MAGNITUDES)], dtype=torch.float32)
    byte = torch.arange(256)
    return torch.stack([values[byte & 15], values[byte >> 4]], dim=1).to(dtype).to(device).contiguous()


@lru_cache(maxsize=64)
def e4m3_values(device: torch.device) -> torch.Tensor:
    """Float32 values [256] of every E4M3 byte; 0x7F and 0xFF are NaN."""
    bytes_ = torch.arange(256, dtype=torch.uint8)
    return bytes_.view(torch.float8_e4m3fn).float().to(device)


@lru_cache(maxsize=64)
def e8m0_values(device: torch.device) -> torch.Tensor:
    """Float32 values [256] of every E8M0 byte: 2^(byte - 127), exactly; byte 0 is a subnormal, 0xFF is NaN."""
    values = [math.ldexp(1.0, byte - 127) for byte in range(255)]
    return torch.tensor([*values, math.nan], dtype=torch.float32).to(device)


def lookup(table: torch.Tensor, bytes_: torch.Tensor) -> torch.Tensor:
    """`table[byte]` for every byte: the shape of `bytes_` followed by the table's entry shape."""
    flat = torch.index_select(table, 0, bytes_.reshape(-1).int())
    return flat.view(*bytes_.shape, *table.shape[1:])


def decode_e2m1(packed: torch.Tensor) -> torch.Tensor:
    """Float32 values [..., 2n] of packed codes [..., n]."""
    pairs = e2m1_pairs(packed.device).view(torch.int64).squeeze(1)
    return lookup(pairs, packed).view(torch.float32)


def decode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Float32 values of E4M3 bytes (float8_e4m3fn or uint8), all 256 codes."""
    return lookup(e4m3_values(values.device), values.view(torch.uint8))


def decode_e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Float32 values 2^(byte - 127) of E8M0 bytes."""
    return lookup(e8m0_values(exponents.device), exponents.view(torch.uint8))


def encode_e4m3(values: torch.Tensor) -> torch.Tensor:
    """Rounds float32 to E4M3, ties to even, saturating at 448.

    The clamp is explicit because torch's own cast saturates or gives NaN depending on its version and device.
    """
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def pack(codes: torch.Tensor) -> torch.Tensor:
    """Bytes [..., n] of codes [..., 2n] (uint8, 0 to 15), the even code in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def encode_e2m1(quotients: torch.Tensor) -> torch.Tensor:
    """Codes (uint8) of float32 values: nearest, ties to the even code, saturating at 6; signed only below zero."""
    magnitude = quotients.abs()
    codes = (quotients < 0).to(torch.uint8) << 3
    for bound, inclusive in zip(_BOUNDS, _INCLUSIVE, strict=True):
        codes += magnitude >= bound if inclusive else magnitude > bound
    return codes


def encode_e2m1_half_down(quotients: torch.Tensor) -> torch.Tensor:
    """Codes (uint8) of float32 values: nearest, ties toward zero, saturating at 6; everything not positive is signed."""
    magnitude = quotients.abs()
    codes = (~(quotients > 0)).to(torch.uint8) << 3
    for bound in _BOUNDS:
        codes += magnitude > bound
    return codes


_BOUNDS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_INCLUSIVE = (False, True, False, True, False, True, False)


@lru_cache(maxsize=64)
def _ceil_log2_slack(device: torch.device) -> torch.Tensor:
    """How many float32 steps above 2^k still have a float32 log2 of exactly k; index k + 127, for float32 in 2^k's binade.

    log2(2^k (1 + f)) = k + f / ln 2 to first order, and rounds to k while that is nearer to k than to the next float32.
    """
    slack = []
    for k in range(-127, 129):
        size = abs(k)
        place = size.bit_length() - 1
        if k < 0 and size == 1 << place:
            place -= 1  # towards zero the next float32 is half as far
        steps = math.floor(2.0 ** (place - 1) * math.log(2)) if k else 0
        slack.append(steps >> 1 if k == -127 else steps)  # subnormals have twice the step
    return torch.tensor(slack, dtype=torch.int32).to(device)


def ceil_log2(values: torch.Tensor) -> torch.Tensor:
    """ceil of the float32-rounded log2 of positive float32 values, at least -127, as int32; zero gives -127.

    Rounding log2 before ceil is what nvidia-modelopt does; it loses a step for values a few float32 steps above a power of
    two. Written on the bits, so that every device gives the same answer.
    """
    bits = values.contiguous().view(torch.int32)
    field = bits >> 23
    mantissa = bits & 0x7FFFFF
    # A subnormal lies in the binade of 2^-127 from 2^22 steps on, and clamps to -127 below that.
    above = torch.where(field > 0, mantissa, mantissa - (1 << 22))
    slack = torch.index_select(_ceil_log2_slack(values.device), 0, field.reshape(-1)).view(field.shape)
    return field - 127 + (above > slack).int()
