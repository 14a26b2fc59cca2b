"""Exchanges between ranks that reach only their neighbours."""

import time

import torch
from torch import Tensor

from intarsia.groups.errors import LineError
from intarsia.groups.exchanging import Parts, RankGroup
from intarsia.groups.ring.frames import Kind
from intarsia.groups.ring.store import RingStore
from intarsia.groups.status import Status


class RingGroup(RankGroup):
    """One rank of a ring or a line.

    Every rank's numbers reach all ranks and are added in rank order there, so sums have the bits of any other
    group. Numbers of a GPU travel by way of the host.
    """

    def __init__(self, store: RingStore, device: torch.device, status: Status) -> None:
        super().__init__(store.lines.route.rank, store.lines.route.ranks, device, store, status)
        self._lines = store.lines
        self._number = 0
        self._lines.when_lost(self._hear)

    def _hear(self) -> None:
        self.fail(self._lines.described_failure())

    def _start(self, own: Tensor) -> Parts:
        self._number += 1
        number = self._number
        here = own.detach().cpu()
        data = memoryview(here.reshape(-1).view(torch.uint8).numpy().data)
        self._lines.say(Kind.PIECE, data, number)

        def finish() -> list[Tensor]:
            pieces = self._collect(number, len(data))
            parts = [here if rank == self.rank else _tensor(pieces[rank], here) for rank in range(self.ranks)]
            return [part.to(own.device) for part in parts]

        return finish

    def _collect(self, number: int, length: int) -> dict[int, bytearray]:
        """The other ranks' bytes of an exchange."""
        lines = self._lines
        missing = set(range(self.ranks)) - {self.rank}
        arrived: dict[int, bytearray] = {}

        def come() -> bool:
            arrived.update(lines.pieces.get(number, {}))
            missing.difference_update(arrived)
            return not missing or bool(missing & lines.ended)

        deadline, known, waited = time.monotonic() + lines.timeout, None, False
        while not lines.wait(come, max(0.0, deadline - time.monotonic())):
            suspect = lines.route.nearest(missing)
            reading = lines.reading(suspect)
            if reading == known and (reading is not None or waited):
                raise lines.lose(suspect, f"nothing of it in exchange {number} for {lines.timeout:g} s")
            # it has shown life since: it is slow. Or it has said nothing yet, and looks for its neighbour.
            deadline, known, waited = time.monotonic() + lines.timeout, reading, True
        if missing:
            raise lines.lose(min(missing & lines.ended), f"it has ended before exchange {number}")
        with lines.arrived:
            lines.pieces.pop(number, None)
        for rank, data in arrived.items():
            if len(data) != length:
                text = f"{len(data)} bytes in exchange {number}, where rank {self.rank} has {length}"
                raise LineError(text, rank, lines.states())
        return arrived


def _tensor(data: bytearray, like: Tensor) -> Tensor:
    if not data:
        return torch.empty_like(like)
    return torch.frombuffer(data, dtype=like.dtype).view(like.shape)
