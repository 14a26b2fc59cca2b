"""Multi-head latent attention in absorbed form, over the selected tokens of a paged latent cache."""

from intarsia.kernels.mla.attention import absorb_keys, attend, attend_values, expand_values
from intarsia.kernels.mla.entry import IndexKeys, Latents, enter_rows
from intarsia.kernels.mla.latents import encode_latents, write_latents

__all__ = [
    "IndexKeys",
    "Latents",
    "absorb_keys",
    "attend",
    "attend_values",
    "encode_latents",
    "enter_rows",
    "expand_values",
    "write_latents",
]
