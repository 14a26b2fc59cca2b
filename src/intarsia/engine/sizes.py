"""How much state fits, before any of it is allocated."""

from dataclasses import dataclass

import torch

from intarsia.core.config import CacheType
from intarsia.engine.errors import CapacityError
from intarsia.engine.settings import StreamSettings
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.models.glm5_next.state import State, StateSettings

DEFAULT_POOL_TOKENS = 131_072


@dataclass(frozen=True, slots=True)
class StateSizes:
    """Bytes of each part of the state, exactly as the caches will be allocated."""

    page: int
    """One page: latents and pooled keys of all latent-attention layers, the MTP layer included."""
    stream: int
    """The fixed state of a stream: delta-rule copies, convolution and index rings, its row of the page
    table."""
    kept: int
    """The fixed part of a kept prompt state: one delta-rule copy and the rings. Its pages come on top."""
    shared: int
    """What is there once: the null page."""

    def total(self, streams: int, pages: int) -> int:
        """Bytes of a pool of `pages` and the fixed state of `streams`."""
        return self.shared + streams * self.stream + pages * self.page


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an engine will hold, and what that takes."""

    state: StateSettings
    sizes: StateSizes

    @property
    def total(self) -> int:
        """Bytes of everything but kept states' fixed parts."""
        return self.sizes.total(self.state.streams, self.state.pages)


def state_sizes(
    config: Glm5NextConfig,
    *,
    window: int,
    page: int,
    step_rows: int,
    dtype: torch.dtype,
    latents: CacheType = "auto",
    ranks: int = 1,
) -> StateSizes:
    """Read the sizes off caches without memory behind them; of several ranks, those of the largest share."""
    settings = StateSettings(streams=1, window=window, pages=0, page=page, step_rows=step_rows)
    heads = -(-config.linear_num_heads // ranks)
    state = State(config, settings, dtype=dtype, device="meta", latents=latents, linear_heads=heads)
    null_page = state.paged_bytes
    rings = state.window.nbytes + state.tail.nbytes
    hidden = config.hidden_size * dtype.itemsize
    return StateSizes(
        page=null_page,
        stream=state.nbytes - null_page,
        kept=state.memory.nbytes // step_rows + rings + hidden,
        shared=null_page,
    )


def plan_capacity(
    config: Glm5NextConfig,
    settings: StreamSettings,
    dtype: torch.dtype,
    latents: CacheType = "auto",
    *,
    ranks: int = 1,
) -> Capacity:
    """The pool and streams that `settings` ask for, `latents` stored as the network does it; the same on each
    of `ranks`.

    Raises CapacityError when a whole window does not fit the pool, or the streams' fixed state and one
    window do not fit the bytes given; it names the largest window or stream count that does.
    """
    limit = config.max_position_embeddings
    window = settings.window or limit
    if window > limit:
        raise CapacityError(
            "window",
            largest=limit,
            found=f"{window} tokens",
            expected=f"at most {limit}, the model's own limit",
            action="use a smaller window",
        )
    sizes = state_sizes(
        config,
        window=window,
        page=settings.page,
        step_rows=settings.step_rows,
        dtype=dtype,
        latents=latents,
        ranks=ranks,
    )
    pages = _pages(settings, window, sizes)
    state = StateSettings(settings.streams, window, pages, settings.page, settings.step_rows)
    return Capacity(state, sizes)


def _pages(settings: StreamSettings, window: int, sizes: StateSizes) -> int:
    page, streams = settings.page, settings.streams
    needed = -(-window // page)
    if settings.state_bytes is None:
        if settings.pool_tokens is None:
            # Every stream's window in whole pages, no more than the default unless one window needs it.
            return min(streams * needed, max(needed, DEFAULT_POOL_TOKENS // page))
        pages = settings.pool_tokens // page
        if pages < needed:
            raise CapacityError(
                "window",
                largest=pages * page,
                found=f"{window} tokens and a pool of {settings.pool_tokens}",
                expected="a pool that holds one whole window",
                action=f"use a window of at most {pages * page} tokens or a larger pool",
            )
        return pages
    budget = settings.state_bytes
    pages = (budget - sizes.total(streams, 0)) // sizes.page
    if pages >= needed:
        return min(pages, streams * needed + _kept_pages(settings, sizes))
    fitting = (budget - sizes.total(0, needed)) // sizes.stream
    if fitting >= 1:
        raise CapacityError(
            "streams",
            largest=fitting,
            found=f"{streams} streams of {sizes.stream:,} bytes beside a window of {window} tokens",
            expected=f"at most {budget:,} bytes",
            action=f"use at most {fitting} streams, or a window of {max(0, pages) * page} tokens",
        )
    largest = max(0, (budget - sizes.total(1, 0)) // sizes.page * page)
    raise CapacityError(
        "window",
        largest=largest,
        found=f"a window of {window} tokens",
        expected=f"at most {largest} tokens for one stream in {budget:,} bytes",
        action="use a smaller window or more memory",
    )


def _kept_pages(settings: StreamSettings, sizes: StateSizes) -> int:
    """More pages than streams and kept states could ever hold are not allocated."""
    return settings.kept_bytes // sizes.page
