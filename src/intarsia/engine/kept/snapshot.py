"""The fixed part of a stream's state, copied out and back in."""

from dataclasses import dataclass

from torch import Tensor

from intarsia.models.glm5_next.state import State


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a stream holds besides pages, after the prompt row before some position.

    memory [kda layers, H, K, V] float32 · window [kda layers, ring, channels] · tail [mla layers, ring, 2
    D] · hidden [D], the final-normed row that the MTP layer sees again once the token after it is known;
    None without MTP drafts.
    """

    memory: Tensor
    window: Tensor
    tail: Tensor
    hidden: Tensor | None

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        hidden = 0 if self.hidden is None else self.hidden.nbytes
        return self.memory.nbytes + self.window.nbytes + self.tail.nbytes + hidden


def take(state: State, stream: int, hidden: Tensor | None) -> Snapshot:
    """Copy a stream's fixed state."""
    current = int(state.tables.copies[stream])
    return Snapshot(
        memory=state.memory[:, stream, current].clone(),
        window=state.window[:, stream].clone(),
        tail=state.tail[:, stream].clone(),
        hidden=None if hidden is None else hidden.clone(),
    )


def restore(state: State, stream: int, snapshot: Snapshot) -> None:
    """Make a stream's fixed state that of the snapshot."""
    state.memory[:, stream, 0] = snapshot.memory
    state.window[:, stream] = snapshot.window
    state.tail[:, stream] = snapshot.tail
    state.tables.copies[stream] = 0


def copy_page(state: State, source: int, target: int) -> None:
    """Copy a page of every paged cache."""
    for cache in state.paged:
        cache[:, target] = cache[:, source]
