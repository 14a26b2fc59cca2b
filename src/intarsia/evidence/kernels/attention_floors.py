"""What an MLA layer's operations must read and compute at least."""

from intarsia.families.glm5_next.config import Glm5NextConfig


def latent_bytes(config: Glm5NextConfig, rows: int, context: int, prompt: bool) -> int:
    """Of latents in BF16: those that rows attend to, or a prompt's, each once."""
    tokens = context if prompt else rows * min(context, config.index_topk)
    return tokens * config.kv_lora_rank * 2


def pooled_bytes(config: Glm5NextConfig, rows: int, context: int, prompt: bool) -> int:
    """Of pooled keys in BF16: all of each stream's."""
    streams = 1 if prompt else rows
    return streams * (context // config.index_kpool) * config.index_head_dim * 2


def attended(config: Glm5NextConfig, rows: int, context: int) -> float:
    """Operations of scores and sums over what is selected."""
    seen = min(context, config.index_topk)
    return 4.0 * rows * config.num_attention_heads * seen * config.kv_lora_rank


def scored(config: Glm5NextConfig, rows: int, context: int) -> float:
    """Operations of the indexer's scores."""
    pools = context // config.index_kpool
    return 2.0 * rows * config.index_n_heads * config.index_head_dim * pools


def absorbed(config: Glm5NextConfig, rows: int) -> float:
    """Operations of carrying queries into latent space; carrying values out of it takes as many where keys
    and values are of one width.
    """
    return 2.0 * rows * config.num_attention_heads * config.qk_nope_head_dim * config.kv_lora_rank
