"""What the register kernels are given of rows and weights: words, scales, where the tiles of each begin."""

from collections.abc import Sequence

from torch import Tensor, int32

from intarsia.formats.fp8_block import scale_name_of
from intarsia.formats.stored import Stored
from intarsia.kernels.device import byte_view
from intarsia.kernels.weights import Weight

CODES = {"BF16": 0, "MXFP8": 1, "FP8_PB_WO": 2}


def sizes_of(weights: Sequence[Weight]) -> tuple[int, ...]:
    """Rows of each matrix."""
    return tuple(weight.shape[0] for weight in weights)


def first_tiles(sizes: Sequence[int], tile: int) -> tuple[int, ...]:
    """The first tile of each size, and the number of all."""
    first = [0]
    for size in sizes:
        first.append(first[-1] + -(-size // tile))
    return tuple(first)


def words_of(weight: Weight) -> Tensor:
    """A matrix's numbers or codes as int32."""
    tensor = weight if isinstance(weight, Tensor) else weight["weight"]
    return tensor.view(int32)


def scales_of(weight: Weight) -> Tensor:
    """Scales as the kernels read them; the words where a format has none."""
    if isinstance(weight, Stored) and weight.format == "MXFP8":
        return byte_view(weight["weight_scale"])
    if isinstance(weight, Stored) and weight.format == "FP8_PB_WO":
        return weight[scale_name_of(weight)]
    return words_of(weight)


def aligned_rows(xs: Sequence[Tensor]) -> list[Tensor]:
    """The same rows where every one begins on a multiple of 16 bytes, all with one stride."""
    found = [x if _aligned(x) else x.contiguous() for x in xs]
    return found if len({x.stride(0) for x in found}) == 1 else [x.contiguous() for x in found]


def _aligned(x: Tensor) -> bool:
    return x.stride(-1) == 1 and not x.stride(0) % 8 and not x.data_ptr() % 16
