"""The bits of a row depend on its own sequence alone: not on its neighbours, on pages, or on how it is run.

Every comparison here is of bits. Caches start poisoned, so that a read of anything unwritten shows.
"""

import random
from itertools import pairwise

import pytest
import torch

from intarsia.kernels.kda.chunk import CHUNK
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.models.cases import POOLS_OF_2, POOLS_OF_8, random_network
from tests.models.oracle import random_tokens, tiny_config
from tests.models.streams import Part, Streams

LENGTH, DECODED = 150, 98  # tokens of a prompt; tokens up to which the recurrent form goes on from 70
NETWORKS = {
    "pools_of_4": (tiny_config("kmkm", dense=1), torch.float32),
    "pools_of_2": (POOLS_OF_2, torch.float32),
    "pools_of_8": (POOLS_OF_8, torch.float32),
    "bfloat16": (POOLS_OF_8, torch.bfloat16),
}


@pytest.fixture(scope="module", params=NETWORKS)
def model(request) -> Glm5NextModel:
    config, dtype = NETWORKS[request.param]
    return random_network(config, seed=7, dtype=dtype)


@pytest.fixture(scope="module")
def tokens(model):
    return random_tokens(model.config, 3, LENGTH, seed=7)


@pytest.fixture(scope="module")
def prompt(model, tokens):
    """Logits of stream 0 run as one prompt."""
    return poisoned(model).step(Part(tokens[0]))[0]


@pytest.fixture(scope="module")
def recurrent(model, tokens):
    """Logits of stream 0: 70 tokens of prompt, then one row a step."""
    streams = poisoned(model)
    first = streams.step(Part(tokens[0][:70]))[0]
    return torch.cat([first, streams.run(tokens[0][70:DECODED], (1,), recurrent=True)])


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def poisoned(model, **options) -> Streams:
    streams = Streams(model, **options)
    streams.poison()
    return streams


def continued(model, tokens, **options) -> Streams:
    """Stream 0 after a prompt of 70 tokens."""
    streams = poisoned(model, **{"step_rows": 2, **options})
    streams.step(Part(tokens[0][:70]))
    return streams


def test_a_prefix_of_a_prompt_is_the_prompt(model, tokens, prompt):
    for count in (1, 2, 7, 8, 15, 16, 17, 33, 63, 64, 65, 128, 149):
        assert torch.equal(poisoned(model).step(Part(tokens[0][:count]))[0], prompt[:count]), count


@pytest.mark.parametrize("cuts", [(64,), (128,), (64, 128)])
def test_a_prompt_resumed_on_the_grid_is_the_prompt(model, tokens, prompt, cuts):
    streams = poisoned(model)
    bounds = (0, *cuts, LENGTH)
    parts = [streams.step(Part(tokens[0][begin:end]))[0] for begin, end in pairwise(bounds)]
    assert torch.equal(torch.cat(parts), prompt)


def test_state_kept_on_the_grid_resumes_in_another_stream(model, tokens, prompt):
    """What a cache of prefixes does: copy fixed state and pages at token 64, and go on from there."""
    assert CHUNK == 64
    source, target = poisoned(model), poisoned(model, streams=2, page=32)
    source.step(Part(tokens[0][:64]))
    target.step(Part(tokens[1][:90], 0))  # something else has used the other stream before
    for name in ("memory", "window", "tail"):
        getattr(target.state, name)[:, 1] = getattr(source.state, name)[:, 0]
    for logical in range(2):
        there, here = (int(s.state.page_table[i, logical]) for i, s in ((1, target), (0, source)))
        target.state.latents[:, there] = source.state.latents[:, here]
        target.state.pooled[:, there] = source.state.pooled[:, here]
    target.lengths[1] = 64
    assert torch.equal(target.step(Part(tokens[0][64:], 1))[0], prompt[64:])


@pytest.mark.parametrize("place", [0, 1, 2])
def test_other_streams_do_not_matter_to_a_prompt(model, tokens, prompt, place):
    """As the first, the middle and the last of three prompts, of which the others have odd lengths."""
    order = [1, 2]
    order.insert(place, 0)
    streams = poisoned(model, streams=3)
    lengths = {0: LENGTH, 1: 77, 2: 5}
    got = streams.step(*[Part(tokens[s][: lengths[s]], s) for s in order])
    assert torch.equal(got[place], prompt)


