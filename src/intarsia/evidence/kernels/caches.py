"""Paged caches of latent attention with random contents, and steps of rows over them."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from intarsia.evidence.kernels.bench import Bench
from intarsia.kernels.indexer import selected_width
from intarsia.kernels.mla import IndexKeys, Latents
from intarsia.kernels.rows import Rows

PAGE = 512
POOL_PAGES = 2048
"""Pages that exist: those of 16 streams of 64k tokens; longer ones share some."""
STEP_ROWS = 8
SIZE = 0.3  # of random numbers


@dataclass(slots=True)
class Caches:
    """What all cases of an MLA layer share."""

    bench: Bench
    page: int = PAGE
    pages: int = POOL_PAGES
    latents: Tensor = field(init=False)
    pooled: Tensor = field(init=False)

    def __post_init__(self) -> None:
        config = self.bench.config
        self.latents = self.numbers(self.pages, self.page, config.kv_lora_rank)
        self.pooled = self.numbers(self.pages, self.page // config.index_kpool, config.index_head_dim)

    def numbers(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Random numbers that are not large."""
        return self.bench.numbers(*shape, dtype=dtype) * SIZE

    def step(self, rows: int, context: int, turn: int, *, prompt: bool) -> Rows:
        """One row of each of `rows` streams at the end of its context, or the last rows of one prompt. Pages
        lie apart; each turn has others.
        """
        device, pages = self.bench.device, -(-context // self.page)
        streams = 1 if prompt else rows
        order = torch.arange(streams * pages, device=device) + turn * streams * pages
        places = torch.arange(rows, device=device, dtype=torch.int32)
        return Rows(
            tokens=torch.zeros(rows, dtype=torch.int64, device=device),
            positions=context - rows + places if prompt else torch.full_like(places, context - 1),
            streams=torch.zeros_like(places) if prompt else places,
            starts=self.bench.integers([0, rows] if prompt else list(range(rows + 1))),
            page_table=(order * 797 % self.pages).int().view(streams, pages),
            recurrent_segments=0 if prompt else rows,
        )

    def selection(self, rows: Rows) -> Tensor:
        """For each row pools at random, rising; none is of use beyond the row."""
        config, device = self.bench.config, self.bench.device
        group, top = config.index_kpool, config.index_topk
        pools = ((rows.positions.long() + 1) // group).unsqueeze(1)
        most = max(1, int(pools.max()))
        keys = torch.rand(len(pools), most, generator=self.bench.generator, device=device)
        keys.masked_fill_(torch.arange(most, device=device) >= pools, -1)
        drawn = keys.topk(min(top // group, most)).indices
        drawn = torch.where(drawn < pools, drawn, most).sort(-1).values.unsqueeze(-1)
        tokens = drawn * group + torch.arange(group, device=device)
        tokens = torch.where(drawn < pools.unsqueeze(-1), tokens, -1).flatten(1)
        selected = torch.full((len(pools), selected_width(top, group)), -1, dtype=torch.int32, device=device)
        selected[:, : tokens.shape[1]] = tokens
        return selected

    def entering(self, rows: int) -> tuple[Latents, IndexKeys]:
        """What the projections give for so many rows, and where it goes."""
        config = self.bench.config
        width, group = config.index_head_dim, config.index_kpool
        sizes = [config.q_lora_rank, config.kv_lora_rank, width, width]
        query, latent, keys, gates = torch.split(self.numbers(rows, sum(sizes)), sizes, -1)
        tail = self.numbers(rows, group - 1 + STEP_ROWS, 2 * width)
        norms = self.numbers(config.q_lora_rank), self.numbers(config.kv_lora_rank)
        norm, bias, ape = self.numbers(width), self.numbers(width), self.numbers(group, width)
        return (
            Latents(query, latent, *norms, config.rms_norm_eps, self.latents),
            IndexKeys(keys, gates, norm, bias, 1e-6, ape, tail, self.pooled),
        )
