"""The product of experts with one row on small shapes, on what stands in for Gluon: run as a program.

Prints one JSON object: case -> the largest error relative to the reference's largest value. Addresses, the
order of x, tiles and steps ahead are what can be wrong here; bits are for a GPU to show.
"""

import importlib
import json

import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels.experts import swiglu
from intarsia.kernels.experts.packed import PackedExperts, pack
from tests.kernels import gluon_stand_in as stand_in
from tests.kernels.gluon_stand_in import Pointer, Value, value
from tests.kernels.steps import error, randn

KERNELS = ("tiles", "rows", "weights", "single")
CHOSEN = (3, 0, 7, 5, -1, 2, 1, 6)
LIMIT = 3.0


def _bfloat16(bits: Tensor) -> Tensor:
    return (bits << 16).to(torch.int32).contiguous().view(torch.float32).bfloat16()


def _turned(words: Tensor, left: int) -> Tensor:
    return (words << left | words >> 32 - left) & 0xFFFFFFFF


def codes_of(words: Tensor, scales: Tensor) -> Tensor:
    """E2M1 codes of words with moved bits, times a scale and 2^-126; eight copies of each word are last."""
    words, scales = (part.long() & 0xFFFFFFFF for part in torch.broadcast_tensors(words, scales))
    pairs = [words, _turned(words, 10), _turned(words, 13), (words & 0x001B001B) * 0x1084]
    halves = [pairs[i // 2][..., i] >> 16 * (i % 2) & 0x81C0 for i in range(8)]
    return (_bfloat16(torch.stack(halves, -1)).double() * _bfloat16(scales & 0xFFFF).double()).bfloat16()


def scales_of(words: Tensor) -> tuple[Value, ...]:
    """Four E4M3 scales of a word, each as a pair of bfloat16 and times 2^7."""
    found = []
    for i in range(4):
        number = _bfloat16((words.long() >> 8 * i & 0xFF) << 4).double() * 2.0**127
        half = number.bfloat16().view(torch.int16).long() & 0xFFFF
        found.append((half | half << 16).to(torch.int32).as_subclass(Value))
    return tuple(found)


def halves_of(words: Tensor) -> Tensor:
    """bfloat16 of the halves of words, of which the last dimension holds two copies."""
    return _bfloat16(words.long() >> 16 * torch.arange(2) & 0xFFFF)


def assembly(text: str, _, arguments, **__):
    if "ld.global" in text:
        at, there = arguments
        return stand_in.load(at, (value(there) != 0).expand(at.offset.shape))
    if "0x7F007F00" in text:
        return scales_of(*arguments)
    run = codes_of if "0x81C081C0" in text else halves_of
    return run(*arguments).as_subclass(Value)


def kernel():
    """`one_row` as Python."""
    stand_in.inline_asm_elementwise = assembly
    plain, language = Pointer.__add__, stand_in.language
    Pointer.__sub__ = lambda at, count: plain(at, -count)
    Pointer.to = lambda at, _: at

    def with_dimensions():
        gl = language()
        gl.expand_dims = lambda x, dim: x.unsqueeze(dim)
        return gl

    stand_in.language = with_dimensions
    names = [f"intarsia.kernels.experts.gluon_{name}" for name in KERNELS]
    stand_in.load_kernels(*names)
    return importlib.import_module(names[-1]).one_row


def ordered(x: Tensor) -> Tensor:
    """Rows as the products read them: column [t t w w h i i] of each 128 at [w w t t i i h], times 2^64."""
    parts = x.double().reshape(len(x), -1, 4, 4, 2, 4).permute(0, 1, 3, 2, 5, 4)
    return (parts.reshape(x.shape) * 2.0**64).bfloat16()


def launch(run, x: Tensor, weight: PackedExperts, out: Tensor, depth: int) -> None:
    _, n, k = weight.shape
    words = (x, weight.codes, weight.scales)
    run[(n // 64, len(CHOSEN))](
        *[part.view(torch.int32) for part in words],
        weight.global_scales,
        torch.tensor(CHOSEN, dtype=torch.int32),
        out,
        LIMIT,
        N=n,
        K=k,
        PARTS=weight.global_scales.shape[1],
        GATED=weight.gated,
        DEPTH=depth,
        RELEASE=0,
        OVERLAP=0,
    )


def errors(run, name: str, rows: int, columns: int, gated: bool, depth: int) -> float:
    """Of a stack [8, rows, columns] of a format; of the pair without an expert nothing may be written."""
    made = formats.get(name).encode(0.2 * randn(8, rows, columns, seed=1))
    dense = formats.get(name).decode(made, torch.float32)
    x = randn(1 if gated else len(CHOSEN), columns, seed=2).bfloat16()
    out = torch.full(
        (len(CHOSEN), rows // 2 if gated else rows), torch.nan, dtype=torch.bfloat16 if gated else None
    )
    launch(run, ordered(x), pack(made, gated=gated), out, depth)
    worst = 0.0
    for pair, expert in enumerate(CHOSEN):
        if expert < 0:
            worst = max(worst, float(not out[pair].isnan().all()))
            continue
        sums = (x if gated else x[pair : pair + 1]).float() @ dense[expert].T
        wanted = ordered(swiglu(sums, LIMIT).bfloat16()) if gated else sums
        worst = max(worst, error(out[pair], wanted[0]))
    return worst


def main() -> None:
    torch.set_num_threads(1)
    run = kernel()
    cases = {
        "gate and up, all in flight": ("NVFP4", 256, 256, True, 2),
        "gate and up, in turns": ("NVFP4", 256, 512, True, 2),
        "gate and up, three steps": ("W4A16_NVFP4", 512, 384, True, 1),
        "down, all in flight": ("NVFP4", 256, 256, False, 2),
        "down, in turns": ("NVFP4", 128, 512, False, 1),
    }
    print(json.dumps({case: errors(run, *arguments) for case, arguments in cases.items()}))


if __name__ == "__main__":
    main()
