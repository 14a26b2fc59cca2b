"""Float32 partial sums of several GPUs, exchanged over peer memory and added in rank order."""

from intarsia.kernels.exchange.launch import (
    MOST,
    TILE,
    WIDE_MOST,
    Exchange,
    SiteSums,
    buffer_bytes,
    refuse,
)

__all__ = ["MOST", "TILE", "WIDE_MOST", "Exchange", "SiteSums", "buffer_bytes", "refuse"]
