"""Rows, caches and selections of latent attention at the real geometry, for tests on a GPU."""

import torch
from torch import Tensor

from intarsia.kernels.mla import IndexKeys, Latents, entry
from intarsia.kernels.rows import Piece, Rows, rows_of
from tests.kernels.steps import page_table

HEADS, KEY, VALUE, LATENT, QUERY, WIDTH = 64, 256, 256, 512, 1536, 128
PAGE, GROUP, SLOTS = 512, 4, 2051
STREAMS, WINDOW = 4, 12
COUNTS = [*range(1, 18), 32, 64]
DTYPES = (torch.bfloat16, torch.float32)


def gpu(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def table() -> Tensor:
    order = torch.randperm(STREAMS * WINDOW, generator=torch.Generator().manual_seed(1)).tolist()
    return page_table(STREAMS, WINDOW, order).cuda()


def step(*parts: tuple[int, int, int, bool]) -> Rows:
    """Rows of parts (stream, position, count, recurrent)."""
    return rows_of([Piece(stream, at, [0] * n, form) for stream, at, n, form in parts], table())


def cache_of(dtype: torch.dtype, latent: int = LATENT) -> Tensor:
    """Latents of every page, NaN in the null page."""
    cache = gpu(STREAMS * WINDOW + 1, PAGE, latent, seed=2).to(dtype)
    cache[-1] = torch.nan
    return cache


def selection(rows: Rows, slots: int = SLOTS, group: int = GROUP) -> Tensor:
    """As the indexer makes it: pools at random, rising, none in the middle, then the unfinished pool."""
    generator = torch.Generator().manual_seed(3)
    top = slots - group + 1
    selected = torch.full((rows.tokens.shape[0], slots), -1, dtype=torch.int32)
    for row, position in enumerate(rows.positions.tolist()):
        pools = (position + 1) // group
        kept = torch.randperm(pools, generator=generator)[: top // group].sort().values
        tokens = (kept.unsqueeze(1) * group + torch.arange(group)).flatten()
        selected[row, : len(tokens)] = tokens.int()
        for j in range(position + 1 - pools * group):
            selected[row, top + j] = pools * group + j
    return selected.cuda()


def exact(q: Tensor, cache: Tensor, selected: Tensor, rows: Rows, scale: float) -> Tensor:
    """In float64; padding rows are zero."""
    out = torch.zeros(q.shape, dtype=torch.float64, device="cuda")
    for row in range(int(rows.starts[-1])):
        chosen = selected[row][selected[row] >= 0].long()
        if len(chosen):
            pages = rows.page_table[rows.streams[row].long(), chosen // PAGE].long()
            latents = cache[pages, chosen % PAGE].double()
            out[row] = torch.softmax(q[row].double() @ latents.T * scale, -1) @ latents
    return out


def caches(dtype: torch.dtype, scaled: bool) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    pages = STREAMS * WINDOW + 1
    latents = torch.full((pages, PAGE, LATENT), 7.0, device="cuda").to(
        torch.float8_e4m3fn if scaled else dtype
    )
    scales = torch.full((pages, PAGE), 7.0, device="cuda") if scaled else None
    tail = gpu(STREAMS, 11, 2 * WIDTH, seed=9).to(dtype)
    pooled = torch.full((pages, PAGE // GROUP, WIDTH), 7.0, device="cuda").to(dtype)
    return latents, scales, tail, pooled


def entering(rows: Rows, state, dtype: torch.dtype) -> tuple[Latents, IndexKeys]:
    """Raw rows of one long sequence a stream, so that pieces of it can be compared with the whole."""
    index = (rows.streams.clamp(min=0) * 7000 + rows.positions).long()
    stack = gpu(4 * 7000, QUERY + LATENT + 2 * WIDTH, seed=1).to(dtype)[index]
    query, latent, keys, gates = stack.split([QUERY, LATENT, WIDTH, WIDTH], -1)
    weights = [gpu(size, seed=size) for size in (QUERY, LATENT, WIDTH)]
    bias, ape = gpu(WIDTH, seed=5), gpu(GROUP, WIDTH, seed=6)
    latents = Latents(query, latent, weights[0], weights[1], 1e-5, state[0], state[1])
    return latents, IndexKeys(keys, gates, weights[2], bias, 1e-6, ape, state[2], state[3])


def run_entry(rows: Rows, state, dtype: torch.dtype, run=entry.launch) -> Tensor:
    return run(*entering(rows, state, dtype), rows)
