"""The register kernels with wide tiles on small shapes, on what stands in for Gluon: run as a program.

The two warpgroups run as threads, with barriers that count as those of the hardware do, so that a wait for
what never comes shows as one, and a buffer that is filled too early as a wrong sum. Prints what
`linear_interpreted` prints.
"""

import json
import math
import sys
import threading
import traceback
import types
from functools import partial

import torch

from intarsia import formats
from intarsia.kernels.linear import plan
from intarsia.kernels.linear.launch_wide import TILE
from intarsia.kernels.linear.operands import CODES, first_tiles, scales_of, sizes_of, words_of
from tests.kernels import gluon_stand_in as stand_in
from tests.kernels import linear_interpreted as interpreted
from tests.kernels.steps import randn

SECONDS = 30  # that a thread waits before it gives up
LIMIT = 3.0


class Barrier:
    """Phases of arrivals and of bytes that were announced."""

    def __init__(self, count: int) -> None:
        self.count, self.pending, self.bytes, self.phase = count, count, 0, 0

    def change(self, arrivals: int, size: int) -> None:
        with CHANGED:
            self.pending -= arrivals
            self.bytes += size
            interpreted.check(self.pending >= 0, "more arrivals than a phase has")
            if not self.pending and not self.bytes:
                self.pending, self.phase = self.count, 1 - self.phase
            CHANGED.notify_all()

    def wait(self, phase: int) -> None:
        with CHANGED:
            interpreted.check(CHANGED.wait_for(lambda: self.phase != phase, SECONDS), "nobody arrives")


CHANGED = threading.Condition()
BARRIERS: dict[int, Barrier] = {}


def barrier(place) -> Barrier:
    return BARRIERS[place.memory.data_ptr()]


def begin(place, count) -> None:
    BARRIERS[place.memory.data_ptr()] = Barrier(count)


def expect(place, size, pred=True) -> None:
    if pred:
        barrier(place).change(1, size)


def arrive(place, count=1, pred=True) -> None:
    if pred:
        barrier(place).change(count, 0)


def wait(place, phase, pred=True) -> None:
    if pred:
        barrier(place).wait(int(phase))


class Rows(interpreted.Rows):
    """Rows of x, of which a copy counts its bytes."""

    def copy(self, place, counts, tile, pred=True) -> None:
        super().copy(place, counts, tile, pred)
        if pred:
            barrier(counts).change(0, -2 * tile.memory.numel())


def side_by_side(functions, _, __) -> None:
    failed = []

    def run(function, arguments) -> None:
        try:
            function(*arguments)
        except BaseException:
            failed.append(traceback.format_exc())

    threads = [threading.Thread(target=run, args=one) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    interpreted.check(not failed, "\n".join(failed))


def part_of(memory, dtype, shape, _):
    return stand_in.Shared(memory.memory.view(-1).view(dtype)[: math.prod(shape)].view(tuple(shape)))


def modules() -> dict[str, types.ModuleType]:
    found = FOUND()
    hopper = found["triton.experimental.gluon.language.nvidia.hopper"]
    hopper.mbarrier = types.SimpleNamespace(
        init=begin,
        expect=expect,
        arrive=arrive,
        wait=wait,
        invalidate=lambda _: None,
        MBarrierLayout=stand_in.layout,
    )
    hopper.warpgroup_mma_init = lambda sums: sums
    found["triton.experimental.gluon.language"].warp_specialize = side_by_side
    return found


FOUND = interpreted.modules


def case(name, sizes, columns, rows, shape: plan.Wide, limit=None) -> float:
    """One launch, with the constants of `launch_wide`, of 64 rows of x a program."""
    weights = [formats.get(name).encode(randn(size, columns, seed=i)) for i, size in enumerate(sizes)]
    x = randn(rows, columns, seed=9).bfloat16()
    widths = [size if limit is None else size // 2 for size in sizes]
    outs = [torch.full((rows, width), torch.nan) for width in widths]
    ranges, first = plan.ranges_of(sum(sizes), columns), first_tiles(sizes, TILE)
    kernel = sys.modules["intarsia.kernels.linear.gluon_wide"].wide_rows
    kernel[(-(-rows // shape.rows) * first[-1],)](
        Rows(interpreted.arranged(x, name != "BF16")),
        tuple(interpreted.pointer(words_of(weight)) for weight in weights),
        tuple(interpreted.pointer(scales_of(weight)) for weight in weights),
        tuple(map(interpreted.pointer, outs)),
        tuple(widths),
        rows,
        LIMIT=limit,
        NS=sizes_of(weights),
        FIRST=first,
        K=columns,
        FORMAT=CODES[name],
        RANGES=ranges,
        NT=shape.rows,
        STAGES=shape.stages,
        LEAD=shape.lead,
        GROUP=max(1, shape.group // shape.rows),
        GATED=limit is not None,
        EVEN=not any(size % TILE for size in sizes),
        SHARED=shape.shared and ranges > 1,
        WIDTH=4,
        REGISTERS=256,
    )
    return max(
        interpreted.largest_error(out, weight, x, limit) for out, weight in zip(outs, weights, strict=True)
    )


def main() -> None:
    torch.set_num_threads(1)
    interpreted.modules = modules
    interpreted.KERNELS = (*interpreted.KERNELS, "gluon_wide_steps", "gluon_wide_tiles", "gluon_wide")
    stand_in.Shared._reinterpret = part_of
    interpreted.load_kernels()
    wide = plan.Wide
    cases = {
        "MXFP8, two ranges": ("MXFP8", (256, 200), 512, 150, wide(64, 3, 2, 128, True)),
        "MXFP8, one range": ("MXFP8", (272,), 384, 70, wide(64, 2, 3, 64, False)),
        "MXFP8, swiglu": ("MXFP8", (512,), 512, 70, wide(64, 4, 4, 64, False), LIMIT),
        "blocks, eight ranges": ("FP8_PB_WO", (256,), 2048, 70, wide(64, 3, 2, 64, True)),
        "blocks, swiglu": ("FP8_PB_WO", (512,), 512, 66, wide(64, 4, 2, 1024, False), LIMIT),
        "BF16, two ranges": ("BF16", (256, 200), 512, 70, wide(64, 3, 2, 64, True)),
    }
    print(json.dumps({key: partial(case, *arguments)() for key, arguments in cases.items()}))


if __name__ == "__main__":
    main()