def test_the_number_of_rows_in_a_step_does_not_matter(model, tokens, recurrent):
    """One recurrent row of stream 0 among 0 to 19 rows of others, before or after it, in either form."""
    streams = continued(model, tokens, streams=3, step_rows=3)
    streams.step(Part(tokens[1][:33], 1))
    for others in range(17):
        begin, first, second = streams.lengths
        own = Part(tokens[0][begin : begin + 1], 0, recurrent=True)
        parts = [own]
        if others:
            parts.insert(others % 2, Part(tokens[2][second : second + others], 2))
        if others % 3 == 2:
            parts.insert(others // 3 % 2, Part(tokens[1][first : first + 3], 1, recurrent=True))
        got = streams.step(*parts)[parts.index(own)]
        assert torch.equal(got[0], recurrent[begin]), others


@pytest.mark.parametrize("width", range(1, 9))
def test_recurrent_rows_are_the_same_in_steps_of_any_width(model, tokens, recurrent, width):
    got = continued(model, tokens, step_rows=8).run(tokens[0][70:DECODED], (width,), recurrent=True)
    assert torch.equal(got, recurrent[70:])


@pytest.mark.parametrize("page", [8, 32])
@pytest.mark.parametrize("seed", range(2))
def test_rows_that_are_taken_back_leave_nothing_behind(model, tokens, recurrent, page, seed):
    """Windows of any width with wrong rows after the right ones, over pool and page borders."""
    choose = random.Random(seed)
    streams = continued(model, tokens, step_rows=8, page=page)
    got, completed = [], 0
    group = model.config.index_kpool
    while streams.lengths[0] < DECODED:
        begin = streams.lengths[0]
        width = choose.randint(1, 8)
        kept = min(choose.randint(1, width), DECODED - begin)
        wrong = [choose.randrange(100) for _ in range(width - kept)]
        completed += (begin + width) // group > (begin + kept) // group
        right = tokens[0][begin : begin + kept]
        got.append(streams.step(Part(right + wrong, 0, recurrent=True, keep=kept))[0][:kept])
    assert completed  # pools were completed by rows that were then taken back
    assert torch.equal(torch.cat(got), recurrent[70:])


def test_a_prompt_goes_on_from_rows_that_were_verified(model, tokens):
    """The form of earlier rows matters to later bits, wrong rows between them do not."""
    results = []
    for wrong in ([], [3, 1, 4, 1, 5]):
        streams = continued(model, tokens, step_rows=8)
        streams.step(Part(tokens[0][70:73] + wrong, 0, recurrent=True, keep=3))
        results.append(streams.step(Part(tokens[0][73:]))[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("seed", range(3))
def test_physical_pages_may_lie_in_any_order(model, tokens, prompt, recurrent, seed):
    order = random.Random(seed).sample(range(24), 24)
    streams = poisoned(model, streams=3, order=order)
    assert torch.equal(streams.step(Part(tokens[0], 1), Part(tokens[1], 0))[0], prompt)
    streams = continued(model, tokens, streams=3, order=order)
    assert torch.equal(streams.run(tokens[0][70:80], (2,), recurrent=True), recurrent[70:80])


@pytest.mark.parametrize("page", [8, 16, 64, 256])
def test_the_size_of_pages_does_not_matter(model, tokens, prompt, recurrent, page):
    assert torch.equal(poisoned(model, page=page).step(Part(tokens[0]))[0], prompt)
    got = continued(model, tokens, page=page).run(tokens[0][70:80], (2,), recurrent=True)
    assert torch.equal(got, recurrent[70:80])


@pytest.mark.parametrize("window", [160, 512, 4096])
def test_the_size_of_the_window_does_not_matter(model, tokens, prompt, recurrent, window):
    assert torch.equal(poisoned(model, window=window).step(Part(tokens[0]))[0], prompt)
    got = continued(model, tokens, window=window).run(tokens[0][70:80], (2,), recurrent=True)
    assert torch.equal(got, recurrent[70:80])


@pytest.mark.parametrize("threads", [2, 3], indirect=True)
def test_with_more_threads_rows_still_depend_on_themselves_alone(threads):
    """Two threads give the bits of one. From three on the library splits some sums, for all rows alike."""
    model = random_network(POOLS_OF_2, seed=7)
    tokens = random_tokens(model.config, 2, 40, seed=7)
    whole = poisoned(model).step(Part(tokens[0]))[0]
    assert torch.equal(poisoned(model).step(Part(tokens[0][:9]))[0], whole[:9])
    assert torch.equal(poisoned(model, streams=2).step(Part(tokens[1], 1), Part(tokens[0]))[1], whole)
    if threads == 2:
        torch.set_num_threads(1)
        assert torch.equal(poisoned(model).step(Part(tokens[0]))[0], whole)


def test_logits_of_a_sequence_are_those_of_its_prompt(model, tokens, prompt):
    assert torch.equal(model.logits(tokens[0]), prompt)
    assert torch.equal(model.logits(torch.tensor(tokens[0])), prompt)


def test_a_long_prompt_is_run_in_pieces_of_the_grid(model, tokens, prompt, monkeypatch):
    monkeypatch.setattr("intarsia.models.glm5_next.model.PROMPT_ROWS", 64)
    assert torch.equal(model.logits(tokens[0]), prompt)


def test_fresh_memory_need_not_be_clean(model, tokens, prompt, monkeypatch):
    """`torch.empty` may hold anything; here it holds NaN."""
    empty, like = torch.empty, torch.empty_like
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _spoil(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: _spoil(like(*a, **k)))
    monkeypatch.setattr(torch.Tensor, "new_empty", _spoiled_method(torch.Tensor.new_empty))
    assert torch.empty(3).isnan().all()
    assert torch.equal(model.logits(tokens[0]), prompt)


def _spoil(tensor):
    return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor.fill_(99)


def _spoiled_method(method):
    return lambda *a, **k: _spoil(method(*a, **k))


def test_padding_rows_and_unmapped_pages_receive_nothing(model, tokens):
    """Three rows of one stream: they, their tails and nothing else are written; the null page stays zero."""
    streams = Streams(model, streams=2, page=32)
    state = streams.state
    state.page_table[:, 2:] = state.null_page
    state.page_table[1] = state.null_page
    streams.poison()
    streams.step(Part(tokens[0][:35]))
    assert (state.latents[:, state.null_page] == 0).all()
    assert (state.pooled[:, state.null_page] == 0).all()
    main = len(model.config.mla_layers)  # the MTP layer comes after them and has not run
    pages = state.page_table[0, :2].long()
    for cache, count in ((state.latents, 35), (state.pooled, 35 // model.config.index_kpool)):
        own = cache[:main, pages].flatten(1, 2)
        assert own[:, :count].isfinite().all()
        assert own[:, count:].isnan().all()
        others = [page for page in range(state.null_page) if page not in pages]
        assert cache[:, others].isnan().all()
        assert cache[main:, : state.null_page].isnan().all()
    for fixed in (state.tail[:main], state.window):
        assert fixed[:, 0].isfinite().any()
        assert fixed[:, 1].isnan().all()
    assert (state.memory[:, 1, 0] == 0).all()


def test_a_stream_begun_again_forgets_what_it_held(model, tokens, prompt):
    streams = poisoned(model, step_rows=4)
    streams.step(Part(tokens[1][:90]))
    streams.step(Part(tokens[1][90:94], 0, recurrent=True, keep=3))
    streams.state.reset(0)
    streams.lengths[0] = 0
    assert torch.equal(streams.step(Part(tokens[0]))[0], prompt)


def test_the_two_forms_do_differ(model, recurrent, prompt):
    """Otherwise the tests above would not show that each form is kept to."""
    assert torch.equal(recurrent[:70], prompt[:70])
    if model.dtype == torch.float32:  # rounding to bfloat16 can hide it
        assert not torch.equal(recurrent[70:], prompt[70:DECODED])
