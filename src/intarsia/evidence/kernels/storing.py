"""What loading runs on the device: compressed scales written out, and bytes carried to where they belong."""

from functools import partial

import torch
from torch import Tensor

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.synthetic.values import random_stored
from intarsia.formats import csf
from intarsia.formats.csf.block import BLOCK
from intarsia.formats.csf.slab import NVFP4_SLAB
from intarsia.kernels import csf as on_device
from intarsia.kernels.scatter import CHUNK, scatter, table

MATRICES = 8
"""Different matrices; a batch has each of them several times."""
BATCH = 576
PARTS, PART_BYTES = 512, 1 << 19
CODECS = (NVFP4_SLAB.name, BLOCK.name)


def measure(bench: Bench, batch: int = BATCH, parts: int = PARTS, part_bytes: int = PART_BYTES) -> None:
    """The scales of down projections of whole layers, and a staged piece of a shard."""
    config = bench.config
    rows, columns = config.hidden_size, config.moe_intermediate_size // 16
    scales = [
        random_stored("NVFP4", rows, 16 * columns, bench.generator)["weight_scale"].view(torch.uint8)
        for _ in range(min(MATRICES, batch))
    ]
    for codec in CODECS:
        if on_device.expands_together(codec, rows, columns, bench.device):
            _expand(bench, codec, scales, batch)
        else:
            bench.skipped.setdefault(codec, "no kernel expands it here")
    _scatter(bench, parts, part_bytes)


def _expand(bench: Bench, codec: str, scales: list[Tensor], batch: int) -> None:
    """The floor: components read, scales written."""
    rows, columns = scales[0].shape
    coded = [csf.encode(one.cpu(), codec) for one in scales]
    last = csf.components(codec)[-1]
    which = list(range(batch))
    chosen = [coded[place % len(coded)] for place in which]
    stack = torch.empty(batch, rows, columns, dtype=torch.uint8, device=bench.device)
    whole = on_device.Batch(codec, stack, which, [part[last].numel() for part in chosen])
    coded_there = [{name: part.to(bench.device) for name, part in one.items()} for one in coded]
    for place in which:
        part = coded_there[place % len(coded_there)]
        for name, target in whole.components(place).items():
            target.view(-1).copy_(part[name].view(-1))
    taken = (bench.eager or bench.clock)([whole.expand])
    same = all(torch.equal(stack[place], scales[place % len(scales)]) for place in (0, batch - 1))
    read = sum(tensor.nbytes for part in chosen for tensor in part.values())
    if not same:
        raise ValueError(f"{codec}: other scales than those that were compressed")
    bench.table.add("storing", f"expand {codec}", batch, taken, moved=read + stack.nbytes)


def _scatter(bench: Bench, parts: int, part_bytes: int) -> None:
    """Parts of a buffer to places in another order; every second one begins on an odd address."""
    size = parts * part_bytes
    buffer = torch.randint(256, (size,), dtype=torch.uint8, device=bench.device)
    out = torch.empty(2 * size, dtype=torch.uint8, device=bench.device)
    numbers = torch.arange(parts)
    place, count = numbers * part_bytes, torch.full_like(numbers, part_bytes)
    address = out.data_ptr() + (numbers * 797 % parts) * 2 * part_bytes + numbers % 2
    rows, _ = table(*(values.numpy() for values in (place, address, count)))
    on_gpu = bench.device.type == "cuda"
    room = torch.empty(rows.shape, dtype=torch.int64, pin_memory=True) if on_gpu else None
    taken = (bench.eager or bench.clock)([partial(scatter, buffer, rows, room)])
    if not torch.equal(out[address[1] - out.data_ptr() :][:part_bytes], buffer[part_bytes : 2 * part_bytes]):
        raise ValueError("scatter: other bytes than those of the buffer")
    name = f"scatter, parts of {part_bytes >> 10:,} KB in pieces of {CHUNK >> 10}"
    bench.table.add("storing", name, parts, taken, moved=2 * size)
