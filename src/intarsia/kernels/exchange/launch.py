"""Buffers and launches of the exchange over peer memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.device import on_device_of

TILE = 256
"""Numbers a program exchanges. A tile is always exchanged by the same program, whatever the rows.

On two H200 the fastest of 256, 512, 1024 and 2048 from 1 to 64 rows of 4,096."""
WARPS = 4
SLOTS = 2
WORD = 8
"""Bytes of a number with the call it belongs to."""


def buffer_bytes(ranks: int, most: int, tile: int = TILE) -> int:
    """Bytes of one rank's buffer for sums of up to `most` numbers. It must be zero before its first use."""
    return SLOTS * ranks * _whole(most, tile) * WORD


def refuse(partial: Tensor, most: int) -> str:
    """Why partial sums are not exchanged so, or the empty string."""
    if partial.device.type != "cuda":
        return f"the device is {partial.device.type}, not cuda"
    if partial.dtype != torch.float32:
        return f"{partial.dtype}, not float32"
    if partial.numel() > most:
        return f"{partial.numel()} numbers, and at most {most}"
    return ""


class Exchange:
    """One rank's end of exchanges over buffers that lie on all ranks' devices.

    All ranks must launch the same exchanges, each on one stream at a time. A launch works inside a CUDA
    graph: which half of the buffers is used and which call it is are counted on the device.
    """

    def __init__(
        self,
        buffers: Sequence[int],
        rank: int,
        device: torch.device,
        *,
        most: int,
        timeout: float,
        tile: int = TILE,
        keep: object = None,
    ) -> None:
        """`buffers` are the addresses of all ranks' buffers as this process sees them, of `buffer_bytes`;
        `keep` is what must live as long as they are used.

        A launch gives up waiting after `timeout` seconds, and says so in `failed`.
        """
        self.rank, self.ranks, self.most = rank, len(buffers), most
        self._keep = keep
        self._tile, self._room = tile, _whole(most, tile)
        self._limit = min(int(timeout * 1000), 2**31 - 1)
        self._buffers = torch.tensor(buffers, dtype=torch.int64, device=device)
        self._calls = torch.zeros(self._room // tile, dtype=torch.int32, device=device)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        """Not zero once another rank did not come in time; what was summed since is wrong."""

    def sum_in_rank_order(self, partial: Tensor) -> Tensor:
        """The ranks' contiguous float32 numbers added one after another, rank 0 first; a new tensor."""
        from intarsia.kernels.exchange import triton_exchange

        out = torch.empty_like(partial)
        count = partial.numel()
        with on_device_of(partial):
            triton_exchange.exchange[(-(-count // self._tile),)](
                partial,
                out,
                self._buffers,
                self._calls,
                self.failed,
                count,
                self._room,
                self._limit,
                RANK=self.rank,
                RANKS=self.ranks,
                TILE=self._tile,
                num_warps=WARPS,
            )
        return out


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile
