"""Multi-head latent attention in absorbed form, over the selected tokens of a paged latent cache."""

from intarsia.kernels.mla.latents import encode_latents, write_latents
from intarsia.kernels.mla.reference import absorb_keys, attend, expand_values

__all__ = ["absorb_keys", "attend", "encode_latents", "expand_values", "write_latents"]
