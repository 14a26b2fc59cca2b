"""The pooled sparse indexer: which tokens a row of MLA attends to."""

from intarsia.kernels.indexer.choosing import choose_tokens
from intarsia.kernels.indexer.pooling import pool_keys
from intarsia.kernels.indexer.scoring import score_pools
from intarsia.kernels.indexer.selection import select_tokens, selected_width

__all__ = ["choose_tokens", "pool_keys", "score_pools", "select_tokens", "selected_width"]
