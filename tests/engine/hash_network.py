"""A network whose logits are a hash of everything a stream must remember, kept in the real caches.

One token wrongly kept, a stale page, a ring or copy that was not restored changes all logits that follow.
Prompt rows and recurrent rows hash differently, as they round differently in the real network, and a prompt
piece that begins off the grid is refused. The MTP layer knows the next row exactly, except at every fourth
hash, where its guess is wrong; if its own cache is not complete it notices (`blind`).
"""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.groups.group import SingleRank
from intarsia.models.glm5_next.state import State
from tests.models.oracle import tiny_config

VOCAB = 61
MASK = (1 << 24) - 1
WEIGHTS = np.random.Generator(np.random.PCG64(7)).integers(1, 1 << 20, 1 << 14) | 1
WEIGHT_LIST = WEIGHTS.tolist()
PROMPT_FORM, RECURRENT_FORM = 0, 1
# Columns of a hidden row.
STATE, PAGES, RECENT, MTP_SUM, TOKENS = 0, 1, 2, 3, slice(4, 8)
CONV, GROUP = 4, 4


def mix(value: int, token: int, form: int) -> int:
    """The delta-rule state after one more token."""
    return (value * 1103515245 + (token + 1) * 40503 + 12345 * (form + 1)) & MASK


def weighted(tokens: np.ndarray, first: int = 0) -> int:
    """The sum that stands for tokens at positions from `first` on."""
    return int(((tokens.astype(np.int64) + 1) * WEIGHTS[first : first + len(tokens)]).sum()) & MASK


def recent(last: list[int]) -> int:
    """What the convolution sees: the last four tokens."""
    value = 0
    for token in last[-CONV:]:
        value = (value * 4093 + token + 1) & MASK
    return value


@cache
def hash_logits(state: int, pages: int, convolution: int) -> Tensor:
    """Normally distributed logits [VOCAB]."""
    random = np.random.Generator(np.random.PCG64([state, pages, convolution]))
    return torch.from_numpy(random.standard_normal(VOCAB) * 3).float()


def _logits(state: float, pages: float, convolution: float) -> Tensor:
    if state != state:
        return torch.full((VOCAB,), torch.nan)
    return hash_logits(int(state), int(pages), int(convolution))


@cache
def _state_after(prompt: tuple[int, ...], reply: tuple[int, ...]) -> int:
    if not prompt:
        return 0
    if not reply:
        value = 0
        for token in prompt:
            value = mix(value, token, PROMPT_FORM)
        return value
    return mix(_state_after(prompt, reply[:-1]), reply[-1], RECURRENT_FORM)


def logits_after(prompt: tuple[int, ...], reply: tuple[int, ...]) -> Tensor:
    """The logits after a prompt and a reply, from their tokens alone."""
    tokens = prompt + reply
    return hash_logits(_state_after(prompt, reply), weighted(np.array(tokens)), recent(list(tokens[-CONV:])))


