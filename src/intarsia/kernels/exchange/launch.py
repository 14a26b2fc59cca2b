"""Buffers and launches of the exchanges over peer memory."""

from collections.abc import Sequence
from dataclasses import dataclass

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
SITE_PROGRAMS, SITE_TILE = 128, 2048
"""Programs that sum what they need themselves, and numbers of each: 64 rows of 4,096."""
WIDE_MOST = 1 << 30
"""Numbers of the wide one."""


def buffer_bytes(ranks: int, most: int = MOST, wide: bool = False, tile: int = TILE) -> int:
    """Bytes of one rank's buffer: for small sums of up to `most` numbers, for those of sites, for wide ones.

    It must be zero before its first use.
    """
    return _small_bytes(ranks, most, tile) + _site_bytes(ranks) + (_wide_bytes(ranks) if wide else 0)


@dataclass(frozen=True, slots=True)
class SiteSums:
    """What kernels get that sum tiles of partial numbers over ranks themselves (`sum_over_ranks`), where they
    need them: program i of such a launch takes part i of the buffers, of SITE_TILE numbers.

    All such launches of a rank share `buffers` and `calls`, so they must follow one another.
    """

    rank: int
    ranks: int
    buffers: Tensor
    calls: Tensor
    failed: Tensor
    room: int
    limit: int


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
        self.rank, self.ranks = rank, len(buffers)
        self.few, self.most = most, WIDE_MOST if wide else most
        """Numbers of small sums, and of any."""
        self._keep = keep
        self.wide = wide
        """Whether there is a buffer for the wide exchange."""
        self._tile, self._room = tile, _whole(most, tile)
        self._limit = min(int(timeout * 1000), 2**31 - 1)
        small, site = _small_bytes(self.ranks, most, tile), _site_bytes(self.ranks)
        self._buffers = torch.tensor(buffers, dtype=torch.int64, device=device)
        self._wide_buffers = self._buffers + (small + site)
        self._calls = torch.zeros(self._room // tile, dtype=torch.int32, device=device)
        self._wide_calls = torch.zeros(WIDE_PROGRAMS, dtype=torch.int32, device=device)
        self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        """Not zero once another rank did not come in time; what was summed since is wrong."""
        self._sites = SiteSums(
            rank,
            self.ranks,
            self._buffers + small,
            torch.zeros(SITE_PROGRAMS, dtype=torch.int32, device=device),
            self.failed,
            SITE_PROGRAMS * SITE_TILE,
            self._limit,
        )

    def sum_in_rank_order(self, partial: Tensor) -> Tensor:
        """The ranks' contiguous float32 numbers added one after another, rank 0 first; a new tensor."""
        from intarsia.kernels.exchange import triton_exchange

        out = torch.empty_like(partial)
        count = partial.numel()
        if count > self.few:
            self._wide(partial, out, 0, count, count, add=True)
            return out
        with on_device_of(partial):
            triton_exchange.exchange[(-(-count // self._tile),)](
                partial, out, self._buffers, self._calls, self.failed, count, self._room, self._limit,
                RANK=self.rank, RANKS=self.ranks, TILE=self._tile, PACK=_pack(self._tile), ADD=True,
                num_warps=WARPS, **_overlap(),
            )  # fmt: skip
        return out

    def at_site(self, programs: int, tile: int) -> SiteSums | None:
        """What so many programs sum their tiles of numbers with; None where there are too many of either."""
        return self._sites if programs <= SITE_PROGRAMS and tile <= SITE_TILE else None

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
        return own.is_cuda and own.nbytes % NUMBER == 0 and 0 < own.nbytes <= self.few * NUMBER

    def gather(self, own: Tensor) -> Tensor:
        """All ranks' tensors of one shape and dtype [RANKS, ..], rank 0 first: a copy of every bit."""
        from intarsia.kernels.exchange import triton_exchange

        out = torch.empty((self.ranks, *own.shape), dtype=own.dtype, device=own.device)
        count = own.nbytes // NUMBER
        with on_device_of(own):
            triton_exchange.exchange[(-(-count // self._tile),)](
                own.contiguous().view(-1).view(torch.int32), out.view(-1).view(torch.int32), self._buffers,
                self._calls, self.failed, count, self._room, self._limit, RANK=self.rank, RANKS=self.ranks,
                TILE=self._tile, PACK=_pack(self._tile), ADD=False, num_warps=WARPS, **_overlap(),
            )  # fmt: skip
        return out


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.float32)


def _overlap() -> dict[str, bool]:
    """The kernel may begin while the one before it ends; it waits before it reads."""
    return {"OVERLAP": True, "launch_pdl": True} if not interpreting() else {"OVERLAP": False}


def _pack(tile: int) -> int:
    """Numbers of a thread, of which it waits for eight at a time."""
    return min(tile // (32 * WARPS), 8)


def _small_bytes(ranks: int, most: int, tile: int) -> int:
    return HALVES * ranks * _whole(most, tile) * WORD


def _site_bytes(ranks: int) -> int:
    return HALVES * ranks * SITE_PROGRAMS * SITE_TILE * WORD


def _wide_bytes(ranks: int) -> int:
    return ranks * WIDE_PROGRAMS * (SLOTS * CHUNK * NUMBER + FLAG)


def _whole(count: int, tile: int) -> int:
    return -(-count // tile) * tile
