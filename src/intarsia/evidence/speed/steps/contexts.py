"""Streams that stand in the middle of a text nobody wrote: caches full of random rows."""

import torch

from intarsia.engine.pages import PagePool
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import DEFAULT_PAGE, State, StateSettings

MEMORY_STD = 0.1
"""Of the delta rule's state, about what texts leave there."""


def random_context(
    model: Glm5NextModel, *, streams: int, context: int, room: int, step_rows: int, seed: int = 0
) -> State:
    """A state whose streams each hold `context` tokens' worth of random cache rows, and pages for `room`
    more.

    What a step costs does not depend on the numbers, except that routing and selection should spread.
    """
    pages = -(-(context + room) // DEFAULT_PAGE)
    settings = StateSettings(streams, pages * DEFAULT_PAGE, streams * pages, DEFAULT_PAGE, step_rows)
    state = model.new_state(settings)
    pool = PagePool(state.tables.pages, settings.pages, DEFAULT_PAGE)
    for stream in range(streams):
        pool.ensure(stream, context + room)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    for cache in (*state.paged, state.tail, state.window):
        for layer in cache:
            layer.copy_(torch.randn(layer.shape, generator=generator, device=model.device))
    for layer in state.memory:
        layer.normal_(std=MEMORY_STD, generator=generator)
    state.tables.publish()
    return state
