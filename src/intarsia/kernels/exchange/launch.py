"""Buffers and launches of the exchanges over peer memory."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting, on_device_of

TILE = 256
"""Numbers a program of the small exchange takes. A tile is always the same program's, whatever the rows.

On two H200 the fastest of 256, 512, 1024 and 2048 from 1 to 64 rows of 4,096."""
CHUNK, WIDE_PROGRAMS, SLOTS = 4096, 256, 4
"""Of the wide exchange: numbers a program sends at once, programs, and chunks of each that a buffer holds."""
WARPS, WIDE_WARPS = 4, 8
HALVES = 2
WORD, NUMBER, FLAG = 8, 4, 4
"""Bytes of a number with the call it belongs to, of a number, and of a call."""
MOST = 1 << 18
"""Numbers of the small exchange: 64 rows of 4,096."""
WIDE_MOST = 1 << 30
"""Numbers of the wide one."""


def buffer_bytes(ranks: int, most: int = MOST, wide: bool = False, tile: int = TILE) -> int:
    """Bytes of one rank's buffer for small sums of up to `most` numbers, and for wide ones.

    It must be zero before its first use.
    """
    return _small_bytes(ranks, most, tile) + (_wide_bytes(ranks) if wide else 0)


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
        most: int = MOST,
        wide: bool = False,
        timeout: float,
        tile: int = TILE,
        keep: object = None,
    ) -> None:
        """`buffers` are the addresses of all ranks' buffers as this process sees them, of `buffer_bytes`;
        `keep` is what must live as long as they are used.

        A launch gives up waiting after `timeout` seconds, and says so in `failed`.
        """
        self.rank, self.ranks, self.most = rank, len(buffers), WIDE_MOST if wide else most
        self._keep = keep
        self.wide = wide
        """Whether there is a buffer for the wide exchange."""
        self._small, self._tile, self._room = most, tile, _whole(most, tile)
        self._limit = min(int(timeout * 1000), 2**31 - 1)
        small = _small_bytes(self.ranks, most, tile)
        self._buffers = torch.tensor(buffers, dtype=torch.int64, device=device)
        self._wide_buffers = self._buffers + small
        self._calls = torch.zeros(self._room // tile, dtype=torch.int32, device=device)
        self._wide_calls = torch.zeros(WIDE_PROGRAMS, dtype=torch.int32, device=device)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        """Not zero once another rank did not come in time; what was summed since is wrong."""

    def sum_in_rank_order(self, partial: Tensor) -> Tensor:
        """The ranks' contiguous float32 numbers added one after another, rank 0 first; a new tensor."""
        from intarsia.kernels.exchange import triton_exchange

        out = torch.empty_like(partial)
        count = partial.numel()
        if count > self._small:
            self._wide(partial, out, 0, count, count, add=True)
            return out
        with on_device_of(partial):
            triton_exchange.exchange[(-(-count // self._tile),)](
                partial, out, self._buffers, self._calls, self.failed, count, self._room, self._limit,
                RANK=self.rank, RANKS=self.ranks, TILE=self._tile, ADD=True, num_warps=WARPS, **_overlap(),
            )  # fmt: skip
        return out

    def sum_of_own(self, partial: Tensor, rows: int) -> Tensor:
        """Of the same sums the `rows` rows from rank times `rows` on, or what there is of them."""
        own = partial[self.rank * rows : (self.rank + 1) * rows]
        out, width = torch.empty_like(own), partial[0].numel()
        self._wide(partial, out, rows * width, rows * width, partial.numel(), add=True)
        return out

    def gather_own(self, own: Tensor, rows: int, total: int) -> Tensor:
        """The ranks' rows below each other, `rows` of each, `total` in all: a copy of every bit."""
        out = torch.empty((total, *own.shape[1:]), dtype=own.dtype, device=own.device)
        width = out[0].nbytes // NUMBER
        self._wide(_numbers(own), _numbers(out), rows * width, rows * width, total * width, add=False)
        return out

    def _wide(self, numbers: Tensor, out: Tensor, stride: int, count: int, total: int, *, add: bool) -> None:
        from intarsia.kernels.exchange import triton_wide

        with on_device_of(out):
            triton_wide.exchange_wide[(WIDE_PROGRAMS,)](
                numbers, out, self._wide_buffers, self._wide_calls, self.failed, stride, count, total,
                self._limit, RANK=self.rank, RANKS=self.ranks, CHUNK=CHUNK, PROGRAMS=WIDE_PROGRAMS, ADD=add,
                num_warps=WIDE_WARPS,
            )  # fmt: skip

    def takes(self, own: Tensor) -> bool:
        """Whether `gather` gathers such a tensor."""
        return own.is_cuda and own.nbytes % NUMBER == 0 and 0 < own.nbytes <= self._small * NUMBER

    def gather(self, own: Tensor) -> Tensor:
        """All ranks' tensors of one shape and dtype [RANKS, ..], rank 0 first: a copy of every bit."""
        from intarsia.kernels.exchange import triton_exchange

        out = torch.empty((self.ranks, *own.shape), dtype=own.dtype, device=own.device)
        count = own.nbytes // NUMBER
        with on_device_of(own):
            triton_exchange.exchange[(-(-count // self._tile),)](
                own.contiguous().view(-1).view(torch.int32), out.view(-1).view(torch.int32), self._buffers,
                self._calls, self.failed, count, self._room, self._limit, RANK=self.rank, RANKS=self.ranks,
                TILE=self._tile, ADD=False, num_warps=WARPS, **_overlap(),
            )  # fmt: skip
        return out


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.float32)


def _overlap() -> dict[str, bool]:
    """The kernel may begin while the one before it ends; it waits before it reads."""
    return {"OVERLAP": True, "launch_pdl": True} if not interpreting() else {"OVERLAP": False}


def _small_bytes(ranks: int, most: int, tile: int) -> int:
    return HALVES * ranks * _whole(most, tile) * WORD


def _wide_bytes(ranks: int) -> int:
    return ranks * WIDE_PROGRAMS * (SLOTS * CHUNK * NUMBER + FLAG)


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile
