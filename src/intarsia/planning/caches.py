"""Bytes of what streams keep between steps, and of what a prompt works in, as the network allocates them."""

from dataclasses import dataclass

from intarsia.core.config import GPU_PROMPT_ROWS, CacheType
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import TEXT
from intarsia.families.glm5_next.split import shares, split_rule
from intarsia.kernels.kda.prompt import working_bytes

PAGE = 512
STEP_ROWS = 4
_INT32 = 4
_FLOAT32 = 4
_BFLOAT16 = 2


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """`paged` grows with the context, `fixed` is there for every stream."""

    paged: int
    fixed: int

    @property
    def total(self) -> int:
        return self.paged + self.fixed


def linear_heads(config: Glm5NextConfig, ranks: int, rank: int) -> int:
    """Linear-attention heads on a rank."""
    if not config.kda_layers:
        return 0
    rule = split_rule(config, f"{TEXT}layers.{config.kda_layers[0]}.self_attn.A_log")
    return len(shares(rule, ranks)[rank])


def linear_attention_bytes(config: Glm5NextConfig, ranks: int, rank: int) -> int:
    """What the GPU kernels of a prompt's linear attention hand to each other on a rank, at most: the chunks
    of a longer step follow each other.
    """
    return working_bytes(linear_heads(config, ranks, rank), config.linear_head_dim)


def prompt_bytes(config: Glm5NextConfig, ranks: int, rank: int, rows: int = GPU_PROMPT_ROWS) -> int:
    """What a step of so many prompt rows works in on a rank with a GPU, at most, activations in BF16.

    Layers follow each other. Of a layer the most is alive either in the routed experts, which have a row for
    each pair of a token and an expert, or in linear attention (see `linear_attention_bytes`). Measured at
    GLM-5.3-Flash's widths and 8,192 rows: 3.1 GB, 5 % more than this.
    """
    wide, width = config.hidden_size, linear_heads(config, ranks, rank) * config.linear_head_dim
    inner = -(-config.moe_intermediate_size // ranks)
    # the residual streams before and after a site, three float32 rows, two of the block's input
    row = 2 * config.hc_mult * wide * _BFLOAT16 + 3 * wide * _FLOAT32 + 2 * wide * _BFLOAT16
    pair = (wide + inner) * _BFLOAT16 + wide * _FLOAT32
    experts = rows * config.num_experts_per_tok * pair
    # q, k, v; decay, gate, and what is read
    attention = rows * 6 * width * _BFLOAT16 + linear_attention_bytes(config, ranks, rank)
    return rows * row + max(experts, attention)


def cache_bytes(
    config: Glm5NextConfig,
    *,
    context: int,
    streams: int,
    heads: int,
    element: int = 2,
    latents: CacheType = "auto",
    page: int = PAGE,
    step_rows: int = STEP_ROWS,
) -> CacheBytes:
    """Caches of `streams` sequences of up to `context` tokens on a rank with `heads` linear-attention heads.

    `element` is the bytes of a cached latent, key or column (BF16: 2), where `latents` does not say otherwise
    of latents; delta-rule state is float32, a copy for each of `step_rows` rows of a step. Whole pages, and
    the null page.
    """
    latent_layers = len(config.mla_layers) + config.num_nextn_predict_layers
    linear_layers = len(config.kda_layers)
    window_pages = -(-context // page)
    pages = streams * window_pages + 1
    # FP8 rows carry a float32 scale each.
    width = config.kv_lora_rank
    latent = {"bfloat16": 2 * width, "fp8": width + _FLOAT32}.get(latents, width * element)
    page_bytes = page * latent + config.index_head_dim * (page // config.index_kpool) * element
    tail = streams * (config.index_kpool - 1 + step_rows) * 2 * config.index_head_dim
    dim = config.linear_head_dim
    memory = linear_layers * streams * step_rows * heads * dim * dim * _FLOAT32
    ring = config.linear_conv_kernel_dim - 1 + step_rows
    columns = linear_layers * streams * ring * 3 * heads * dim
    tables = streams * (1 + window_pages) * _INT32
    return CacheBytes(
        paged=latent_layers * pages * page_bytes,
        fixed=(latent_layers * tail + columns) * element + memory + tables,
    )
