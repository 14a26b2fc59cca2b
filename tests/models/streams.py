"""Streams of a network driven by explicit steps, with page tables and caches that a test can shape."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.rows import Piece, rows_of
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State, StateSettings


@dataclass(frozen=True)
class Part:
    """Tokens of one stream in a step; of a recurrent part only the first `keep` rows are committed."""

    tokens: Sequence[int]
    stream: int = 0
    recurrent: bool = False
    keep: int | None = None


class Streams:
    """A state with all pages mapped, by default so that the pages of different streams alternate."""

    def __init__(
        self,
        model: Glm5NextModel,
        *,
        streams: int = 1,
        window: int = 256,
        page: int = 32,
        step_rows: int = 1,
        order: Sequence[int] | None = None,
    ) -> None:
        self.model = model
        pages = -(-window // page) * streams
        settings = StateSettings(streams=streams, window=window, pages=pages, page=page, step_rows=step_rows)
        self.state: State = model.new_state(settings)
        physical = torch.tensor(range(pages) if order is None else order, dtype=torch.int32)
        self.state.page_table.copy_(physical.view(-1, streams).T)
        self.lengths = [0] * streams

    def poison(self) -> None:
        """Everything that a new stream must not depend on becomes NaN; the null page stays zero."""
        for cache in (self.state.latents, self.state.pooled):
            cache[:, : self.state.null_page] = torch.nan
        for fixed in (self.state.tail, self.state.memory, self.state.window):
            fixed.fill_(torch.nan)
        for stream in range(len(self.lengths)):
            self.state.reset(stream)

    def hidden(self, *parts: Part) -> list[Tensor]:
        """Run one step; the final-normed hidden rows of each part."""
        pieces = [
            Piece(part.stream, self.lengths[part.stream], part.tokens, part.recurrent) for part in parts
        ]
        hidden = self.model.hidden(rows_of(pieces, self.state.page_table), self.state)
        results: list[Tensor | None] = [None] * len(parts)
        first = 0
        for index in sorted(range(len(parts)), key=lambda i: not parts[i].recurrent):
            part = parts[index]
            count = len(part.tokens)
            results[index] = hidden[first : first + count]
            first += count
            kept = count if part.keep is None else part.keep
            self.state.commit(part.stream, kept if part.recurrent else 1)
            self.lengths[part.stream] += kept
        return [rows for rows in results if rows is not None]

    def step(self, *parts: Part) -> list[Tensor]:
        """Run one step; the logits of each part."""
        return [self.model.head(_padded(rows))[: rows.shape[0]] for rows in self.hidden(*parts)]

    def run(
        self, tokens: Sequence[int], counts: Sequence[int], *, stream: int = 0, recurrent: bool = False
    ) -> Tensor:
        """Logits of `tokens` run in steps of `counts` rows, repeated until all are run."""
        parts, begin, step = [], 0, 0
        while begin < len(tokens):
            count = counts[step % len(counts)]
            parts += self.step(Part(tokens[begin : begin + count], stream, recurrent))
            begin, step = begin + count, step + 1
        return torch.cat(parts)


def _padded(rows: Tensor) -> Tensor:
    missing = -rows.shape[0] % 16
    return torch.cat([rows, rows.new_zeros(missing, rows.shape[1])])