class HashNetwork:
    """Takes the place of Glm5NextModel in an engine."""

    def __init__(self, *, mtp: bool = True, window: int = 4096) -> None:
        config = Glm5NextConfig.from_checkpoint_config(tiny_config(vocab_size=128))
        self.config = replace(config, vocab_size=VOCAB, max_position_embeddings=window)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.latents = "auto"
        self.group = SingleRank()
        self.weights = SimpleNamespace(mtp=object() if mtp else None)
        self.blind = 0
        self.steps: list[list[tuple[int, int, int, bool]]] = []
        self.fail_on: int | None = None
        """A token whose row makes the step fail."""
        self.poison: int | None = None
        """A token whose row has no finite logit."""

    def new_state(self, settings) -> State:
        return State(self.config, settings, dtype=self.dtype, device=self.device)

    def check_tokens(self, tokens) -> None:
        assert all(0 <= token < VOCAB for token in tokens)

    def hidden(self, rows, state: State) -> Tensor:
        out = torch.zeros(len(rows.tokens), self.config.hidden_size)
        segments = rows.segments()
        self.steps.append([(s.stream, s.position, s.count, s.recurrent) for s in segments])
        for segment in segments:
            tokens = rows.tokens[segment.rows].tolist()
            if self.fail_on in tokens:
                raise RuntimeError(f"the device cannot bear token {self.fail_on}")
            assert segment.recurrent or segment.position % 64 == 0, "a prompt piece off the grid"
            self._run(segment, tokens, rows.page_table, state, out[segment.rows])
        return out

    def head(self, hidden: Tensor, rows: int | None = None) -> Tensor:
        assert len(hidden) % 16 == 0
        return torch.stack([_logits(*row) for row in hidden[:rows, :3].tolist()])

    head_shard = head  # one rank has the whole vocabulary

    def mtp_hidden(self, rows, hidden: Tensor, state: State, selected: Tensor | None = None):
        assert hidden.shape[0] == len(rows.tokens)
        out = torch.zeros_like(hidden)
        index = len(self.config.mla_layers)
        for segment in rows.segments():
            cache = self._pages(state.latents[index], rows.page_table, segment)
            ring = state.tail[index, segment.stream, :, 0].numpy()
            for row in range(segment.count):
                position = segment.position + row
                token = int(rows.tokens[segment.first + row])
                before = hidden[segment.first + row, : TOKENS.stop].tolist()
                known = cache.read(position)
                complete = weighted(known - 1) == int(before[MTP_SUM])
                if selected is None:
                    group = np.arange(position - position % GROUP, position)
                    complete &= bool((ring[group % len(ring)] == known[group]).all())
                    ring[position % len(ring)] = token + 1
                cache.write(position, np.array([token + 1]))
                self.blind += not complete
                out[segment.first + row, : TOKENS.stop] = self._next(before, token, position)
        chosen = torch.full((len(rows.tokens), 4), -1, dtype=torch.int32)
        return out, chosen

    def _run(self, segment, tokens: list[int], table: Tensor, state: State, out: Tensor) -> None:
        cache = self._pages(state.latents[0], table, segment)
        ring = state.window[0, segment.stream, :, 0].numpy()
        memory = state.memory[0, segment.stream, :, 0, 0, 0]
        value = int(memory[int(state.current[segment.stream])])
        form = RECURRENT_FORM if segment.recurrent else PROMPT_FORM
        reach = [p for p in range(segment.position - CONV + 1, segment.position) if p >= 0]
        last = [int(ring[p % len(ring)]) - 1 for p in reach]
        known = cache.read(segment.position) - 1
        pages, shifted = weighted(known), weighted(known[1:])
        for row, token in enumerate(tokens):
            position = segment.position + row
            value = mix(value, token, form)
            if segment.recurrent:
                memory[row] = value
            last.append(token)
            pages = (pages + (token + 1) * WEIGHT_LIST[position]) & MASK
            if position:
                shifted = (shifted + (token + 1) * WEIGHT_LIST[position - 1]) & MASK
            columns = [value, pages, recent(last), shifted, *([-1] * CONV + last)[-CONV:]]
            out[row, : len(columns)] = torch.tensor(columns) if token != self.poison else torch.nan
        cache.write(segment.position, np.array(tokens) + 1)
        if not segment.recurrent:
            memory[0] = value
        for p in range(max(0, segment.position + len(tokens) - len(ring)), segment.position + len(tokens)):
            if p >= segment.position:
                ring[p % len(ring)] = tokens[p - segment.position] + 1

    def _next(self, before: list[float], token: int, position: int) -> Tensor:
        """The hidden row after `token`, as the main network will make it; wrong at every fourth hash."""
        last = [int(x) for x in before[TOKENS] if x >= 0] + [token]
        state = mix(int(before[STATE]), token, RECURRENT_FORM)
        pages = (int(before[PAGES]) + (token + 1) * WEIGHT_LIST[position + 1]) & MASK
        shifted = (int(before[MTP_SUM]) + (token + 1) * WEIGHT_LIST[position]) & MASK
        wrong = state % 4 == 0
        return torch.tensor([state, pages, recent(last) + wrong, shifted, *([-1] * CONV + last)[-CONV:]])

    @staticmethod
    def _pages(latents: Tensor, table: Tensor, segment) -> "_Pages":
        return _Pages(latents.view(-1, latents.shape[-1])[:, 0].numpy(), table[segment.stream], latents.shape)


class _Pages:
    """One stream's column of a paged cache."""

    def __init__(self, flat: np.ndarray, table: Tensor, shape) -> None:
        self._flat, self._page, self._null = flat, shape[1], shape[0] - 1
        self._table = table.numpy()

    def read(self, count: int) -> np.ndarray:
        return self._flat[self._places(np.arange(count))]

    def write(self, position: int, values: np.ndarray) -> None:
        places = self._places(np.arange(position, position + len(values)))
        assert (places // self._page != self._null).all(), f"position {position} has no page"
        self._flat[places] = values

    def _places(self, positions: np.ndarray) -> np.ndarray:
        return self._table[positions // self._page].astype(np.int64) * self._page + positions % self._page
