"""What a request changes about logits before a token is drawn: penalties, bias, and a grammar's mask."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.engine.requests import Request


class Adjustment:
    """The corrections of one request. It counts the reply's tokens as they come."""

    def __init__(self, request: Request, vocab_size: int, device: torch.device) -> None:
        self.penalties = request.penalties
        self._counts = torch.zeros(vocab_size, dtype=torch.float32, device=device)
        self._prompt = torch.zeros(vocab_size, dtype=torch.bool, device=device)
        if self.penalties.repetition != 1:
            self._prompt[torch.tensor(request.tokens, device=device)] = True
        ids = torch.tensor(sorted(request.logit_bias), dtype=torch.int64, device=device)
        bias = torch.tensor([request.logit_bias[int(token)] for token in ids.tolist()], device=device)
        self._bias = (ids, bias) if len(ids) else None

    def push(self, token: int) -> None:
        """Count the next token of the reply."""
        self._counts[token] += 1

    def apply(self, logits: Tensor, drafts: Sequence[int]) -> Tensor:
        """Corrected logits of rows [drafts + 1, V], row j standing after the first j drafts; a new tensor.

        repetition, then presence and frequency, then bias. Every row is what it would be without drafts.
        """
        out = logits.clone()
        counts = self._counts.clone() if drafts else self._counts
        for row in range(len(out)):
            if row:
                counts[drafts[row - 1]] += 1
            self._penalize(out[row], counts)
            if self._bias is not None:
                out[row, self._bias[0]] += self._bias[1]
        return out

    def _penalize(self, row: Tensor, counts: Tensor) -> None:
        penalties = self.penalties
        if not penalties.any:
            return
        written = counts > 0
        if penalties.repetition != 1:
            seen = written | self._prompt
            scaled = torch.where(row > 0, row / penalties.repetition, row * penalties.repetition)
            row.copy_(torch.where(seen, scaled, row))
        row -= counts * penalties.frequency
        row -= written * penalties.presence


def needs_adjustment(request: Request) -> bool:
    """True when some logit of the request's rows may change, its grammar aside."""
    return request.penalties.any or bool(request.logit_bias)


def masked(logits: Tensor, masks: Tensor) -> Tensor:
    """`logits` [R, V] with minus infinity where `masks` int32 [R, ceil(V / 32)] has no bit; a new tensor."""
    bits = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = ((masks.to(logits.device).unsqueeze(-1) >> bits) & 1).bool().flatten(1)[:, : logits.shape[1]]
    return logits.masked_fill(~allowed, -torch.inf)
