"""Bytes of what a sequence keeps on a rank: caches that grow with it, and a fixed part.

Latents and pooled keys are replicated on every rank; KDA state and convolution windows are cut by heads.
"""

from dataclasses import dataclass

from intarsia.families.glm5_next.config import Glm5NextConfig

BF16_BYTES = 2
F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class TokenState:
    """Bytes a token of context, all MLA layers together: the latent, and its share of a pooled key."""

    latent: int
    pooled_key: int

    @property
    def total(self) -> int:
        return self.latent + self.pooled_key


@dataclass(frozen=True, slots=True)
class FixedState:
    """Bytes a sequence, whatever its length."""

    kda_state: int
    convolution: int
    index_tail: int

    @property
    def total(self) -> int:
        return self.kda_state + self.convolution + self.index_tail


def token_state(config: Glm5NextConfig, *, mtp: bool = True) -> TokenState:
    """Bytes of one token in the caches of all MLA layers, BF16; the pooled key counts a `index_kpool`th."""
    layers = _mla_count(config, mtp)
    pooled = layers * config.index_head_dim * BF16_BYTES
    # Every pool size in use divides the width of a key, so a page holds a whole number of bytes a token.
    return TokenState(layers * config.kv_lora_rank * BF16_BYTES, pooled // config.index_kpool)


def fixed_state(
    config: Glm5NextConfig,
    *,
    mtp: bool = True,
    heads: int | None = None,
    copies: int = 1,
    tail_slots: int = 4,
) -> FixedState:
    """Bytes of one sequence on a rank that holds `heads` KDA heads (default: all).

    `copies` counts kept KDA states (one more than the rows that may be taken back), `tail_slots` the raw keys
    and gates kept of unfinished pools. State is F32, windows and tails BF16.
    """
    heads = config.linear_num_heads if heads is None else heads
    dim = config.linear_head_dim
    layers = len(config.kda_layers)
    window = (config.linear_conv_kernel_dim - 1) * 3 * heads * dim * BF16_BYTES
    tail = 2 * tail_slots * config.index_head_dim * BF16_BYTES
    return FixedState(
        kda_state=copies * layers * heads * dim * dim * F32_BYTES,
        convolution=layers * window,
        index_tail=_mla_count(config, mtp) * tail,
    )


def _mla_count(config: Glm5NextConfig, mtp: bool) -> int:
    return len(config.mla_layers) + (config.num_nextn_predict_layers if mtp else 0)
