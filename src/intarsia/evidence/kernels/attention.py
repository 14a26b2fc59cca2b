"""Latent attention between its projections: a layer's operations together, and each by itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from intarsia.evidence.kernels import attention_floors as floors
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.caches import PAGE, POOL_PAGES, Caches
from intarsia.kernels import choice
from intarsia.kernels.indexer import choose_tokens, selected_width
from intarsia.kernels.indexer import launch as indexer
from intarsia.kernels.mla import absorb_keys, attend, attend_values, enter_rows, expand_values
from intarsia.kernels.rows import Rows

ROWS, MOST_ROWS = (1, 8, 32), 64
PROMPT_ROWS = (1024, 2048)
CONTEXTS, LONG_CONTEXTS, PROMPT_CONTEXTS = (100, 4096, 131072), (1 << 20,), (8192, 131072)
TURNS = 8
SCORES = 1 << 28
"""Most scores that are made for the selection alone."""


def measure(
    bench: Bench,
    contexts: Sequence[int] = CONTEXTS,
    longer: Sequence[int] = LONG_CONTEXTS,
    prompts: Sequence[int] = PROMPT_CONTEXTS,
    caches: tuple[int, int] = (PAGE, POOL_PAGES),
) -> None:
    """Rows that are written, then the last rows of prompts; the indexer also over longer contexts."""
    mla = _Mla(bench, Caches(bench, *caches))
    written = bench.counts(ROWS, most=MOST_ROWS)
    for rows in written:
        for context in contexts:
            mla.together(rows, context)
            mla.attending(rows, context)
        for context in (*contexts, *longer):
            mla.choosing(rows, context)
        mla.products(rows)
        mla.entering(rows)
    for rows in bench.counts(PROMPT_ROWS, least=512):
        short, *rest = (max(rows, context) for context in prompts)
        mla.together(rows, short, prompt=True)
        for context in sorted({rows, short}):
            mla.attending(rows, context, prompt=True)
        for context in sorted({short, *rest}):
            mla.choosing(rows, context, prompt=True)
        mla.products(rows)
        mla.entering(rows, prompt=True)


@dataclass(slots=True)
class _Mla:
    """The cases. Calls take turns with steps of other streams, or with other weights."""

    bench: Bench
    caches: Caches
    kv_b: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        config = self.bench.config
        rows = config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
        self.kv_b = [self.caches.numbers(rows, config.kv_lora_rank) for _ in range(TURNS)]

    def together(self, rows: int, context: int, *, prompt: bool = False) -> None:
        """Everything of a layer between its projections, one after another as in a step."""
        config, numbers = self.bench.config, self.caches.numbers
        key, value, top, group = self._sizes()
        latents, keys = self.caches.entering(rows)
        q, queries, weights = numbers(rows, config.num_attention_heads, key), *self._queries(rows)

        def call(step: Rows, kv_b: Tensor) -> Tensor:
            enter_rows(latents, keys, step)
            selected = choose_tokens(queries, weights, self.caches.pooled, step, top, group)
            absorbed = absorb_keys(q, kv_b, key, value, settled=True)
            cache, scale = self.caches.latents, key**-0.5
            return attend_values(absorbed, cache, selected, step, scale, kv_b, key, value)

        steps = self._steps(rows, context, prompt)
        self._add(
            f"between products, {_tokens(context)}",
            rows,
            [partial(call, s, w) for s, w in zip(steps, self.kv_b, strict=False)],
            floors.latent_bytes(config, rows, context, prompt)
            + floors.pooled_bytes(config, rows, context, prompt)
            + self.kv_b[0].nbytes,
            floors.attended(config, rows, context)
            + 2 * floors.absorbed(config, rows)
            + floors.scored(config, rows, context),
        )

    def attending(self, rows: int, context: int, *, prompt: bool = False) -> None:
        """Softmax and sums; a prompt's rows share most of what they read: bytes are counted once."""
        config, caches = self.bench.config, self.caches
        q = caches.numbers(rows, config.num_attention_heads, config.kv_lora_rank)
        scale = config.qk_nope_head_dim**-0.5
        chosen = [(step, caches.selection(step)) for step in self._steps(rows, context, prompt)]
        self._add(
            f"attend, {_tokens(context)}",
            rows,
            [partial(attend, q, caches.latents, c, s, scale) for s, c in chosen],
            floors.latent_bytes(config, rows, context, prompt) + 2 * q.nbytes,
            floors.attended(config, rows, context),
            other="triton",
        )

    def choosing(self, rows: int, context: int, *, prompt: bool = False) -> None:
        """Scores and selection together, and the selection alone."""
        config = self.bench.config
        _, _, top, group = self._sizes()
        queries, weights = self._queries(rows)
        steps = self._steps(rows, context, prompt)
        self._add(
            f"choose tokens, {_tokens(context)}",
            rows,
            [partial(choose_tokens, queries, weights, self.caches.pooled, s, top, group) for s in steps],
            floors.pooled_bytes(config, rows, context, prompt) + rows * selected_width(top, group) * 4,
            floors.scored(config, rows, context),
        )
        if choice.no_triton(self.bench.device):
            return
        pools = context // group
        size = min(rows, SCORES // pools)
        scores = self.caches.numbers(size, pools, dtype=torch.float32)
        selected = self.bench.integers([0] * rows).unsqueeze(1).repeat(1, selected_width(top, group))

        def select() -> Tensor:
            indexer.launch_selection(scores, steps[0].positions, steps[0].streams, top, group, selected)
            return selected

        moved = scores.nbytes + size * selected.shape[1] * 4
        self._add(f"selection alone, {_tokens(context)}", size, [select] * len(steps), moved)

    def products(self, rows: int) -> None:
        """Queries into latent space, and latents out of it."""
        config = self.bench.config
        key, value, _, _ = self._sizes()
        q = self.caches.numbers(rows, config.num_attention_heads, key)
        latents = self.caches.numbers(rows, config.num_attention_heads, config.kv_lora_rank)
        moved, operations = self.kv_b[0].nbytes / 2 + q.nbytes + latents.nbytes, floors.absorbed(config, rows)
        absorbing = [partial(absorb_keys, q, w, key, value) for w in self.kv_b]
        self._add("absorb keys", rows, absorbing, moved, operations)
        expanding = [partial(expand_values, latents, w, key, value) for w in self.kv_b]
        self._add("expand values", rows, expanding, moved, operations)

    def entering(self, rows: int, *, prompt: bool = False) -> None:
        """Norms, the latent into its page, pooled and raw keys."""
        latents, keys = self.caches.entering(rows)
        (step,) = self._steps(rows, max(4096, rows), prompt)[:1]
        parts = (latents.query, latents.latent, keys.keys, keys.gates)
        moved = 2 * sum(part.nbytes for part in parts)  # read and written
        self._add("enter rows", rows, [partial(enter_rows, latents, keys, step)] * TURNS, moved)

    def _add(
        self,
        case: str,
        rows: int,
        calls: Sequence[Callable[[], Tensor]],
        moved: float,
        operations: float = 0.0,
        *,
        other: str = "",
    ) -> None:
        taken = self.bench.finite(case, calls)
        beside = self.bench.variant(other, other, calls) if other else {}
        self.bench.table.add(
            "attention", case, rows, taken, moved=moved, operations=operations, beside=beside
        )

    def _steps(self, rows: int, context: int, prompt: bool) -> list[Rows]:
        turns = 1 if prompt else TURNS
        return [self.caches.step(rows, context, turn, prompt=prompt) for turn in range(turns)]

    def _queries(self, rows: int) -> tuple[Tensor, Tensor]:
        heads, width = self.bench.config.index_n_heads, self.bench.config.index_head_dim
        return self.caches.numbers(rows, heads, width), self.caches.numbers(rows, heads, dtype=torch.float32)

    def _sizes(self) -> tuple[int, int, int, int]:
        config = self.bench.config
        return config.qk_nope_head_dim, config.v_head_dim, config.index_topk, config.index_kpool


def _tokens(context: int) -> str:
    return f"{context:,} tokens"
